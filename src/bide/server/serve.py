"""Run the server: a supervisor opens a socket, and processes that it starts answer on it.

`serve` is the supervisor; `main` is a process, which answers until the supervisor stops it.
"""

import asyncio
import errno
import gc
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from bide.clock import SYSTEM_CLOCK
from bide.engines.registry import absolute, mask
from bide.lane.first_contact import first_contact, lane_when_there
from bide.lane.shared import close_lane, open_lane
from bide.logs import logger
from bide.model.errors import BideError, InvalidArgument
from bide.observing.exporting import is_metered
from bide.observing.logs import configure
from bide.server.access.admission import Admission
from bide.server.access.tokens import Tokens
from bide.server.app import Pages, ServerApp
from bide.server.http.http_server import BACKLOG, HttpServer
from bide.server.http.tls import context_of
from bide.server.metrics import exporting_server
from bide.server.service import Service
from bide.server.settings import Settings
from bide.server.shared_state import ServerStats, SharedState, make_files, stats_in
from bide.server.subscriptions.pushing import read_known
from bide.targets.http.records import Records
from bide.targets.http.stats import Known
from bide.tasks import unless_stopped
from bide.worker.process.child import loop_factory
from bide.worker.process.processes import FAILED, WRONG_USAGE, ProcessReport, command_of, reporting
from bide.worker.process.supervisor import Supervisor

_log = logger("bide.server")

SETTINGS = "BIDE_SERVE_SETTINGS"
"""The environment variable with the settings of a process. Arguments would be visible to other
users of the machine, and the store's URL may contain a password."""

ALLOCATIONS = 50_000
"""New objects between two runs of the collector of reference cycles."""

SESSION_KEY = "BIDE_SERVE_SESSION_KEY"
"""The environment variable with the secret, in hexadecimal digits, of the dashboard's sessions: the
same in all processes of a server."""


async def serve(settings: Settings) -> int:
    """Serve until a signal stops the server; return the exit code.

    Raises:
        InvalidArgument: the settings conflict, the address cannot be used, or other machines could
            reach it and there are no tokens.
        StoreError: the store cannot be opened. A server that does not answer is waited for.
    """
    settings.check()
    context_of(settings)  # raises its errors before anything listens
    requires_tokens = await unless_stopped(_requires_tokens(settings))
    if requires_tokens is None:
        return 0
    listening, shared_files = bind(settings), make_files()

    def close_socket() -> None:
        """Refuse connections: an open socket would accept clients that no process answers."""
        if listening.fileno() >= 0:  # once: later another server may have a socket at the path
            if settings.socket is not None:
                Path(settings.socket).unlink(missing_ok=True)
            listening.close()

    os.environ[SETTINGS] = msgspec.json.encode(settings).decode()
    os.environ[SESSION_KEY] = secrets.token_hex(32)
    # Named, not imported: the dashboard is above the server.
    child_module = "bide.dashboard.served" if settings.dashboard else "bide.server.serve"
    try:
        port = settings.port
        if not settings.socket:
            _address, port, *_ = listening.getsockname()  # with port=0, the system has chosen one
        address = msgspec.structs.replace(settings, port=port).address
        store = mask(absolute(settings.store))
        access = (
            "requests need a token"
            if requires_tokens
            else "no tokens: all who can connect may do anything"
        )

        def tell() -> None:
            _log.info("listening on %s, store %s; %s", address, store, access)
            if requires_tokens and settings.tls_cert is None and not settings.local:
                _log.warning(
                    "tokens cross the network in clear text: host=%r is not loopback; set tls_cert "
                    "and tls_key, or let a proxy with TLS connect to 127.0.0.1 or a --socket",
                    settings.host,
                )

        supervisor = Supervisor(
            command_of(child_module),
            settings.workers,
            grace=settings.grace,
            pass_fds=(listening.fileno(), *shared_files),
            begun=tell,
            stopped=close_socket,
        )
        async with _exporting(settings, shared_files):
            return await supervisor.run()
    finally:
        for file in shared_files:
            os.close(file)
        del os.environ[SETTINGS], os.environ[SESSION_KEY]
        close_socket()


