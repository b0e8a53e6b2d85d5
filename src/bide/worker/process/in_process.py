"""A worker inside a program that has its own event loop, such as a web application."""

import asyncio
import itertools
import random
from collections.abc import Iterable
from functools import partial
from typing import Self

from bide.clock import sleep
from bide.lane.shared import stand_in
from bide.logs import logger
from bide.model.backoff import Backoff
from bide.model.errors import BideError, WrongContext
from bide.queue.aio import no_event_loop
from bide.queue.arguments import own_name
from bide.worker.app.registrations import Registrations
from bide.worker.process.runner import Runner

AGAIN = Backoff(first="1s", factor=2, ceiling="30s", jitter=0.2)
"""The pauses before a worker that has failed begins again."""

_log = logger("bide.worker")

_numbers = itertools.count(1)
"""Number the workers of this process: each needs a unique name."""


class InProcessWorker:
    """What `App.running` returns: runs the handlers during an `async with` block.

    A worker that fails is logged and begins again, as `bide worker` would replace its process. In a
    test that uses `bide_store` it claims nothing: there `bide_worker` runs handlers.

    A program that is cancelled at the end of the block hurries: the messages of handlers that run
    are released at once.

    Args:
        app: what to run.
        queues: only these; all that have a handler by default.
        grace: seconds that handlers get to finish at the end of the block.

    Raises:
        InvalidArgument: the app has no handler, or none for one of the queues.
    """

    def __init__(
        self, app: Registrations, queues: Iterable[str] = (), *, grace: float = 30.0
    ) -> None:
        self._make_runner = partial(Runner, app, list(queues), grace=grace, ready=self._began)
        self._runner = self._make_runner()  # raises if there is no handler
        """What runs the handlers: another one after each failure."""
        self._failure = ""
        """Why the last runner failed, in words that strangers may read; "" once one claims."""
        self._task: asyncio.Task[None] | None = None
        """Runs one runner after the other; `None` before the block."""
        self._is_idle = False
        """Whether it claims nothing, since a test has put another store in place of all."""
        self._is_leaving = False
        """Whether the block is at its end."""
        self._ready = asyncio.Event()

    def trouble(self) -> str | None:
        """Return why messages are not handled now; `None` if all is well.

        The text is for a health check that strangers may read: it names no address. The log has
        the details.
        """
        if self._is_idle:
            return None
        if self._task is None or self._task.done():
            return "the worker does not run"
        return self._failure or self._runner.trouble()

    async def ready(self) -> None:
        """Wait until messages are claimed for the first time.

        In a test that uses `bide_store` it does not wait.
        """
        await self._ready.wait()

    async def __aenter__(self) -> Self:
        if asyncio._get_running_loop() is None:
            raise no_event_loop("app.running()")
        if self._task is not None or self._is_idle:
            raise WrongContext("this worker has run already; call app.running() for another one")
        if stand_in() is not None:
            self._is_idle = True
            self._ready.set()
            return self
        number = next(_numbers)
        # The first one has the usual name of a worker of this process.
        holder = own_name() + (f":{number}" if number > 1 else "")
        self._task = asyncio.create_task(self._keep(holder))
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._task is None:
            return
        # A failure from now on is logged, and not tried again.
        self._is_leaving = True
        if self._runner.at_work:
            self._runner.stop()
        else:
            self._task.cancel()  # it may wait for a store or a lifespan for ever
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            if self._runner.at_work:
                self._runner.stop(hurry=True)
                await asyncio.wait([self._task])
            raise
        finally:
            self._task.cancel()  # if this was cancelled while it waited

    async def _keep(self, holder: str) -> None:
        """Run until the end of the block; after a failure begin again with another runner."""
        failures = 0  # in a row
        while True:
            self._runner = self._make_runner(holder=holder)
            try:
                return await self._runner.run()
            except Exception as error:  # noqa: BLE001  (it is logged, and shown by `trouble`)
                if self._is_leaving:  # as when a lifespan cannot be left
                    _log.error("the worker has failed at its end: %s", error, exc_info=error)
                    return
                # One that has claimed messages has ended the row: see `_began`.
                failures = failures + 1 if self._failure else 1
                seconds = AGAIN.delay(failures, random.random()) / 1000
                self._failure = f"the worker has failed ({type(error).__name__}), and begins again"
                _log.error(
                    "the worker has failed: %s; it begins again in %.1f s",
                    error,
                    seconds,
                    exc_info=None if isinstance(error, BideError) else error,
                )
                await sleep(self._runner.app.clock, seconds)

    def _began(self) -> None:
        """Note that messages are claimed."""
        self._failure = ""
        self._ready.set()
