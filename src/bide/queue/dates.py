"""Changes that give messages a local date: what else their rules say stays, so they are read."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bide.lane.steps import Steps, following, outcomes_of
from bide.model.command_parts import NewTime
from bide.model.commands import Edit, Find, Reschedule, Scan
from bide.model.errors import InvalidArgument
from bide.model.local_date import PlannedDate, planned_date
from bide.model.message import Message
from bide.model.replies import Found, Outcome, Outcomes, Page
from bide.model.time_rule import time_rule_of, with_date

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
        lookup: Found = yield Find(command.queue, command.ids)
        (message,) = lookup.messages
        dated = command if message is None else with_new_date(command, message, date)
        reply: Outcomes = yield dated
        (outcome,) = reply.outcomes
        tries -= 1
        # What waits and was not changed is another one than was read, unless the caller has said
        # which one it must be.
        is_another = not outcome.done and outcome.state in ("delayed", "ready")
        if not is_another or command.if_version is not None or dated is command or not tries:
            return command.answered(outcome)


def with_new_date(
    command: Reschedule | Edit, message: Message, date: PlannedDate
) -> Reschedule | Edit:
    """Return the command that gives a message a date, unless the message has changed meanwhile."""
    if message.repeats or getattr(command, "if_due", None) not in (None, message.due):
        return command
    rule = with_date(message.rule, date)
    fields: dict[str, Any] = {
        "at": time_rule_of(rule).opening(date.at),
        "rule": rule,
        "run": None,
        "if_version": command.if_version or message.version,
    }
    if isinstance(command, Edit):
        return msgspec.structs.replace(command, **fields)
    return Edit(command.queue, command.ids, actor=command.actor, **fields)


def dating_all(command: Reschedule, first: Scan, date: PlannedDate) -> Steps[int]:
    """Let what no worker holds of a scan be due on a date; return how many were changed."""
    scan: Scan | None = first
    count = 0
    while scan is not None:
        page: Page = yield scan
        count += yield from dating_page(command, page.messages, date)
        scan = following(scan, page)
    return count


def _new_time(message: Message, date: PlannedDate) -> NewTime:
    """Return the time of a message that gets a date."""
    rule = with_date(message.rule, date)
    return NewTime(time_rule_of(rule).opening(date.at), rule)


def dating_page(command: Reschedule, messages: Sequence[Message], date: PlannedDate) -> Steps[int]:
    """Let those of some messages be due on a date that no worker holds; return how many were.

    A message that is held waits for a person, whatever is done to its group.
    """
    waiting = [
        message
        for message in messages
        if message.state in ("delayed", "ready") and not message.held
    ]
    changes: list[Reschedule | Edit] = []
    if ids := [message.id for message in waiting if message.repeats]:
        changes.append(msgspec.structs.replace(command, ids=ids))
    if dated := [message for message in waiting if not message.repeats]:
        edit = Edit(
            command.queue,
            [message.id for message in dated],
            versions=[message.version for message in dated],
            times=[_new_time(message, date) for message in dated],
            actor=command.actor,
        )
        changes.append(edit)
    outcomes = yield from outcomes_of(*changes)
    return sum(map(bool, outcomes))
