"""Look up the addresses of hosts, in threads that nothing else of the process needs.

The system's resolver holds a thread for as long as the name server of a host takes to answer. Who
chooses a host also chooses its name server, which may never answer. So a host occupies one thread,
however many requests to it wait, and never one of those in which the server does other work.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor

THREADS = 32

TRY = 3.0
"""Seconds for connecting to one address of a host that has others."""

Lookup = Callable[[str], Awaitable[list[str]]]
"""Returns the addresses of a host."""


class _Resolver:
    """Looks up hosts in its own threads, each host once at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "bide-lookup")
        self._running: dict[str, Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[str]:
        running = self._running.get(host)
        if running is None:
            running = self._running[host] = self._threads.submit(_addresses, host)
            running.add_done_callback(lambda _: self._running.pop(host, None))
        # Others wait for it as well: one of them that gives up does not end it.
        return await asyncio.shield(asyncio.wrap_future(running))


def _addresses(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


_resolver = _Resolver()


async def lookup(host: str) -> list[str]:
    """Return the addresses of a host, in the order in which the system prefers them.

    Raises:
        OSError: it is not known.
    """
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        return await _resolver.addresses(host)
