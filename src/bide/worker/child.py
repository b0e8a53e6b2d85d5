"""A worker process: started by the supervisor, it runs one app until it is told to stop."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import msgspec

from bide.model.errors import BideError, InvalidArgument
from bide.worker.loading import load
from bide.worker.logs import configure
from bide.worker.runner import Runner

__all__ = ["BEAT", "Orders", "loop_factory", "main"]

BEAT = 1.0
"""How often, in seconds, a process tells its supervisor that its event loop moves."""

READY, ALIVE = b"r", b"."
WRONG_USAGE, FAILED = 2, 3

_log = logging.getLogger("bide.worker")


class Orders(msgspec.Struct, frozen=True):
    """What a process is told by its supervisor."""

    target: str
    queues: list[str]
    grace: float
    log_json: bool
    log_level: str
    line: int
    """The descriptor of the socket to the supervisor."""


def main(text: str) -> int:
    """Do as ordered; return the exit code."""
    orders = msgspec.json.decode(text, type=Orders)
    configure(as_json=orders.log_json, level=orders.log_level)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as loop:
            loop.run(_work(orders))
    except BideError as error:
        sys.stderr.write(f"error: {error}\n")
        return WRONG_USAGE if isinstance(error, InvalidArgument) else FAILED
    return 0


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes uvloop's event loop, if that is installed."""
    if find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


async def _work(orders: Orders) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(fileno=orders.line) as line:
        line.setblocking(False)
        runner = Runner(
            load(orders.target), orders.queues, grace=orders.grace, ready=lambda: _send(line, READY)
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, runner.stop)
        loop.add_reader(line, _listen, line, loop, runner)
        beats = asyncio.create_task(_beat(line))
        try:
            await runner.run()
        finally:
            beats.cancel()
            loop.remove_reader(line)


def _listen(line: socket.socket, loop: asyncio.AbstractEventLoop, runner: Runner) -> None:
    """The supervisor never says anything: this means that it has died."""
    if not line.recv(16):
        loop.remove_reader(line)
        _log.error("the supervisor has died; stopping")
        runner.stop()


async def _beat(line: socket.socket) -> None:
    while True:
        await asyncio.sleep(BEAT)
        _send(line, ALIVE)


def _send(line: socket.socket, what: bytes) -> None:
    try:
        line.send(what)
    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
        # It does not listen now, or it has died, which `_listen` hears as well.
        _log.debug("the supervisor did not hear %r", what)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
