"""What people do with a message that repeats: hold it, resume it, run it now, put past runs."""

from collections.abc import Iterable, Iterator

import msgspec

from bide.lane.steps import Steps, following, outcomes_of
from bide.model.commands import Edit, ForecastCommand, Put, Scan
from bide.model.errors import InvalidArgument
from bide.model.limits import BULK
from bide.model.message import RUN_ENDED, Item, Message
from bide.model.parts import in_bytes
from bide.model.repeat import Repeat, repeat_of
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
from bide.model.runs import Run, first_run, run_id
from bide.model.times import Moment, iso, unix
from bide.queue.command_builder import CommandBuilder
from bide.queue.results import Forecast

MAX_BACKFILL = 10_000
"""The maximum number of runs that one `backfill` puts."""

SCANNED = 500
"""How many messages are read at a time for a forecast with all runs."""


def holding(builder: CommandBuilder, id: str) -> Steps[Outcome]:
    """Let no run of a message be due until it is resumed."""
    message = yield from _repeating(builder, id)
    if message is None:
        return Outcome(id, False)
    run = msgspec.structs.replace(Run.of(message.run or ""), held=True)
    return (yield from _edited(builder, message, run, HoldOutcome))


def resuming(builder: CommandBuilder, id: str) -> Steps[Outcome]:
    """Let a message that is held repeat again; its next run is the first one from now on."""
    message = yield from _repeating(builder, id)
    if message is None:
        return Outcome(id, False)
    rule, run = repeat_of(message.rule or ""), Run.of(message.run or "")
    first = first_run(rule, builder.now())
    resumed = msgspec.structs.replace(run, at=first.at, left=_left_by_rule(rule, run), held=False)
    return (yield from _edited(builder, message, resumed, ResumeOutcome))


def running_now(builder: CommandBuilder, id: str) -> Steps[Outcome]:
    """Let a message run now, once more than its rule says."""
    message = yield from _repeating(builder, id)
    if message is None:
        return Outcome(id, False)
    now, rule, text = builder.now(), repeat_of(message.rule or ""), message.run or ""
    run = Run.of(text)
    left = _left_by_rule(rule, run)
    if left is not None and not text.startswith(RUN_ENDED):  # else it takes the place of that run
        left += 1
    extra_run = Run(now, left, run.held, run.previous)
    return (yield from _edited(builder, message, extra_run, RunNowOutcome, due=now))


def _left_by_rule(rule: Repeat, run: Run) -> int | None:
    """Return how many runs are left without one that `run_now` has added and that waits."""
    is_added = rule.after(run.at - 1) != run.at
    return run.left - 1 if run.left is not None and run.left > 1 and is_added else run.left


def backfilling(
    builder: CommandBuilder, id: str, after: Moment, before: Moment
) -> Steps[list[Outcome]]:
    """Put the runs of a message whose times are in a span, each as a message of its own."""
    start, end = unix(after, "after"), unix(before, "before")
    message = yield from _repeating(builder, id)
    if message is None:
        raise InvalidArgument(f"there is no message {id!r} in queue {builder.queue!r}")
    items = list(runs_between(message, start, end))
    return (yield from outcomes_of(*putting_runs(builder.queue, items)))


def putting_runs(queue: str, items: Iterable[Item]) -> list[Put]:
    """Return the commands that put runs of a message."""
    return [Put(queue, part) for part in in_bytes(items, BULK)]


def forecasting(command: ForecastCommand) -> Steps[Forecast]:
    """Count when messages are due, with all runs of those that repeat."""
    reply: Forecasted = yield command
    counts = list(reply.buckets)
    end = reply.start + command.bucket * command.buckets
    scan: Scan | None = Scan(command.queue, "next", limit=SCANNED)
    while scan is not None:
        page: Page = yield scan
        for message in page.messages:
            for at in _later_runs(message, end):
                if at > reply.start:
                    # A bucket has its end, and not its beginning, as the store counts.
                    counts[(at - reply.start - 1) // command.bucket] += 1
        scan = following(scan, page)
    counted = msgspec.structs.replace(reply, buckets=counts)
    return Forecast.of(counted, command.bucket)


def _later_runs(message: Message, end: int) -> Iterator[int]:
    """Yield when the runs of a message after its next one are due, up to a time."""
    if message.rule is None or message.held:
        return
    rule, run = repeat_of(message.rule), Run.of(message.run or "")
    left = run.left
    at = rule.after(max(run.at, message.due))
    while at is not None and at <= end and (left is None or left > 1):
        yield at
        left = None if left is None else left - 1
        at = rule.after(at)


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
        InvalidArgument: it does not.
    """
    if message.rule is None:
        raise InvalidArgument(
            f"{message.id!r} does not repeat; to let it, edit it: "
            f"edit({message.id!r}, repeat=bide.Every('1h'))"
        )


def _edited(
    builder: CommandBuilder,
    message: Message,
    run: Run,
    outcome_type: type[Outcome],
    *,
    due: int | None = None,
) -> Steps[Outcome]:
    """Let a message stand for another run, unless somebody has edited it meanwhile."""
    command = Edit(
        builder.queue,
        [message.id],
        rule=message.rule,
        run=run.text,
        at=run.due if due is None else due,
        if_version=message.version,
        actor=builder.actor,
    )
    reply: Outcomes = yield command
    (outcome,) = reply.outcomes
    return outcome if outcome.done else outcome_type(*msgspec.structs.astuple(outcome))


def runs_between(message: Message, start: int, end: int) -> Iterator[Item]:
    """Yield the runs of a message from a time on, and before another one, as messages to be put.

    Raises:
        InvalidArgument: there are too many, or its rule cannot be read here.
    """
    rule = repeat_of(message.rule or "")
    count, at = 0, rule.after(start - 1)
    while at is not None and at < end:
        count += 1
        if count > MAX_BACKFILL:
            raise InvalidArgument(
                f"between {iso(start)} and {iso(end)} are more than {MAX_BACKFILL:,} runs; put "
                "them in several steps"
            )
        yield _run_alone(message, at)
        at = rule.after(at)


def _run_alone(message: Message, at: int) -> Item:
    """Return one run of a message as a message of its own."""
    item = message.as_item((), None)
    return msgspec.structs.replace(
        item, id=run_id(message.id, at), at=at, attempt=0, created=None, rule=None, run=None
    )
