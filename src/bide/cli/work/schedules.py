"""`bide schedules`: list schedules and their next ticks."""

from typing import Any

import click

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import NAME, TEXT, Cell, Column, Output, first_line, warn
from bide.cli.store import CommandStore
from bide.cli.times import now_ms, relative
from bide.model.errors import InvalidArgument, StoreUnavailable
from bide.model.times import to_datetime

EXAMPLE = "bide schedules shop:app"

COLUMNS = (
    Column("schedule", least=NAME),
    Column("when", extra=True),
    Column("next"),
    Column("", right=True, extra=True),
    Column("", least=TEXT),
)

RULE_FACTS = ("when", "timezone")

REMARK_TEXTS = {"running": "running", "retrying": "tried again", "dead": "dead"}

TIME_FORMAT = "%a %Y-%m-%d %H:%M:%S %z"


@on_store(click.argument("target", metavar="[MODULE:APP]", required=False))
@option.count("-n", "--count", most=1_000, default=3, help="The number of ticks per schedule.")
def schedules(store: CommandStore, out: Output, target: str | None, count: int) -> None:
    """List schedules and their next ticks.

    Without MODULE:APP, list the schedules with a tick in the store, that is, after a worker with
    them has run. With MODULE:APP, list the schedules of the app, on the store that it names, even
    if no worker has run yet.

    In a pipe, each line is: queue, when, time zone, state of the next tick, the number of ticks
    that run, are retried and are dead, error, and the next ticks.

    \b
    Example:
      bide schedules
      bide schedules shop:app -n 10
      bide schedules --json | jq 'select(.error)'
    """
    if target is None:
        store.must_exist("name another store with --url or BIDE_URL, or name the app: " + EXAMPLE)
        rows = [
            facts for name in store.names() if (facts := _stored(store, name, count)) is not None
        ]
    else:
        rows = _of_app(store, target, count)
    out.items(
        rows,
        COLUMNS,
        line=_line,
        cells=_cells,
        empty=f"no schedules in {target or store.shown}",
    )


def _line(facts: dict[str, Any]) -> list[object]:
    return [
        facts["queue"],
        facts["when"],
        facts["timezone"],
        facts.get("state", ""),
        facts["running"],
        facts["retrying"],
        facts["dead"],
        first_line(facts.get("error")),
        *[moment.isoformat() for moment in _moments(facts)],
    ]


def _of_app(store: CommandStore, target: str, count: int) -> list[dict[str, Any]]:
    """Return the facts about the schedules of an app."""
    from bide.worker.app.loading import load
    from bide.worker.periodic.progress import schedule_facts

    app = load(target)
    store_of_app = store.of_app(app._url)
    try:
        existing_names = set(store_of_app.names())
    except StoreUnavailable:  # no worker has run yet
        existing_names = set()
    rows = []
    for schedule in app.schedules.values():
        rule = schedule.recurrence
        facts = schedule_facts(schedule.queue, rule, rule.after(now_ms()), count)
        stored = None
        if schedule.queue in existing_names:
            stored = _stored(store_of_app, schedule.queue, count)
        if stored is not None and all(stored[key] == facts[key] for key in RULE_FACTS):
            facts = stored  # else the next worker with this schedule puts another tick
        rows.append({**facts, "missed": schedule.missed})
    return rows


def _stored(store: CommandStore, queue: str, count: int) -> dict[str, Any] | None:
    """Return the facts about a schedule in the store; `None` if the queue belongs to none."""
    from bide.worker.periodic.progress import schedule_progress

    try:
        return store.run(schedule_progress(queue, count))
    except InvalidArgument as error:  # cronsim or the zone is not here, or a newer bide put it
        warn(f"{queue}: {error}")
        return None


def _moments(facts: dict[str, Any]) -> list[Any]:
    """Return the next ticks as times in the zone of the schedule."""
    from zoneinfo import ZoneInfo

    zone = ZoneInfo(facts["timezone"])
    return [to_datetime(moment).astimezone(zone) for moment in facts["ticks"]]


def _cells(facts: dict[str, Any]) -> list[Cell]:
    when = f"{facts['when']}\n{facts['timezone']}"
    moments = "\n".join(moment.strftime(TIME_FORMAT) for moment in _moments(facts))
    distances = "\n".join(map(relative, facts["ticks"]))
    return [(facts["queue"], "bold"), when, moments, (distances, "dim"), _remark(facts)]


def _remark(facts: dict[str, Any]) -> Cell:
    """Return notes on retried, dead or changed ticks."""
    state = facts.get("state", "no worker has run it yet")
    notes = [] if state in ("delayed", "leased") else [state]
    notes += [f"{facts[name]} {text}" for name, text in REMARK_TEXTS.items() if facts[name]]
    if "error" in facts:
        notes.append(first_line(facts["error"]))
    return ", ".join(notes), "red" if "error" in facts else "yellow"
