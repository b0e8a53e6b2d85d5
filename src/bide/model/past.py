"""What has happened in queues, slot by slot: the command that reads it, and its reply.

No store executes the command itself. It is made of others (`bide.observing.past`), by the process
that is next to the store: a client of a server sends it whole.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from bide.model.errors import InvalidArgument
from bide.model.times import Duration, format_duration, milliseconds, to_datetime

SlotLength = Literal["minute", "hour"]
"""How much time one slot is."""

SLOT_MS: dict[SlotLength, int] = {"minute": 60_000, "hour": 3_600_000}
"""Milliseconds of a slot."""

KEPT_SLOTS: dict[SlotLength, int] = {"minute": 1_440, "hour": 720}
"""How many slots can be shown: the minutes of 24 hours, the hours of 30 days."""

MOST_SLOTS = 1_440
"""The most slots that one command reads."""

MINUTES_UP_TO = 3 * SLOT_MS["hour"]
"""Milliseconds up to which a past is shown by minutes, unless the caller chooses."""


class PastSlot(msgspec.Struct, frozen=True, gc=False):
    """What happened in one slot."""

    put: int = 0
    """Messages that were put; a message that repeats counts once for each run."""
    done: int = 0
    """Messages that were acked."""
    failed: int = 0
    """Attempts that failed: retried, lapsed, or dead at once."""
    cancelled: int = 0
    expired: int = 0
    died: int = 0
    """Messages that became dead letters."""
    delivered: int = 0
    """Deliveries whose lateness workers reported."""
    p50: float | None = None
    """Half of these began within so many milliseconds of their due times: the upper bound of a
    bucket. `None`: there were none, or they were later than half an hour."""
    p99: float | None = None
    """The same for 99 of 100."""


class Past(msgspec.Struct, frozen=True, tag="past"):
    """What has happened in a queue, or in several together.

    Iterating gives pairs: when a slot begins, and what happened in it.
    """

    start: int
    """When the first slot begins, in Unix milliseconds of the store's clock."""
    slot: int
    """The length of a slot in milliseconds."""
    slots: list[PastSlot | None]
    """The slots, the oldest first; `None`: nobody has recorded it, or it cannot be known. The hour
    that is under way is the last one; a minute is there once it is over."""
    recorded: int = 0
    """How many times within these slots a worker or a server has recorded the counters."""
    left_out: int = 0
    """How many queues the last record left out, because there are too many."""

    def __iter__(self) -> Iterator[tuple[datetime, PastSlot | None]]:
        for number, slot in enumerate(self.slots):
            yield to_datetime(self.start + number * self.slot), slot

    @property
    def why_empty(self) -> str | None:
        """Why no slot has figures; `None`: some have.

        Example:
            >>> Past(0, 60_000, [None]).why_empty
            'no worker or server has recorded yet'
        """
        if any(slot is not None for slot in self.slots):
            return None
        if not self.recorded:
            return "no worker or server has recorded yet"
        if self.left_out:
            return (
                f"it is not recorded: {self.left_out:,} queues are left out, those with the "
                "fewest messages so far"
            )
        return "recording has just begun; the first figures appear in a minute"


class PastCommand(
    msgspec.Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    tag_field="command",
    tag="past",
    forbid_unknown_fields=True,
):
    """Read what has happened lately. Answers `Past`."""

    queue: str
    """The name of a queue, or with `together` how the names of queues begin; it may be empty."""
    by: SlotLength
    slots: Annotated[int, Meta(ge=1, le=MOST_SLOTS)]
    """How many, up to now."""
    together: bool = False
    """Whether to add up all queues whose names begin with `queue`."""

    actor: str | None = None
    """Nobody: nothing is changed."""

    only_reads: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True
    weight: ClassVar[int] = 0


def past_command(
    queue: str,
    span: Duration,
    by: SlotLength | None = None,
    *,
    together: bool = False,
    name: str = "span",
) -> PastCommand:
    """Return the command that reads the past of a queue.

    Args:
        queue: its name, or with `together` how the names of several begin.
        span: how far to look back.
        by: the length of a slot; `None`: minutes for three hours or less, else hours.
        together: as in `PastCommand`.
        name: how the caller calls the span, for error texts.

    Raises:
        InvalidArgument: the span is no time, or longer than slots are kept.

    Example:
        >>> past_command("orders", "24h").slots, past_command("orders", "1h").by
        (24, 'minute')
        >>> past_command("orders", "7d", "minute")
        Traceback (most recent call last):
          ...
        bide.model.errors.InvalidArgument: span=7d is longer than the 1d for which minutes are \
kept; give a shorter one, or by='hour', which are kept for 30d
    """
    wanted_ms = milliseconds(span, name)
    if by is None:
        by = "minute" if wanted_ms <= MINUTES_UP_TO else "hour"
    if by not in SLOT_MS:
        raise InvalidArgument(f"by={by!r} must be 'minute' or 'hour'")
    slots = max(1, -(-wanted_ms // SLOT_MS[by]))
    if slots > KEPT_SLOTS[by]:
        kept_for = {name: format_duration(SLOT_MS[name] * KEPT_SLOTS[name]) for name in SLOT_MS}
        fix = "give a shorter one"
        if by == "minute":
            fix += f", or by='hour', which are kept for {kept_for['hour']}"
        raise InvalidArgument(
            f"{name}={format_duration(wanted_ms)} is longer than the {kept_for[by]} for which "
            f"{by}s are kept; {fix}"
        )
    return PastCommand(queue, by, slots, together)


def slot_start(moment: int, by: SlotLength) -> int:
    """Return when the slot of a time begins; both are Unix milliseconds.

    Example:
        >>> slot_start(125_000, "minute")
        120000
    """
    return moment - moment % SLOT_MS[by]


def slot_id(start: int, by: SlotLength) -> str:
    """Return the id of the message that has the record of a slot: the same again after a round.

    A round has one slot more than are shown, because a slot lies between two records.

    Example:
        >>> slot_id(120_000, "minute"), slot_id(120_000 + 1_441 * 60_000, "minute")
        ('minute-2', 'minute-2')
    """
    return f"{by}-{start // SLOT_MS[by] % (KEPT_SLOTS[by] + 1)}"
