"""The runs of a message that repeats: which one comes next.

A message that repeats is one record with one id: which run it stands for is a text in it (`run`).
Who acks a run says when the next one is; who claims a message whose run is not to be delivered
plans the next one. So no process leads, and nothing else has to be running. All here are pure
functions of rule, run and time; times are Unix milliseconds.

With a window, a run is due when that opens. While it is closed, no worker can begin a run: of the
times that pass until it opens, `missed` says what becomes.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from bide.model.command_parts import NextRun
from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_NAME
from bide.model.message import HELD, RUN_ENDED, Item, Message, NewMessage
from bide.model.recurrence import Recurrence
from bide.model.repeat import Repeat
from bide.model.time_rule import TimeRule, checked_window, repeat_of, time_rule_of
from bide.model.times import LATEST, iso, unix
from bide.model.window import Window

_TEXT = re.compile(
    r"(\S+)(?: after=(\S+))?(?: left=([0-9]{1,10}))?(?: zones=([0-9]{4}[a-z]{1,3}))?"
    r"(?: opens=(\S+))?( added)?( again)?( held)?"
)


class Run(msgspec.Struct, frozen=True, gc=False):
    """A run of a message that repeats."""

    at: int
    """Its time by the rule, or when it was asked for. The due time may be another one: a reschedule
    moves a run and leaves its time."""
    left: int | None = None
    """How many runs are left, this one included; `None`: the rule does not count them."""
    held: bool = False
    """Whether no run is due until the message is resumed."""
    previous: int | None = None
    """The time of the last run before it that was not left out; `None`: it is the first one."""
    added: bool = False
    """Whether `run_now` has added it to those of the rule, or asked for one that may be skipped."""
    zones: str = ""
    """The version of the time zones by which its time is one of the rule, and its window opens;
    empty: it is not known, needs none, or is not of the rule."""
    again: bool = False
    """Whether `run_now` has added a run that follows this one at once: it has no attempt left."""
    opens: int | None = None
    """When it is due if its window is closed at its time; `None`: that is open, or it has none."""

    @property
    def text(self) -> str:
        """The run as a message has it.

        Example:
            >>> Run(1_700_000_000_000, left=3).text
            '2023-11-14T22:13:20.000Z left=3'
        """
        return _text_of(self)

    @classmethod
    def of(cls, text: str) -> "Run":
        """Return the run that a text describes.

        Raises:
            InvalidArgument: the text does not describe a run.
        """
        return _run_of(text)

    @property
    def due(self) -> int:
        """When the run is due."""
        if self.held:
            return LATEST
        return self.at if self.opens is None else self.opens

    def in_window(self, window: Window | None) -> "Run":
        """Return the run as it is due in a window; `None`: it has none."""
        opening = self.at if window is None else window.opening(self.at)
        opens = None if opening == self.at else opening
        return self if opens == self.opens else msgspec.structs.replace(self, opens=opens)

    def moved_to(self, run: "Run") -> "Run":
        """Return the run with the time of another one."""
        return msgspec.structs.replace(self, at=run.at, zones=run.zones, opens=run.opens)

    @property
    def next_run(self) -> NextRun:
        """The run as commands have it."""
        return NextRun(self.due, self.text)


# Many messages that repeat by one rule have the same run.


@lru_cache(maxsize=512)
def _text_of(run: Run) -> str:
    """Return the text of a run."""
    previous = "" if run.previous is None else f" after={iso(run.previous)}"
    left = "" if run.left is None else f" left={run.left}"
    zones = f" zones={run.zones}" if run.zones else ""
    opens = "" if run.opens is None else f" opens={iso(run.opens)}"
    flags = f"{' added' * run.added}{' again' * run.again}{HELD * run.held}"
    return f"{iso(run.at)}{previous}{left}{zones}{opens}{flags}"


@lru_cache(maxsize=512)
def _run_of(text: str) -> Run:
    """Return the run of a text; see `Run.of`."""
    match = _TEXT.fullmatch(text.removeprefix(RUN_ENDED))
    try:
        if match is None:
            raise ValueError(text)
        at = unix(datetime.fromisoformat(match[1]))
        previous, opens = (
            None if match[group] is None else unix(datetime.fromisoformat(match[group]))
            for group in (2, 5)
        )
    except (ValueError, InvalidArgument):
        raise InvalidArgument(f"{text!r} is not a run of a message that repeats") from None
    left = None if match[3] is None else int(match[3])
    return Run(
        at,
        left,
        held=match[8] is not None,
        previous=previous,
        added=match[6] is not None,
        zones=match[4] or "",
        again=match[7] is not None,
        opens=opens,
    )


class FirstRun(NamedTuple):
    """What a message that repeats has when it is put or edited."""

    rule: str
    run: str
    due: int
    """When it is due."""


class Renewal(msgspec.Struct, frozen=True, gc=False):
    """How the run of a claimed message is over without being delivered."""

    how: Literal["dead", "expired", "ended"]
    """As for the command `Renew`."""
    next: NextRun | None
    """The run that takes its place; `None`: there is none."""


def first_run(rule: Repeat, now: int, *, window: Window | None = None) -> Run:
    """Return the first run of a rule from now on, in a window.

    Raises:
        InvalidArgument: the rule has none.
    """
    at = rule.after(now)
    if at is None:
        raise InvalidArgument(f"the rule {rule} has no time after {iso(now)}")
    return planned_run(rule, window, at, left=rule.times)


def planned_run(rule: Repeat, window: Window | None, at: int, **fields: Any) -> Run:
    """Return the run that is delivered for a time of the rule, as due in a window.

    Args:
        rule: of the message.
        window: in which it is delivered; `None`: there is none.
        at: the time.
        fields: the other fields of the run.
    """
    if window is None:
        return Run(at, zones=rule.zones, **fields)
    at_last = merged(rule, window, at, rule.recurrence())
    return Run(at_last, zones=rule.zones or window.zones, **fields).in_window(window)


def merged(rule: Repeat, window: Window, at: int, times: Recurrence) -> int:
    """Return the time of the run that stands for a time of the rule once the window opens.

    Several times of the rule may pass while the window is closed. With `missed="all"` each of them
    is a run of its own. Else one run stands for all of them: that of the last time.

    Args:
        rule: of the message.
        window: in which it is delivered.
        at: the time.
        times: all times of the rule.
    """
    if rule.missed == "all":
        return at
    return times.latest(min(window.opening(at), rule.end), at)


def first_run_of(message: NewMessage, at: int | None, delay: int, now: int) -> FirstRun:
    """Return the first run of a message as a user puts it.

    Args:
        message: as the user made it.
        at: its due time; `None`: `delay` from now.
        delay: 0 if the user gave no due time.
        now: the time of the put.

    Raises:
        InvalidArgument: another option of the message cannot be combined with `repeat`.
    """
    if message.latest is not None or message.spread is not None:
        name = "spread" if message.latest is None else "latest"
        raise InvalidArgument(
            f"{name}= and repeat= cannot be combined: its rule says when it is due"
        )
    is_given = at is not None or message.delay is not None
    due = now + delay if is_given and at is None else at
    return first_run_at(message.repeat, due, now, message.window)


def first_run_at(rule: object, due: int | None, now: int, window: Window | None = None) -> FirstRun:
    """Return the first run of a rule: at a due time that is given, or else at its next time.

    In a window it is due when that opens.

    Raises:
        InvalidArgument: it is no rule, or has no time from now on.
    """
    if not isinstance(rule, Repeat):
        raise InvalidArgument(
            f"repeat={rule!r} is not a rule; write bide.Cron('0 9 * * MON', 'Europe/Berlin') or "
            "bide.Every('15m')"
        )
    if window is not None:
        checked_window(window)
    run = first_run(rule, now, window=window)
    if due is not None:  # the rule must have times all the same
        run = Run(due, rule.times).in_window(window)
    text = rule.text if window is None else TimeRule(rule, window=window).text or ""
    return FirstRun(text, run.text, run.due)


def following(
    rule: Repeat, run: Run, begun: int, now: int, *, window: Window | None = None
) -> Run | None:
    """Return the run after one that has ended; `None`: it was the last one.

    Runs of a message never overlap. Those whose times have passed meanwhile are missed, and
    `missed` of the rule decides: with "once", what was missed before the run began is this run, and
    what was missed since then is one more, which is due at once.

    Args:
        rule: of the message.
        run: that has ended.
        begun: when a worker began with it.
        now: when it has ended.
        window: in which the next one is delivered; `None`: there is none.
    """
    if run.left is not None and run.left <= 1:
        return None
    if rule.missed == "all":
        at = rule.after(run.at)
    elif rule.missed == "skip":
        at = rule.after(max(run.at, now))
    else:
        at = rule.after(max(run.at, begun))
        if at is not None and at < now:
            at = rule.latest(now, at)
    if at is None:
        return None
    left = None if run.left is None else run.left - 1
    return planned_run(rule, window, at, left=left, held=run.held, previous=run.at)


def later_runs(
    rule: Repeat, window: Window | None, run: Run, begins: int
) -> Iterator[tuple[Run, int]]:
    """Yield the runs that are to follow one that begins at a time, and when each is to begin.

    That is when it is due, or when its time has passed by then, at once. How many are left is not
    considered.
    """
    # With "all", the runs whose times have passed come one after the other.
    at = rule.after(run.at if rule.missed == "all" else max(run.at, begins))
    while at is not None:
        later = planned_run(rule, window, at)
        yield later, max(later.due, begins)
        at = rule.after(later.at)


def after_ack(message: Message, begun: int, now: int) -> NextRun | None:
    """Return the next run of a claimed message that is being acked; `None`: it was the last one.

    Raises:
        InvalidArgument: its rule or its run cannot be read here.
    """
    rule, window = _repeating(message)
    run = following(rule, Run.of(message.run or ""), begun, now, window=window)
    return None if run is None else run.next_run


def _repeating(message: Message) -> tuple[Repeat, Window | None]:
    """Return the rule by which a message repeats, and its window.

    Raises:
        InvalidArgument: its rule cannot be read here.
    """
    text = message.rule or ""
    return repeat_of(text), time_rule_of(text).window


def delivered_run(message: Message, now: int) -> Message:
    """Return a claimed message as its handler is to see it: with the run that it is delivered for.

    By `missed="once"`, all runs that were missed are delivered as one. That is the last of them, so
    the handler sees the latest time that has passed.

    Args:
        message: that repeats, as it was just claimed.
        now: when it was claimed, in Unix milliseconds.

    Raises:
        InvalidArgument: its rule or its run cannot be read here.
    """
    rule, run = repeat_of(message.rule or ""), Run.of(message.run or "")
    begun = first_begun(message, now)
    if rule.missed != "once" or begun is None or not began_late(rule, run, message, begun):
        return message
    # Not before the run's own time, which may be none of the rule, as after a reschedule.
    at = rule.latest(begun, run.at)
    return msgspec.structs.replace(message, run=msgspec.structs.replace(run, at=at).text)


def first_begun(message: Message, now: int) -> int | None:
    """Return when a worker first began with the run of a message that was just claimed.

    So a retry is for the same run as the first attempt. `None`: it is not known any more.

    Args:
        message: as it was claimed.
        now: when it was claimed.
    """
    if not message.failures:
        return now if message.attempt <= 1 else None
    first = message.failures[0]
    return first.started if first.attempt == 1 else None


def began_late(rule: Repeat, run: Run, message: Message, begun: int) -> bool:
    """Return whether a worker began so late with the run of a message that it was missed."""
    return is_missed(rule, run, _planned_due(run, message), begun)


def _planned_due(run: Run, message: Message) -> int:
    """Return when the run was to be delivered first."""
    return max(run.at, message.due if message.planned is None else message.planned)


def renewal(message: Message, now: int) -> Renewal | None:
    """Tell whether the run of a message that was just claimed is over, and must not be delivered.

    A run is over if an ack has ended it and its next run is not planned yet ("ended"), if its
    attempts are used up ("dead"), if it has expired, which counts as one of `times`, or if the rule
    skips missed runs, which do not count ("ended").

    Args:
        message: that repeats.
        now: when it was claimed, in Unix milliseconds.

    Returns:
        How the run is over, and which one takes its place; `None`: deliver it; see `delivered_run`.

    Raises:
        InvalidArgument: its rule or its run cannot be read here.
    """
    (rule, window), text = _repeating(message), message.run or ""
    run = Run.of(text)
    if text.startswith(RUN_ENDED):
        begun = message.due  # an ended run is due from its end on, so that a claim plans the next
        return Renewal("ended", _next_run(rule, window, run, begun, now))
    if message.attempt > message.attempts:
        return Renewal("dead", _next_run(rule, window, run, _last_begun(message, now), now))
    if message.expires is not None and now > message.due + message.expires:
        return _renewal("expired", _after_expired(rule, window, message, run, now))
    first_due = message.due if message.planned is None else message.planned
    may_be_skipped = rule.missed == "skip" and not run.added
    if may_be_skipped and _is_new(message) and is_missed(rule, run, first_due, now):
        return _renewal("ended", next_in_time(rule, run, now, None, window=window))
    return None


def _after_expired(
    rule: Repeat, window: Window | None, message: Message, run: Run, now: int
) -> Run | None:
    """Return the run after one that has expired; `None`: it was the last one."""
    if run.left is not None and run.left <= 1:
        return None
    next_run = next_in_time(rule, run, now, message.as_edited().expires, window=window)
    if next_run is None or run.left is None:
        return next_run
    return msgspec.structs.replace(next_run, left=run.left - 1)


def _next_run(
    rule: Repeat, window: Window | None, run: Run, begun: int, now: int
) -> NextRun | None:
    """Return the run that takes the place of one that is over, as `following` says, or `run_now`.

    `None`: it was the last one.
    """
    if run.again:  # it is one more than those that are left, in place of one of them
        added = Run(now, run.left, run.held, run.at, added=True)
        return NextRun(now if window is None else window.opening(now), added.text)
    next_run = following(rule, run, begun, now, window=window)
    return None if next_run is None else next_run.next_run


def _renewal(how: Literal["dead", "expired", "ended"], run: Run | None) -> Renewal:
    """Return the renewal that lets a run take the place of one that is over."""
    return Renewal(how, None if run is None else run.next_run)


def _last_begun(message: Message, now: int) -> int:
    """Return when the last attempt of a message began, as far as that is known."""
    if not message.failures:
        return now
    last = message.failures[-1]
    return last.moment if last.started is None else last.started


def next_in_time(
    rule: Repeat, run: Run, now: int, most_late: int | None, *, window: Window | None = None
) -> Run | None:
    """Return the first run after one that was not delivered which is not too late by now.

    It is the same as to how many are left, and which one was before it.

    Args:
        rule: of the message.
        run: that was not delivered.
        now: the time.
        most_late: how late a run may be; `None`: as the rule says.
        window: in which it is delivered; `None`: there is none.
    """
    if most_late is not None:
        at = rule.after(max(run.at, _first_with_opening(window, now - most_late) - 1))
    else:
        # No run is in time longer than until the next one, so only the last one may be.
        last = rule.latest(now, run.at)
        due = last if window is None else window.opening(last)
        is_in_time = last > run.at and due + rule.grace_of(due) >= now
        at = last if is_in_time else rule.after(last)
    if at is None:
        return None
    fields = {"left": run.left, "held": run.held, "previous": run.previous}
    return planned_run(rule, window, at, **fields)


def _first_with_opening(window: Window | None, due: int) -> int:
    """Return from which time on runs are due at a time or later: also those before it, if the
    window was closed."""
    return due if window is None else window.closed_since(due)


def _is_new(message: Message) -> bool:
    """Return whether no worker had the run of a claimed message before."""
    return message.attempt == 1 and not message.failures


def is_missed(rule: Repeat, run: Run, due: int, begun: int) -> bool:
    """Return whether a run that was due is missed if a worker first begins with it at a time."""
    moment = max(run.at, due)
    return begun > moment + rule.grace_of(moment)


def dead_letter(message: Message, now: int) -> Item:
    """Return a run that has used up its attempts as a dead letter of its own.

    Args:
        message: as it was claimed.
        now: when.
    """
    run = Run.of(delivered_run(message, now).run or "")
    item = message.as_item(message.failures, now)
    # One that was buried has used up its attempts without having made them.
    made = message.failures[-1].attempt if message.failures else message.attempt - 1
    rule = TimeRule(window=time_rule_of(message.rule or "").window).text
    return msgspec.structs.replace(
        item, id=run_id(message.id, run.at), attempt=made, rule=rule, run=None
    )


def run_id(id: str, at: int) -> str:
    """Return the id of what is left of a run: the id of the message, and the run's time.

    Example:
        >>> run_id("ann/weekly", 1_700_000_000_000)
        'ann/weekly@2023-11-14T22:13:20.000Z'
    """
    return f"{id}@{iso(at)}"


def named_run(id: str) -> tuple[str, int] | None:
    """Return the message that repeats and the time of the run which an id names; `None`: none.

    Example:
        >>> named_run("ann/weekly@2023-11-14T22:13:20.000Z"), named_run("ann@example.com")
        (('ann/weekly', 1700000000000), None)
    """
    message, _, time = id.rpartition("@")
    try:
        at = unix(datetime.fromisoformat(time))
    except (ValueError, InvalidArgument):
        return None
    return (message, at) if run_id(message, at) == id else None


MAX_REPEATED_ID = MAX_NAME - len(run_id("", 0))
"""The longest id of a message that repeats, in bytes."""


def check_repeated_id(id: str) -> str:
    """Return the id of a message that repeats.

    Raises:
        InvalidArgument: it is too long: its dead letters have longer ones.
    """
    if len(id.encode()) > MAX_REPEATED_ID:
        raise InvalidArgument(
            f"the id of a message that repeats may have {MAX_REPEATED_ID} bytes, so that its runs "
            "have ids, too; use a hash of it"
        )
    return id


def check_rule_and_run(id: str, rule: str | None, run: str | None) -> None:
    """Check the texts of a message that comes from outside.

    Raises:
        InvalidArgument: one of them cannot be read here, or a run has no rule.
    """
    if rule is not None:
        time_rule_of(rule)
    if run is not None:
        if rule is None:
            raise InvalidArgument("a run needs a rule: give both, or no run")
        repeat_of(rule).after(Run.of(run).at)  # it can be planned
        check_repeated_id(id)