@asynccontextmanager
async def _exporting(settings: Settings, shared_files: Sequence[int]) -> AsyncIterator[None]:
    """Export the metrics of all processes, if OpenTelemetry has instrumented the program."""
    if not is_metered():
        yield
        return
    lane, stats = open_lane(settings.store), stats_in(shared_files)
    records = Records(lane, SYSTEM_CLOCK)

    def together() -> ServerStats:
        return stats.together(ServerStats(processes=0))  # this one does not serve

    async def known() -> dict[str, Known]:
        return {} if settings.behind else await read_known(records)

    try:
        async with exporting_server(lane, together, known):
            yield
    finally:
        stats.close()
        await asyncio.to_thread(close_lane, lane)


async def _requires_tokens(settings: Settings) -> bool:
    """Wait for the store, and return whether requests need a token.

    This is before anything listens; each process does so again.

    Raises:
        InvalidArgument: other machines could reach the server, and there are no tokens.
        StoreError: the store cannot be opened.
    """
    async with lane_when_there(settings.store) as lane:
        admission = Admission(settings, Tokens(lane), SYSTEM_CLOCK)
        await admission.begin()
        return admission.requires_tokens


def bind(settings: Settings) -> socket.socket:
    """Return a listening socket.

    Raises:
        InvalidArgument: the address cannot be used.
    """
    try:
        if settings.socket is not None:
            _make_room(Path(settings.socket))
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as unix:
                # No other user may open it, not even before its mode is set.
                umask_before = os.umask(0o777 ^ int(settings.socket_mode, 8))
                try:
                    unix.bind(settings.socket)
                finally:
                    os.umask(umask_before)
                unix.listen(BACKLOG)
                return unix.dup()  # the end of the block closes the other one
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        address = (settings.host, settings.port)
        listening = socket.create_server(address, family=family, backlog=BACKLOG)
        # Connections inherit it. asyncio sets it only where the socket names its protocol.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        # `socket` appends what was tried, which the error names anyway.
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        raise InvalidArgument(
            f"nothing can listen on {settings.address}: {reason}; does another server use it? A "
            "--port below 1024 needs a privilege, --host must be an address of this machine, and "
            "--socket a short path in a folder that exists and may be written to"
        ) from None


def _make_room(path: Path) -> None:
    """Remove the socket of a server that has ended.

    Raises:
        InvalidArgument: a server listens on it, or the socket belongs to another user.
    """
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        if probe.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT):
            raise InvalidArgument(
                f"{path} is the socket of another program; choose another --socket"
            )
    path.unlink(missing_ok=True)


def main(arguments: list[str], pages: Callable[[Service], Pages] | None = None) -> int:
    """Serve on an inherited socket; return the exit code.

    Args:
        arguments: the descriptors that the supervisor passes: the line to it, the listening
            socket, and the files that the processes share.
        pages: makes the application that answers below /dashboard; `None`: there is none.
    """
    line_fd, socket_fd, *shared = map(int, arguments)
    settings = msgspec.json.decode(os.environ.pop(SETTINGS), type=Settings)
    configure(as_json=settings.log_json, level=settings.log_level)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as loop:
            loop.run(_serve(settings, line_fd, socket_fd, SharedState(shared), pages))
    except asyncio.CancelledError:  # stopped while it waited for the store
        return 0
    except BideError as error:
        sys.stderr.write(f"error: {error}\n")
        return WRONG_USAGE if isinstance(error, InvalidArgument) else FAILED
    return 0


async def _serve(
    settings: Settings,
    line_fd: int,
    socket_fd: int,
    shared: SharedState,
    pages: Callable[[Service], Pages] | None,
) -> None:
    """Serve until the supervisor stops this process, and report to it meanwhile."""
    loop = asyncio.get_running_loop()
    report = ProcessReport()

    def ready() -> None:
        # The objects that exist now stay until the end, and requests leave no reference cycles:
        # collecting them again and again took a twentieth of the time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(ALLOCATIONS, 20, 50)
        report.ready = True
        send()

    app = ServerApp(settings, ready=ready, shared=shared, pages=pages)
    own_task: Any = asyncio.current_task()
    has_store = False

    def next_report() -> ProcessReport:
        shared.stats.post(app.service.stats)
        return report

    def stop() -> None:
        if not has_store:  # nothing is served yet, and the store may be away for hours
            own_task.cancel()
        elif not server.stopping:
            server.stop()

    server = HttpServer(app)
    # systemd also sends SIGTERM to each process, which then gets it twice. Only SIGINT, which the
    # supervisor sends the second time, breaks off what is under way.
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, lambda: server.stop() if has_store else stop())
    async with reporting(line_fd, next_report, stop) as send:
        await first_contact(app.service.lane, settings.store)
        has_store = True
        await server.serve(socket.socket(fileno=socket_fd))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
