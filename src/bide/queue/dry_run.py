"""How many messages a bulk change would change, where no command counts them."""

from collections.abc import Sequence

import msgspec

from bide.lane.steps import Steps, following
from bide.model.commands import Cancel, Count, Find, Purge, Scan, Where
from bide.model.limits import BULK, MAX_BYTES
from bide.model.message import Message
from bide.model.parts import in_parts
from bide.model.replies import Affected, Counts, Found, Page
from bide.model.times import LATEST
from bide.model.undoing import PART
from bide.queue.steps import is_movable, movable


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


def look_at_reschedule(first: Scan) -> Steps[int]:
    """Return how many messages of a scan a reschedule of their group would change now."""
    scan: Scan | None = first
    count = 0
    while scan is not None:
        page: Page = yield scan
        count += len(movable(page.messages))
        scan = following(scan, page)
    return count


def preview_reschedule(
    queue: str, where: Where, max_bytes: int
) -> Steps[tuple[int, list[Message]]]:
    """Return about how many messages a reschedule by a rule would change now, and the first ones.

    However many there are, it reads two pages: the store counts those that wait. Of the messages
    that were stopped by `hold`, which stay, it leaves out those on these pages: the first one, and
    that of the messages that are due last, as held ones are.

    Args:
        queue: the name of the queue.
        where: the rule.
        max_bytes: the maximum size of each page.
    """
    waiting: Affected = yield Cancel(queue, where=where, dry_run=True)
    first: Page = yield Scan(queue, None, where, limit=BULK, max_bytes=max_bytes)
    latest = msgspec.structs.replace(where, after=LATEST)
    last: Page = yield Scan(queue, "delayed", latest, limit=BULK, max_bytes=max_bytes)
    held_ids = {
        message.id
        for message in (*first.messages, *last.messages)
        if message.held and message.state in ("delayed", "ready")
    }
    count = max(0, waiting.count - len(held_ids))
    return count, [message for message in first.messages if is_movable(message)]


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
