"""The steps by which messages go from one queue to another; any of them may be the last one.

A message in transit is a dead letter, in the source, in the target or in both. Its last failure is
the mark of the move.

The ledger says which process moves messages out of a store, and where to: one at a time, also after
a crash. It is a message in the source that the mover holds. Its lease keeps other movers out, and
lapses if the mover dies. Its token marks the messages in transit. A message with the same token in
the target proves to the next run that this is the store to which they went. A note in the source
says that there may be copies in the target, so that a move to another store waits.
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
"""The id of the ledger's message."""

_NOTES = "copies"
"""The group of notes that there may be copies in a target."""


def _note_id(token: str) -> str:
    """Return the id of a move's note; the proof has the token alone, perhaps in the same store."""
    return f"{_NOTES}:{token}"


def _beside(queue: Queue) -> Queue:
    """Return the internal queue for moves in the namespace and the store of a queue."""
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
    """The queue that is moved."""
    into: str
    """The queue to which its messages go."""
    to: str
    """The URL of that queue's store."""


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
        """Has the ledger."""
        self._to = _beside(target)
        """Has the proof that this is the store to which messages in transit went."""
        self._own_route = self.route = Route(new_id(), source.name, target.name, target.url)
        self._delivery: Delivery | None = None
        """The ledger's message while it is held."""
        self._held_since = 0.0
        """When its lease began, by the monotonic clock."""

    def open(self) -> bool:
        """Take the ledger; return whether an interrupted move must be finished first.

        While another mover holds it, waits for a lease and 2 s.

        Raises:
            AlreadyMoving: another mover still holds it.
            InvalidArgument: the queue is to be moved onto itself.
        """
        own_route = self._own_route
        deadline = self._clock.monotonic() + LEASE + 2
        while True:
            # If there is a ledger of another move, it stays: see its route below.
            self._from.put(own_route, id=_ID, attempts=MAX_ATTEMPTS)
            deliveries = self._from.claim(1, wait=0.5, lease=LEASE)
            if not deliveries:
                if self._clock.monotonic() > deadline:
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
            self._check_nothing_elsewhere()
            self._delivery.ack()
        self._from.cancel(group=_NOTES)  # of ledgers that were cancelled to give their moves up
        far, facts = LATEST / 1000, {"queue": own_route.queue}
        self._to.put(facts, id=own_route.token, at=far)
        _, _, source_name = own_route.queue.rpartition("/")
        _, _, target_name = own_route.into.rpartition("/")
        # The proof in the target is in the source as well: two URLs of one store.
        if source_name == target_name and self._from.get(own_route.token) is not None:
            self.finish()
            raise onto_itself(own_route.queue, self._from.url)
        self._from.put(facts, id=_note_id(own_route.token), group=_NOTES, at=far)
        return False

    def _check_nothing_elsewhere(self) -> None:
        """Check that nothing is in transit to another store, to which the ledger's move went.

        Raises:
            AlreadyMoving: messages may be in transit to that store.
        """
        route = self.route
        if self._from.get(_note_id(route.token)) is None:
            # A version before the notes knew by the source's letters, up to the last step but one.
            with Queue(route.queue, self._from._url, clock=self._from._own_clock) as source:
                for letter in source.dead():
                    self.hold()
                    if is_marked(letter, route.token):
                        break
                else:
                    return
        self.abandon()
        raise errors.AlreadyMoving(
            f"a move of {route.queue} to {route.to} was interrupted, and messages may be in "
            "transit there; finish it first, by the same move again, or if that store is lost, "
            f"give it up: bide cancel {self._from.name} {_ID}"
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
        self._from.cancel(_note_id(self.route.token))
        self._to.cancel(self.route.token)
        if self._delivery is not None:
            # If the ledger is not deleted, the next run finds that nothing is in transit.
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

    def ends(self, counts: Counts, lapsed: int) -> None:
        """Note what is in the source at the end.

        Args:
            counts: of the source.
            lapsed: how many it counts as held whose lease is over: no worker holds them.
        """
        self.held = max(0, counts.sizes.leased - lapsed)  # some may have been acked meanwhile
        self.left = counts.sizes.total
        self.remembered = counts.kept


class Steps(NamedTuple):
    """Moves messages, a batch at a time.

    Args:
        source: where they are.
        target: where they go.
        token: marks those in transit.
        hold: is called before each read and each change; it raises when another run has taken over
            the move.
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
        unreadable = self._change(self._set_aside, ids).unreadable
        self.moved.stay(known, unreadable)
        # After a lost reply the command may have run twice: the marks show what was set aside.
        letters = self.source._run(find_all(self.source.name, ids)).values()
        self._copy([letter for letter in letters if is_marked(letter, self.token)])

    def carry_letters(self, page: Sequence[Message]) -> None:
        """Move dead letters."""
        self._copy([letter for letter in page if not is_marked(letter)])

    def go_on(self, batch: int) -> None:
        """Finish what an interrupted run had in transit."""
        # Copies first: what is then left in the source has none.
        for queue, finish in ((self.target, self._hand_over), (self.source, self._copy)):
            marked = [letter for letter in queue.dead() if is_marked(letter, self.token)]
            for letters in in_parts(marked, batch):
                finish(letters)

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

    def _change(self, change: Callable[[list[str]], list[Outcome]], ids: list[str]) -> "_Changed":
        """Change messages of the source, one half after the other if some cannot be read.

        Some stores change the others of the same command then, and some change none.
        """
        self.hold()
        try:
            return _Changed(change(ids), [])
        except errors.StoreCorrupt:
            if len(ids) == 1:
                return _Changed([], ids)
        half = len(ids) // 2
        first, second = self._change(change, ids[:half]), self._change(change, ids[half:])
        return _Changed(first.outcomes + second.outcomes, first.unreadable + second.unreadable)

    def _set_aside(self, ids: list[str]) -> list[Outcome]:
        """Make dead letters of messages in the source, with the mark of the move."""
        command = BuryCommand(self.source.name, [], MOVING + self.token, ids)
        return self.source._run(outcomes_of(command)) if ids else []

    # The steps from the second on, for dead letters of the source.

    def _copy(self, letters: Sequence[Message]) -> None:
        """Give the target copies, which it does not deliver; hand over those that it has."""
        self.hold()
        outcomes = self._put(self.target, map(_as_letter, letters))
        refused = {outcome.id for outcome in outcomes if not outcome}
        existing = self.target._run(find_all(self.target.name, refused))
        in_transit = self._in_transit(letters)
        copied, known = list[Message](), list[str]()
        for letter in letters:
            # Where the put was refused: a copy of an earlier run, or another message.
            in_target = existing.get(letter.id)
            is_copy_in_transit = letter.id in in_transit and is_marked(in_target, self.token)
            if letter.id not in refused or is_copy_in_transit or _is_copy(in_target, letter):
                copied.append(letter)
            else:
                known.append(letter.id)
        # What was set aside and cannot go is delivered by the source again.
        revived = [in_transit[id] for id in known if id in in_transit]
        self._put(self.source, revived, "revive")
        # The next pass meets those again, and counts them.
        self.moved.stay([id for id in known if id not in in_transit])
        self._hand_over(copied)

    def _hand_over(self, letters: Sequence[Message]) -> None:
        """Delete them from the source, and let the target deliver those that were in transit."""
        ids = [letter.id for letter in letters]
        deletion = self._change(lambda part: self._delete(self.source, part, moved=True), ids)
        # Revived or replaced there meanwhile, or unreadable: they stay, as they are now.
        staying = deletion.unreadable + [
            outcome.id for outcome in deletion.outcomes if not outcome and outcome.state is not None
        ]
        self._delete(self.target, staying)
        self.moved.stay((), deletion.unreadable)
        handed_over = [letter for letter in letters if letter.id not in set(staying)]
        in_transit = self._in_transit(handed_over).values()
        self._put(self.target, in_transit, "revive")
        self.moved.moved += len(in_transit)
        self.moved.dead += len(handed_over) - len(in_transit)

    def _in_transit(self, letters: Sequence[Message]) -> dict[str, Item]:
        """Return those that were alive, by id, as they were before: without the mark.

        The others were dead letters before the move; they have no mark.
        """
        marked = [letter for letter in letters if is_marked(letter, self.token)]
        return {letter.id: letter.as_item(letter.failures[:-1], None) for letter in marked}

    def _put(
        self, queue: Queue, items: Iterable[Item], on_conflict: OnConflict = "keep"
    ) -> list[Outcome]:
        return queue._run(putting(Put(queue.name, list(items), on_conflict)))

    def _delete(self, queue: Queue, ids: list[str], *, moved: bool = False) -> list[Outcome]:
        """Delete dead letters of a queue; `moved`: the target has them, and the queue counts so."""
        command = Purge(queue.name, "dead", ids=ids, moved=moved)
        return queue._run(outcomes_of(command)) if ids else []


class _Changed(NamedTuple):
    """What became of a change of messages in the source."""

    outcomes: list[Outcome]
    unreadable: list[str]
    """The ids of those that cannot be read; they have no outcome."""


def _as_letter(message: Message) -> Item:
    """Return a dead letter as it is put into another queue, with the time of its death.

    What is in transit expires when it would have; a dead letter has all of `expires` again.
    """
    item = message.as_item(message.failures, message.ended)
    if not is_marked(message):
        return item
    return msgspec.structs.replace(item, expires=message.expires_elsewhere(dead=False))


def _is_copy(found: Message | None, letter: Message) -> bool:
    """Tell whether a message in the target is a dead letter that an earlier run has copied."""
    if found is None or found.state != "dead":
        return False
    return _as_letter(found) == _as_letter(letter)
