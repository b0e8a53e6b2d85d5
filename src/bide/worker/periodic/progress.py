"""The progress of schedules and sources, read from their queues in the store."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bide.lane.steps import Steps
from bide.model.commands import Count, Scan
from bide.model.message import Message
from bide.model.recurrence import Recurrence, parse
from bide.model.replies import Counts, Page
from bide.worker.periodic.chain import alive
from bide.worker.periodic.schedule import read
from bide.worker.periodic.source import read_window, source_of


def schedule_progress(queue: str, count: int) -> Steps[dict[str, Any] | None]:
    """Read the facts about a schedule; `None` if the queue belongs to none.

    Args:
        queue: the queue of its ticks.
        count: how many of its next ticks to name.

    Raises:
        InvalidArgument: cronsim or the time zone is not here, or a newer bide put the tick.
    """
    links = yield from alive(queue)
    ticks = [(tick, link) for link in links if (tick := read(link)) is not None]
    if not ticks:
        return None
    ticks.sort(key=lambda tick_and_link: tick_and_link[0].due)
    last_tick, last_link = ticks[-1]  # those before it have started: each has put the next
    rule = parse(last_tick.spec)
    counts: Counts = yield Count(queue)
    sorted_links = [link for _, link in ticks]
    facts = schedule_facts(queue, rule, last_tick.due, count, sorted_links, counts.sizes.dead)
    return facts | {"state": last_link.state}


def schedule_facts(
    queue: str,
    rule: Recurrence,
    first: int,
    count: int,
    links: Sequence[Message] = (),
    dead: int = 0,
) -> dict[str, Any]:
    """Return the facts about a schedule: times are Unix milliseconds.

    Args:
        queue: the queue of its ticks.
        rule: when it ticks.
        first: its next tick, in Unix milliseconds.
        count: how many ticks to name, from that one on.
        links: its ticks in the store, in the order of their times.
        dead: how many are dead letters.
    """
    ticks = [first]
    while len(ticks) < count:
        ticks.append(rule.after(ticks[-1]))
    facts: dict[str, Any] = {
        "queue": queue,
        "when": rule.text,
        "timezone": rule.zone.key,
        "ticks": ticks,
        "running": sum(link.state == "leased" for link in links),
        "retrying": sum(link.state != "leased" and link.attempt > 0 for link in links),
        "dead": dead,
    }
    if errors := [link.error for link in links if link.error is not None]:
        facts["error"] = errors[-1]
    return facts


def source_progress(home: str) -> Steps[dict[str, Any] | None]:
    """Read the facts about a source: its next window, or the one that is being read.

    Returns `None` if the queue belongs to no source, or no worker with it has run.
    """
    if (source := source_of(home)) is None:
        return None
    queue, name = source
    links = yield from alive(home)
    dead: Page = yield Scan(home, "dead", limit=1)
    # A leased window first: it is the one that is being read. A dead one counts if there is no
    # other: it was buried by hand, and a worker will revive it.
    windows = sorted(links, key=lambda link: link.state != "leased") or dead.messages
    if not windows:
        return None
    window = windows[0]
    body = read_window(window)
    facts: dict[str, Any] = {
        "queue": queue,
        "name": name,
        "state": window.state,
        "next": window.due,
        "every": body.every,
        "window": body.window,
        "put": body.put,
        "attempt": window.attempt,
    }
    last = None if body.last is None else msgspec.structs.asdict(body.last)
    optional = {"last": last, "holder": window.holder, "error": window.error}
    return facts | {fact: value for fact, value in optional.items() if value is not None}
