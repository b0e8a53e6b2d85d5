"""What `take` returns: a message for the length of a block."""

from traceback import format_exception_only
from types import TracebackType
from typing import TYPE_CHECKING

from bide.model.errors import BideError, Empty
from bide.model.replies import Claimed
from bide.model.times import Duration, milliseconds
from bide.queue.delivery import AsyncDelivery, Delivery

if TYPE_CHECKING:
    from bide.queue.aio import AsyncQueue
    from bide.queue.sync import Queue

__all__ = ["AsyncTake", "Take"]


class Take:
    """One message, claimed on entering the block and settled on leaving it."""

    def __init__(self, queue: "Queue", wait: float, lease: Duration, retry: Duration) -> None:
        self._queue = queue
        self._wait = wait
        self._claim = queue._builder.claim(1, lease, queue._holder)
        self._delay = milliseconds(retry, "retry") / 1000
        self._delivery: Delivery | None = None

    def __enter__(self) -> Delivery:
        reply = self._queue._do(Claimed, self._claim, self._wait)
        if not reply.messages:
            raise _empty(self._queue.name, self._wait)
        self._delivery = Delivery(self._queue, reply.messages[0], reply.token, reply.now)
        return self._delivery

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        delivery = self._delivery
        if delivery is None or delivery.settled:
            return
        if error is None:
            delivery.ack()
            return
        try:
            if isinstance(error, Exception):
                delivery.retry(self._delay, reason_of(error))
            else:  # an interrupt or an exit says nothing about the message
                delivery.release()
        except BideError as late:
            _note(error, delivery.id, late)


class AsyncTake:
    """Async form of `Take`."""

    def __init__(self, queue: "AsyncQueue", wait: float, lease: Duration, retry: Duration) -> None:
        self._queue = queue
        self._wait = wait
        self._claim = queue._builder.claim(1, lease, queue._holder)
        self._delay = milliseconds(retry, "retry") / 1000
        self._delivery: AsyncDelivery | None = None

    async def __aenter__(self) -> AsyncDelivery:
        reply = await self._queue._do(Claimed, self._claim, self._wait)
        if not reply.messages:
            raise _empty(self._queue.name, self._wait)
        self._delivery = AsyncDelivery(self._queue, reply.messages[0], reply.token, reply.now)
        return self._delivery

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        delivery = self._delivery
        if delivery is None or delivery.settled:
            return
        if error is None:
            await delivery.ack()
            return
        try:
            if isinstance(error, Exception):
                await delivery.retry(self._delay, reason_of(error))
            else:
                await delivery.release()
        except BideError as late:
            _note(error, delivery.id, late)


def reason_of(error: BaseException) -> str:
    """Return an error as the reason of a failed attempt: its type and what it says."""
    return "".join(format_exception_only(error)).strip()


def _note(error: BaseException, id: str, late: BideError) -> None:
    """What went wrong in the block is what counts; the message goes to somebody else anyway."""
    error.add_note(f"The message {id} was not given back: {late}")


def _empty(queue: str, wait: float) -> Empty:
    return Empty(f"no message of queue {queue!r} fell due within {wait:g} s")
