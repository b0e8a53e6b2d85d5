"""An outlet: one subscription as one server works on it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

from bide.model.commands import Claim
from bide.model.errors import StoreError
from bide.model.replies import Claimed
from bide.server.push.answer import Answer, Failed, verdict
from bide.server.push.circuit import Circuit
from bide.server.push.pace import Pace
from bide.server.push.records import Records
from bide.server.push.sender import Sender, request_of
from bide.server.push.subscription import Subscription
from bide.worker import desk
from bide.worker.access import Access, sleep
from bide.worker.delivery import Handling
from bide.worker.desk import RELEASE, Verdict
from bide.worker.duty import Duty
from bide.worker.handler import Handler
from bide.worker.station import AGAIN, FOREVER, Station

__all__ = ["Outlet"]

LEASE = 30_000
"""For how long a message is held at a time; extended while the receiver takes its time."""

_log = logging.getLogger("bide.server.push")


class Outlet(Station):
    """Claims what is due, sends it, and settles it by what the receiver answers.

    Args:
        subscription: what is sent where.
        sender: what sends it.
        records: where subscriptions are kept.
        access: the way to the store.
        holder: as whom it claims.
    """

    def __init__(
        self,
        subscription: Subscription,
        sender: Sender,
        records: Records,
        access: Access,
        holder: str,
    ) -> None:
        self.subscription = subscription
        self.circuit = Circuit()
        self._sender = sender
        self._records = records
        self._share = subscription.concurrency
        self._held_until = 0.0
        duty = Duty(subscription.source, LEASE, subscription.concurrency, {})
        duty.handlers[None] = self._handler()
        super().__init__(duty, (), SimpleNamespace(), access, holder, lambda: None)
        self._pace = Pace(subscription.rate, self._clock.monotonic())
        self._changed = asyncio.Event()
        self._telling: set[asyncio.Task[None]] = set()

    # What it is told.

    def become(self, subscription: Subscription, places: int, rate: float | None) -> None:
        """Go on as the subscription is now, with this server's share of what it may do."""
        news = self.subscription.changed != subscription.changed
        if news or (places, rate) != (self._share, self._pace.rate):
            if news:
                self.circuit, self._held_until = Circuit(), 0.0
            self.subscription = subscription
            self._share = places
            self._pace.set(rate, self._clock.monotonic())
            self.duty.concurrency = max(places, 1)
            self.duty.handlers[None] = self._handler()
            self._look_again()

    def hear(self, circuit: Circuit | None) -> None:
        """A server has told how it stands with the receiver; `None`: nobody has."""
        if circuit is not None and circuit.changed > self.circuit.changed:
            self.circuit = circuit
            self._look_again()

    def _handler(self) -> Handler:
        one = self.subscription
        return Handler(
            queue=one.source, name=f"push {one.name}", function=self._push, is_async=True,
            decode=None, order="d", timeout=one.timeout / 1000, retry=one.backoff,
            still_wanted=None,
        )  # fmt: skip

    def _look_again(self) -> None:
        """Let whoever waits for anything see what has changed."""
        self._changed.set()
        self._vacancy.set()

    # Claiming.

    async def claim(self) -> None:
        """Claim what may be sent now, and send it."""
        while True:
            self._changed.clear()
            count, pause = self._room()
            if not count:
                self._vacancy.clear()
                await self._until(self._vacancy.wait(), pause)
                continue
            command = Claim(self.duty.queue, count, LEASE, self._holder)
            reply = await self._claimed(command)
            if reply is None or not reply.messages:
                continue
            wanted = False
            try:
                wanted = not self._changed.is_set() and await self._still()
            finally:
                if not wanted:
                    self._return(reply)
            if wanted:
                self._pace.take(len(reply.messages))
                self.start(reply)

    def _room(self) -> tuple[int, float | None]:
        """Return how many may be claimed now; if none, after how many seconds to look again.

        `None`: only when something has changed.
        """
        now, moment = self._clock.now(), self._clock.monotonic()
        if self.subscription.paused:
            return 0, None
        room = self._share - len(self.running)
        match self.circuit.state(now):
            case "open":
                return 0, (self.circuit.until - now) / 1000
            case "half-open":
                room = min(room, 1 - len(self.running))
        if room <= 0:
            return 0, None
        if moment < self._held_until:
            return 0, self._held_until - moment
        count = self._pace.room(min(room, desk.CLAIM_MOST), moment)
        return count, None if count else self._pace.wait(moment)

    async def _claimed(self, command: Claim) -> Claimed | None:
        """Return what a claim brings; `None` when something has changed meanwhile."""
        asking = self._loop.create_task(self._access.patiently(Claimed, command, self, FOREVER))
        changing = self._loop.create_task(self._changed.wait())
        try:
            await asyncio.wait((asking, changing), return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        except asyncio.CancelledError:
            if asking.done():
                self._return(asking.result())
            raise
        finally:
            changing.cancel()
            asking.cancel()  # what it brings from now on goes back by itself

    async def _still(self) -> bool:
        """Tell whether what was claimed is to be sent: looked up now, not remembered."""
        try:
            still = await self._records.still(self.subscription)
        except StoreError:
            still = False
        if not still:
            self._held_until = self._clock.monotonic() + AGAIN  # until the pusher has looked
            self.stale()
        return still

    def _return(self, reply: Claimed) -> None:
        """Hand back what was claimed for a subscription that has changed meanwhile."""
        now = self._clock.monotonic()
        handler = self.duty.handlers[None]
        back = [Handling(m, reply.token, reply.now, handler, self._state) for m in reply.messages]
        for one in back:
            one.began = now
        self._hand_back(back)

    stale: Callable[[], None] = staticmethod(lambda: None)
    """Called when the subscription is not any more as it is known here."""

    async def _until(self, event: Awaitable[object], seconds: float | None) -> None:
        waits = [asyncio.ensure_future(event)]
        if seconds is not None:
            waits.append(asyncio.ensure_future(sleep(self._clock, max(0.0, seconds))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    # Sending.

    async def _push(self, one: Handling) -> None:
        """Send one message.

        Raises:
            Failed: the receiver has not taken it.
        """
        request = request_of(one.message, self.subscription)
        answer = await self._sender.send(request, self.subscription)
        self._note(answer)
        if answer.gone:
            await self._gone()
        if not answer.good:
            raise Failed(answer)

    def _judge(self, one: Handling, error: BaseException) -> Verdict:
        match error:
            case Failed():
                answer = error.answer
            case asyncio.CancelledError() if one.timed_out:
                seconds = self.subscription.timeout / 1000
                answer = Answer(None, f"no answer within {seconds:g} s")
                self._note(answer)
            case asyncio.CancelledError():
                return RELEASE
            case _:
                return super()._judge(one, error)
        retry = one.handler.retry
        is_open = self.circuit.since is not None
        return verdict(one.message, answer, retry, self._chance(), is_open=is_open)

    def _note(self, answer: Answer) -> None:
        """Let the circuit know what came of a request, and be quiet if that was asked for."""
        now, circuit = self._clock.now(), self.circuit
        if answer.again:
            moment = self._clock.monotonic() + answer.again / 1000
            self._held_until = max(self._held_until, moment)
            self._look_again()
        if answer.good:
            turned = circuit.succeeded(now)
            if turned:
                _log.warning("%s: the receiver is back", self.subscription.key)
        elif answer.counts and not answer.gone:
            was = circuit.since
            turned = circuit.failed(
                answer.text, now, most=self.subscription.failures, pause=self.subscription.probe
            )
            if turned and was is None:
                _log.error(
                    "%s: %d failures in a row, nothing is sent for now: %s",
                    self.subscription.key, circuit.failures, answer.text,
                )  # fmt: skip
        else:
            turned = False
        if turned:
            self._tell_others()
            self._look_again()

    def _tell_others(self) -> None:
        task = self._loop.create_task(self._tell_circuit())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_circuit(self) -> None:
        try:
            await self._records.tell_circuit(self.subscription.key, self.circuit)
        except StoreError as error:
            _log.warning("%s: others were not told of it: %s", self.subscription.key, error)

    async def _gone(self) -> None:
        """The receiver wants nothing any more: somebody has to look at that."""
        reason = "the receiver answered 410 Gone"
        if self.subscription.paused:
            return
        _log.error("%s: paused, since %s", self.subscription.key, reason)
        try:
            self.subscription = await self._records.pause(self.subscription, reason)
        except StoreError as error:
            _log.warning("%s: could not be paused: %s", self.subscription.key, error)
        self._look_again()
