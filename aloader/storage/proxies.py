"""Which proxy leads to a web server: the one that the environment names, and no more of the environment than that.

aiohttp's own way (`trust_env`) also sends what ~/.netrc holds for a host: beside the signature in a URL, and to servers
that one is redirected to; and it looks in a thread with each request. Here each server is looked up once.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


class Proxies:
    """What has been looked up, for as long as a store is open."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str | None] = {}

    async def towards(self, url: str) -> str | None:
        """The URL of the proxy, which may hold credentials; None if the server is reached without one."""
        parts = urlsplit(url)
        server = parts.scheme, parts.netloc
        if server not in self._known:
            # In a thread, since some systems look names up in order to tell.
            self._known[server] = await asyncio.to_thread(_proxy, *server, parts.hostname or "")
        return self._known[server]


def _proxy(scheme: str, authority: str, host: str) -> str | None:
    proxy = getproxies().get(scheme)
    if not proxy or proxy_bypass(host) or proxy_bypass(authority):  # no_proxy may name a port, too
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
