"""A delivery: a message that one worker holds until its lease ends."""

from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from bide.model.commands import Command, Lease
from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.model.replies import Outcome
from bide.model.times import Duration

Done = TypeVar("Done")
"""What a method returns: nothing, or a coroutine that returns nothing."""


class Held(Generic[Done]):
    """What both kinds of delivery share.

    Each method raises `LeaseLost` if the lease is over; nothing was changed then.
    """

    __slots__ = ("_queue", "claimed", "message", "settled", "token")

    def __init__(self, queue: Any, message: Message, token: int, claimed: int) -> None:
        self._queue = queue
        self.message = message
        """The message as it was claimed."""
        self.token = token
        """The fencing token: the number of the claim, which only grows within a queue."""
        self.claimed = claimed
        """When it was claimed, in Unix milliseconds of the store's clock."""
        self.settled = False
        """Whether it was acked, retried, buried or released through this object."""

    @property
    def id(self) -> str:
        """The message's id."""
        return self.message.id

    @property
    def body(self) -> Any:
        """The message's body, decoded at each access."""
        return self.message.body

    @property
    def attempt(self) -> int:
        """Which attempt this is, counted from 1."""
        return self.message.attempt

    @property
    def lateness(self) -> float:
        """How long after its due time it was claimed, in seconds."""
        return (self.claimed - self.message.due) / 1000

    @property
    def lease(self) -> Lease:
        """The lease, as the store knows it."""
        return Lease(self.message.id, self.token, self.message.secret)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.id!r} of {self.message.queue!r}, attempt {self.attempt}>"
        )

    def ack(self, result: Any = None) -> Done:
        """Acknowledge the message: it is done and leaves the queue.

        Args:
            result: any JSON value, for `Queue.result`; of use in a queue with `result_ttl`.
        """
        return self._settle(self._queue._builder.ack([self.lease], [result]), "acked")

    def retry(self, delay: Duration = 0, reason: str = "") -> Done:
        """Return the message for another attempt; after the last one it is a dead letter.

        Args:
            delay: how long from now until it is due.
            reason: what went wrong; stored with the message.
        """
        return self._settle(self._queue._builder.retry([self.lease], delay, reason), "retried")

    def bury(self, reason: str = "") -> Done:
        """Make the message a dead letter."""
        return self._settle(self._queue._builder.bury([self.lease], reason), "buried")

    def release(self) -> Done:
        """Return the message: it is ready at once, and no attempt is counted."""
        return self._settle(self._queue._builder.release([self.lease]), "released")

    def extend(self, lease: Duration = 30) -> Done:
        """Extend the lease: it ends `lease` from now."""
        command = self._queue._builder.extend([self.lease], lease)
        return self._settle(command, "extended", settles=False)

    def _settle(self, command: Command, verb: str, *, settles: bool = True) -> Done:
        done: Done = self._queue._settle_one(self, command, verb, settles=settles)
        return done


class Delivery(Held[None]):
    """A claimed message. Settle it (ack, retry, bury or release) before its lease is over.

    Each method raises `LeaseLost` if the lease is over; nothing was changed then.
    """

    __slots__ = ()


class AsyncDelivery(Held[Coroutine[Any, Any, None]]):
    """Async form of `Delivery`: await what its methods return."""

    __slots__ = ()


def leases(deliveries: Sequence[Held[Any]]) -> list[Lease]:
    """Return the leases of deliveries.

    Raises:
        InvalidArgument: they are not deliveries.
    """
    if isinstance(deliveries, Iterator):  # which can be read once only
        kind = type(deliveries).__name__
        raise InvalidArgument(f"this takes a list of deliveries, not a {kind}: list(...) makes one")
    try:
        return [delivery.lease for delivery in deliveries]
    except (AttributeError, TypeError):
        raise InvalidArgument(_no_deliveries(deliveries)) from None


def _no_deliveries(found: object) -> str:
    if isinstance(found, Held):
        return (
            "this takes several deliveries, as a list; one has methods of its own: delivery.ack()"
        )
    wrong = found
    if isinstance(found, Iterable) and not isinstance(found, (str, bytes)):
        wrong = next((one for one in found if not isinstance(one, Held)), found)
    return (
        f"this takes deliveries, as claim returns them, not a {type(wrong).__name__}; an id is "
        "enough to get or cancel a message, not to settle it"
    )


def mark_settled(deliveries: Sequence[Held[Any]], outcomes: Sequence[Outcome]) -> None:
    """Remember which deliveries a command has settled."""
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        delivery.settled = delivery.settled or outcome.done
