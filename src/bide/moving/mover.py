"""A move from beginning to end: the ledger, the passes, and what a failure leaves in transit."""

import math
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import islice
from typing import Any

import msgspec

from bide.model.errors import BideError
from bide.model.limits import MAX_PAGE, check_whole
from bide.model.message import Message
from bide.model.replies import Counts
from bide.model.times import LIMITS
from bide.moving.steps import Ledger, Moved, Steps, is_marked, onto_itself
from bide.queue.sync import Queue, check_blocking

BATCH = 500
"""How many messages are in transit at a time."""


def move(source: Queue, target: Queue, *, batch: int = BATCH) -> Moved:
    """Move all messages of a queue to another one, as a rule in another store, while both are used.

    Everything is moved: due time, body, priority, attempts, the last 19 failures, expiry, group,
    headers, and dead letters with the time of death. Groups that are closed are closed in the
    target, and a message that comes into a group which is closed there is cancelled. Messages that
    a worker holds stay, those whose id the target has, and those that the source cannot read. If it
    is killed at any point, call it again: it continues.

    Args:
        source: the queue to move.
        target: where to; it may have another name.
        batch: how many messages are in transit at a time. Neither store can deliver these for some
            milliseconds, so a small batch delays messages less, and a large one is faster.

    Returns:
        What was moved and what was left; true when nothing is left in the source.

    Raises:
        InvalidArgument: an argument is invalid, or the target is the source, by whatever URL.
        AlreadyMoving: another move out of the source's store is under way.
        StoreError: a store failed; call it again to go on.

    Example:
        >>> import bide
        >>> old, new = bide.Queue("orders", "memory://old"), bide.Queue("orders", "memory://new")
        >>> outcome = old.put({"order": 42}, delay="30m", id="order-42")
        >>> moved = bide.move(old, new)
        >>> moved.moved, bool(moved), new.get("order-42").body
        (1, True, {'order': 42})
    """
    return Mover(source, target, batch=batch).run()


