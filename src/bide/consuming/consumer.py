"""The consumer of one queue in one process: it claims, starts, extends and settles messages."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

from bide.clock import Timer, sleep
from bide.consuming import delivery_log, settling
from bide.consuming.claiming import Claimer
from bide.consuming.handler import Middleware
from bide.consuming.handling import Handling
from bide.consuming.isolation import CrashIsolation, is_suspect
from bide.consuming.late_causes import LateCauses
from bide.consuming.queue_handlers import QueueHandlers
from bide.consuming.run import HandlerRunner
from bide.consuming.settling import Settling
from bide.consuming.store_client import StoreClient
from bide.consuming.unknown_work import settle_unknown
from bide.consuming.verdict import ACK, RELEASE, Pairs, Verdict, interruption
from bide.lane.inbox import call_on
from bide.model.commands import Extend
from bide.model.errors import BideError, StopRequested, StoreError
from bide.model.message import Progress
from bide.model.replies import Claimed, Outcome, Outcomes
from bide.model.times import format_duration
from bide.observing.heartbeat import Busy
from bide.observing.tally import Tally
from bide.queue.delivery import REPORT_EVERY
from bide.tasks import cancel, first_of, to_the_end

CLEANUP = 5.0
"""Seconds that an async handler gets to end after its timeout interrupted it."""

AGAIN = 1.0
"""The longest delay, in seconds, before a failed extension is retried."""

HINT_KEPT = 5.0
"""For how many seconds a hint of a message that does not run here is kept: it may begin."""

HINTS_MOST = 10_000
"""How many hints are kept at most."""

STUCK = 5.0
"""Seconds for which handlers past their timeout occupy all places before the queue is stuck."""


class Consumer(Claimer):
    """Claims the messages of one queue, runs their handlers and settles them.

    A subclass may decide when to claim (`claim`) and how much (`room`), whether to run what a claim
    brought (`admits`), and how to settle a message whose handler raised (`judge`).

    Args:
        queue_handlers: the queue and its handlers.
        middleware: outermost first.
        state: the `App.state` that handlers share.
        store_client: runs its commands on the store.
        holder: the name of the holder in its claims.
        crash_isolation: shared by the consumers of a process; by default the consumer has its own.
    """

    claims: asyncio.Task[None]
    """The task that claims, once the consumer was opened."""

    def __init__(
        self,
        queue_handlers: QueueHandlers,
        middleware: Sequence[Middleware],
        state: SimpleNamespace,
        store_client: StoreClient,
        holder: str,
        crash_isolation: CrashIsolation | None = None,
    ) -> None:
        super().__init__(queue_handlers, store_client, holder)
        self.tally = Tally()
        """What was done so far."""
        self.chores: list[asyncio.Task[None]] = []
        """The other tasks: they settle, extend leases, and log."""
        self._state = state
        self._crash_isolation = crash_isolation or CrashIsolation()
        self._summary = delivery_log.DeliverySummary(
            queue_handlers.queue, store_client.clock.monotonic()
        )
        self._run = HandlerRunner(middleware, queue_handlers.concurrency, self._ended, self._left)
        self._lease = queue_handlers.lease / 1000  # in seconds
        self._settling = Settling(queue_handlers.queue, store_client)
        self.late_causes = LateCauses(
            queue_handlers.queue, store_client, self.tally, queue_handlers.window
        )
        self._durations: list[float] = []
        """How many seconds handlers ran that the tally does not count yet."""
        self._timer: Timer | None = None
        """Looks at the messages that wait for a place; `None`: none waits."""
        self._leaving = False
        """Whether running handlers were asked to end because the worker stops."""
        self._newest: dict[str, Handling] = {}
        """The last run of each message, by id."""
        self._hinted: dict[str, float] = {}
        """The ids of messages of which a hint has come, and when, by the monotonic clock."""
        self._has_hints = asyncio.Event()
        self._reports: dict[Handling, Progress] = {}
        """What handlers have reported since the last reports were stored."""
        self._has_reports = asyncio.Event()
        self._chance = random.random
        """Returns a number from 0 to 1, for the jitter of delays."""

    def open(self) -> None:
        """Start to claim."""
        self.claims = self._loop.create_task(self.claim())
        self._store_client.lane.overhear(self._overheard)
        chores = [
            self.settle(),
            self.beat(),
            self.look_at_hinted(),
            self.lapse(),
            self.store_reports(),
            self.report(),
        ]
        self.chores = [self._loop.create_task(chore) for chore in chores]

    async def close(self) -> None:
        """End the tasks and threads, and log the last summary.

        Settles nothing, and ends no handler: see `stop` and `release_all`.
        """
        self._store_client.lane.stop_listening(self._overheard)
        await cancel([self.claims, *self.chores] if self.chores else [])
        self._summary.log(self.current(), self._clock.monotonic())
        if self._timer is not None:
            self._timer.cancel()
        self._run.threads.close()

    @property
    def failure(self) -> BaseException | None:
        """What one of its tasks raised; none ends by itself."""
        ended = [task for task in (self.claims, *self.chores) if task.done()]
        errors = [task.exception() for task in ended if not task.cancelled()]
        return errors[0] if errors else None

    @property
    def settles(self) -> bool:
        """Whether the task runs that settles messages."""
        return bool(self.chores) and not self.chores[0].done()

    # Tasks that run as long as the consumer.

    async def settle(self) -> None:
        """Settle messages in batches: all that ended since the last batch."""
        while True:
            for pairs, outcomes in await self._settling.settle_all():
                self._settled(pairs, outcomes)
            self._changed.set()

    async def beat(self) -> None:
        """Extend the leases of running messages, one command a beat; give up lost leases."""
        beat = pause = self._lease / 3
        while True:
            await sleep(self._clock, pause)
            pause = beat
            now = self._clock.monotonic()
            handlings = settling.to_extend(self._unsettled(), now, beat)
            if handlings and not await self._extend(handlings):
                pause = min(beat, AGAIN)  # sooner than the next beat: the leases go on running out

    async def _extend(self, handlings: Sequence[Handling]) -> bool:
        """Extend leases; stop what was cancelled. Return whether all is known of each lease."""
        now = self._clock.monotonic()
        leases = [handling.lease for handling in handlings]
        command = Extend(self.queue_handlers.queue, leases, self.queue_handlers.lease)
        try:
            reply = await self._store_client.once(Outcomes, command)
        except StoreError:  # `StoreClient` has logged it
            return False
        all_known = True
        for handling, outcome in zip(handlings, reply.outcomes, strict=True):
            if outcome.done:
                handling.expires = now + self._lease
                if outcome.state == "stopping":
                    self._stop(handling)
            elif outcome.state == "settling":  # its transaction decides; asked again soon
                all_known = False
            elif handling in self.running and not handling.outcome_ignored:
                # Still running: one that has ended meanwhile has no lease, and needs none.
                self._lose([handling], str(outcome))
        return all_known

    async def look_at_hinted(self) -> None:
        """Extend the leases of messages at once of which a hint has come: are they cancelled?

        A hint may come before the message that was just claimed: so it is kept for a while. If it
        is lost, or the store is away, a beat finds out.
        """
        while True:
            await self._has_hints.wait()
            self._has_hints.clear()
            since = self._clock.monotonic() - HINT_KEPT
            hinted = self._hinted = {id: at for id, at in self._hinted.items() if at > since}
            held = [*self._unsettled(), *self.prefetch.waiting]
            handlings = [handling for handling in held if handling.id in hinted]
            if handlings and await self._extend(handlings):
                for handling in handlings:
                    hinted.pop(handling.id, None)
            elif handlings:
                await sleep(self._clock, AGAIN)
                self._has_hints.set()

    async def store_reports(self) -> None:
        """Store what handlers report of their progress: of each the last report, once a second."""
        while True:
            await self._has_reports.wait()
            self._has_reports.clear()
            reports, self._reports = self._reports, {}
            held = [handling for handling in reports if not handling.outcome_ignored]
            if not held:
                continue
            command = Extend(
                self.queue_handlers.queue,
                [handling.lease for handling in held],
                lease=None,
                progress=[reports[handling] for handling in held],
            )
            with suppress(BideError):  # no report is worth a worker, and the next one is newer
                await self._store_client.once(Outcomes, command)
            await sleep(self._clock, REPORT_EVERY)

    def _overheard(self, name: str, wake: int) -> None:
        """Note a hint of a message of this queue, in any thread: perhaps it is cancelled."""
        queue, _, id = name.partition(" ")
        if id and queue == self.queue_handlers.queue:
            call_on(self._loop, self._hint, id)

    def _hint(self, id: str) -> None:
        """Note a hint of a message, on the loop."""
        self._hinted[id] = self._clock.monotonic()
        if len(self._hinted) > HINTS_MOST:
            del self._hinted[next(iter(self._hinted))]
        self._has_hints.set()

    def _reported(self, handling: Handling, report: Progress) -> None:
        """Note what a handler reports, in any thread."""
        call_on(self._loop, self._note_report, handling, report)

    def _note_report(self, handling: Handling, report: Progress) -> None:
        """Note a report, on the loop; it replaces an earlier one that was not stored."""
        self._reports[handling] = report
        self._has_reports.set()

    async def lapse(self) -> None:
        """Give up leases that are over, also while the store leaves an extension unanswered."""
        while True:
            now = self._clock.monotonic()
            lapsed = [handling for handling in self._unsettled() if handling.expires <= now]
            self._lose(lapsed, "it could not be extended in time")
            ends = [handling.expires for handling in self._unsettled()]
            await sleep(self._clock, min(ends, default=now + self._lease) - now)

    def current(self) -> Tally:
        """Return the totals so far, and how much is running."""
        self.tally.running, self.tally.waiting = len(self.running), len(self.prefetch.waiting)
        self.tally.longest = round(self._lasting, 3)
        self._add_up()
        return self.tally

    def busy(self) -> Busy:
        """Return what it handles now, for heartbeats."""
        busy = Busy(self.queue_handlers.concurrency, len(self.running))
        if self.running:  # the first of them was started first
            busy.longest = next(iter(self.running)).id
            busy.since = round(self._clock.now() - self._lasting * 1000)
        if (window := self.queue_handlers.window) is not None:
            busy.hours, busy.timezone, busy.opens = window.hours, window.timezone, self.opens
        return busy

    @property
    def _lasting(self) -> float:
        """For how many seconds the handler has run that was started first; 0: none runs."""
        first = next(iter(self.running), None)
        return 0.0 if first is None else self._clock.monotonic() - first.began

    @property
    def stuck(self) -> bool:
        """Whether handlers that were given up have occupied all places for `STUCK` seconds.

        A thread, or a task that swallows its cancellation, cannot be ended: it keeps its place.
        Without a free place, only another process can work on the queue.
        """
        given_up_at = [
            handling.began + handling.took for handling in self.running if handling.overran
        ]
        full = len(given_up_at) >= self.queue_handlers.concurrency
        return full and self._clock.monotonic() >= max(given_up_at) + STUCK

    async def report(self) -> None:
        """Find causes of lateness, and log a summary, every `delivery_log.SUMMARY` seconds."""
        while True:
            await sleep(self._clock, delivery_log.SUMMARY)
            await self.late_causes.find()
            self._summary.log(self.current(), self._clock.monotonic())

    # Leaving.

    @property
    def quiet(self) -> bool:
        """Whether nothing is left to settle, and the outcome of no running handler counts."""
        return not self.to_settle and all(handling.outcome_ignored for handling in self.running)

    @property
    def to_settle(self) -> int:
        """How many messages do not run, and have to be settled in the store or returned to it."""
        return len(self._settling.pairs) + len(self.prefetch.waiting)

    def leave(self) -> None:
        """Start nothing more; return prefetched messages to the queue; let no batch wait for more.

        Call it once `claim` has ended.
        """
        unstarted = list(self.prefetch.waiting)
        self.prefetch.waiting.clear()
        self._release(unstarted)
        for handling in self.running:
            handling.worker_leaves = True
        for handler in {handling.handler for handling in self.running}:
            if handler.begin_gathered is not None:
                handler.begin_gathered()

    async def until_quiet(self) -> None:
        """Wait until all messages are settled. Cancel `claim` first."""
        while not self.quiet:
            self._changed.clear()
            await self._changed.wait()

    def release_running(self, *, interrupt: bool = True) -> None:
        """Release the messages of handlers that run; the attempt does not count.

        Args:
            interrupt: let async handlers end first; their messages are released then.
        """
        self._leaving = True
        for handling in self._held():
            handler = handling.handler
            if interrupt and handler.is_async and not handler.is_plain_batch:
                handling.cancel()
            else:
                handling.lose()
                self._settling.add(handling, interruption(handling))
        self._changed.set()

    # One delivery.

    def judge(self, handling: Handling, error: BaseException) -> Verdict:
        """Return how to settle a message whose handler raised."""
        was_cancelled = isinstance(error, asyncio.CancelledError) and not handling.timed_out
        if self._leaving and was_cancelled:
            return interruption(handling)
        # Of a message that was cancelled, the store counts a release as that.
        if handling.stopping and (was_cancelled or isinstance(error, StopRequested)):
            return RELEASE
        return settling.judge_delivery(handling, error, self._chance())

    def start(self, reply: Claimed) -> None:
        """Start claimed messages while places are free; the rest waits."""
        # The lease counts from now, not from the time of the store: their clocks may differ. If
        # this loop was late to read the reply, the first extension finds a lost lease.
        now = self._clock.monotonic()
        expires = now + self._lease
        claim_sent = reply.now - (now - self.asked_at) * 1000  # by the store's clock, in ms
        waiting = self.prefetch.waiting
        self.tally.claims += 1
        self.tally.claimed += len(reply.messages)
        if reply.died:  # the lane has logged them
            self.tally.ended("dead", len(reply.died))
        if reply.messages:  # an empty reply does not say it
            self._settling.keeps_results = reply.results
        queue_handlers = self.queue_handlers
        for message in reply.messages:
            handler = queue_handlers.of(message)
            handling = Handling(
                message,
                reply.token,
                reply.now,
                handler or queue_handlers.any,
                self._state,
                queue_handlers.joining,
            )
            handling.keeps_result = reply.results
            handling.asked, handling.arrived = claim_sent, now
            handling.expires, handling.limited = expires, reply.limited
            if message.failures and not self._may_begin(handling, now):
                continue
            if handler is None:
                self._crash_isolation.leave(handling)
                verdict = settle_unknown(handling, queue_handlers.unknown(message))
                self._settling.add(handling, verdict)
            elif len(self.running) < queue_handlers.concurrency:
                self._begin(handling, now)
            else:
                waiting.append(handling)
        if waiting and self._timer is None:
            self._wait(self.prefetch.hold)
        if self._hinted:  # one of these may be meant
            self._has_hints.set()

    def _may_begin(self, handling: Handling, now: float) -> bool:
        """Return whether a message may begin, unless a suspect runs already: see `CrashIsolation`.

        Such a message is released with a short delay.
        """
        if not is_suspect(handling.message):
            return True
        if self._crash_isolation.admit(handling):
            delivery_log.log(
                logging.WARNING,
                handling,
                "suspect",
                "its lease has expired too often; it may be what kills its process, and runs "
                "without others like it",
            )
            return True
        delay = self._crash_isolation.release(handling, now, self._chance())
        self._settling.add(handling, RELEASE._replace(delay=delay))
        return False

    def release_claimed(self, reply: Claimed) -> None:
        """Release the messages of a claim; their attempt does not count."""
        if reply.died:
            self.tally.ended("dead", len(reply.died))
        token, now, handler = reply.token, reply.now, self.queue_handlers.any
        self._release([Handling(m, token, now, handler, self._state) for m in reply.messages])

    def _begin(self, handling: Handling, now: float) -> None:
        """Start the handler of a delivery.

        It may have to wait: a suspect until the other suspects are released, and a message of which
        an earlier delivery still runs here until that one is stopped.
        """
        handling.began, handling.clock = now, self._clock
        handling.reports_to(self._reported)
        if handling.handler.batch > 1:
            handling.gives_up_by(self._fail_after_cleanup)
        self.late_causes.begun.append(handling)
        self.running[handling] = None
        earlier = self._newest.get(handling.id)
        self._newest[handling.id] = handling
        wait_to_start = self._crash_isolation.wait_of(handling)
        if earlier is None:
            self._start_timers(handling)
        else:
            wait_to_start = partial(self._stop_earlier, handling, earlier, wait_to_start)
        self._run.start(handling, wait_to_start)

    def _start_timers(self, handling: Handling) -> None:
        """Start the timers of the handler's timeout and of its warning, if it has them."""
        handler = handling.handler
        if handler.timeout is not None and handler.batch == 1:  # a batch measures its call
            time_out = partial(self._out_of_time, handling)
            handling.timers += (self._clock.call_later(self._loop, handler.timeout, time_out),)
        if handler.warn_after is not None:
            warn = partial(
                delivery_log.log,
                logging.WARNING,
                handling,
                "running",
                "%s has been running for %s",
                handler.name,
                format_duration(handler.warn_after * 1000),
            )
            handling.timers += (self._clock.call_later(self._loop, handler.warn_after, warn),)

    async def _stop_earlier(
        self,
        handling: Handling,
        earlier: Handling,
        wait_to_start: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """Stop an earlier run of the same message, whose lease was ended elsewhere.

        An async handler is cancelled. A plain one that does not check `delivery.lost` cannot be
        stopped: `CLEANUP` seconds later the next run goes on beside it.

        Args:
            handling: the delivery that starts after this.
            earlier: the delivery to stop.
            wait_to_start: what `handling` has to wait for after that; `None`: nothing.
        """
        if not earlier.outcome_ignored:
            self._lose([earlier], "the message was released, and is claimed here again")
        lost_at = earlier.began + earlier.took
        pause = lost_at + CLEANUP - self._clock.monotonic()
        if pause > 0:
            wait = first_of(self._until_ended(earlier), sleep(self._clock, pause))
            await to_the_end(wait)  # a run that ends sooner would let a third one begin
        handling.began = self._clock.monotonic()
        self._start_timers(handling)
        if wait_to_start is not None:
            await wait_to_start()

    async def _until_ended(self, handling: Handling) -> None:
        """Wait until a handler has returned or raised."""
        while handling in self.running:
            self._changed.clear()
            await self._changed.wait()

    def _wait(self, seconds: float) -> None:
        """Look at the messages that wait for a place so many seconds from now."""
        self._timer = self._clock.call_later(self._loop, seconds, self._look_at_waiting)

    def _look_at_waiting(self) -> None:
        """Release messages that waited too long for a place; repeat while any waits."""
        self._timer = None
        now = self._clock.monotonic()
        if overdue := self.prefetch.overdue(now):
            self.recall()
            self._release(overdue)
        if self.prefetch.waiting:
            self._wait(self.prefetch.waiting[0].arrived + self.prefetch.hold - now)

    def _release(self, unstarted: Sequence[Handling]) -> None:
        """Return messages to the queue that no handler has begun."""
        for handling in unstarted:
            self._crash_isolation.leave(handling)
            self._settling.add(handling, RELEASE)
        self._changed.set()

    def _ended(self, handling: Handling, error: BaseException | None) -> None:
        """Settle a delivery whose handler has returned or raised."""
        del self.running[handling]
        if self._newest.get(handling.id) is handling:
            del self._newest[handling.id]
        if handling.message.failures:  # only a message with failures can be a suspect
            self._crash_isolation.leave(handling)
        now = self._clock.monotonic()
        handling.took = now - handling.began
        self.prefetch.ended(handling.took)
        self._durations.append(handling.took)
        if self.prefetch.waiting:
            self._begin(self.prefetch.waiting.popleft(), now)
        for timer in handling.timers:
            timer.cancel()
        if handling.outcome_ignored:
            delivery_log.log(
                logging.INFO,
                handling,
                "late",
                "%s has ended (%s), too late to count",
                handling.handler.name,
                "no error" if error is None else type(error).__name__,
            )
        elif error is None and handling.joined is not None:  # its transaction decides
            self._settled([(handling, Verdict(handling.joined))], [Outcome(handling.id, False)])
        else:
            verdict = ACK if error is None else self.judge(handling, error)
            self._settling.add(handling, verdict)
        self._changed.set()

    def _out_of_time(self, handling: Handling) -> None:
        """Interrupt an async handler at its timeout; a plain one cannot be interrupted.

        One whose lease was lost counts as stuck from now on.
        """
        if handling not in self.running:
            return
        if handling.stopping and handling.handler.is_async:
            return  # it cleans up; `_give_up` is called in time
        handling.timed_out = True
        if handling.outcome_ignored:
            return
        if handling.stopping:
            self._give_up(handling)
        elif handling.handler.is_async:
            handling.cancel()
            self._fail_after_cleanup(handling)
        else:
            self._fail_runaway(handling)

    def _fail_after_cleanup(self, handling: Handling) -> None:
        """Fail the attempt of an async handler that was interrupted if it does not end soon."""
        if handling in self.running:
            fail = partial(self._fail_runaway, handling)
            handling.timers += (self._clock.call_later(self._loop, CLEANUP, fail),)

    def _fail_runaway(self, handling: Handling) -> None:
        """Fail the attempt of a handler that continues past its timeout."""
        if handling not in self.running:
            return
        handling.timed_out = True
        if handling.outcome_ignored:
            return
        verdict = settling.judge_delivery(handling, asyncio.CancelledError(), self._chance())
        self._settle_running(handling, verdict, "its timeout")

    def _left(self, handling: Handling, error: BaseException | None) -> None:
        """Settle a delivery whose middleware has ended while its plain handler still runs."""
        if not handling.outcome_ignored:
            verdict = ACK if error is None else self.judge(handling, error)
            self._settle_running(handling, verdict, "its middleware has ended")

    def _settle_running(self, handling: Handling, verdict: Verdict, after: str) -> None:
        """Settle a delivery while its handler still runs, and log that.

        Args:
            handling: the delivery.
            verdict: how it is settled.
            after: what has come before the end of the handler, for the log, such as "its timeout".
        """
        handling.took = self._clock.monotonic() - handling.began
        self._settling.add(handling, verdict)
        handling.lose()
        overran = sum(other.overran for other in self.running)
        delivery_log.log(
            logging.ERROR,
            handling,
            "timeout",
            "%s is still running after %s and keeps its slot; %s slots are taken this way. "
            "Let it check delivery.lost; an async one must raise asyncio.CancelledError again",
            handling.handler.name,
            after,
            f"{overran} of {self.queue_handlers.concurrency}",
        )

    def _stop(self, handling: Handling) -> None:
        """Stop a delivery whose message was cancelled; one that waits for a place never begins.

        The store counts any end but an ack as cancelled.
        """
        if handling.stopping:
            return
        if handling in self.prefetch.waiting:
            handling.stopping = True
            self.prefetch.waiting.remove(handling)
            self._release([handling])
        elif handling in self.running and not handling.outcome_ignored:
            text = "it was cancelled: %s is asked to stop"
            delivery_log.log(logging.INFO, handling, "stopping", text, handling.handler.name)
            handling.ask_to_stop()
            if handling.handler.is_async and handling.handler.batch == 1 and not handling.timed_out:
                give_up = partial(self._give_up, handling)
                handling.timers += (self._clock.call_later(self._loop, CLEANUP, give_up),)

    def _give_up(self, handling: Handling) -> None:
        """Wait no longer for a handler that was asked to stop."""
        if handling.outcome_ignored or handling not in self.running:
            return
        handling.took = self._clock.monotonic() - handling.began
        self._settling.add(handling, RELEASE)
        handling.lose()
        delivery_log.log(
            logging.ERROR,
            handling,
            "stopping",
            "%s is still running after it was asked to stop, and keeps its slot. Let it check "
            "delivery.lost; an async one must raise asyncio.CancelledError again",
            handling.handler.name,
        )

    def _lose(self, handlings: Iterable[Handling], why: str) -> None:
        """Give up deliveries whose leases are lost: their handlers' outcomes no longer count."""
        now = self._clock.monotonic()
        for handling in handlings:
            handling.took = now - handling.began
            delivery_log.log(
                logging.WARNING,
                handling,
                "lost",
                "the lease was lost while %s ran: %s",
                handling.handler.name,
                why,
            )
            self.tally.ended("lost")
            handling.outcome = "lost"
            handling.lose()

    def _held(self) -> list[Handling]:
        """Return the running deliveries whose outcomes count."""
        return [handling for handling in self.running if not handling.outcome_ignored]

    def _unsettled(self) -> list[Handling]:
        """Return those that need their lease: a transaction that settles one has locked it."""
        return [handling for handling in self._held() if handling.joined is None]

    def _settled(self, pairs: Pairs, outcomes: list[Outcome]) -> None:
        """Note, count and log what became of deliveries, by the outcomes from the store."""
        self._crash_isolation.note_settled(handling for handling, _ in pairs)
        for (handling, verdict), outcome in zip(pairs, outcomes, strict=True):
            handling.outcome = settling.result(handling, verdict, outcome)
        for outcome_name, count in Counter([handling.outcome for handling, _ in pairs]).items():
            self.tally.ended(outcome_name, count)
        self._add_up()
        delivery_log.log_settled(pairs, outcomes)

    def _add_up(self) -> None:
        """Count how late deliveries began, and how long they took: many at once cost less."""
        self.late_causes.count()
        self.tally.duration.observe(*self._durations)
        self._durations.clear()
