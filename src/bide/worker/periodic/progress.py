"""The progress of schedules and sources, read from their queues in the store."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bide.lane.steps import Steps
from bide.model.commands import Count, Scan
from bide.model.message import Message
from bide.model.replies import Counts, Page
from bide.worker.periodic.chain import alive
from bide.worker.periodic.recurrence import Recurrence, parse
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
    ticks = [(link, tick) for link in links if (tick := read(link)) is not None]
    if not ticks:
        return None
    ticks.sort(key=lambda pair: pair[1].due)
    head, tick = ticks[-1]
    rule = parse(tick.spec)
    counts: Counts = yield Count(queue)
    links = [link for link, _ in ticks]
    facts = schedule_facts(queue, rule, tick.due, count, links, counts.sizes.dead)
    return facts | {"state": head.state}


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
        first: its next tick.
        count: how many ticks to name, from that one on.
        links: its ticks in the store, by their time.
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
    if (named := source_of(home)) is None:
        return None
    links = yield from alive(home)
    page: Page = yield Scan(home, "dead", limit=1)
    first = sorted(links, key=lambda link: link.state != "leased") or page.messages
    if not first:
        return None
    window = first[0]
    body = read_window(window)
    facts: dict[str, Any] = {
        "queue": named[0],
        "name": named[1],
        "state": window.state,
        "next": window.due,
        "every": body.every,
        "window": body.window,
        "put": body.put,
        "attempt": window.attempt,
    }
    last = None if body.last is None else msgspec.structs.asdict(body.last)
    more = {"last": last, "holder": window.holder, "error": window.error}
    return facts | {name: fact for name, fact in more.items() if fact is not None}
