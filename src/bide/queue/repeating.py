"""What people do with a message that repeats: hold it, resume it, run it now, put past runs."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from bide.lane.steps import LongSteps, Steps, following, outcomes_of
from bide.model.commands import Edit, ForecastCommand, Put, Scan
from bide.model.errors import InvalidArgument
from bide.model.limits import BULK
from bide.model.message import RUN_ENDED, Item, Message
from bide.model.parts import in_bytes
from bide.model.replies import (
    Forecasted,
    Found,
    HoldOutcome,
    Outcome,
    Outcomes,
    Page,
    ResumeOutcome,
    RunNowOutcome,
)
from bide.model.runs import Run, delivered_run, first_run, later_runs, renewal, run_id
from bide.model.time_rule import TimeRule, repeat_of, time_rule_of, window_of
from bide.model.times import Moment, iso, unix
from bide.queue.command_builder import CommandBuilder
from bide.queue.results import Forecast

MAX_BACKFILL = 10_000
"""The maximum number of runs that one `backfill` puts."""

BACKFILL_BYTES = 64 * 1024 * 1024
"""The maximum size of the bodies of the runs that one `backfill` puts."""

SCANNED = 500
"""How many messages are read at a time for a forecast with all runs."""

_REPEATING_STATES: tuple[Literal["next", "leased"], ...] = ("next", "leased")
"""The states of the messages whose later runs a forecast counts: those that wait, and those that
workers hold."""

Replan = Callable[[Message, int], tuple[str, int] | None]
"""Returns the text of the run for which a message is to stand from now on, and when that is due, of
the message and the present time; `None`: it may stay as it is."""

TRIES = 10
"""How often a change is tried while workers ack run after run."""


def holding(builder: CommandBuilder, id: str) -> Steps[Outcome]:
    """Let no run of a message be due until it is resumed."""
    return _replanning(builder, id, _held, HoldOutcome)


def resuming(builder: CommandBuilder, id: str) -> Steps[Outcome]:
    """Let a message that is held repeat again; its next run is the first one from now on."""
    return _replanning(builder, id, _resumed, ResumeOutcome)


def running_now(builder: CommandBuilder, id: str) -> Steps[Outcome]:
    """Let a message run now, once more than its rule says."""
    return _replanning(builder, id, _run_now, RunNowOutcome)


def _held(message: Message, now: int) -> tuple[str, int]:
    """Return the run of a message as one that is held."""
    text = _changed(message, held=True)
    if _goes_on(message):
        return text, message.due
    return text, Run.of(text).due


def _resumed(message: Message, now: int) -> tuple[str, int] | None:
    """Return the first run from now on of a message that is held, or an ended one without any."""
    run = Run.of(message.run or "")
    if not run.held:
        return None
    if _goes_on(message):
        return _changed(message, held=False), message.due
    rule, window = message.rule or "", window_of(message.rule)
    resumed = msgspec.structs.replace(run, held=False).in_window(window)
    if not run.added:  # an added one is due already
        repeat = repeat_of(rule)
        if repeat.after(now) is None:  # the next claim ends the message
            return RUN_ENDED + Run(now, previous=run.previous).text, now
        resumed = resumed.moved_to(first_run(repeat, now, window=window))
    return resumed.text, resumed.due


def _run_now(message: Message, now: int) -> tuple[str, int] | None:
    """Return a run of a message that is due now."""
    run, opening = Run.of(message.run or ""), time_rule_of(message.rule or "").opening(now)
    if _is_over(message) or message.attempt >= message.attempts:  # the next claim plans it
        return _changed(message, again=True, zones="", opens=None), opening
    is_due = message.due <= now and _waits(message)
    claimed = msgspec.structs.replace(message, attempt=message.attempt + 1)
    will_run = is_due and renewal(claimed, now) is None
    if run.added or _goes_on(message):  # this run is not over
        return None if will_run else (run.text, opening)
    if will_run and repeat_of(message.rule or "").missed != "skip":
        return None
    if is_due:  # it is not too late from now on, however late a worker begins
        return _changed(message, added=True), message.due if will_run else opening
    left = None if run.left is None else run.left + 1
    return Run(now, left, run.held, run.previous, added=True).text, opening


def _waits(message: Message) -> bool:
    """Return whether a message is to be delivered, and no worker holds it."""
    return message.state in ("delayed", "ready")


def _is_over(message: Message) -> bool:
    """Return whether the run of a message has ended, and nobody has planned the next one."""
    return (message.run or "").startswith(RUN_ENDED)


def _goes_on(message: Message) -> bool:
    """Return whether a claim is to decide about the run of a message: it has failed, or is over."""
    return message.attempt > 0 or _is_over(message)


def _changed(message: Message, **changes: Any) -> str:
    """Return the text of the run of a message with some changes; one that is over stays so."""
    text = message.run or ""
    return RUN_ENDED * _is_over(message) + msgspec.structs.replace(Run.of(text), **changes).text


def backfilling(
    builder: CommandBuilder, id: str, after: Moment, before: Moment
) -> LongSteps[list[Outcome]]:
    """Put the runs of a message whose times are in a span, each as a message of its own."""
    start, end = unix(after, "after"), unix(before, "before")
    message = yield from _repeating(builder, id)
    if message is None:
        raise InvalidArgument(f"there is no message {id!r} in queue {builder.queue!r}")
    items: list[Item] = []
    for item in runs_between(message, start, end, builder.now()):
        items.append(item)
        yield None
    return (yield from outcomes_of(*putting_runs(builder.queue, items)))


def putting_runs(queue: str, items: Iterable[Item]) -> list[Put]:
    """Return the commands that put runs of a message."""
    return [Put(queue, part) for part in in_bytes(items, BULK)]


def forecasting(command: ForecastCommand, now: int) -> LongSteps[Forecast]:
    """Count when messages are due, with all runs of those that repeat."""
    reply = yield from counting_runs(command, now)
    return Forecast.of(reply, command.bucket)


def counting_runs(
    command: ForecastCommand, now: int, most: int | None = None
) -> LongSteps[Forecasted]:
    """Count when messages are due, with all runs of those that repeat.

    Returns the reply of the store with these runs added; between messages and runs, others get
    their turn.

    Args:
        command: counts the messages without those runs.
        now: the present time.
        most: how many messages are read and runs counted, together; `None`: any number.

    Raises:
        InvalidArgument: there are more messages and runs than `most`.
    """
    reply: Forecasted = yield command
    effort = overdue = 0
    counts = list(reply.buckets)
    last = reply.start + command.bucket * command.buckets - 1
    for state in _REPEATING_STATES:
        scan: Scan | None = Scan(command.queue, state, limit=SCANNED)
        while scan is not None:
            page: Page = yield scan
            effort += len(page.messages)
            _check_effort(effort, most)
            for message in page.messages:
                yield None
                for at in _later_runs(message, max(now, reply.start), last):
                    yield None
                    effort += 1
                    _check_effort(effort, most)
                    if at <= max(now, reply.start):
                        overdue += 1
                    else:
                        counts[(at - reply.start) // command.bucket] += 1
            scan = following(scan, page)
    return msgspec.structs.replace(reply, overdue=reply.overdue + overdue, buckets=counts)


def _check_effort(effort: int, most: int | None) -> None:
    """Refuse a forecast that takes too much work.

    Args:
        effort: how many messages it has read and runs it has counted.
        most: the maximum; `None`: there is no maximum.

    Raises:
        InvalidArgument: it takes more than the maximum.
    """
    if most is not None and effort > most:
        raise InvalidArgument(
            f"there are more than {most:,} messages and runs to count; ask for a shorter horizon, "
            "or without repeats; the Python library counts any number"
        )


def _later_runs(message: Message, now: int, end: int) -> Iterator[int]:
    """Yield when the runs of a message after its next one are to begin, up to a time."""
    if not message.repeats or message.held:
        return
    rule, run = time_rule_of(message.rule or ""), Run.of(message.run or "")
    repeat, left = repeat_of(message.rule or ""), run.left
    begins = rule.opening(max(now, message.due))
    for _later, due in later_runs(repeat, rule.window, run, begins):
        if due > end or (left is not None and left <= 1):
            return
        yield due
        left = None if left is None else left - 1


def _repeating(builder: CommandBuilder, id: str) -> Steps[Message | None]:
    """Return a message that repeats; `None` if there is none of this id.

    Raises:
        InvalidArgument: it does not repeat.
    """
    reply: Found = yield builder.find(id)
    (message,) = reply.messages
    if message is not None:
        check_repeats(message)
    return message


def check_repeats(message: Message) -> None:
    """Check that a message repeats.

    Raises:
        InvalidArgument: the message has no rule by which it repeats.
    """
    if not message.repeats:
        raise InvalidArgument(
            f"{message.id!r} does not repeat; to make it repeat, edit it: "
            f"edit({message.id!r}, repeat=bide.Every('1h'))"
        )


def _replanning(
    builder: CommandBuilder, id: str, replan: Replan, outcome_type: type[Outcome]
) -> Steps[Outcome]:
    """Let a message stand for another run, unless somebody has edited it meanwhile.

    If a worker has acked a run meanwhile, another one is in its place: then it begins anew.
    """
    outcome = Outcome(id, False)
    for _ in range(TRIES):
        message = yield from _repeating(builder, id)
        if message is None:
            return Outcome(id, False)
        replanned = replan(message, builder.now())
        if replanned is None:
            is_done = _waits(message)
            place = message.state, message.due, message.until, message.holder
            return outcome_type(id, is_done, *place)
        run_text, due = replanned
        command = Edit(
            builder.queue,
            [id],
            rule=message.rule,
            run=run_text,
            at=due,
            if_due=message.due,
            if_version=message.version,
            actor=builder.actor,
        )
        reply: Outcomes = yield command
        (outcome,) = reply.outcomes
        if outcome.done:
            return outcome
        if outcome.state == "leased" or outcome.due == message.due:
            break
    return outcome_type(*msgspec.structs.astuple(outcome))


def runs_between(message: Message, start: int, end: int, now: int) -> Iterator[Item]:
    """Yield the runs of a message from a time on, and before another one, as messages to be put.

    The message delivers its next run and all later ones itself, so these are left out.

    Raises:
        InvalidArgument: there are too many, or its rule cannot be read here.
    """
    rule, next_own = repeat_of(message.rule or ""), _next_own_run(message, now)
    stop = end if next_own is None else min(end, next_own)
    most_runs = min(MAX_BACKFILL, BACKFILL_BYTES // max(1, len(message.data)))
    count, at = 0, rule.after(start - 1)
    while at is not None and at < stop:
        count += 1
        if count > most_runs:
            raise InvalidArgument(
                f"there are more than {most_runs:,} runs between {iso(start)} and {iso(end)}; "
                "put them in several steps"
            )
        yield _run_alone(message, at)
        at = rule.after(at)


def _next_own_run(message: Message, now: int) -> int | None:
    """Return the time of the next run that a message delivers itself.

    As far as it is known now: which run has begun is known only where it has failed. `None`: it
    delivers no run any more.
    """
    run = Run.of(message.run or "")
    if run.held and not _goes_on(message):
        return now + 1  # once it is resumed
    if not _waits(message) or message.due > now:
        return run.at
    claimed = msgspec.structs.replace(message, attempt=message.attempt + 1)
    earliest = time_rule_of(message.rule or "").opening(now)
    if message.attempt == 0 or _is_over(message):
        plan = renewal(claimed, earliest)
        if plan is not None:
            return None if plan.next is None else Run.of(plan.next.run).at
    # One that has begun stays the same run, also as the dead letter that it may become.
    return Run.of(delivered_run(claimed, earliest).run or "").at


def _run_alone(message: Message, at: int) -> Item:
    """Return one run of a message as a message of its own, with the window of that one."""
    item = message.as_item((), None)
    rule = TimeRule(window=window_of(message.rule))
    return msgspec.structs.replace(
        item,
        id=run_id(message.id, at),
        at=rule.opening(at),
        expires=None,
        attempt=0,
        created=None,
        rule=rule.text,
        run=None,
    )
