"""Running the server: one socket, and processes that share it under a supervisor."""

import asyncio
import errno
import logging
import os
import secrets
import socket
import sys
from pathlib import Path

import msgspec

from bide.clock import SYSTEM_CLOCK
from bide.engines.registry import absolute, mask
from bide.lane.shared import close_lane, open_lane
from bide.model.errors import InvalidArgument
from bide.server.access import Tokens
from bide.server.admission import Admission, how_open
from bide.server.child import SESSION_KEY, SETTINGS
from bide.server.settings import Settings
from bide.server.shared_state import make_files
from bide.server.tls import context_of
from bide.worker.process.supervisor import Supervisor

_log = logging.getLogger("bide.server")

BACKLOG = 2_048
"""Connections that the system keeps until a process accepts them."""


async def serve(settings: Settings) -> int:
    """Serve until a signal says otherwise; return the exit code.

    Raises:
        InvalidArgument: the settings cannot work together, nothing can listen there, or it could
            be reached from elsewhere and there are no tokens.
        StoreError: the store cannot be opened.
    """
    settings.check()
    context_of(settings)  # its errors, before anything listens
    asks = await _asks_for_tokens(settings)
    listening, files = bind(settings), make_files()
    os.environ[SETTINGS] = msgspec.json.encode(settings).decode()
    os.environ[SESSION_KEY] = secrets.token_hex(32)
    # Named, not imported: the dashboard is above the server.
    child = "bide.dashboard.served" if settings.dashboard else "bide.server.child"
    try:
        where, store = address(listening, settings), mask(absolute(settings.store))
        _log.info("listening on %s, store %s; %s", where, store, how_open(settings, asks=asks))
        if asks and settings.tls_cert is None and not settings.local:
            _log.warning(
                "tokens cross the network in clear text: host=%r is not loopback; set tls_cert and "
                "tls_key, or let a proxy with TLS connect to 127.0.0.1 or a --socket",
                settings.host,
            )
        shared = listening.fileno(), *files
        return await Supervisor(
            lambda line: [sys.executable, *(f"-W{one}" for one in sys.warnoptions), "-m", child,
                          *map(str, (line, *shared))],
            settings.workers, grace=settings.grace, pass_fds=shared,
        ).run()  # fmt: skip
    finally:
        for file in files:
            os.close(file)
        del os.environ[SETTINGS], os.environ[SESSION_KEY]
        listening.close()
        _tidy(settings)


async def _asks_for_tokens(settings: Settings) -> bool:
    """Look into the store before anything listens; its processes do so again."""
    lane = open_lane(settings.store)
    try:
        admission = Admission(settings, lane, Tokens(lane), SYSTEM_CLOCK)
        await admission.begin()
        return admission.asks
    finally:
        await asyncio.to_thread(close_lane, lane)


def _tidy(settings: Settings) -> None:
    if settings.socket is not None:
        Path(settings.socket).unlink(missing_ok=True)


def address(listening: socket.socket, settings: Settings) -> str:
    """Return where the server is to be found, with the port that it got."""
    if settings.socket is not None:
        return settings.address
    return msgspec.structs.replace(settings, port=listening.getsockname()[1]).address


def bind(settings: Settings) -> socket.socket:
    """Return a socket that listens.

    Raises:
        InvalidArgument: nothing can listen there.
    """
    try:
        if settings.socket is not None:
            _make_room(Path(settings.socket))
            return _at_path(settings.socket, int(settings.socket_mode, 8))
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        where = (settings.host, settings.port)
        listening = socket.create_server(where, family=family, backlog=BACKLOG)
        # Connections inherit it. asyncio sets it only where the socket names its protocol.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise InvalidArgument(
            f"nothing can listen on {settings.address}: {_why(error)}; {_mend(error, settings)}"
        ) from None


def _at_path(path: str, mode: int) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o777 ^ mode)  # from its first moment on nobody else may open it
    try:
        listening.bind(path)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(before)
    listening.listen(BACKLOG)
    return listening


def _why(error: OSError) -> str:
    # asyncio and socket add to the words of the system what was tried, which is said already.
    return (error.strerror or str(error)).partition(" (while attempting")[0]


def _mend(error: OSError, settings: Settings) -> str:
    """Return what helps against an error of binding."""
    if settings.socket is not None:
        folder = Path(settings.socket).absolute().parent
        if error.errno is None:
            return "take a shorter --socket, such as /run/bide.sock"
        return f"--socket needs a folder that is there and may be written to, is {folder}?"
    if error.errno == errno.EADDRINUSE:
        return "is another server there? Choose another --port or --host, or a --socket"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "ports below 1024 need a privilege; choose another --port"
    return "--host must be an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"


def _make_room(path: Path) -> None:
    """Remove the socket of a server that is no more.

    Raises:
        InvalidArgument: one listens there, or somebody else has it.
    """
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise InvalidArgument(
                f"{path} is the socket of another program ({_why(error)}); choose another --socket"
            ) from None
    raise InvalidArgument(f"a server listens on {path} already; choose another --socket")
