"""What people see of a message that repeats: its rule in words, and its runs."""

from typing import Literal, NamedTuple

from bide.model.errors import InvalidArgument
from bide.model.message import RUN_ENDED, Message
from bide.model.runs import Run, following, is_missed, next_in_time
from bide.model.time_rule import repeat_of, window_of
from bide.model.times import LATEST
from bide.model.window import Window

Status = Literal["planned", "held", "ended", "missed", "unread"]
"""Where a run is. "planned": it is to come, or is going on; "held": none is due until somebody
resumes the message; "ended", "missed": the next claim plans the one that follows; "unread": rule or
run cannot be read here."""


class SeenRun(NamedTuple):
    """The run that a message stands for. Times are Unix milliseconds."""

    status: Status
    rule: str
    """The rule of the message, as text."""
    at: int = 0
    """The time of the run by the rule."""
    left: int | None = None
    """How many runs are left, this one included; `None`: the rule does not count them."""
    next: int | None = None
    """The time of the run that follows it, if it ended now; `None`: there is none, or it waits
    until somebody resumes the message."""
    is_last: bool = False
    """Whether none follows it."""
    is_held: bool = False
    """Whether no run that follows it is due until the message is resumed."""
    error: str = ""
    """Why rule or run cannot be read."""


def see_run(
    rule_text: str,
    run_text: str,
    *,
    due: int,
    now: int,
    begun: int | None,
    is_new: bool,
    planned: int | None = None,
) -> SeenRun:
    """Return the run that a message stands for. Times are Unix milliseconds.

    Args:
        rule_text: the rule, as the message has it.
        run_text: the run, as the message has it.
        due: when the message is due.
        now: the present time.
        begun: when a worker began with the run; `None`: none has it.
        is_new: whether no worker had it before.
        planned: when it was due first, if that was another time.
    """
    first_due = due if planned is None else planned
    try:
        rule, run, window = repeat_of(rule_text), Run.of(run_text), window_of(rule_text)
    except InvalidArgument as error:
        return SeenRun("unread", rule_text, error=str(error))
    seen = SeenRun("planned", rule_text, run.at, run.left, is_held=run.held)
    if run.again:  # whether it has ended, or has no attempt left
        status: Status = "ended" if run_text.startswith(RUN_ENDED) else "planned"
        return seen._replace(status=status, next=now)
    if run_text.startswith(RUN_ENDED):
        return _followed(
            seen._replace(status="ended"), following(rule, run, due, now, window=window)
        )
    if run.held and due >= LATEST:
        return seen._replace(status="held")
    may_be_skipped = rule.missed == "skip" and not run.added and begun is None
    if may_be_skipped and is_new and is_missed(rule, run, first_due, now):
        next_run = next_in_time(rule, run, now, None, window=window)
        return _followed(seen._replace(status="missed"), next_run)
    start = begun
    if start is None:
        start = max(now, due) if window is None else window.opening(max(now, due))
    if is_new and rule.missed == "once" and is_missed(rule, run, first_due, start):
        seen = seen._replace(at=rule.latest(start, run.at))  # as the handler sees it
    return _followed(seen, following(rule, run, start, max(now, start), window=window))


def _followed(seen: SeenRun, next_run: Run | None) -> SeenRun:
    """Return a run together with the one that follows it."""
    if next_run is None:
        return seen._replace(is_last=True, is_held=False)
    return seen if next_run.held else seen._replace(next=next_run.at)


def repeats(message: Message) -> bool:
    """Return whether another run of a message may follow; one that has ended keeps its rule."""
    return message.repeats and message.state not in ("acked", "expired")


def run_of(message: Message) -> Run | None:
    """Return the run of a message; `None`: it does not repeat, or its run cannot be read here."""
    if not repeats(message):
        return None
    try:
        return Run.of(message.run or "")
    except InvalidArgument:  # planning raises this; a list must not fail
        return None


def is_held(message: Message) -> bool:
    """Return whether no run of a message is due until it is resumed."""
    run = run_of(message)
    return run is not None and run.held and message.due >= LATEST


def seen_window(message: Message) -> Window | None:
    """Return the window of a message; `None`: it has none, or it cannot be read here."""
    try:
        return message.window
    except InvalidArgument:  # a later bide wrote it; a list must not fail
        return None
