"""What `take` returns: a message for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import format_exception_only
from typing import Any

from bide.model.errors import BideError, Empty
from bide.model.message import Message
from bide.model.replies import Claimed
from bide.model.times import Duration, milliseconds
from bide.queue.delivery import AsyncDelivery, Delivery, Held


class _Take:
    """What both forms share."""

    def __init__(self, queue: Any, wait: float, lease: Duration, retry: Duration) -> None:
        self._queue = queue
        self._wait = wait
        self._claim = queue._builder.claim(1, lease, queue._holder)
        self._delay = milliseconds(retry, "retry") / 1000
        self._delivery: Held[Any] | None = None

    def _message(self, reply: Claimed) -> Message:
        if not reply.messages:
            raise Empty(
                f"no message of queue {self._queue.name!r} fell due within {self._wait:g} s"
            )
        return reply.messages[0]

    def _settle(self, error: BaseException | None) -> Any:
        """Settle the message as the block ended, unless the user did."""
        delivery = self._delivery
        if delivery is None or delivery.settled:
            return None
        if error is None:
            return delivery.ack()
        if isinstance(error, Exception):
            return delivery.retry(self._delay, reason_of(error))
        return delivery.release()  # an interrupt or an exit says nothing about the message

    @contextmanager
    def _after(self, error: BaseException | None) -> Iterator[None]:
        """Add what settling raises to the error of the block, which is what counts."""
        try:
            yield
        except BideError as late:
            if error is None or self._delivery is None:
                raise
            error.add_note(f"The message {self._delivery.id} was not given back: {late}")


class Take(_Take):
    """One message, claimed on entering the block and settled on leaving it."""

    def __enter__(self) -> Delivery:
        reply = self._queue._do(Claimed, self._claim, self._wait)
        message = self._message(reply)
        self._delivery = Delivery(self._queue, message, reply.token, reply.now)
        return self._delivery

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._after(error):
            self._settle(error)


class AsyncTake(_Take):
    """Async form of `Take`."""

    async def __aenter__(self) -> AsyncDelivery:
        reply = await self._queue._do(Claimed, self._claim, self._wait)
        message = self._message(reply)
        self._delivery = AsyncDelivery(self._queue, message, reply.token, reply.now)
        return self._delivery

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._after(error):
            if (settling := self._settle(error)) is not None:
                await settling


def reason_of(error: BaseException) -> str:
    """Return an error as the reason of a failed attempt: its type and what it says."""
    return "".join(format_exception_only(error)).strip()
