"""How many messages a bulk change would change, where no command counts them."""

from collections.abc import Sequence

from bide.lane.steps import Steps, following
from bide.model.commands import Count, Find, Purge, Scan, Where
from bide.model.limits import MAX_BYTES
from bide.model.parts import in_parts
from bide.model.replies import Counts, Found, Page
from bide.model.undoing import PART
from bide.queue.steps import movable


def look_at_purge(command: Purge) -> Steps[int]:
    """Return how many messages a purge by state would delete now."""
    total, cursor = yield from purge_part(command)
    while cursor is not None:
        count, cursor = yield from purge_part(command, cursor)
        total += count
    return total


def purge_part(command: Purge, cursor: str | None = None) -> Steps[tuple[int, str | None]]:
    """Count a part of what a purge by state would delete.

    It reads messages only where the store has no number: with `before`, and of acked and expired
    ones, which are counted together.

    Args:
        command: the purge.
        cursor: of the part before.

    Returns:
        How many messages they are, and the cursor of the next part, if there is one.
    """
    state, before = command.state, command.before
    is_waiting = state in ("delayed", "ready")
    if before is None and cursor is None and (is_waiting or state == "dead"):
        counts: Counts = yield Count(command.queue)
        return getattr(counts.sizes, state), None
    due_before = Where(before=before) if is_waiting and before is not None else None
    # Half of what a reply may have: it is read for nothing but a number.
    page: Page = yield Scan(command.queue, state, due_before, cursor, max_bytes=MAX_BYTES // 2)
    if is_waiting or before is None:
        return len(page.messages), page.cursor
    end_times = [message.ended for message in page.messages if message.ended is not None]
    return sum(time < before for time in end_times), page.cursor


def look_at_reschedule(first: Scan, most: int | None = None) -> Steps[int]:
    """Return how many messages of a scan a reschedule of their group would change now.

    Args:
        first: reads the first page.
        most: how many are counted at most; `None`: all.
    """
    scan: Scan | None = first
    count = 0
    while scan is not None and (most is None or count < most):
        page: Page = yield scan
        count += len(movable(page.messages))
        scan = following(scan, page)
    return count if most is None else min(count, most)


def look_at_dead(queue: str, ids: Sequence[str] | None) -> Steps[int]:
    """Return how many dead letters there are: of these ids, each once; without ids, in all."""
    if ids is None:
        counts: Counts = yield Count(queue)
        return counts.sizes.dead
    count = 0
    for part in in_parts(list(dict.fromkeys(ids)), PART):
        remaining = list(part)
        while remaining:
            reply: Found = yield Find(queue, remaining, max_bytes=MAX_BYTES // 2)
            count += sum(
                message is not None and message.state == "dead" for message in reply.messages
            )
            # At least one: a reply without any message must not be asked for again and again.
            remaining = remaining[max(1, len(reply.messages)) :]
    return count
