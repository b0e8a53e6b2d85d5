"""The progress of schedules and sources, read from their queues in the store."""

from typing import Any

import msgspec

from bide.lane.steps import Steps
from bide.model.commands import Count, Scan
from bide.model.message import Message
from bide.model.replies import Counts, Page
from bide.model.times import format_duration
from bide.worker.periodic.chain import alive
from bide.worker.periodic.recurrence import Every, Recurrence, parse
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
    moments = upcoming(rule, tick.due, count)
    facts = schedule_facts(queue, rule, [one for one, _ in ticks], moments, counts.sizes.dead)
    return facts | {"state": head.state}


def schedule_facts(
    queue: str, rule: Recurrence, links: list[Message], ticks: list[int], dead: int
) -> dict[str, Any]:
    """Return the facts about a schedule: times are Unix milliseconds."""
    when, zone = rule_in_words(rule)
    facts: dict[str, Any] = {
        "queue": queue, "when": when, "timezone": zone, "ticks": ticks,
        "running": sum(link.state == "leased" for link in links),
        "retrying": sum(link.state != "leased" and link.attempt > 0 for link in links),
        "dead": dead,
    }  # fmt: skip
    if errors := [link.error for link in links if link.error is not None]:
        facts["error"] = errors[-1]
    return facts


def rule_in_words(rule: Recurrence) -> tuple[str, str]:
    """Return a schedule for people, and its zone."""
    if isinstance(rule, Every):
        return f"every {format_duration(rule.period)}", rule.zone.key
    return rule.expression, rule.zone.key


def upcoming(rule: Recurrence, first: int, count: int) -> list[int]:
    """Return the next ticks of a schedule from a first one on."""
    moments = [first]
    while len(moments) < count:
        moments.append(rule.after(moments[-1]))
    return moments


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
        "queue": named[0], "name": named[1], "state": window.state, "next": window.due,
        "every": body.every, "window": body.window, "put": body.put, "attempt": window.attempt,
    }  # fmt: skip
    last = None if body.last is None else msgspec.structs.asdict(body.last)
    more = {"last": last, "holder": window.holder, "error": window.error}
    return facts | {name: one for name, one in more.items() if one is not None}
