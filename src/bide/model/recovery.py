"""What becomes of messages that are overdue after an outage: a plan, and its rules as functions.

A plan looks at all that is overdue first (`Survey`), then it says of each message what becomes of
it (`Places`).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import msgspec

from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.model.times import (
    HOUR_MS,
    MICROSECONDS,
    MINUTE_MS,
    Duration,
    Rate,
    format_duration,
    interval,
    milliseconds,
    rate_text,
)

LATENESS = (MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS)
"""The bounds between which overdue messages are counted by their lateness, in milliseconds."""

MOVE_COST = 3
"""How many times as long it takes to move messages as to survey them, about."""

LARGEST = 5
"""How many groups are named."""

Fate = Literal["fresh", "expired", "dropped", "superseded", "kept"]
"""What becomes of a message. "fresh": it was not due yet when the survey began; "expired": it is
too late to be delivered, so that the next claim ends it; "superseded": a later one of its group is
kept."""

_VALUES = {"drop": "drop_later_than", "spread": "spread", "rate": "rate"}
_FLAGS = {"latest of group": "latest_of_group", "fresh first": "fresh_first"}
"""The words of a plan as text, and the fields that they stand for: with a value, and without."""

LONGEST_PLAN = 1_000
"""The maximum length of a plan that is given as text, in characters."""

_FORMS = (
    '"drop 6h", "latest of group", "spread 10m" or "rate 100/s", and "fresh first", with commas '
    "between them"
)


class Recovery(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A plan for messages that are overdue, such as after an outage of all workers.

    Args:
        drop_later_than: cancel messages that are later than this.
        latest_of_group: of each group keep only the message that was planned last, and cancel the
            others; messages without a group are kept.
        spread: let the others be due evenly over this time from now on: higher priorities first,
            those of one priority in the order of their due times.
        rate: let so many of them be due: per second, or a string such as "100/m"; not together with
            `spread`.
        fresh_first: give them priority 0, so that fresh messages with a priority go first.

    Lateness counts from the time for which a message was planned, and so does `expires` afterwards.
    Of messages that repeat, no run is cancelled: their rules say what becomes of missed runs.

    Raises:
        InvalidArgument: an argument is invalid, or none is given.

    Example:
        >>> Recovery(drop_later_than="6h", spread="10m").text
        'drop 6h, spread 10m'
    """

    drop_later_than: Duration | None = None
    latest_of_group: bool = False
    spread: Duration | None = None
    rate: Rate | None = None
    fresh_first: bool = False

    def __post_init__(self) -> None:
        for name in ("latest_of_group", "fresh_first"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(f"{name}={getattr(self, name)!r} must be True or False")
        for name in ("drop_later_than", "spread"):
            value = getattr(self, name)
            if value is not None and milliseconds(value, name) == 0:
                raise InvalidArgument(f"{name} must be longer than 0; leave it out for none")
        if self.rate is not None and interval(self.rate) == 0:
            raise InvalidArgument("rate must be above 0; leave it out for none")
        if self.spread is not None and self.rate is not None:
            raise InvalidArgument("give spread= or rate=, not both")
        if not (self.drops or self.paces or self.fresh_first):
            raise InvalidArgument(
                "a plan needs to know what to do: drop_later_than=, latest_of_group=, spread=, "
                "rate= or fresh_first="
            )

    @property
    def latest_ms(self) -> float:
        """The lateness above which messages are dropped, in milliseconds; infinity: none is."""
        if self.drop_later_than is None:
            return float("inf")
        return milliseconds(self.drop_later_than, "drop_later_than")

    @property
    def drops(self) -> bool:
        """Whether it may cancel messages."""
        return self.drop_later_than is not None or self.latest_of_group

    @property
    def paces(self) -> bool:
        """Whether it gives messages other due times."""
        return self.spread is not None or self.rate is not None

    @property
    def text(self) -> str:
        """The plan as a setting of a queue has it; `plan_of` reads it."""
        parts = []
        if self.drop_later_than is not None:
            parts.append(f"drop {_exact(milliseconds(self.drop_later_than))}")
        if self.latest_of_group:
            parts.append("latest of group")
        if self.spread is not None:
            parts.append(f"spread {_exact(milliseconds(self.spread))}")
        if self.rate is not None:
            parts.append(f"rate {rate_text(interval(self.rate))}")
        if self.fresh_first:
            parts.append("fresh first")
        return ", ".join(parts)


def _exact(ms: int) -> str:
    """Return a duration as text that stands for exactly this one."""
    text = format_duration(ms)
    return text if milliseconds(text) == ms else f"{ms}ms"


def plan_of(value: Any, what: str = "overdue") -> Recovery:
    """Return a plan that is given as text, or as it is.

    Args:
        value: a `Recovery`, or text such as "drop 6h, spread 10m".
        what: the name of the argument, for the error.

    Raises:
        InvalidArgument: the text, or the type of the value, is not that of a plan.

    Example:
        >>> plan_of("rate 100/s, fresh first")
        Recovery(rate='100/s', fresh_first=True)
    """
    if isinstance(value, Recovery):
        return value
    if not isinstance(value, str):
        raise InvalidArgument(
            f"{what} cannot be of type {type(value).__name__}; give a bide.Recovery, or text: "
            f"{_FORMS}"
        )
    if len(value) > LONGEST_PLAN:
        raise InvalidArgument(
            f"{what}={value[:64]!r}... has {len(value):,} characters, the limit is "
            f"{LONGEST_PLAN:,}; write {_FORMS}"
        )
    fields: dict[str, Any] = {}
    for part in value.split(","):
        words = re.sub(r"\s+", " ", part).strip()
        verb, _, value_text = words.partition(" ")
        name = _FLAGS.get(words) or (_VALUES.get(verb) if value_text else None)
        if name is None or name in fields:
            raise InvalidArgument(f"{what}={value[:64]!r} is not a plan; write {_FORMS}")
        fields[name] = True if words in _FLAGS else value_text
    return Recovery(**fields)


def planned_of(message: Message) -> int:
    """Return for which time a message was planned, in Unix milliseconds."""
    return message.due if message.planned is None else message.planned


class _Place(NamedTuple):
    """Where a message stands in its group: the greatest one was planned last."""

    planned: int
    created: int
    id: str
    priority: int
    """It decides nothing here: no two messages have one id."""

    @classmethod
    def of(cls, message: Message) -> "_Place":
        """Return the place of a message."""
        return cls(planned_of(message), message.created or 0, message.id, message.priority)


class Overdue(msgspec.Struct):
    """The messages of a queue that are overdue. Times are Unix milliseconds."""

    queue: str
    now: int
    """When it was looked, by the store's clock."""
    messages: int = 0
    """How many messages are due, and held by no worker."""
    expired: int = 0
    """How many of them are too late to be delivered: the next claims end them."""
    repeating: int = 0
    """How many of them repeat: no plan drops these."""
    late: list[int] = []
    """How many are late by up to a minute, ten minutes, an hour, six hours, and more."""
    oldest: int | None = None
    """The earliest time for which one of them was planned."""
    groups: dict[str, int] = {}
    """The largest groups, and how many messages of each are overdue."""
    plan: str = ""
    """What the queue's setting `overdue` says; empty: nothing."""

    @property
    def latest(self) -> int:
        """The lateness of the one that is latest, in milliseconds; 0 if there is none."""
        return 0 if self.oldest is None else self.now - self.oldest


class Recovered(msgspec.Struct):
    """What a plan has done, or would do: the number of messages, by what became of them."""

    overdue: int = 0
    """So many were overdue."""
    dropped: int = 0
    """Cancelled: they were too late."""
    superseded: int = 0
    """Cancelled: a later one of their group is kept."""
    moved: int = 0
    """They have another due time, or another priority."""
    left: int = 0
    """Left as they are: the plan gives them no other time, or they would expire before it."""
    expired: int = 0
    """Left as they are: they are too late to be delivered, and the next claims end them."""
    changed: int = 0
    """Left as they are: they were claimed, moved or cancelled meanwhile."""
    first: int | None = None
    """When the first one that was moved is due, in Unix milliseconds."""
    last: int | None = None
    """When the last one is due."""
    undo: str = ""
    """The token for `Queue.undo`; empty: nothing was changed."""

    def count(self, move: "Move", *, changed: bool = False) -> None:
        """Count what becomes of a message; `changed`: it has changed meanwhile, and is left."""
        if move.fate == "fresh":
            return
        self.overdue += 1
        if changed:
            self.changed += 1
        elif move.fate != "kept":
            setattr(self, move.fate, getattr(self, move.fate) + 1)
        elif not move.moves:
            self.left += 1
        else:
            self.moved += 1
            self.first = move.due if self.first is None else min(self.first, move.due)
            self.last = move.due if self.last is None else max(self.last, move.due)

    @property
    def per_minute(self) -> float:
        """How many messages that were moved are due per minute, on the average."""
        if self.first is None or self.last is None:
            return 0.0
        return self.moved * MINUTE_MS / max(MINUTE_MS, self.last - self.first)


class Survey:
    """What is known of all overdue messages of a queue, before a plan moves the first one.

    Args:
        queue: its name.
        plan: the plan; `None`: they are only counted.
        now: the store's clock, in Unix milliseconds: what is due later is fresh.
    """

    def __init__(self, queue: str, plan: Recovery | None, now: int) -> None:
        self.plan, self.now = plan, now
        self.report = Overdue(queue, now, late=[0] * (len(LATENESS) + 1))
        self._groups: Counter[str] = Counter()
        self._latest: dict[str, _Place] = {}
        """By group: the message that was planned last, if the plan keeps only that."""
        self._ungrouped: Counter[int] = Counter()
        """By priority: how many messages are kept whatever is in their group."""
        self._latest_ms = float("inf") if plan is None else plan.latest_ms

    def see(self, message: Message) -> None:
        """Count a message that is ready."""
        if message.due > self.now:
            return
        report, planned = self.report, planned_of(message)
        report.messages += 1
        lateness = self.now - planned
        report.late[sum(lateness >= bound for bound in LATENESS)] += 1
        report.oldest = planned if report.oldest is None else min(report.oldest, planned)
        if message.repeats:
            report.repeating += 1
        if message.group is not None:
            self._groups[message.group] += 1
        if _is_expired(message, self.now):
            report.expired += 1
        elif self._supersedes(message):
            group, place = message.group or "", _Place.of(message)
            self._latest[group] = max(place, self._latest.get(group, place))
        elif message.repeats or lateness <= self._latest_ms:
            self._ungrouped[message.priority] += 1

    def _supersedes(self, message: Message) -> bool:
        """Return whether of the group of a message only the latest one is kept."""
        keeps_latest = self.plan is not None and self.plan.latest_of_group
        return keeps_latest and message.group is not None and not message.repeats

    @property
    def kept(self) -> Counter[int]:
        """How many messages the plan keeps, by priority."""
        return self._ungrouped + Counter(
            latest.priority
            for latest in self._latest.values()
            if self.now - latest.planned <= self._latest_ms
        )

    def counted(self, plan: str) -> Overdue:
        """Return the report; `plan` is the setting of the queue."""
        largest = dict(self._groups.most_common(LARGEST))
        return msgspec.structs.replace(self.report, groups=largest, plan=plan)

    def fate(self, message: Message) -> Fate:
        """Return what becomes of a message, which may not have been there when it was counted."""
        if message.due > self.now:
            return "fresh"
        if _is_expired(message, self.now):
            return "expired"
        if message.repeats:
            return "kept"
        if self.now - planned_of(message) > self._latest_ms:
            return "dropped"
        if self._supersedes(message):
            latest = self._latest.get(message.group or "")
            if latest is not None and _Place.of(message) < latest:
                return "superseded"
        return "kept"


def _is_expired(message: Message, now: int) -> bool:
    """Return whether a message is too late to be delivered; of one that repeats a worker decides.

    Example:
        >>> late = Message("a", "q", b"1", True, 50, 0, 0, 10, "ready", expires=20)
        >>> _is_expired(late, 70), _is_expired(late, 71)
        (False, True)
    """
    return (
        not message.repeats and message.expires is not None and now > message.due + message.expires
    )


class Move(NamedTuple):
    """What becomes of one message."""

    message: Message
    fate: Fate
    due: int
    """When it is due from now on, if it is kept; else as before."""
    priority: int
    """Its priority from now on."""

    @property
    def moves(self) -> bool:
        """Whether it is kept and changed."""
        return (self.due, self.priority) != (self.message.due, self.message.priority)


class Places:
    """Gives the messages that a plan keeps their new due times: those of a priority one by one.

    Higher priorities come first, as in the delivery. The store lists what no claim has looked at
    since the outage by due time alone, so each priority has places of its own. What a claim makes
    ready meanwhile may be read behind later ones, and gets a later place.

    Args:
        survey: of all messages.
    """

    def __init__(self, survey: Survey) -> None:
        assert survey.plan is not None
        self._survey, self._plan = survey, survey.plan
        self._start = survey.now + 1
        """The due time that the first kept message gets. All that is overdue is due before it, so
        the recovery does not meet a message again that it has moved."""
        self._begun_at: int | None = None
        """When the first message was moved, in Unix milliseconds."""
        self._seen_count = 0
        """How many messages were moved, dropped or left as they are so far."""
        kept = survey.kept
        priorities = sorted(kept, reverse=True)
        firsts = accumulate((kept[priority] for priority in priorities), initial=0)
        self._next_places = dict(zip(priorities, firsts, strict=False))
        """By priority: the number of the place that its next message gets."""
        self._end = kept.total()
        """The place of a message with a priority that none had when they were counted."""
        self._offset_of = _offset_of(survey.plan, self._end)

    def estimate_end(self, now: int) -> None:
        """Let no message of the next page be due before the estimated end of the recovery.

        Workers wait until that end. All that is due before it would be delivered at once then.

        Args:
            now: the store's clock, in Unix milliseconds.
        """
        survey = self._survey
        if self._begun_at is None:  # nothing was moved yet: judge by how long the survey took
            self._begun_at = now
            needed = (now - survey.now) * MOVE_COST
        else:
            needed = (now - self._begun_at) * survey.report.messages // max(1, self._seen_count)
        self._start = max(self._start, self._begun_at + needed)

    def move(self, message: Message) -> Move:
        """Return what becomes of the next message; those of a priority come by due time."""
        self._seen_count += 1
        fate = self._survey.fate(message)
        if fate != "kept":
            return Move(message, fate, message.due, message.priority)
        due = message.due
        if self._offset_of is not None:
            place = self._next_places.get(message.priority, self._end)
            self._next_places[message.priority] = place + 1
            due = self._start + self._offset_of(place)
        # A message that would expire before its new due time keeps the old one.
        if not message.repeats and message.expires is not None:
            due = due if due <= message.due + message.expires else message.due
        priority = 0 if self._plan.fresh_first else message.priority
        return Move(message, "kept", due, priority)


def _offset_of(plan: Recovery, count: int) -> Callable[[int], int] | None:
    """Return a function from the number of a place to its time, as milliseconds from a start.

    `None`: the plan does not move due times.

    Args:
        plan: spreads messages over a span, or has a rate.
        count: how many messages there are.

    Example:
        >>> [_offset_of(Recovery(spread="1s"), 4)(number) for number in range(4)]
        [0, 250, 500, 750]
    """
    if plan.spread is not None:
        span, most = milliseconds(plan.spread, "spread"), max(1, count)
        # There may be more messages than were counted: beyond the end is the end.
        return lambda number: min(number, most) * span // most
    if plan.rate is not None:
        us = interval(plan.rate)
        return lambda number: number * us // MICROSECONDS
    return None


def moves(queue: str, messages: Iterable[Message], plan: Recovery, now: int) -> Iterator[Move]:
    """Yield what becomes of messages that are ready, those of a priority in the order of delivery.

    Args:
        queue: their queue.
        messages: in this order.
        plan: the plan.
        now: the store's clock, in Unix milliseconds.
    """
    listed, survey = list(messages), Survey(queue, plan, now)
    for message in listed:
        survey.see(message)
    places = Places(survey)
    return (places.move(message) for message in listed)