class Mover:
    """Moves one queue; see `move`.

    Args:
        source: the queue to move.
        target: where to.
        batch: how many messages are in transit at a time.
        progress: called after each batch with its number of messages; what it raises ends the move
            between two batches.
    """

    def __init__(
        self,
        source: Queue,
        target: Queue,
        *,
        batch: int = BATCH,
        progress: Callable[[int], None] = lambda count: None,
    ) -> None:
        check_whole(batch, "batch", 1, MAX_PAGE)
        check_blocking("move takes two", source, target)
        if source.name == target.name and source._url == target._url:
            raise onto_itself(source.name, source.url)
        self._source = source
        self._target = target
        self._batch = batch
        self._progress = progress
        self._seen_counts: object = None
        """What `_movable` returned before a pass that found nothing to move."""
        self._lapsed = 0
        """How many messages stay in the source whose lease is over, by the last pass."""
        self.moved = Moved(source.name)
        """What was done so far."""

    def run(self) -> Moved:
        """Move the messages that no worker holds; can be called again."""
        with closing(Ledger(self._source, self._target)) as ledger:
            while ledger.open():
                self._finish(ledger)
            try:
                self._copy_settings()
                self._copy_closed_groups()
                token = ledger.route.token
                steps = Steps(self._source, self._target, token, ledger.hold, self.moved)
                self._passes(steps)
                self._copy_closed_groups()  # others were perhaps closed meanwhile
            except BaseException:
                try:
                    self._finish(ledger)
                except BideError:  # a store failed: the next run can go on without waiting
                    with suppress(BideError):
                        ledger.abandon()
                raise
            ledger.finish()
        return self.counted()

    def counted(self) -> Moved:
        """Return what was done so far, and count what is in the source now.

        Also after a run that has not come to its end.
        """
        self.moved.ends(self._source.counts(), self._lapsed)
        return self.moved

    def has_work(self) -> bool:
        """Tell, by counting, whether there may be messages that the last run did not see.

        Compares with the counts from before a pass that found nothing to move: a message that is
        put while a pass ends is in all later counts.
        """
        return _movable(self._source.counts()) != self._seen_counts

    def plan(self) -> Moved:
        """Return what a run would do, without changes."""
        plan = Moved(self._source.name)
        # Nothing is changed, so there is no move to mark messages for, and no ledger to hold.
        steps = Steps(self._source, self._target, token="", hold=lambda: None, moved=plan)
        lapsed = 0
        for state in ("next", "leased", "dead"):
            for page in steps.pages(state, self._batch):
                free = self._without_held(page)
                untouched = [message for message in free if not is_marked(message)]
                known = steps.known(untouched)
                plan.stay(known)
                plan.finished += len(free) - len(untouched)
                known_ids = set(known)
                going = [message for message in untouched if message.id not in known_ids]
                if state == "leased":
                    lapsed += len(free)
                    # Its worker was asked to stop, and did not end it: it is cancelled.
                    going = [message for message in going if message.stopping is None]
                dead = sum(map(_is_dead, going))
                plan.dead += dead
                plan.moved += len(going) - dead
                self._progress(len(free))
        plan.moved += plan.finished
        plan.ends(self._source.counts(), lapsed)
        plan.left = plan.known + plan.held
        return plan

    def _finish(self, ledger: Ledger) -> None:
        """Finish what is in transit, also of another queue."""
        route = ledger.route
        # What another queue's move left does not count for this one.
        moved = self.moved if route.queue == self._source.name else Moved(route.queue)
        moved_before = moved.moved
        with (
            Queue(route.queue, self._source._url, clock=self._source._own_clock) as source,
            Queue(route.into, self._target._url, clock=self._target._own_clock) as target,
        ):
            Steps(source, target, route.token, ledger.hold, moved).go_on(self._batch)
        moved.finished += moved.moved - moved_before
        ledger.finish()

    def _pass(self, steps: Steps, most_pages: int) -> None:
        """Go through the queue once.

        Args:
            steps: moves the messages.
            most_pages: the maximum number of pages of each state: producers may put as fast as
                this moves.
        """
        # They stay, so each pass meets them again: they count once.
        self.moved.known = self.moved.unreadable = 0
        self.moved.known_ids, self.moved.unreadable_ids = [], []
        ways = (("next", steps.carry), ("leased", steps.carry), ("dead", steps.carry_letters))
        for state, carry in ways:
            stayed_before = self.moved.known + self.moved.unreadable
            for page in islice(steps.pages(state, self._batch), most_pages):
                free = self._without_held(page)
                if free:
                    carry(free)
                    self._progress(len(free))
            if state == "leased":
                self._lapsed = self.moved.known + self.moved.unreadable - stayed_before

    def _without_held(self, page: list[Message]) -> list[Message]:
        """Return the messages of a page that no worker holds.

        A lease may be over with no worker left whose claim ends it.
        """
        now = self._source._clock.now()
        return [message for message in page if message.until is None or message.until <= now]

    def _passes(self, steps: Steps) -> None:
        """Go through the queue until it is empty, or until a pass did not make it smaller.

        The latter happens if producers are as fast, or if the rest cannot be moved.
        """
        total_before = float("inf")
        while (counts := self._source.counts()).sizes.total < total_before:
            total_before = counts.sizes.total
            moved_before = self.moved.moved + self.moved.dead
            self._pass(steps, most_pages=math.ceil(total_before / self._batch))
            was_idle = self.moved.moved + self.moved.dead == moved_before
            self._seen_counts = _movable(counts) if was_idle else None

    def _copy_closed_groups(self) -> None:
        """Close in the target what is closed in the source, for as long as it still is.

        What waits there in these groups is cancelled.
        """
        now = self._source._clock.now()
        groups = self._source.closed_groups(limit=MAX_PAGE)
        while groups:
            for closed in groups:
                self._target.close_group(closed.group, keep=max(1, closed.until - now) / 1000)
            groups = self._source.closed_groups(after=groups[-1], limit=MAX_PAGE)

    def _copy_settings(self) -> None:
        """Give the target the limits of the source and its longer settings; pause a new one."""
        source = self._source.counts()
        target = self._target.counts()
        is_new = target.flow.put == 0 and not target.paused
        paused = True if is_new and source.paused else None  # `None`: as it is
        settings: dict[str, Any] = {
            name: getattr(source, name)
            for name in ("keep", "history", "result_ttl")
            if getattr(source, name) > getattr(target, name)
        }
        if source.overdue and not target.overdue:
            settings["overdue"] = source.overdue
        if not any(getattr(target, name) for name in LIMITS):  # else its own limits stay
            settings |= {name: getattr(source, name) for name in LIMITS if getattr(source, name)}
        if paused is not None or settings:
            command = self._target._builder.configure(paused=paused)
            until = source.paused_until
            command = msgspec.structs.replace(command, paused_until=until, **settings)
            self._target._execute(command)


def _is_dead(message: Message) -> bool:
    """Tell whether a message that no worker holds is dead, or is as soon as its lease is ended.

    One that repeats does not die: its next claim decides of its run.
    """
    has_no_attempt = message.attempt >= message.attempts and not message.repeats
    return message.state == "dead" or (message.state == "leased" and has_no_attempt)


def _movable(counts: Counts) -> object:
    """Return a value that changes whenever there may be a new message to move."""
    return counts.flow, counts.sizes.delayed + counts.sizes.ready, counts.sizes.dead
