"""All tasks that bide runs on event loops. These are logged, counted and restarted if they die:

| name | what it does | where |
|---|---|---|
| bide-tokens | writes when tokens were last used | `bide.server.app` |
| bide-heartbeat | reports in the store that a server is alive | `bide.server.app` |
| bide-heartbeat | reports in the store that a pusher is alive | `bide.targets.pusher` |
| bide-heartbeat | reports in the store that a worker is alive | `bide.worker.process.runner` |
| bide-zones | plans local dates anew by newer time zones | `bide.server.app` |
| bide-zones | plans local dates anew by newer time zones | `bide.worker.process.runner` |
| bide-past | records what happens in queues | `bide.server.app` |
| bide-past | records what happens in queues | `bide.worker.process.runner` |
| bide-push | runs the subscriptions of a server | `bide.server.subscriptions.pushing` |
| bide-intake | takes in delayed messages of RabbitMQ | `bide.targets.pusher` |
| bide-stop-requests | replaces processes if operators ask | `bide.worker.process.supervisor` |
| bide-reload | replaces processes if their code changes | `bide.worker.process.supervisor` |
| bide-report | reports to the supervisor | `bide.worker.process.processes` |
| bide-orphan | ends the process if the supervisor dies | `bide.worker.process.processes` |
| bide-delays | runs the intakes of a worker | `bide.worker.process.child` |
| bide-outbox | forwards from an outbox beside handlers | `bide.worker.process.child` |

If one of these dies, its process ends with the error, and its supervisor replaces it:

| what it does | where |
|---|---|
| claims, settles, extends leases and logs; push restarts it | `bide.consuming.consumer` |
| puts the next message of a source or a schedule | `bide.worker.process.runner` |
| applies declared settings again after lost changes | `bide.worker.process.runner` |
| pushes in a process of its own | `bide.targets.process` |
| starts a process, receives its reports and waits for its end | `bide.worker.process.processes` |

The others do one thing. Who waits for them gets what they raise, or they log it:

| what it does | where |
|---|---|
| waits for one of several | `bide.tasks` |
| works until a signal to stop | `bide.tasks` |
| waits for the first answer of a store | `bide.lane.first_contact` |
| asks for messages | `bide.consuming.claiming` |
| calls the function of a batch | `bide.consuming.batching` |
| runs an app within another program, and again if it fails | `bide.worker.process.in_process` |
| waits for the thread of a forwarder | `bide.worker.process.child` |
| counts a namespace | `bide.server.limits.quotas` |
| works while the client may leave | `bide.server.limits.request_bodies` |
| waits for the end of a message | `bide.server.service` |
| applies the plan of a queue for what is overdue | `bide.server.overdue_plans` |
| shakes hands | `bide.server.http.tls` |
| answers a request | `bide.server.http.exchange` |
| fetches the keys of an issuer | `bide.server.access.oidc` |
| stores messages of RabbitMQ | `bide.targets.rabbitmq.intake` |
| closes a publisher | `bide.targets.rabbitmq.publisher` |
| closes a connection | `bide.targets.rabbitmq.broker` |
| starts a program | `bide.cli.work.claim_exec` |
| runs handlers in tests | `bide.testing.worker` |
| reads what a page shows | `bide.dashboard.reading` |
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from bide.logs import logger
from bide.threads import PAUSE, deaths

T = TypeVar("T")

STOP_SIGNALS = signal.SIGTERM, signal.SIGINT

_log = logger("bide.tasks")


def background(name: str, run: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
    """Run work in a task, and again if it raises; the task ends when the work returns.

    Deaths are counted in `bide.threads.deaths`, beside those of threads.

    Args:
        name: of the task, beginning with `bide-`.
        run: the work; called again each time that it raises.
    """
    return asyncio.create_task(_keep_running(name, run), name=name)


async def _keep_running(name: str, run: Callable[[], Awaitable[object]]) -> None:
    """Run work until it returns, or the task is cancelled; see `background`."""
    task = asyncio.current_task()
    assert task is not None  # a coroutine of a task
    died_at = float("-inf")
    while True:
        try:
            await run()
        except (SystemExit, KeyboardInterrupt, GeneratorExit):  # these end the event loop
            raise
        except BaseException as error:
            # A stray `CancelledError` of the work itself is a death like any other.
            if task.cancelling():
                raise
            deaths[name] += 1
            _log.error("the task %s died of %r; it is restarted", name, error, exc_info=error)
            if time.monotonic() - died_at < PAUSE:
                await asyncio.sleep(PAUSE)
            died_at = time.monotonic()
        else:
            return


async def first_of(*waits: Awaitable[Any]) -> None:
    """Wait until one of them is done, and raise what it raised.

    Of the others, coroutines are cancelled then; tasks and futures of the caller's go on.
    """
    futures = [asyncio.ensure_future(wait) for wait in waits]
    try:
        finished, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(
            future for future, wait in zip(futures, waits, strict=True) if future is not wait
        )
    for future in finished:
        future.result()  # raises what it raised


async def to_the_end(wait: Awaitable[object]) -> None:
    """Wait for something to its end; a cancellation that comes meanwhile is raised afterwards."""
    future = asyncio.ensure_future(wait)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        await future
        raise


async def unless_stopped(work: Coroutine[Any, Any, T]) -> T | None:
    """Return what work returns; `None` if SIGTERM or Ctrl-C comes before, which cancels the work.

    Raises:
        Exception: the work has raised it.
    """
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    # The first process of a container sets handlers itself: it has no default ones.
    previous_handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        await asyncio.wait({task})
        return None if task.cancelled() else task.result()
    finally:
        for number, previous in previous_handlers.items():
            loop.remove_signal_handler(number)
            signal.signal(number, previous)
        await cancel([task])  # if the caller was cancelled


async def cancel(tasks: "Iterable[asyncio.Future[Any]]") -> None:
    """Cancel tasks, and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
