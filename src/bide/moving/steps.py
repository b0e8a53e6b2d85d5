"""The steps by which messages go from one queue to another; any of them may be the last one.

A message in transit is a dead letter, in the source, in the target or in both. Its last failure is
the mark of the move.

The ledger says which process moves messages out of a store, and where to: one at a time, also after
a crash. It is a message in the source that the mover holds. Its lease keeps other movers out, and
lapses if the mover dies. Its token marks the messages in transit. A message with the same token in
the target proves to the next run that this is the store to which they went.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from bide.lane.steps import find_all, following, outcomes_of
from bide.model import errors
from bide.model.commands import BuryCommand, OnConflict, Purge, Put, Scan
from bide.model.identity import new_id
from bide.model.internal_queues import InternalQueue
from bide.model.message import IN_TRANSIT, MAX_ATTEMPTS, Item, Message
from bide.model.parts import in_parts
from bide.model.replies import Counts, Outcome, Page
from bide.model.times import LATEST
from bide.queue.delivery import Delivery
from bide.queue.steps import putting
from bide.queue.sync import Queue

LEASE = 15.0
"""The lease of the ledger in seconds: so long a run waits after a crash."""

EXAMPLES = 100
"""How many ids of messages that stay are listed."""

_ID = "ledger"


def _beside(queue: Queue) -> Queue:
    return Queue(InternalQueue.MOVE.beside(queue.name), queue._url, clock=queue._own_clock)


def onto_itself(queue: str, url: str) -> errors.InvalidArgument:
    """Return the error of a move whose target is its source: it would delete dead letters."""
    return errors.InvalidArgument(
        f"{queue} at {url} is the source and the target; name another store"
    )


class Route(msgspec.Struct):
    """What a ledger says of its move."""

    token: str
    """Marks the messages that it has in transit."""
    queue: str
    into: str
    """The queue to which these go."""
    to: str
    """The URL of its store."""


class Ledger:
    """The right to move messages out of a store.

    Args:
        source: the queue to move.
        target: where it goes.

    Attributes:
        route: of the move, or of an interrupted one that must be finished first.
    """

    def __init__(self, source: Queue, target: Queue) -> None:
        self._clock = source._clock
        self._from = _beside(source)
        self._to = _beside(target)
        self._mine = self.route = Route(new_id(), source.name, target.name, target.url)
        self._delivery: Delivery | None = None
        self._held_since = 0.0

    def open(self) -> bool:
        """Take the ledger; return whether an interrupted move must be finished first.

        While another mover holds it, waits for a lease and 2 s.

        Raises:
            AlreadyMoving: another mover still holds it.
            InvalidArgument: the queue is to be moved onto itself.
        """
        own_route = self._mine
        patience = self._clock.monotonic() + LEASE + 2
        while True:
            self._from.put(own_route, id=_ID, attempts=MAX_ATTEMPTS)
            deliveries = self._from.claim(1, wait=0.5, lease=LEASE)
            if not deliveries:
                if self._clock.monotonic() > patience:
                    raise errors.AlreadyMoving(
                        f"another process moves messages out of {self._from.url}; wait until that "
                        "is done, or stop it and run this again"
                    )
                continue
            self._delivery = deliveries[0]
            self._held_since = self._clock.monotonic()
            self.route = msgspec.convert(deliveries[0].body, Route)
            if self.route == own_route:
                break
            if self._to.get(self.route.token) is not None:
                return True
            self._must_be_over()
            self._delivery.ack()
        self._to.put({"queue": own_route.queue}, id=own_route.token, at=LATEST / 1000)
        same = own_route.queue.rpartition("/")[2] == own_route.into.rpartition("/")[2]
        if same and self._from.get(own_route.token) is not None:  # a store may have several URLs
            self.finish()
            raise onto_itself(own_route.queue, self._from.url)
        return False

    def _must_be_over(self) -> None:
        """Refuse to go on while messages are in transit to another store than the target."""
        with Queue(self.route.queue, self._from._url, clock=self._from._own_clock) as source:
            if not any(is_marked(letter, self.route.token) for letter in source.dead()):
                return
        self.abandon()
        raise errors.AlreadyMoving(
            f"a move of {self.route.queue} to {self.route.to} was interrupted, and messages are in "
            "transit there; finish it first, by the same move again"
        )

    def hold(self) -> None:
        """Extend the lease if it is time to.

        Raises:
            AlreadyMoving: it lapsed, and another mover may have taken over.
        """
        now = self._clock.monotonic()
        if self._delivery is None or now - self._held_since < LEASE / 5:
            return
        try:
            self._delivery.extend(LEASE)
        except errors.LeaseLost as error:
            raise errors.AlreadyMoving(
                "this move made no progress for too long, and another may have taken over; "
                "run it again"
            ) from error
        self._held_since = now

    def finish(self) -> None:
        """Delete the ledger: nothing is in transit any more."""
        self._to.cancel(self.route.token)
        if self._delivery is not None:
            # If it is not deleted, the next run finds that nothing is in transit.
            with suppress(errors.OutcomeUnknown, errors.LeaseLost):
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


MOVING = f"{IN_TRANSIT}move "
"""What the mark of every move begins with."""


def is_marked(message: Message | None, token: str = "") -> bool:
    """Tell whether the move with this token, or any move, has the message in transit."""
    if message is None or message.state != "dead":
        return False
    return (message.error or "").startswith(MOVING + token)


class Moved(msgspec.Struct):
    """What a move did. True when nothing is left in the source."""

    queue: str
    moved: int = 0
    """Messages that are in the target now: delayed and ready ones."""
    dead: int = 0
    """Dead letters that are in the target now."""
    finished: int = 0
    """Of these, the messages that an interrupted run had in transit."""
    held: int = 0
    """Messages that stay because a worker held them at the end of the run."""
    known: int = 0
    """Messages that stay because the target has one of the same id."""
    known_ids: list[str] = []
    """The first hundred of their ids."""
    unreadable: int = 0
    """Messages that stay because the source cannot read their records, nor change them."""
    unreadable_ids: list[str] = []
    """The first hundred of their ids."""
    remembered: int = 0
    """Acked and expired messages that only the source remembers."""
    left: int = 0
    """All messages that were in the source at the end of the run."""

    def __bool__(self) -> bool:
        return self.left == 0

    def stay(self, known: Sequence[str], unreadable: Sequence[str] = ()) -> None:
        """Count messages of a page that stay, by their ids."""
        self.known += len(known)
        self.known_ids = [*self.known_ids, *known][:EXAMPLES]
        self.unreadable += len(unreadable)
        self.unreadable_ids = [*self.unreadable_ids, *unreadable][:EXAMPLES]

    def ends(self, counts: Counts) -> None:
        """Note what is in the source at the end."""
        self.held = counts.sizes.leased
        self.left = counts.sizes.total
        self.remembered = counts.kept


class Steps(NamedTuple):
    """Moves messages, a batch at a time.

    Args:
        source: where they are.
        target: where they go.
        token: marks those in transit.
        hold: is called before each change; it raises when another run has taken over the move.
        moved: counts the messages that went, and those that stay.
    """

    source: Queue
    target: Queue
    token: str
    hold: Callable[[], None]
    moved: Moved

    def carry(self, page: Sequence[Message]) -> None:
        """Move messages that no worker holds."""
        known = self.known(page)
        ids = [message.id for message in page if message.id not in set(known)]
        _, unreadable = self._spare(self._bury, ids)
        self.moved.stay(known, unreadable)
        # After a lost reply the command may have run twice: the marks show what was set aside.
        letters = self.source._run(find_all(self.source.name, ids)).values()
        self._copy([letter for letter in letters if is_marked(letter, self.token)])

    def carry_letters(self, page: Sequence[Message]) -> None:
        """Move dead letters."""
        self._copy([letter for letter in page if not is_marked(letter)])

    def go_on(self, batch: int) -> None:
        """Finish what an interrupted run had in transit."""
        for queue, finish in ((self.target, self._hand_over), (self.source, self._copy)):
            marked = [letter for letter in queue.dead() if is_marked(letter, self.token)]
            for part in in_parts(marked, batch):
                finish(part)

    def pages(self, state: str, batch: int) -> Iterator[list[Message]]:
        """Yield what is in a state of the source ("next": delayed and ready), batch by batch."""
        scan: Scan | None = Scan(self.source.name, state, limit=batch)  # type: ignore[arg-type]
        while scan is not None:
            self.hold()
            page: Page = self.source._execute(scan)
            if page.messages:
                yield page.messages
            scan = following(scan, page)

    def known(self, page: Sequence[Message]) -> list[str]:
        """Return the ids that the target has already."""
        ids = (message.id for message in page)
        return list(self.target._run(find_all(self.target.name, ids)))

    def _spare(
        self, change: Callable[[list[str]], list[Outcome]], ids: list[str]
    ) -> tuple[list[Outcome], list[str]]:
        """Change messages of the source, one half after the other if some cannot be read.

        Some stores change the others of the same command then, and some change none.

        Returns:
            The outcomes, and the ids of those that cannot be read.
        """
        self.hold()
        try:
            return change(ids), []
        except errors.StoreCorrupt:
            if len(ids) == 1:
                return [], ids
        half = len(ids) // 2
        first, second = self._spare(change, ids[:half]), self._spare(change, ids[half:])
        return first[0] + second[0], first[1] + second[1]

    def _bury(self, ids: list[str]) -> list[Outcome]:
        command = BuryCommand(self.source.name, [], MOVING + self.token, ids)
        return self.source._run(outcomes_of(command)) if ids else []

    # The steps from the second on, for dead letters of the source.

    def _copy(self, letters: Sequence[Message]) -> None:
        """Give the target copies, which it does not deliver."""
        self.hold()
        outcomes = self._put(self.target, map(_as_letter, letters))
        refused = {outcome.id for outcome in outcomes if not outcome}
        copies = self.target._run(find_all(self.target.name, refused))
        alive = self._alive(letters)
        going, known = list[Message](), list[str]()
        for letter in letters:
            copy = copies.get(letter.id)  # of an earlier run, or another message
            marked = letter.id in alive and is_marked(copy, self.token)
            if letter.id not in refused or marked or _same(letter, copy):
                going.append(letter)
            else:
                known.append(letter.id)
        self._put(self.source, [alive[id] for id in known if id in alive], "revive")
        self.moved.stay([id for id in known if id not in alive])
        self._hand_over(going)

    def _hand_over(self, letters: Sequence[Message]) -> None:
        """Delete them from the source, and let the target deliver those that were in transit."""
        outcomes, unreadable = self._spare(
            lambda ids: self._purge(self.source, ids), [letter.id for letter in letters]
        )
        # Revived or replaced there meanwhile, or unreadable: they stay, as they are now.
        stay = unreadable + [
            outcome.id for outcome in outcomes if not outcome and outcome.state is not None
        ]
        self._purge(self.target, stay)
        self.moved.stay((), unreadable)
        going = [letter for letter in letters if letter.id not in set(stay)]
        revived = self._alive(going).values()
        self._put(self.target, revived, "revive")
        self.moved.moved += len(revived)
        self.moved.dead += len(going) - len(revived)

    def _alive(self, letters: Sequence[Message]) -> dict[str, Item]:
        """Return those in transit by id, as they were before: without the mark."""
        marked = [letter for letter in letters if is_marked(letter, self.token)]
        return {letter.id: letter.as_item(letter.failures[:-1], None) for letter in marked}

    def _put(
        self, queue: Queue, items: Iterable[Item], on_conflict: OnConflict = "keep"
    ) -> list[Outcome]:
        return queue._run(putting(Put(queue.name, list(items), on_conflict)))

    def _purge(self, queue: Queue, ids: list[str]) -> list[Outcome]:
        return queue._run(outcomes_of(Purge(queue.name, "dead", ids=ids))) if ids else []


def _as_letter(message: Message) -> Item:
    return message.as_item(message.failures, message.ended)


def _same(one: Message, other: Message | None) -> bool:
    """Tell whether two dead letters are one, copied by an earlier run."""
    return other is not None and other.state == "dead" and _as_letter(one) == _as_letter(other)
