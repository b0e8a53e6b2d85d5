"""Which process moves messages out of a store, and where to: one at a time, also after a crash.

The ledger is a message in the source that the mover holds. Its lease keeps other movers out, and
lapses if the mover dies. Its token marks the messages in transit. A message with the same token in
the target proves to the next run that this is the store to which they went.
"""

from contextlib import suppress

from bide.model.errors import AlreadyMoving, LeaseLost, OutcomeUnknown
from bide.model.identity import OWN, new_id
from bide.model.message import MAX_ATTEMPTS
from bide.model.times import LATEST
from bide.queue.delivery import Delivery
from bide.queue.move.steps import is_marked
from bide.queue.sync import Queue

LEASE = 15.0
"""The lease of the ledger in seconds: so long a run waits after a crash."""

_NAME = f"{OWN}move"
_ID = "ledger"


def ledger_name(queue: str) -> str:
    """Return the queue with the ledger of a queue: one per namespace."""
    namespace, slash, _ = queue.rpartition("/")
    return f"{namespace}{slash}{_NAME}"


def _beside(queue: Queue) -> Queue:
    return Queue(ledger_name(queue.name), queue._url, clock=queue._own_clock)


class Ledger:
    """The right to move messages out of a store.

    Args:
        source: the queue to move.
        target: where it goes.
        lease: seconds, see `LEASE`.
    """

    def __init__(self, source: Queue, target: Queue, lease: float = LEASE) -> None:
        self._clock = source._clock
        self._lease = lease
        self._from = _beside(source)
        self._to = _beside(target)
        self._mine: dict[str, str] = {
            "token": new_id(), "queue": source.name, "into": target.name, "to": target.url,
        }  # fmt: skip
        self._body = self._mine
        self._delivery: Delivery | None = None
        self._held_since = 0.0

    @property
    def token(self) -> str:
        """Marks the messages that this move has in transit."""
        return self._body["token"]

    @property
    def queue(self) -> str:
        """The queue whose messages may be in transit, also of an interrupted move."""
        return self._body["queue"]

    @property
    def into(self) -> str:
        """The queue to which these go."""
        return self._body["into"]

    def open(self) -> bool:
        """Take the ledger; return whether an interrupted move must be finished first.

        While another mover holds it, waits for a lease and 2 s.

        Raises:
            AlreadyMoving: another mover still holds it.
        """
        mine = self._mine
        patience = self._clock.monotonic() + self._lease + 2
        while True:
            self._from.put(mine, id=_ID, attempts=MAX_ATTEMPTS)
            found = self._from.claim(1, wait=min(0.5, self._lease), lease=self._lease)
            if not found:
                if self._clock.monotonic() > patience:
                    raise AlreadyMoving(self._who())
                continue
            self._delivery = found[0]
            self._held_since = self._clock.monotonic()
            self._body = found[0].body
            if self._body == mine:
                break
            if self._to.get(self.token) is not None:
                return True
            self._must_be_over()
            self._delivery.ack()
        self._to.put({"queue": mine["queue"]}, id=self.token, at=LATEST / 1000)
        return False

    def _must_be_over(self) -> None:
        """Refuse to go on while messages are in transit to another store than the target."""
        with Queue(self.queue, self._from._url, clock=self._from._own_clock) as left:
            if not any(is_marked(letter, self.token) for letter in left.dead()):
                return
        self.abandon()
        raise AlreadyMoving(
            f"a move of {self.queue} to {self._body['to']} was interrupted, and messages are in "
            "transit there; finish it first, by the same move again"
        )

    def hold(self) -> None:
        """Extend the lease if it is time to.

        Raises:
            AlreadyMoving: it lapsed, and another mover may have taken over.
        """
        now = self._clock.monotonic()
        if self._delivery is None or now - self._held_since < self._lease / 5:
            return
        try:
            self._delivery.extend(self._lease)
        except LeaseLost as error:
            raise AlreadyMoving(
                "this move made no progress for too long, and another may have taken over; "
                "run it again"
            ) from error
        self._held_since = now

    def finish(self) -> None:
        """Delete the ledger: nothing is in transit any more."""
        self._to.cancel(self.token)
        if self._delivery is not None:
            # If it is not deleted, the next run finds that nothing is in transit.
            with suppress(OutcomeUnknown, LeaseLost):
                self._delivery.ack()
            self._delivery = None

    def abandon(self) -> None:
        """Release the ledger, so that the next run can finish at once what is in transit."""
        if self._delivery is not None:
            self._from.release([self._delivery])
            self._delivery = None

    def close(self) -> None:
        """Close both queues."""
        self._from.close()
        self._to.close()

    def _who(self) -> str:
        found = self._from.get(_ID)
        holder = found.holder if found is not None and found.holder else "another process"
        return (
            f"{holder} is moving messages out of {self._from.url}; wait until that is done, or "
            "stop it and run this again"
        )
