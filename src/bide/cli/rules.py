"""Rules of messages that repeat: as options give them, and as output shows them."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from bide.cli.errors import usage_error
from bide.cli.times import read_moment
from bide.model.errors import InvalidArgument
from bide.model.message import Message
from bide.model.times import iso

# `bide.model.repeat` is imported where it is needed: most commands are about no such message.

RULE_OPTIONS = ("cron", "every", "timezone", "start", "until", "times", "missed", "grace")
"""The options that make a rule."""


def set_window(options: dict[str, Any]) -> None:
    """Replace the options of a command that make a window by the window, or `None`.

    `--timezone` stays if `--cron` or a local date in `--at` is given, which has the same one.

    Raises:
        click.UsageError: they do not go together.
        InvalidArgument: there is no such window.
    """
    hours, holidays = options.pop("window"), options.pop("holidays")
    if hours is None:
        if holidays is not None:
            raise usage_error("--holidays goes with --window, and a window is given whole")
        options["window"] = None
        return
    from bide.model.window import Window

    timezone = options["timezone"] or "UTC"
    if options["cron"] is None and not isinstance(options.get("at"), str):
        options["timezone"] = None
    options["window"] = Window(hours, timezone, holidays or ())


def set_rule(options: dict[str, Any]) -> None:
    """Replace the options of a command that make a rule by the rule, as `repeat`, or `None`.

    Raises:
        click.UsageError: they do not go together.
        InvalidArgument: there is no such rule.
    """
    options["repeat"] = None
    given = {name: options.pop(name) for name in RULE_OPTIONS}
    given = {name: value for name, value in given.items() if value is not None}
    if given.keys() == {"timezone"} and options.get("at") is not None:
        options["timezone"] = check_date(options, given["timezone"])
        return
    check_date(options, None)
    if not given:
        return
    if "cron" in given and "every" in given:
        raise usage_error("a message repeats by --cron or by --every; give one")
    if "cron" not in given and "every" not in given:
        first, *_ = given
        if first == "timezone":
            raise usage_error("--timezone goes with --cron or --window")
        raise usage_error(
            f"--{first} is a part of a rule, and a rule is given whole: with --cron or --every"
        )
    if "timezone" in given and "every" in given:
        raise usage_error(
            "--timezone goes with --cron or --window; --every is a period, counted from --start, "
            "or else from 1970 in UTC"
        )
    for name in ("latest", "spread"):
        if options.get(name) is not None:
            kind = "cron" if "cron" in given else "every"
            raise usage_error(
                f"--{name} and --{kind} cannot be used together: the rule says when it is due"
            )
    from bide.model.repeat import repeat

    options["repeat"] = repeat(**given)


def check_date(options: dict[str, Any], timezone: str | None) -> str | None:
    """Check that a local date has a zone, and a zone a local date; return the zone.

    Args:
        options: those of a command.
        timezone: the zone, if it is for `--at`.

    Raises:
        click.UsageError: one is given without the other, or with `--delay`.
    """
    at = options.get("at")
    if timezone is None and isinstance(at, str):
        read_moment(at, "at")  # raises: it has no zone
    if timezone is not None and not isinstance(at, str):
        raise usage_error(
            "--timezone goes with a local date, which has no zone itself: --at '2026-12-01 09:00'"
        )
    if timezone is not None and options.get("delay") is not None:
        raise usage_error("--delay and --timezone cannot be used together: give --at")
    return timezone


@contextmanager
def of_repeating(queue: str, id: str) -> Iterator[None]:
    """Say with a command what can be done about a message that does not repeat.

    Raises:
        click.UsageError: it does not.
    """
    try:
        yield
    except InvalidArgument as error:
        reason, call, _arguments = str(error).partition(", edit it: edit(")
        if not call:
            raise
        raise usage_error(f"{reason}: bide edit {queue} {shlex.quote(id)} --every 1h") from error


def words_of(message: Message) -> str:
    """Return the rule of a message in words; empty if it does not repeat."""
    if not message.repeats:
        return ""
    from bide.observing.seen_runs import repeats
    from bide.observing.sentences import rule_in_words

    return rule_in_words(message.rule or "") if repeats(message) else ""


def window_in_words(message: Message) -> str:
    """Return the window of a message in words; empty if it has none."""
    if message.rule is None:
        return ""
    from bide.observing import sentences
    from bide.observing.seen_runs import seen_window

    window = seen_window(message)
    return "" if window is None else sentences.window_in_words(window)


def window_facts(message: Message) -> dict[str, Any]:
    """Return what JSON says of the window of a message; nothing if it has none."""
    if message.rule is None:
        return {}
    from bide.observing.seen_runs import seen_window

    window = seen_window(message)
    if window is None:
        return {}
    holidays = [str(day) for day in window.holidays]
    facts = {"hours": window.hours, "timezone": window.timezone, "holidays": holidays}
    return {"window": facts, "window_in_words": window_in_words(message)}


def run_time(message: Message) -> str:
    """Return the time of the run of a message, for programs; empty if there is none."""
    if not message.repeats:
        return ""
    from bide.observing.seen_runs import run_of

    run = run_of(message)
    return "" if run is None else iso(run.at)


def is_held(message: Message) -> bool:
    """Return whether a message repeats and waits until it is resumed."""
    if not message.repeats:
        return False
    from bide.observing import seen_runs

    return seen_runs.is_held(message)


def rule_facts(message: Message) -> dict[str, Any]:
    """Return what JSON says of the date, or of rule and run, of a message."""
    if not message.repeats:
        date = message.local_date
        return {} if date is None else {"date": date.date, "timezone": date.timezone}
    from bide.model.time_rule import repeat_of
    from bide.observing.seen_runs import repeats, run_of

    if not repeats(message):
        return {}
    try:
        rule: Any = msgspec.Raw(repeat_of(message.rule or "").text.encode())
    except InvalidArgument:  # a later bide wrote it: shown as it is
        rule = message.rule
    facts: dict[str, Any] = {"rule": rule, "rule_in_words": words_of(message)}
    if (run := run_of(message)) is not None:
        facts["run_at"] = run.at
        if run.left is not None:
            facts["runs_left"] = run.left
        facts["held"] = run.held
    return facts
