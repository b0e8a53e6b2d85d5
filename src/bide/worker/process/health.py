"""Report the health of the worker: by a file, by an HTTP port, and to systemd."""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from bide.logs import logger
from bide.observing.listening import unlistenable

LIVE = b"/live"
"""The path for probes of liveness; every other one is for readiness."""

_log = logger("bide.worker")


def update_health_file(path: Path, trouble: str | None) -> None:
    """Touch a file, or remove it if something is wrong. A probe may also check its age."""
    try:
        if trouble is None:
            path.touch()
        else:
            path.unlink(missing_ok=True)
    except OSError as error:  # a probe sees that the file grows old; work continues
        _log.error("the health file cannot be written: %s", error)


async def serve_health(
    host: str,
    port: int,
    trouble: Callable[[], str | None],
    hang: Callable[[], str | None],
    notices: Callable[[], list[str]],
) -> asyncio.Server:
    """Answer every HTTP request on a port: 200 while the worker is well, else 503 and why.

    Args:
        host: the address.
        port: 0 for any free one.
        trouble: returns what is wrong; `None` if all is well.
        hang: returns what hangs, for requests of `LIVE`; `None` if nothing does.
        notices: returns lines to show beside that; they do not change the status.

    Raises:
        InvalidArgument: the port is taken or not allowed.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, EOFError, asyncio.LimitOverrunError):
            # Where it is suppressed, the client has gone, or sent no HTTP.
            async with asyncio.timeout(5):  # seconds for the request
                head_of_request = await reader.readuntil(b"\r\n\r\n")
            asks_for_life = head_of_request.partition(b"\r\n")[0].split(b" ")[1:2] == [LIVE]
            reason = hang() if asks_for_life else trouble()
            status = "200 OK" if reason is None else "503 Service Unavailable"
            body = "".join(f"{line}\n" for line in (reason or "ok", *notices()))
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            head += f"Content-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n"
            writer.write((head + body).encode())
            await writer.drain()

    try:
        return await asyncio.start_server(answer, host, port)
    except OSError as error:
        what = f"health_port={host}:{port} cannot be listened on"
        raise unlistenable(what, error) from error


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state such as "READY=1" to systemd, if it listens.

    A service manager that has gone away is no reason to stop working, so a datagram that does not
    arrive is no error.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # an abstract socket, whose name begins with a zero byte
        address = "\0" + address[1:]
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    with channel, suppress(OSError):
        channel.sendto(state.encode(), address)


def watchdog_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return the seconds between two "WATCHDOG=1" for systemd; `None` if it expects none."""
    text = environment.get("WATCHDOG_USEC", "")
    microseconds = int(text) if text.isdigit() else 0
    # Half of the time after which it takes the service for dead, as systemd recommends.
    return microseconds / 1_000_000 / 2 if microseconds else None
