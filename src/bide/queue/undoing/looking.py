"""Count what a purge or a revive would change, and change nothing."""

from collections.abc import Sequence
from typing import NamedTuple

from bide.lane.steps import Steps
from bide.model.commands import Count, Find, Purge, Scan, Where
from bide.model.limits import MAX_BYTES
from bide.model.message import Message
from bide.model.replies import Counts, Found, Page
from bide.model.undoing import PART
from bide.queue.results import in_parts


class Seen(NamedTuple):
    """A part of what a change would change."""

    messages: int
    """How many they are."""
    cursor: str | None = None
    """Where the next part begins; `None` if there is none."""


def look_at_purge(command: Purge) -> Steps[int]:
    """Return how many messages a purge by state would delete now."""
    count, cursor = yield from purge_part(command)
    while cursor is not None:
        more, cursor = yield from purge_part(command, cursor)
        count += more
    return count


def purge_part(command: Purge, cursor: str | None = None) -> Steps[Seen]:
    """Count a part of what a purge by state would delete.

    It reads messages only where the store has no number: with `before`, and of acked and expired
    ones, which are counted together.

    Args:
        command: the purge.
        cursor: of the part before.
    """
    state, before = command.state, command.before
    waiting = state in ("delayed", "ready")
    if before is None and cursor is None and (waiting or state == "dead"):
        counts: Counts = yield Count(command.queue)
        return Seen(getattr(counts.sizes, state))
    due = Where(before=before) if waiting and before is not None else None
    page: Page = yield Scan(command.queue, state, due, cursor, max_bytes=MAX_BYTES // 2)
    fits = [one for one in page.messages if waiting or _ended_before(one, before)]
    return Seen(len(fits), page.cursor)


def _ended_before(message: Message, before: int | None) -> bool:
    return before is None or (message.ended is not None and message.ended < before)


def look_at_dead(queue: str, ids: Sequence[str] | None) -> Steps[int]:
    """Return how many dead letters there are: of these ids, each once; without ids, in all."""
    if ids is None:
        counts: Counts = yield Count(queue)
        return counts.sizes.dead
    count = 0
    for part in in_parts(list(dict.fromkeys(ids)), PART):
        left = list(part)
        while left:
            found: Found = yield Find(queue, left, max_bytes=MAX_BYTES // 2)
            count += sum(one is not None and one.state == "dead" for one in found.messages)
            left = left[max(1, len(found.messages)) :]
    return count
