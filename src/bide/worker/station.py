"""A station: one queue as one process works on it. It claims, starts, extends and settles."""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace

from bide.model.commands import Claim, Extend
from bide.model.errors import StoreError
from bide.model.replies import Claimed, Outcome, Outcomes
from bide.worker import desk, journal
from bide.worker.access import Access, sleep
from bide.worker.delivery import Handling
from bide.worker.desk import Verdict
from bide.worker.duty import Duty
from bide.worker.handler import Middleware
from bide.worker.routes import any_handler, no_such_job, route
from bide.worker.threads import Threads

__all__ = ["Station"]

FOREVER = float("inf")
AGAIN = 1.0
"""After so many seconds at most an extension that failed is tried again."""


class Station:
    """Works on one queue.

    Args:
        duty: which queue, and its handlers.
        around: the middleware, outermost first.
        state: what handlers share.
        access: the way to the store.
        holder: as whom it claims.
        started: called when deliveries were started.
    """

    def __init__(
        self,
        duty: Duty,
        around: Sequence[Middleware],
        state: SimpleNamespace,
        access: Access,
        holder: str,
        started: Callable[[], None],
    ) -> None:
        self.duty = duty
        self.running: dict[Handling, None] = {}
        """Deliveries whose handlers run, in the order in which they were started."""
        self._around = around
        self._state = state
        self._access = access
        self._clock = access.clock
        self._holder = holder
        self._started = started
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(duty.concurrency)
        self._lease = duty.lease / 1000
        self._settled: list[tuple[Handling, Verdict]] = []
        self._settling = False
        self._vacancy = asyncio.Event()
        self._todo = asyncio.Event()
        self._quiet = asyncio.Event()
        self._leaving = False
        self._chance = random.random

    # What runs for as long as the station does.

    async def claim(self) -> None:
        """Claim what can be started, and start it."""
        duty = self.duty
        while True:
            free = desk.room(duty.concurrency, len(self.running))
            if not free:
                self._vacancy.clear()
                await self._vacancy.wait()
                continue
            command = Claim(duty.queue, free, duty.lease, self._holder)
            reply = await self._access.patiently(Claimed, command, self, FOREVER)
            self.start(reply)

    async def settle(self) -> None:
        """Tell the store what became of messages: all that ended meanwhile at a time."""
        while True:
            await self._todo.wait()
            self._todo.clear()
            if self._settled:
                self._settling = True
                batch, self._settled = self._settled, []
                await self._settle(batch)
                self._settling = False
                if self._settled:
                    self._todo.set()
            if self.quiet:
                self._quiet.set()

    async def beat(self) -> None:
        """Extend the leases of what runs, all with one command a beat, and miss those lost."""
        beat = pause = self._lease / 3
        while True:
            await sleep(self._clock, pause)
            pause = beat
            now = self._clock.monotonic()
            over = desk.lapsed(self._held(), now)
            self._lose(over, "it could not be extended in time")
            due = desk.to_extend(self._held(), now, beat)
            if not due:
                continue
            command = Extend(self.duty.queue, [one.lease for one in due], self.duty.lease)
            try:
                reply = await self._access.once(Outcomes, command)
            except StoreError:  # `Access` has said so
                pause = min(beat, AGAIN)
                continue
            for one, outcome in zip(due, reply.outcomes, strict=True):
                if outcome.done:
                    one.expires = now + self._lease
                elif one in self.running and not one.gone:  # else it has ended meanwhile
                    self._lose([one], str(outcome))

    # Leaving.

    @property
    def quiet(self) -> bool:
        """Whether nothing runs whose outcome counts, and nothing is left to be settled."""
        busy = self._settling or self._settled
        return not busy and all(one.gone for one in self.running)

    async def until_quiet(self) -> None:
        """Wait until nothing is left to be done; nothing new may be claimed any more."""
        while not self.quiet:
            self._quiet.clear()
            await self._quiet.wait()

    def hand_back(self) -> None:
        """Interrupt what runs, and hand it back untouched when it has ended."""
        self._leaving = True
        for one in self._held():
            if one.handler.is_async:
                one.cancel()
            else:
                self._give_up(one)
        self._todo.set()

    def abandon(self) -> None:
        """Hand back what still runs, though it was interrupted."""
        for one in self._held():
            self._give_up(one)
        self._todo.set()

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    def _give_up(self, one: Handling) -> None:
        one.lose()
        self._settled.append((one, desk.RELEASE))

    # One delivery.

    def start(self, reply: Claimed) -> None:
        """Start what was claimed."""
        # The lease counts from now, not from the store's moment: their clocks may differ. If the
        # reply had to wait for this loop, the first extension tells the truth.
        now = self._clock.monotonic()
        for message in reply.messages:
            handler = route(self.duty, message)
            one = Handling(
                message, reply.token, reply.now, handler or any_handler(self.duty), self._state
            )
            one.began, one.expires = now, now + self._lease
            self.running[one] = None
            if handler is None:
                self._ended(one, no_such_job(self.duty, message))
                continue
            if handler.timeout is not None:
                late = partial(self._out_of_time, one)
                one.timer = self._clock.call_later(self._loop, handler.timeout, late)
            if handler.is_async or self._around:
                one.task = self._loop.create_task(self._attend(one))
            else:
                self._threads.submit(_run, self._ended, one)
        if reply.messages:
            self._started()

    async def _attend(self, one: Handling) -> None:
        """Run a handler on the loop. Whatever comes out of it, the message is settled."""
        one.entered = True
        error: BaseException | None = None
        try:
            if one.refused:
                raise asyncio.CancelledError
            if self._around:
                await self._through(one, 0)
            else:
                await one.handler.call(one)
        except BaseException as raised:  # noqa: BLE001  (it is judged)
            error = raised
        self._ended(one, error)

    async def _through(self, one: Handling, depth: int) -> None:
        """Go through the middleware from a depth on, to the handler inside."""
        if depth < len(self._around):
            await self._around[depth](one, partial(self._through, one, depth + 1))
        elif one.handler.is_async:
            await one.handler.call(one)
        else:
            await self._in_thread(one)

    def _in_thread(self, one: Handling) -> Awaitable[None]:
        ended: asyncio.Future[None] = self._loop.create_future()
        context = contextvars.copy_context()

        def tell(_: Handling, error: BaseException | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            elif isinstance(error, StopIteration):  # which no future takes
                ended.set_exception(RuntimeError(f"the handler raised {error!r}"))
            else:
                ended.set_exception(error)

        self._threads.submit(lambda it: context.run(_run, it), tell, one)
        return ended

    def _ended(self, one: Handling, error: BaseException | None) -> None:
        """A handler has returned or raised."""
        del self.running[one]
        one.took = self._clock.monotonic() - one.began
        if one.timer is not None:
            one.timer.cancel()
        if one.gone:
            journal.too_late(one, error)
        else:
            verdict = desk.ACK if error is None else self._judge(one, error)
            self._settled.append((one, verdict))
        self._vacancy.set()
        self._todo.set()

    def _judge(self, one: Handling, error: BaseException) -> Verdict:
        if isinstance(error, asyncio.CancelledError):
            if one.timed_out:
                error = desk.overtime(one.handler)
            elif self._leaving:
                return desk.RELEASE
        elif not isinstance(error, Exception):
            journal.unusual(one, error)
        return desk.judge(one.message, error, one.handler.retry, self._chance())

    def _out_of_time(self, one: Handling) -> None:
        if one.gone or one not in self.running:
            return
        one.timed_out = True
        if one.handler.is_async:
            one.cancel()
            return
        verdict = desk.judge(
            one.message, desk.overtime(one.handler), one.handler.retry, self._chance()
        )
        self._settled.append((one, verdict))
        one.lose()
        stuck = sum(other.gone for other in self.running)
        journal.overrun(one, stuck, self.duty.concurrency)
        self._todo.set()

    def _lose(self, lost: Iterable[Handling], why: str) -> None:
        for one in lost:
            journal.lost(one, why)
            one.lose()

    def _held(self) -> list[Handling]:
        return [one for one in self.running if not one.gone]

    async def _settle(self, batch: list[tuple[Handling, Verdict]]) -> None:
        parts = desk.commands(self.duty.queue, batch)
        replies = await asyncio.gather(
            *[self._access.patiently(Outcomes, command) for command, _ in parts]
        )
        for (_, pairs), reply in zip(parts, replies, strict=True):
            self._tell(pairs, reply.outcomes)

    def _tell(self, pairs: list[tuple[Handling, Verdict]], outcomes: list[Outcome]) -> None:
        journal.settled(pairs, outcomes)


def _run(one: Handling) -> None:
    """Run a plain handler, in a thread."""
    one.handler.call(one)
