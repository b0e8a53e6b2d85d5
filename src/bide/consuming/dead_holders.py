"""End the leases of worker processes of this machine that have died.

What they held is delivered again at once, and not when its leases end. A process that starts does
this, as the one that takes the place of a dead process.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from bide.lane.steps import Steps, arun_steps, following
from bide.logs import logger
from bide.model.commands import BULK, Command, Release, Scan
from bide.model.errors import BideError
from bide.model.message import LAPSED
from bide.model.parts import in_parts
from bide.model.replies import Outcomes, Page
from bide.observing.heartbeat import READ_MOST, REGISTER, read
from bide.observing.process_origin import is_dead

MOST_LEASED = 10_000
"""How many leases of a queue are looked at: those that end first."""

_log = logger("bide.worker")


async def end_leases_of_dead(
    ask: Callable[[Command], Awaitable[Any]], queues: Collection[str]
) -> None:
    """End the leases of dead processes; a worker that may not, or cannot, goes on without.

    Call it when the store has the report of this process.

    Args:
        ask: executes commands.
        queues: those that this process works on.
    """
    try:
        await arun_steps(_end_leases(queues), ask)
    except BideError as error:
        _log.debug("what dead processes held is delivered again when its leases end: %s", error)


def _end_leases(queues: Collection[str]) -> Steps[None]:
    dead = yield from _dead_holders(queues)
    if not dead:
        return
    held = yield from _held_by(dead)
    # A process that claims by the same name, as in another container, has reported before: if one
    # of these leases is its own, it is known now.
    still_dead = yield from _dead_holders(queues)
    for (holder, queue), ids in held.items():
        if queue in still_dead.get(holder, ()):
            yield from _release(holder, queue, ids)


def _dead_holders(queues: Collection[str]) -> Steps[dict[str, set[str]]]:
    """Return under which names only dead processes have claimed, with those of the queues."""
    page: Page = yield Scan(REGISTER, "next", limit=READ_MOST)
    if page.cursor is not None:  # others may claim by the same names
        return {}
    dead: defaultdict[str, set[str]] = defaultdict(set)
    others: set[str] = set()
    for message in page.messages:
        report = read(message)
        if report is None:
            continue
        if not is_dead(report.origin):
            others.update(report.workers)
            continue
        for holder, works_on in report.workers.items():
            dead[holder].update(queue for queue in works_on if queue in queues)
    return {holder: works_on for holder, works_on in dead.items() if holder not in others}


def _held_by(holders: dict[str, set[str]]) -> Steps[dict[tuple[str, str], list[str]]]:
    """Return the ids of what each holder has leased, by holder and queue."""
    held: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for queue in sorted(set().union(*holders.values())):
        looked_at = 0
        scan: Scan | None = Scan(queue, "leased")
        while scan is not None and looked_at < MOST_LEASED:
            page: Page = yield scan
            looked_at += len(page.messages)
            for message in page.messages:
                holder = message.holder
                if holder is not None and queue in holders.get(holder, ()):
                    held[holder, queue].append(message.id)
            scan = following(scan, page)
    return held


def _release(holder: str, queue: str, ids: list[str]) -> Steps[None]:
    """End the leases of a dead holder, each as if it had lapsed; one line is logged."""
    count = 0
    for part in in_parts(ids, BULK):
        # By its holder: whoever has claimed one of them meanwhile keeps it.
        reply: Outcomes = yield Release(queue, list(part), LAPSED, holder)
        count += sum(outcome.done for outcome in reply.outcomes)
    if count == 1:
        _log.info("%s has died and held 1 message of %s: it is delivered again now", holder, queue)
    elif count:
        _log.info(
            "%s has died and held %s messages of %s: they are delivered again now",
            holder,
            f"{count:,}",
            queue,
        )
