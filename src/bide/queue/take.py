"""What `take` returns: a message for the length of a block."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any, NoReturn

from bide.model.errors import BideError, Empty, WrongContext
from bide.model.message import Message
from bide.model.replies import Claimed
from bide.model.times import Duration, milliseconds
from bide.queue.delivery import AsyncDelivery, Delivery, Held


class _Take:
    """What both forms share."""

    _with = "with"

    def __init__(self, queue: Any, wait: float, lease: Duration, retry: Duration) -> None:
        self._queue = queue
        self._wait = wait
        self._claim = queue._builder.claim(1, lease, queue._holder)
        self._delay = milliseconds(retry, "retry") / 1000
        self._delivery: Held[Any] | None = None
        self._free = threading.Lock()

    if not TYPE_CHECKING:  # a type checker finds these mistakes itself

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(self._misused(f"delivery.{name}"))

        def __await__(self) -> NoReturn:
            raise TypeError(self._misused())

        __iter__ = __await__

    def _misused(self, use: str = "...") -> str:
        return (
            "take() has no message yet, it claims one for the length of a block: "
            f"{self._with} queue.take() as delivery: {use}"
        )

    @contextmanager
    def _entering(self) -> Iterator[None]:
        """Let in one block at a time: the end of another one would settle its message."""
        if not self._free.acquire(blocking=False):
            raise WrongContext(
                "this take() is in use by another block, of this thread or of another; call "
                "queue.take() for each block"
            )
        try:
            yield
        except BaseException:
            self._free.release()
            raise

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
    def _leaving(self, error: BaseException | None) -> Iterator[None]:
        """Add what settling raises to the error of the block, which is what counts."""
        try:
            yield
        except BideError as late:
            if error is None or self._delivery is None:
                raise
            error.add_note(f"The message {self._delivery.id} was not given back: {late}")
        finally:
            self._free.release()


class Take(_Take):
    """One message, claimed on entering the block and settled on leaving it."""

    def __enter__(self) -> Delivery:
        with self._entering():
            reply = self._queue._do(Claimed, self._claim, self._wait)
            message = self._message(reply)
        self._delivery = Delivery(self._queue, message, reply.token, reply.now)
        return self._delivery

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._leaving(error):
            self._settle(error)


class AsyncTake(_Take):
    """Async form of `Take`."""

    _with = "async with"

    async def __aenter__(self) -> AsyncDelivery:
        with self._entering():
            reply = await self._queue._do(Claimed, self._claim, self._wait)
            message = self._message(reply)
        self._delivery = AsyncDelivery(self._queue, message, reply.token, reply.now)
        return self._delivery

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._leaving(error):
            if (settling := self._settle(error)) is not None:
                await settling


def reason_of(error: BaseException) -> str:
    """Return an error as the reason of a failed attempt: its type and what it says."""
    return "".join(format_exception_only(error)).strip()
