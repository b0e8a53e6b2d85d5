"""The progress of schedules, messages that repeat and sources, read from their queues."""

from itertools import islice
from typing import Any, NamedTuple

import msgspec

from bide.lane.steps import Steps
from bide.model.commands import Count, Find, History, Scan
from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.model.recurrence import Recurrence
from bide.model.repeat import Repeat
from bide.model.replies import Counts, Ends, Found, Page
from bide.model.runs import Run, later_runs
from bide.model.time_rule import repeat_of, window_of
from bide.worker.periodic.chain import alive
from bide.worker.periodic.source import read_window, source_of
from bide.worker.periodic.ticks import SCHEDULE_ID, read_body, zone_of_ticks

RUNS_SHOWN = 10
"""How many of its last runs are listed of a message that repeats."""


class Repeating(NamedTuple):
    """The messages of a queue that repeat."""

    facts: list[dict[str, Any]]
    """What is known of each message."""
    unreadable: dict[str, str]
    """Why the rule of a message cannot be read here, by its id."""
    read: int | None
    """How many messages were read, if there are more."""


def schedule_progress(queue: str, count: int) -> Steps[dict[str, Any] | None]:
    """Read the facts about a schedule; `None` if the queue belongs to none.

    Args:
        queue: of its message.
        count: how many of its next ticks to name.

    Raises:
        InvalidArgument: cronsim or the time zone is not here, or a newer bide put the message.
    """
    found: Found = yield Find(queue, [SCHEDULE_ID])
    (message,) = found.messages
    if message is None or not message.repeats or read_body(message) is None:
        return None
    counts: Counts = yield Count(queue)
    return (yield from _progress(message, counts, count))


def repeating_progress(queue: str, count: int, most: int) -> Steps[Repeating]:
    """Read the facts about the messages of a queue that repeat.

    Args:
        queue: their queue.
        count: how many of the next runs to name of each.
        most: how many messages are read at most that wait, and that are leased.
    """
    messages: dict[str, Message] = {}
    has_more = False
    # "next" twice: a message that is released between the two scans would be in neither.
    for state in ("next", "leased", "next"):
        page: Page = yield Scan(queue, state, limit=most)
        messages |= {message.id: message for message in page.messages if message.repeats}
        has_more = has_more or page.cursor is not None
    repeating = Repeating([], {}, most if has_more else None)
    if not messages:
        return repeating
    counts: Counts = yield Count(queue)
    for id, message in sorted(messages.items()):
        try:
            repeating.facts.append((yield from _progress(message, counts, count)))
        except InvalidArgument as error:  # cronsim or the zone is not here, or a newer bide put it
            repeating.unreadable[id] = str(error)
    return repeating


def _progress(message: Message, counts: Counts, count: int) -> Steps[dict[str, Any]]:
    """Read the facts about a message that repeats.

    Args:
        message: as it is in the store.
        counts: of its queue.
        count: how many of its next runs to name.
    """
    rule, run = repeat_of(message.rule or ""), Run.of(message.run or "")
    body, recurrence = read_body(message), rule.recurrence()
    zone = recurrence.zone if body is None else zone_of_ticks(rule, body)
    facts: dict[str, Any] = {
        "queue": message.queue,
        "id": message.id,
        "when": recurrence.text,
        "timezone": zone.key,
        "missed": rule.missed,
        "state": message.state,
        "held": run.held,
        "ticks": _next_times(message, rule, run, count),
        "running": int(message.state == "leased"),
        "retrying": int(message.state != "leased" and message.attempt > 0),
    }
    if body is not None:  # the queue is for this schedule alone
        facts["dead"] = counts.sizes.dead
        if body.rule != message.rule:
            facts["edited"] = True
    if message.error is not None:
        facts["error"] = message.error
    if counts.history:
        remembered: Ends = yield History(message.queue, message.id)
        facts["runs"] = [
            {"how": end.how, "due": end.due, "ended": end.moment, "by": end.by}
            for end in remembered.ends[:RUNS_SHOWN]
        ]
    return facts


def _next_times(message: Message, rule: Repeat, run: Run, count: int) -> list[int]:
    """Return when a message that repeats is due next, at most `count` times; empty: it is held."""
    if run.held and message.state != "leased":
        return []
    most = count if run.left is None else min(count, run.left)
    times = [] if message.state == "leased" else [message.due]
    if not run.held:
        window = window_of(message.rule)
        later = (begins for _later, begins in later_runs(rule, window, run, message.due))
        times += islice(later, max(0, most - len(times)))
    return times[:most]


def declared_facts(queue: str, recurrence: Recurrence, first: int, count: int) -> dict[str, Any]:
    """Return the facts about a schedule that no worker has run yet.

    Args:
        queue: of its message.
        recurrence: when it ticks.
        first: its next tick, in Unix milliseconds.
        count: how many ticks to name, from that one on.
    """
    ticks = [first]
    while len(ticks) < count:
        ticks.append(recurrence.after(ticks[-1]))
    return {
        "queue": queue,
        "id": SCHEDULE_ID,
        "when": recurrence.text,
        "timezone": recurrence.zone.key,
        "held": False,
        "ticks": ticks,
        "running": 0,
        "retrying": 0,
        "dead": 0,
    }


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
