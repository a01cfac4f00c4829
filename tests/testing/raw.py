"""A client that hides nothing: what came over the socket, and how it ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aloader.testing import FaultServer


@dataclass
class Came:
    """An answer as it came. `whole` if there is as much body as was announced; `reset` if the connection was."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False
    reset: bool = False
    seconds: float = 0.0


async def ask(server: FaultServer, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Came:
    """One request on a connection of its own; "_" in a header's name is "-"."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.endpoint_url.rpartition(":")[2]))
    try:
        lines = [f"{method} {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return await send(reader, writer, "\r\n".join(lines).encode() + b"\r\n\r\n" + body, method)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, method: str = "GET") -> Came:
    came = Came()
    began = asyncio.get_running_loop().time()
    try:
        writer.write(request)
        line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        came.status = int(line.split(" ")[1])
        came.headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in fields if each)}
        length = 0 if method == "HEAD" else int(came.headers["content-length"])
        while len(came.body) < length and (more := await reader.read(length - len(came.body))):
            came.body += more
        came.whole = len(came.body) == length
    except asyncio.IncompleteReadError:
        pass
    except ConnectionError:
        came.reset = True
    came.seconds = asyncio.get_running_loop().time() - began
    return came
