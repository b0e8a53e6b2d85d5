"""The steps by which messages go from one queue to another; any of them may be the last one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from bide.model.commands import Bury, Purge, Put, Scan
from bide.model.message import Item, Message
from bide.model.replies import Outcome, Outcomes, Page
from bide.queue.base import found_all
from bide.queue.move.transit import (
    as_copy,
    as_item,
    as_letter,
    as_taken,
    in_transit,
    is_marked,
    is_taken,
    mark,
    same_letter,
)
from bide.queue.sync import Queue

__all__ = ["Steps"]


class Steps:
    """Carries messages over, a batch at a time.

    Args:
        source: where they are.
        target: where they go.
        token: marks those in transit.
        hold: is called before messages change hands; it raises when this move is no longer the one.
    """

    def __init__(self, source: Queue, target: Queue, token: str, hold: Callable[[], None]) -> None:
        self._source = source
        self._target = target
        self._token = token
        self._hold = hold

    def carry(self, seen: Sequence[Message]) -> tuple[int, list[str]]:
        """Move messages that nobody holds; return how many went, and the ids the target has."""
        copied, known = self._copy(seen)
        if not copied:
            return 0, known
        self._hold()
        before = {message.id: message for message in seen}
        self._source._do(Outcomes, Bury(self._source.name, [], mark(self._token), copied))
        # What was answered may have been lost on the way and asked again: the marks tell.
        parked = self._parked(copied)
        self._drop([id for id in copied if id not in parked])
        return self._take(
            [as_item(message, before.get(id)) for id, message in parked.items()]
        ), known

    def carry_letters(self, seen: Sequence[Message]) -> tuple[int, list[str]]:
        """Move dead letters; return how many went, and the ids the target has."""
        by_id = {letter.id: letter for letter in seen if not in_transit(letter)}
        if not by_id:
            return 0, []
        self._hold()
        outcomes = self._put(self._target, [as_letter(letter) for letter in by_id.values()])
        refused = [outcome.id for outcome in outcomes if not outcome.done]
        there = dict(zip(refused, self._find(self._target, refused), strict=True))
        known = [id for id in refused if not same_letter(by_id[id], there[id])]
        going = [id for id in by_id if id not in set(known)]
        gone = self._purge(self._source, going)
        # Revived meanwhile: it stays, and what came over is a letter too many.
        self._drop([outcome.id for outcome in gone if not outcome and outcome.state is not None])
        return sum(outcome.done or outcome.state is None for outcome in gone), known

    def go_on(self, batch: int) -> int:
        """Finish what an interrupted run had in transit; return how many messages that were."""
        count = 0
        letters = [m for m in self._target.dead() if is_marked(m, self._token)]
        for copies in _parts(letters, batch):
            self._hold()
            parked = self._parked([copy.id for copy in copies])
            self._drop([copy.id for copy in copies if copy.id not in parked])
            count += self._take([as_item(message) for message in parked.values()])
        letters = [m for m in self._target.dead() if is_taken(m, self._token)]
        for taken in _parts(letters, batch):
            self._hold()
            count += self._hand_over([as_item(message) for message in taken])
        letters = [m for m in self._source.dead() if is_marked(m, self._token)]
        for left in _parts(letters, batch):  # somebody has deleted the copies
            self._put(self._source, [as_item(message) for message in left], "revive")
        return count

    def pages(self, state: str, batch: int) -> Iterator[list[Message]]:
        """Yield what is in a state of the source ("next": delayed and ready), batch by batch."""
        scan = Scan(self._source.name, state, limit=batch)  # type: ignore[arg-type]
        while True:
            self._hold()
            page = self._source._do(Page, scan)
            if page.messages:
                yield page.messages
            if page.cursor is None:
                return
            scan = msgspec.structs.replace(scan, cursor=page.cursor)

    def known(self, seen: Sequence[Message]) -> list[str]:
        """Return the ids that the target has already."""
        found = self._find(self._target, [message.id for message in seen])
        return [message.id for message in found if message is not None]

    # The steps, one command each.

    def _copy(self, seen: Sequence[Message]) -> tuple[list[str], list[str]]:
        """Give the target inert copies; return the ids of these, and those that it has already."""
        now = self._source._clock.now()
        copies = [as_copy(message, self._token, now) for message in seen]
        outcomes = self._put(self._target, copies)
        copied = [outcome.id for outcome in outcomes if outcome.done]
        refused = [outcome.id for outcome in outcomes if not outcome.done]
        known: list[str] = []
        for id, there in zip(refused, self._find(self._target, refused), strict=True):
            (copied if is_marked(there, self._token) else known).append(id)
        return copied, known

    def _parked(self, ids: Sequence[str]) -> dict[str, Message]:
        """Return the messages that the source has set aside for this move, as they are."""
        found = self._find(self._source, ids)
        return {m.id: m for m in found if m is not None and is_marked(m, self._token)}

    def _take(self, items: list[Item]) -> int:
        """Let the target's copies say that the source has set the messages aside; and go on."""
        if not items:
            return 0
        self._hold()
        now = self._source._clock.now()
        outcomes = self._put(self._target, [as_taken(i, self._token, now) for i in items], "revive")
        gone = {outcome.id for outcome in outcomes if outcome.state is None}
        if gone:  # somebody has deleted the copies: the source gets its messages back
            self._put(self._source, [item for item in items if item.id in gone], "revive")
        return self._hand_over([item for item in items if item.id not in gone])

    def _hand_over(self, items: list[Item]) -> int:
        """Delete messages from the source, which settles it, and let the target deliver them."""
        outcomes = self._purge(self._source, [item.id for item in items])
        # Revived or replaced there while they were in transit: they stay, as they are now.
        stay = {outcome.id for outcome in outcomes if not outcome and outcome.state is not None}
        self._drop(stay)
        going = [item for item in items if item.id not in stay]
        if going:
            self._put(self._target, going, "revive")
        return len(going)

    def _drop(self, ids: Iterable[str]) -> None:
        """Delete what the target is not to have: claimed, cancelled or changed in the source."""
        self._purge(self._target, list(ids))

    def _put(self, queue: Queue, items: list[Item], on_conflict: str = "keep") -> list[Outcome]:
        return queue._do(Outcomes, Put(queue.name, items, on_conflict)).outcomes  # type: ignore[arg-type]

    def _find(self, queue: Queue, ids: Sequence[str]) -> list[Message | None]:
        return found_all(queue, ids) if ids else []

    def _purge(self, queue: Queue, ids: Sequence[str]) -> list[Outcome]:
        if not ids:
            return []
        return queue._do(Outcomes, Purge(queue.name, "dead", ids=list(ids))).outcomes


def _parts(letters: Iterable[Message], size: int) -> Iterator[list[Message]]:
    rest = iter(letters)
    while part := list(islice(rest, size)):
        yield part
