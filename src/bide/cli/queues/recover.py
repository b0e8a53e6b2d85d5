"""`bide recover`: look at what is overdue, and carry out a plan for it."""

from typing import Any

import msgspec

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.errors import usage_error
from bide.cli.output import DONE, NOTHING, Bar, Cell, Column, Output, counted, plural
from bide.cli.store import CommandStore
from bide.cli.times import rounded, when
from bide.model.commands import Count
from bide.model.recovery import LATENESS, Overdue, Recovered, Recovery
from bide.model.replies import Counts
from bide.model.times import format_duration
from bide.undoing.changes import in_store
from bide.undoing.recovering import looking, recovering

COLUMNS = (
    Column("queue", option.SCREEN),
    Column("overdue", right=True),
    *(Column(f"< {format_duration(bound)}", right=True) for bound in LATENESS),
    Column("more", right=True),
    Column("latest", right=True),
    Column("largest groups", 12, extra=True),
    Column("plan", 12, extra=True),
)


@on_store(option.queues)
@option.time("--drop-later-than", "Cancel messages that are later than this.")
@option.flag("--latest-of-group", help="Keep only the last planned message of each group.")
@option.time("--spread", "Make the others due evenly over this time from now on.")
@option.text("--rate", "RATE", "Make them due at this rate instead: 5/s, 100/m, 1000/h.")
@option.flag("--fresh-first", help="Give them priority 0: fresh messages with a priority go first.")
@option.flag("--apply", "applies", help="Do it; by default only say what it would do.")
def recover(
    store: CommandStore, out: Output, queues: tuple[str, ...], applies: bool, **fields: Any
) -> bool | None:
    """Show what is overdue, such as after an outage, and carry out a plan for it.

    Without a plan it shows what is due and waits, by lateness and group, in the named queues or in
    all. With options of a plan it shows what that would do, and with --apply it does it; bide undo
    takes that back for ten minutes. The exit code is 1 if the plan finds nothing to do.

    Messages keep the time for which they were planned: their lateness and --expires count from it.
    Messages that repeat are not dropped.

    \b
    In a pipe, each line without a plan is: queue, overdue, late by up to a
    minute, ten minutes, an hour, six hours, more, the time for which the latest
    one was planned. With a plan:
      dropped, superseded   cancelled: too late; a later one of the group is kept
      moved                 with another due time or priority, first to last
      left, expired         left as they are; expired: too late to be delivered
      changed               left as they are: claimed or changed meanwhile
      undo                  the token for bide undo

    \b
    Example:
      bide recover
      bide recover mails --drop-later-than 6h --spread 10m
      bide recover mails --drop-later-than 6h --spread 10m --apply
    """
    # A duration of 0 is given, though it equals `False`: the plan says what is wrong with it.
    given = {name: value for name, value in fields.items() if not (value is None or value is False)}
    names = [store.existing(name).name for name in queues] or store.names()
    if given:
        plan = Recovery(**given)
        done = [_carry_out(store, out, name, plan, applies) for name in names]
        return any(done)
    if applies:
        raise usage_error(
            "--apply needs a plan: --drop-later-than, --latest-of-group, --spread, --rate or "
            "--fresh-first"
        )
    looks = [_look(store, name) for name in names]
    _print_looks(store, out, looks if queues else [look for look in looks if look.messages])
    return None


def _look(store: CommandStore, queue: str) -> Overdue:
    """Return what is overdue in a queue."""
    with Bar(f"reading {queue}", _ready(store, queue)) as bar:
        return store.run(looking(queue, bar.advance))


def _ready(store: CommandStore, queue: str) -> int:
    """Return how many messages of a queue are ready."""
    return store.ask(Counts, Count(queue)).sizes.ready


def _print_looks(store: CommandStore, out: Output, looks: list[Overdue]) -> None:
    """Print what is overdue, and for people what they can do."""
    out.items(
        looks,
        COLUMNS,
        line=lambda look: [look.queue, look.messages, *look.late, look.oldest or ""],
        cells=_cells,
        empty=f"nothing is overdue in {store.shown}",
    )
    first = next((look for look in looks if look.messages), None)
    if out.terminal and first is not None:
        hint = f"bide recover {first.queue} --drop-later-than 6h --spread 10m"
        out.text((f"to see what a plan would do: {hint}", "dim"))


def _cells(look: Overdue) -> list[Cell]:
    """Return the cells of a queue."""
    groups = ", ".join(f"{group} ({count:,})" for group, count in look.groups.items())
    latest = rounded(look.latest) if look.messages else ""
    numbers = [counted(count) for count in (look.messages, *look.late)]
    return [(look.queue, "bold"), *numbers, latest, groups, look.plan]


def _carry_out(store: CommandStore, out: Output, queue: str, plan: Recovery, applies: bool) -> bool:
    """Carry out a plan on a queue, or say what it would do; return whether that is anything."""
    activity = "recovering" if applies else "planning for"
    with Bar(f"{activity} {queue}", 2 * _ready(store, queue)) as bar:  # it takes all in twice
        steps = recovering(
            queue,
            plan,
            in_store(store.lane),
            actor=store.actor,
            dry_run=not applies,
            advance=bar.advance,
        )
        result: Recovered = store.run(steps)
    changes = result.dropped + result.superseded + result.moved
    facts = {"queue": queue, **_facts(result, applies)}
    mark = DONE if changes and applies else NOTHING
    out.report(facts, mark, _sentence(queue, result, applies), dry_run=not applies)
    if out.terminal:
        _print_details(out, queue, result, applies)
    return changes > 0


def _facts(result: Recovered, applies: bool) -> dict[str, Any]:
    """Return a result as names and values; a time or a token that is not there is left out."""
    facts = msgspec.structs.asdict(result)
    names = [] if applies else ["undo", "changed"]
    return {
        name: value
        for name, value in facts.items()
        if value not in (None, "") and name not in names
    }


def _sentence(queue: str, result: Recovered, applies: bool) -> str:
    """Return a result for people, in one line."""
    verb = "" if applies else "would be "
    parts = [
        (result.dropped, f"{verb}dropped as too late"),
        (result.superseded, f"{verb}dropped for a later one of their group"),
        (result.moved, f"{verb}moved"),
        (result.left, "left as they are"),
        (result.expired, "expired"),
        (result.changed, "changed meanwhile, and left"),
    ]
    text = ", ".join(f"{count:,} {words}" for count, words in parts if count)
    overdue = f"{plural(result.overdue, 'message')} overdue"
    return f"{queue}: {overdue}{': ' if text else ''}{text}"


def _print_details(out: Output, queue: str, result: Recovered, applies: bool) -> None:
    """Print when the messages are due that are moved, and what can be done next."""
    if result.first is not None and result.last is not None:
        per_minute = f"about {result.per_minute:,.0f} per minute"
        out.text(f"  due from {when(result.first)} to {when(result.last)}, {per_minute}")
    if result.undo:
        hint = f"to take it back, within {option.MINUTES} minutes: bide undo {queue} {result.undo}"
        out.text((hint, "dim"))
    elif not applies and result.overdue:
        out.text(("to do it, add --apply", "dim"))
