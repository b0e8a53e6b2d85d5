"""Calls of a queue that may take several commands, as steps.

Steps are generators of commands (see `bide.lane.steps`). Those that do what a method of a queue
does have its name with -ing: `putting` is `put`, `stopping` is `cancel(running=True)`.

Steps import what they are made of when they run: most programs explain, export or undo nothing.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from bide.lane.steps import Steps, following, outcomes_of
from bide.model.commands import (
    Cancel,
    CloseGroup,
    Edit,
    Explain,
    Find,
    History,
    Purge,
    Put,
    Reschedule,
    Scan,
    Where,
)
from bide.model.ended import End
from bide.model.errors import AccessDenied, InvalidArgument, NotEnded
from bide.model.message import Message
from bide.model.replies import (
    Affected,
    Ends,
    Explained,
    Found,
    GroupsClosed,
    Outcome,
    Outcomes,
    Page,
)
from bide.model.times import Duration
from bide.queue.arguments import one_or_several
from bide.queue.command_builder import CommandBuilder
from bide.queue.results import Cancelled, Closing, Imported, result_in


def putting(command: Put) -> Steps[list[Outcome]]:
    """Put messages, of which there may be none; return the outcomes."""
    if not command.items:
        return []
    outcomes = yield from outcomes_of(command)
    return [command.worded_outcome(outcome) for outcome in outcomes]


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


def stopping(command: Cancel, *, waits: bool) -> Steps[Outcome]:
    """Cancel a message, also while a worker holds it.

    With `waits`, the lane waits for the end of the message, as long as the caller has said.
    """
    reply: Outcomes = yield command
    (outcome,) = reply.outcomes
    if outcome.state == "stopping" and waits:
        try:
            ends: Ends = yield History(command.queue, outcome.id, watch=True)
        except AccessDenied:  # who may change messages may perhaps not read: it is asked to stop
            return command.worded_outcome(outcome)
        outcome = yield from after_stop(command, outcome, ends)
    return command.worded_outcome(outcome)


def after_stop(command: Cancel, stopping: Outcome, reply: Ends) -> Steps[Outcome]:
    """Return the outcome of a cancel that has waited for the worker to stop.

    Args:
        command: the cancel.
        stopping: the outcome when the worker was asked.
        reply: how the message has ended, if it has.
    """
    if reply.state == "leased":
        # If its worker has died and nobody claims, its lease may be over and nothing has ended it.
        # A cancel of its due time does, and leaves alone what is held, or was put meanwhile.
        lapsing = Cancel(command.queue, [stopping.id], if_due=stopping.due, actor=command.actor)
        (outcome,) = (yield lapsing).outcomes
        return Outcome(stopping.id, True, None, stopping.due) if outcome.done else stopping
    if not reply.ends:  # its end is forgotten already
        return Outcome(stopping.id, False, None, stopping.due)
    end = reply.ends[0]
    if end.how == "cancelled":
        return Outcome(stopping.id, True, None, stopping.due)
    state = "acked" if end.how == "acked" else reply.state
    return Outcome(stopping.id, False, state, end.due, end.moment, end.by)


def known_ends(command: History) -> Steps[Ends]:
    """Return what is known of a message, or of one run of a message that repeats.

    A run has the id of the message, "@" and its due time (see `bide.model.runs.run_id`).
    """
    reply: Ends = yield command
    if reply.state is not None or reply.ends or "@" not in command.id:
        return reply
    from bide.model.runs import named_run  # here: most messages do not repeat

    run = named_run(command.id)
    if run is None:
        return reply
    id, due = run
    all_runs: Ends = yield History(command.queue, id)
    return Ends(None, [end for end in all_runs.ends if end.due == due])


def ending(command: History) -> Steps[list[End]]:
    """Return how messages of an id have ended, the newest first."""
    reply = yield from known_ends(command)
    return reply.ends


def resulting(command: History, result_type: Any) -> Steps[Any]:
    """Return the result of a message.

    While a worker holds it, the error says how far that is; after a lease that is over, what
    follows: the state is "leased" until the next claim. Of a dead letter it says why it died:
    without `history` only the message knows that.

    Raises:
        NotEnded: it is still in the queue.
        InvalidArgument: the command waits, for one run of a message that repeats.
    """
    reply = yield from known_ends(command)
    progress = dead_letter = None
    if reply.state is None and not reply.ends and "@" in command.id:
        reply = yield from pending_run(command)
    elif reply.state == "leased":
        facts: Explained = yield Explain(command.queue, command.id)
        if facts.until is not None and facts.until <= facts.now:
            from bide.observing.explanation import Explanation  # here: most leases are good

            explanation = Explanation(command.id, command.queue, facts)
            raise NotEnded(f"{command.id} has no result yet: {explanation}")
        progress = facts.progress
    elif reply.state == "dead" and not (reply.ends and reply.ends[0].failures):
        answer: Found = yield Find(command.queue, [command.id])
        (dead_letter,) = answer.messages
    return result_in(command.id, reply, result_type, progress, dead_letter)


def pending_run(command: History) -> Steps[Ends]:
    """Return the state of a run that has not ended, if an id names the run that is next.

    Raises:
        InvalidArgument: the caller waits for its end. A queue remembers under the id of the message
            when a run was due last, so a run that is tried again could be awaited in vain.
    """
    from bide.model.runs import named_run  # here: most messages do not repeat

    run = named_run(command.id)
    if run is None:
        return Ends(None, [])
    id, due = run
    lookup: Found = yield Find(command.queue, [id])
    (message,) = lookup.messages
    if message is None or not message.repeats or due not in (message.due, message.planned):
        return Ends(None, [])
    if command.watch:
        raise InvalidArgument(
            f"wait= waits for the end of a message, and {command.id} is one run of {id!r}, which "
            "repeats; ask without wait= when the run is over"
        )
    return Ends(message.state, [])


def stopping_all(command: Cancel) -> Steps[Cancelled]:
    """Cancel messages by rule, also those that workers hold."""
    count = stopping_count = 0
    while True:
        reply: Affected = yield command
        count += reply.count
        stopping_count += len(reply.stopping)
        if not reply.more:
            return Cancelled(count, stopping_count)


def closing(command: CloseGroup, *, running: bool) -> Steps[Closing]:
    """Close a group, then cancel what is in it: after the first step, nothing new comes into it."""
    reply: GroupsClosed = yield command
    (closed,) = reply.groups
    cancel = Cancel(command.queue, where=Where(command.group), running=running, actor=command.actor)
    count = yield from stopping_all(cancel)
    return Closing(int(count), count.stopping, closed.until)


EDITS = 5
"""How often an edit is tried that depends on what the message has, while others edit it, too."""


def editing(
    builder: CommandBuilder, id: str, *, if_version: str | None, **arguments: Any
) -> Steps[Outcome]:
    """Change fields of a message.

    Who changes its window or the rule by which it repeats, and not both, keeps the other one: so
    the message is read first, and changed if it is still the same.

    Args:
        builder: makes the commands.
        id: of the message.
        if_version: only the version that the caller saw.
        arguments: the others of `CommandBuilder.edit`.
    """
    command, outcome = yield from edited(builder, id, if_version=if_version, **arguments)
    return command.worded_outcome(outcome)


def edited(
    builder: CommandBuilder, id: str, *, if_version: str | None, **arguments: Any
) -> Steps[tuple[Edit, Outcome]]:
    """Change fields of a message as `editing` does; return the command, and its outcome."""
    repeat, window = arguments.get("repeat", UNSET), arguments.get("window", UNSET)
    if repeat is UNSET and window is UNSET:
        command = builder.edit([id], if_version=if_version, **arguments)
        reply: Outcomes = yield command
        return command, reply.outcomes[0]
    from bide.queue.rules import needs_message  # here: most messages have no rule

    reads = needs_message(repeat, window)
    for _ in range(EDITS):
        message, version = None, if_version
        if reads:
            lookup: Found = yield builder.find(id)
            (message,) = lookup.messages
            if version is None and message is not None:
                version = message.version
        command = builder.edit([id], if_version=version, message=message, **arguments)
        reply = yield command
        (outcome,) = reply.outcomes
        has_changed = version != if_version and outcome.state in ("delayed", "ready", "dead")
        if outcome.done or not has_changed:
            break
    return command, outcome


def is_movable(message: Message) -> bool:
    """Return whether a reschedule of its group changes a message.

    One that was stopped by `hold` waits for a person, whatever is done to its group.
    """
    return message.state in ("delayed", "ready") and not message.held


def movable(messages: Iterable[Message]) -> list[str]:
    """Return the ids of the messages that a reschedule of their group changes."""
    return [message.id for message in messages if is_movable(message)]


def rescheduling(command: Reschedule, first: Scan) -> Steps[int]:
    """Reschedule what no worker holds of a scan, page by page; return how many were changed."""
    scan: Scan | None = first
    count = 0
    while scan is not None:
        page: Page = yield scan
        if ids := movable(page.messages):
            reply: Outcomes = yield msgspec.structs.replace(command, ids=ids)
            count += sum(map(bool, reply.outcomes))
        scan = following(scan, page)
    return count


def reviving(
    builder: CommandBuilder, ids: Iterable[str] | None, delay: Duration
) -> Steps[list[Outcome]]:
    """Revive dead letters, a thousand at a time; without ids, all."""
    from bide.model.parts import in_parts

    command = builder.revive([], delay)  # checks the delay, even if none is dead
    ids_to_revive = [] if ids is None else one_or_several(ids)
    scan = builder.scan("dead", None, None, None, 500) if ids is None else None
    while scan is not None:  # all are read before the first is revived: some may die again
        page: Page = yield scan
        ids_to_revive += [message.id for message in page.messages]
        scan = following(scan, page)
    parts = [msgspec.structs.replace(command, ids=part) for part in in_parts(ids_to_revive)]
    outcomes = yield from outcomes_of(*parts)
    return [command.worded_outcome(outcome) for outcome in outcomes]


def exported(messages: Iterable[Message]) -> Iterator[str]:
    """Return messages as lines of an export."""
    from bide.exports import to_lines

    return to_lines(messages)


def loading(
    lines: Iterable[str | bytes], queue: str, max_body: int, first: int = 1
) -> Steps[Imported]:
    """Put the messages of lines into a queue; `first` is the number of the first line."""
    from bide.exports import commands_of

    total = Imported()
    for command in commands_of(lines, queue, max_body, first):
        reply: Outcomes = yield command
        stored = sum(outcome.done for outcome in reply.outcomes)
        refused = sum(outcome.state == "closed" for outcome in reply.outcomes)
        kept = len(reply.outcomes) - stored - refused
        total = total.with_more(Imported(stored, kept, refused))
    return total
