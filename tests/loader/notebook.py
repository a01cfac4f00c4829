"""A Jupyter kernel as notebooks talk to it: cells run one after the other on its one loop, and can be interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import zmq
from jupyter_client.manager import KernelManager

SECONDS = 60


class Notebook:
    """Its kernel is a process of its own; its files are below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._context: Any = zmq.Context()
        connection = str(folder / "kernel.json")
        self._manager = KernelManager(kernel_name="python3", context=self._context, connection_file=connection)

    def __enter__(self) -> Self:
        self._manager.start_kernel()
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=SECONDS)
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        self._context.term()

    def run(self, source: str, *, interrupt_at: str | None = None) -> str:
        """What the cell prints, and the name of the error that ends it. `interrupt_at`: what it prints when its stop
        button is pressed."""
        printed: list[str] = []

        def hear(message: Any) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed.append(content["text"])
                if interrupt_at is not None and interrupt_at in content["text"]:
                    self._manager.interrupt_kernel()
            elif kind == "error":
                printed.append(content["ename"])

        self._client.execute_interactive(source, output_hook=hear, timeout=SECONDS)
        return "".join(printed)
