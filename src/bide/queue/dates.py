"""Changes that give messages a local date: what else their rules say stays, so they are read."""

from collections import defaultdict
from typing import Any

import msgspec

from bide.lane.steps import Steps, following
from bide.model.commands import Edit, Find, Reschedule, Scan
from bide.model.errors import InvalidArgument
from bide.model.local_date import PlannedDate, planned_date
from bide.model.message import Message
from bide.model.replies import Found, Outcome, Outcomes, Page
from bide.model.time_rule import with_date

TRIES = 20
"""How often a message is read again that others change meanwhile."""


def date_of(delay: Any, at: Any, timezone: Any) -> PlannedDate:
    """Return the date of a change, as a user gives it.

    Raises:
        InvalidArgument: it is none, or a delay is given as well.
    """
    if delay is not None:
        raise InvalidArgument("delay= and timezone= cannot be combined: give at=, the local date")
    return planned_date(at, timezone)


def check_alone(**given: bool) -> None:
    """Check that nothing is given that does not go with a local date.

    Raises:
        InvalidArgument: something is.
    """
    for name, is_given in given.items():
        if is_given:
            raise InvalidArgument(
                f"{name}= and timezone= cannot be combined; give the time as an instant"
            )


def dating(command: Reschedule | Edit, date: PlannedDate) -> Steps[Outcome]:
    """Change one message, which is then due on a date, if it does not repeat.

    A run of a message that repeats is moved to the instant: the rule of the message stays.

    Args:
        command: the change, with the instant of the date.
        date: the date.
    """
    tries = TRIES
    while True:
        found: Found = yield Find(command.queue, command.ids)
        (message,) = found.messages
        dated = command if message is None else _with_date(command, message, date)
        reply: Outcomes = yield dated
        (outcome,) = reply.outcomes
        tries -= 1
        # What waits and was not changed is another one than was read, unless the caller has said
        # which one it must be.
        is_another = not outcome.done and outcome.state in ("delayed", "ready")
        if not is_another or command.if_version is not None or dated is command or not tries:
            return command.answered(outcome)


def _with_date(
    command: Reschedule | Edit, message: Message, date: PlannedDate
) -> Reschedule | Edit:
    """Return the command that gives a message a date, unless the message has changed meanwhile."""
    if message.repeats or getattr(command, "if_due", None) not in (None, message.due):
        return command
    fields: dict[str, Any] = {
        "rule": with_date(message.rule, date),
        "run": None,
        "if_version": command.if_version or message.version,
    }
    if isinstance(command, Edit):
        return msgspec.structs.replace(command, **fields)
    return Edit(command.queue, command.ids, at=command.at, actor=command.actor, **fields)


def dating_all(command: Reschedule, first: Scan, date: PlannedDate) -> Steps[int]:
    """Let what no worker holds of a scan be due on a date; return how many were changed."""
    scan: Scan | None = first
    count = 0
    while scan is not None:
        page: Page = yield scan
        messages = [
            message
            for message in page.messages
            if message.state in ("delayed", "ready") and not message.held
        ]
        if ids := [message.id for message in messages if message.repeats]:
            reply: Outcomes = yield msgspec.structs.replace(command, ids=ids)
            count += sum(map(bool, reply.outcomes))
        by_rule: defaultdict[str | None, list[Message]] = defaultdict(list)
        for message in messages:
            if not message.repeats:
                by_rule[message.rule].append(message)
        for rule, group in by_rule.items():
            edit = Edit(
                command.queue,
                [message.id for message in group],
                rule=with_date(rule, date),
                run=None,
                at=date.at,
                versions=[message.version for message in group],
                actor=command.actor,
            )
            reply = yield edit
            count += sum(map(bool, reply.outcomes))
        scan = following(scan, page)
    return count
