"""A worker process: started by the supervisor, it runs one app until the supervisor stops it."""

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from bide.engines import losses
from bide.engines.registry import lives_alone
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.logs import logger
from bide.model.errors import BideError, InvalidArgument
from bide.observing.logs import configure
from bide.targets.amqp import intakes
from bide.tasks import background, cancel
from bide.threads import deaths
from bide.worker.app.app import App
from bide.worker.app.loading import load
from bide.worker.process.processes import FAILED, WRONG_USAGE, ProcessReport, command_of, reporting
from bide.worker.process.runner import Runner

LINGER = 2.0
"""Seconds at the end for tasks and threads that handlers have started."""

_log = logger("bide.worker")


class Orders(msgspec.Struct, frozen=True):
    """The orders of the supervisor to a process."""

    target: str
    queues: list[str]
    grace: float
    log_json: bool
    log_level: str
    processes: int
    """How many processes share the work."""
    given_url: bool
    """Whether the environment's `BIDE_URL` replaces the store that the app names."""
    celery: bool = False
    """Whether the target is an app of Celery."""
    exports: bool = False
    """Whether the supervisor exports the metrics of all processes."""

    @property
    def command(self) -> list[str]:
        """The command line of a process with these orders."""
        return command_of("bide.worker.process.child", msgspec.json.encode(self).decode())


def main(text: str, pipe: int) -> int:
    """Run an app; return the exit code.

    Args:
        text: the orders.
        pipe: the descriptor of the socket to the supervisor.
    """
    orders = msgspec.json.decode(text, type=Orders)
    configure(as_json=orders.log_json, level=orders.log_level)
    report = ProcessReport()
    with asyncio.Runner(loop_factory=loop_factory()) as loop:
        code = 1  # Python's own after an exception below
        try:
            # Outside of the event loop: a module may use a store or Django's models at its import.
            url = os.environ["BIDE_URL"] if orders.given_url else None
            app = load(orders.target, url, celery=orders.celery)
            loop.run(_work(app, orders, pipe, report))
            code = 0
        except (asyncio.CancelledError, KeyboardInterrupt):
            code = 0  # asked to end before it was ready
        except BideError as error:
            sys.stderr.write(f"error: {error}\n")
            code = WRONG_USAGE if isinstance(error, InvalidArgument) else FAILED
        except Exception as error:
            if report.ready:  # a death, after which the supervisor starts another process
                raise
            traceback.print_exc()
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            sys.stderr.write(f"error: {orders.target} could not begin its work: {what}\n")
            code = FAILED
        finally:
            _force_end(loop.get_loop(), code)
    return code


def _force_end(loop: asyncio.AbstractEventLoop, code: int) -> None:
    """End the process in `LINGER` seconds even if tasks or threads of handlers do not end.

    The event loop waits for its tasks when it closes, and Python for threads that are no daemons.
    """

    def leave() -> None:
        _log.error("a handler, or what it started, does not end; the process ends anyway")
        for flush in (logging.shutdown, sys.stdout.flush, sys.stderr.flush):
            with suppress(ValueError, OSError):  # a handler has closed it
                flush()
        os._exit(code)

    main_thread = threading.main_thread()
    awaited_threads = [
        thread
        for thread in threading.enumerate()
        if thread is not main_thread and not thread.daemon
    ]
    if asyncio.all_tasks(loop) or awaited_threads:
        timer = threading.Timer(LINGER, leave)
        timer.daemon = True  # it must not keep a process that ends by itself
        timer.start()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop's event loop, if uvloop is installed."""
    has_uvloop = find_spec("uvloop") is not None
    return import_module("uvloop").new_event_loop if has_uvloop else None


async def _work(app: App, orders: Orders, pipe: int, report: ProcessReport) -> None:
    """Run an app until the supervisor stops it, and report to the supervisor.

    Args:
        app: the app.
        orders: of the supervisor.
        pipe: the descriptor of the socket to it.
        report: is filled in; its `ready` tells the caller how far it came.
    """
    loop = asyncio.get_running_loop()
    _check_store(app, orders.processes)
    report.store = app._url
    own_task: Any = asyncio.current_task()

    def ready() -> None:
        report.ready = True
        send()

    def figures() -> ProcessReport:
        report.tallies, report.stuck = runner.tallies(), runner.stuck()
        report.notifications_lost, report.threads = runner.notifications_lost, dict(deaths)
        report.lost = losses.counted()
        return report

    def stop(*, hurry: bool = False) -> None:
        if report.ready:
            runner.stop(hurry=hurry)
        else:  # nothing runs yet, and a lifespan may wait for ever
            own_task.cancel()

    runner = Runner(
        app,
        orders.queues,
        grace=orders.grace,
        ready=ready,
        supervised=True,
        exports=not orders.exports,
    )
    # SIGTERM may come twice: systemd sends it to the supervisor and to each process. So the second
    # request of the supervisor is SIGINT.
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, lambda: stop(hurry=True))
    _leave_signals_on_fork()
    async with reporting(pipe, figures, stop) as send:
        services = [
            background("bide-delays", partial(_publish_delayed, app, orders.grace)),
            background("bide-outbox", partial(_forward_outbox, app)),
        ]
        try:
            await runner.run()
        finally:
            await cancel(services)


async def _publish_delayed(app: App, grace: float) -> None:
    """Take in the delayed messages of RabbitMQ, and publish them, if that was asked for."""
    addresses = intakes(os.environ.get("BIDE_RABBITMQ", "").split())
    if not addresses:
        return
    from bide.targets.pusher import Pusher

    async with _store_of(app) as lane:
        await Pusher(lane, app.clock, intakes=addresses).run(grace)


async def _forward_outbox(app: App) -> None:
    """Forward from the outbox of a database, if that was asked for; one process at a time does."""
    database = os.environ.get("BIDE_OUTBOX")
    if not database:
        return
    from bide.outbox.forwarder import Forwarder, table_of

    async with _store_of(app) as lane:
        forwarder = Forwarder(lambda: table_of(database), lane)
        forwarding = asyncio.create_task(asyncio.to_thread(forwarder.run))
        try:
            await asyncio.shield(forwarding)
        except asyncio.CancelledError:
            # A thread cannot be cancelled: it stops between two batches, before the lane is closed.
            forwarder.stop()
            await forwarding
            raise


@asynccontextmanager
async def _store_of(app: App) -> AsyncIterator[Lane]:
    """Open a lane to the store of an app for the length of the block."""
    lane = open_lane(app._url, app.clock)
    try:
        yield lane
    finally:
        await asyncio.to_thread(close_lane, lane)


def _leave_signals_on_fork() -> None:
    """Let signals end the processes that handlers fork; else they would stop the worker instead."""
    stop_signals = signal.SIGTERM, signal.SIGINT

    def in_child() -> None:
        signal.set_wakeup_fd(-1)  # the worker's loop reads from it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals)

    os.register_at_fork(  # blocked meanwhile: one may come before the child is ready for it
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, stop_signals),
        after_in_child=in_child,
    )


def _check_store(app: App, processes: int) -> None:
    """Warn of a store that only this process sees.

    Raises:
        InvalidArgument: several processes are to share it.
    """
    if not lives_alone(app._url):
        return
    if processes > 1:
        raise InvalidArgument(
            f"{app.url} lives in one process, and {processes} are to share it; use --processes 1, "
            "or a store that can be shared: sqlite:///bide.db"
        )
    _log.warning(
        "%s lives in this process: no other process can put messages into it, and it is lost when "
        "this process ends; to share it name another store, such as sqlite:///bide.db",
        app.url,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
