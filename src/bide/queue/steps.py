"""Calls of a queue that may take several commands, as steps."""

from collections.abc import Iterable

import msgspec

from bide.lane.lane import Lane
from bide.lane.steps import Steps, following, outcomes_of
from bide.model.commands import Cancel, Explain, Purge, Put, Reschedule, Scan
from bide.model.message import Message
from bide.model.parts import in_parts
from bide.model.replies import Affected, Explained, Outcome, Outcomes, Page
from bide.model.times import Duration
from bide.observing.explanation import Explanation, look_further
from bide.queue.arguments import one_or_several
from bide.queue.command_builder import CommandBuilder


def putting(command: Put) -> Steps[list[Outcome]]:
    """Put messages, of which there may be none; return the outcomes."""
    return (yield from outcomes_of(command)) if command.items else []


def unheld(messages: Iterable[Message]) -> list[str]:
    """Return the ids of the messages that no worker holds and that still are to be delivered."""
    return [message.id for message in messages if message.state in ("delayed", "ready")]


def repeated(command: Cancel | Purge) -> Steps[int]:
    """Repeat a command by rule until no message matches; return how many it changed."""
    count = 0
    while True:
        reply: Affected = yield command
        count += reply.count
        if not reply.more:
            return count


def rescheduling(command: Reschedule, first: Scan) -> Steps[int]:
    """Reschedule what no worker holds of a scan, page by page; return how many were changed."""
    scan: Scan | None = first
    count = 0
    while scan is not None:
        page: Page = yield scan
        if ids := unheld(page.messages):
            reply: Outcomes = yield msgspec.structs.replace(command, ids=ids)
            count += sum(map(bool, reply.outcomes))
        scan = following(scan, page)
    return count


def reviving(
    builder: CommandBuilder, ids: Iterable[str] | None, delay: Duration
) -> Steps[list[Outcome]]:
    """Revive dead letters, a thousand at a time; without ids, all."""
    command = builder.revive([], delay)  # checks the delay, even if none is dead
    chosen = [] if ids is None else one_or_several(ids)
    scan = builder.scan("dead", None, None, None, 500) if ids is None else None
    while scan is not None:
        page: Page = yield scan
        chosen += [message.id for message in page.messages]
        scan = following(scan, page)
    parts = [msgspec.structs.replace(command, ids=part) for part in in_parts(chosen)]
    return (yield from outcomes_of(*parts))


def explaining(queue: str, id: str, lane: Lane) -> Steps[Explanation]:
    """Explain where a message is, by what the store and the workers' reports say."""
    facts: Explained = yield Explain(queue, id)
    facts = yield from look_further(queue, id, facts, around=lane.capabilities.shared)
    return Explanation(id, queue, facts)
