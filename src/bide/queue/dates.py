"""Changes that give messages a local date.

The other parts of their rules stay. So the messages are read first, and changed if they are still
the versions that were read.
"""

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
        InvalidArgument: `at` is not a local date, or a delay is given as well.
    """
    if delay is not None:
        raise InvalidArgument("delay= and timezone= cannot be combined: give at=, the local date")
    return planned_date(at, timezone)


def check_alone(**given: bool) -> None:
    """Check that no argument is given that cannot be combined with a local date.

    Args:
        given: for each of these arguments, whether it is given.

    Raises:
        InvalidArgument: one of them is given.
    """
    for name, is_given in given.items():
        if is_given:
            raise InvalidArgument(
                f"{name}= and timezone= cannot be combined; give the time as an instant"
            )


def dating(command: Reschedule | Edit, date: PlannedDate) -> Steps[Outcome]:
    """Let one message be due on a date, and make the other changes of the command.

    Of a message that repeats, only the next run moves, to the instant of the date; its rule stays.

    The message is read, and changed only if it is still the one that was read. Otherwise both are
    repeated.

    Args:
        command: the change, with the instant of the date.
        date: the date.
    """
    for tries_left in reversed(range(TRIES)):
        lookup: Found = yield Find(command.queue, command.ids)
        (message,) = lookup.messages
        dated = command if message is None else with_new_date(command, message, date)
        reply: Outcomes = yield dated
        (outcome,) = reply.outcomes
        may_have_changed = not outcome.done and outcome.state in ("delayed", "ready")
        # Only the version that `with_new_date` adds is worth another try: the caller's own
        # conditions fail again.
        added_version = dated is not command and command.if_version is None
        if not (may_have_changed and added_version and tries_left):
            break
    return command.worded_outcome(outcome)


def with_new_date(
    command: Reschedule | Edit, message: Message, date: PlannedDate
) -> Reschedule | Edit:
    """Return the command that gives a message a date if it is still the version that was read.

    Returns the command as it is for a message that repeats, or that is not due when the caller
    says: there is no rule to change.
    """
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
    """Let the messages of a scan that no worker holds be due on a date; return how many."""
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
    """Let messages be due on a date; return how many were changed.

    Messages that a worker holds or that `Queue.hold` has stopped are left as they are.
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
