"""A process of the server: started by the supervisor, it answers until it is told to stop."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable

import msgspec

from bide.model.errors import BideError, InvalidArgument
from bide.observing.logs import configure
from bide.server.app import App, Pages
from bide.server.http_server import HttpServer
from bide.server.service import Service
from bide.server.settings import Settings
from bide.server.shared_state import SharedState
from bide.worker.process.child import BEAT, loop_factory
from bide.worker.process.processes import FAILED, WRONG_USAGE, Pipe, Report

SETTINGS = "BIDE_SERVE_SETTINGS"
"""The environment's variable in which a process finds what it is told: other users of the machine
can see its arguments, and the store's URL may have a password in it."""

ALLOCATIONS = 50_000
"""After how many new objects is looked for those that hold each other, and nobody else does."""

_log = logging.getLogger("bide.server")


SESSION_KEY = "BIDE_SERVE_SESSION_KEY"
"""The environment's variable with the secret, in hexadecimal digits, that makes the codes of
sessions of the dashboard: the same in all processes of a server."""


def main(arguments: list[str], pages: Callable[[Service], Pages] | None = None) -> int:
    """Serve on an inherited socket; return the exit code.

    Args:
        arguments: the descriptors that the supervisor hands over.
        pages: makes what answers below /dashboard.
    """
    line_fd, socket_fd, *shared = map(int, arguments)
    settings = msgspec.json.decode(os.environ.pop(SETTINGS), type=Settings)
    configure(as_json=settings.log_json, level=settings.log_level, gather=True)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as loop:
            loop.run(_serve(settings, line_fd, socket_fd, SharedState(shared), pages))
    except BideError as error:
        sys.stderr.write(f"error: {error}\n")
        return WRONG_USAGE if isinstance(error, InvalidArgument) else FAILED
    return 0


async def _serve(
    settings: Settings, line_fd: int, socket_fd: int, shared: SharedState,
    pages: Callable[[Service], Pages] | None,
) -> None:  # fmt: skip
    loop = asyncio.get_running_loop()
    report = Report()
    app = App(settings, ready=lambda: _ready(line, report), shared=shared, pages=pages)

    def stop() -> None:
        if not server.stopping:
            server.stop()

    def orphaned() -> None:
        _log.error("the supervisor has died; stopping")
        stop()

    line = Pipe(line_fd, orphaned)
    await app.service.begin()
    server = HttpServer(app)
    # systemd sends SIGTERM to each process, too, which then gets it twice. Only SIGINT, which the
    # supervisor sends the second time, breaks off what is under way.
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, server.stop)
    await line.open()
    beats = asyncio.create_task(_beat(line, report, app.service))
    try:
        await server.serve([socket.socket(fileno=socket_fd)])
    finally:
        await app.service.end()  # when it was broken off, nobody has done that
        beats.cancel()
        await line.close(report)


def _ready(line: Pipe, report: Report) -> None:
    # What is there now stays for ever, and requests leave nothing behind that holds itself: to look
    # at all of it again and again took a twentieth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, 20, 50)
    report.ready = True
    line.tell(report)


async def _beat(line: Pipe, report: Report, service: Service) -> None:
    while True:
        service.shared.stats.post(service.stats)
        await asyncio.sleep(BEAT)
        line.tell(report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
