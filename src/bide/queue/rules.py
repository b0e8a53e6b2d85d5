"""The rule of a message's time, when the message is put or edited: when it repeats, and its window.

A put and an edit say when the message is due, so they move what is due while its window is closed
to the next opening. What is due then for another reason, such as a retry, whoever claims it moves.
"""

from typing import Any, NamedTuple

from msgspec import UNSET

from bide.model.message import RUN_ENDED, Message, NewMessage
from bide.model.repeat import Repeat
from bide.model.runs import Run, first_run, first_run_at
from bide.model.time_rule import TimeRule, checked_window, time_rule_of
from bide.model.times import LATEST, spread_out
from bide.model.window import Window

Due = tuple[int | None, int]
"""A due time, or `None` and a delay, in milliseconds; as `bide.model.times.when` returns them."""


class ChangedRule(NamedTuple):
    """What an edit of a rule changes."""

    rule: str | None
    run: str | None
    at: int | None
    """When the message is due; `None`: as before, or as the edit says with a delay."""


def placed(message: NewMessage, id: str, due: Due, now: int) -> tuple[str | None, int | None, int]:
    """Return the rule of a new message with a window, and when it is due: while that is open.

    With a spread, messages that wait for the opening are spread, too, over the time after it.

    Args:
        message: as the user made it; it does not repeat.
        id: of the message.
        due: as the user says.
        now: the time of the put.

    Raises:
        InvalidArgument: its window or its spread is none.
    """
    window = checked_window(message.window)
    due = _opened(window, due, now)
    if message.spread is not None:
        due = _opened(window, spread_out(due, id, message.spread), now)
    return TimeRule(window=window).text, *due


def _opened(window: Window | None, due: Due, now: int) -> Due:
    """Return a due time or a delay, or if the window is closed then, when it opens."""
    at, delay = due
    moment = now + delay if at is None else at
    opening = moment if window is None else window.opening(moment)
    return due if opening == moment else (opening, 0)


def needs_message(repeat: Any, window: Any) -> bool:
    """Return whether an edit with these arguments depends on what the message has."""
    if repeat is UNSET and window is UNSET:
        return False
    return window is UNSET or not isinstance(repeat, Repeat)


def changed_rule(
    message: Message | None, repeat: Any, window: Any, due: Due | None, now: int
) -> ChangedRule:
    """Return the rule, the run and the due time that a message has after an edit.

    Args:
        message: as it is; `None` where the arguments say all, see `needs_message`.
        repeat: the new rule by which it repeats; `None`: it repeats no longer; `UNSET`: as before.
        window: its new window; `None`: it has none; `UNSET`: as before.
        due: as the edit says; `None`: it does not.
        now: the time of the edit.

    Raises:
        InvalidArgument: an argument or the rule of the message is not valid.
    """
    old_rule = TimeRule()
    if message is not None and message.rule is not None:
        old_rule = time_rule_of(message.rule)
    if window is UNSET:
        new_window = old_rule.window
    else:
        new_window = None if window is None else checked_window(window)
    if repeat is not None and repeat is not UNSET:
        given_due = None
        if due is not None:
            at_ms, delay_ms = due
            given_due = now + delay_ms if at_ms is None else at_ms
        return ChangedRule(*first_run_at(repeat, given_due, now, new_window))
    if repeat is UNSET and message is not None and message.repeats and old_rule.repeat is not None:
        return _moved_run(message, TimeRule(old_rule.repeat, window=new_window), due, now)
    new_rule = TimeRule(date=old_rule.date, window=new_window)
    at = None
    if due is not None:
        at, _delay = _opened(new_window, due, now)
    elif message is not None and message.state in ("delayed", "ready") and message.planned is None:
        date = old_rule.date
        is_dated = date is not None and old_rule.is_on_date(message.due)
        wanted_due = date.at if date is not None and is_dated else message.due
        if message.held and wanted_due == LATEST:  # nothing is left that could resume it
            wanted_due = now
        opening = new_rule.opening(wanted_due)
        at = opening if opening != message.due else None
    return ChangedRule(new_rule.text, None, at)


def _moved_run(message: Message, rule: TimeRule, due: Due | None, now: int) -> ChangedRule:
    """Return what a message that repeats has after an edit of its window; its runs go on.

    - If the edit gives a due time, that counts, within the new window.
    - A run that has begun, or has ended, stays as it is.
    - The next run of the rule is planned again, as the new window may merge it with others.
    - A run with a due time from elsewhere, as of a reschedule, keeps that, within the new window.

    Args:
        message: before the edit.
        rule: its rule with the new window.
        due: the due time of the edit; `None`: it gives none.
        now: the time of the edit.
    """
    text = message.run or ""
    run = Run.of(text)
    if due is not None:
        at, delay = due
        return ChangedRule(rule.text, text, rule.opening(now + delay if at is None else at))
    if text.startswith(RUN_ENDED) or message.attempt or message.state not in ("delayed", "ready"):
        return ChangedRule(rule.text, text, None)  # the next claim plans what follows
    assert rule.repeat is not None
    is_planned = not run.added and message.due == run.due
    is_of_rule = rule.repeat.after(run.at - 1) == run.at  # else a caller has set its time
    if is_planned and is_of_rule and not run.held and run.at > now:
        run = run.moved_to(first_run(rule.repeat, now, window=rule.window))
    start = (LATEST if run.held else run.at) if is_planned else message.due
    run = run.in_window(rule.window)
    return ChangedRule(rule.text, run.text, rule.opening(max(start, min(now, message.due))))
