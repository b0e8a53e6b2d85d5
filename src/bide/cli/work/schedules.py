"""`bide schedules`: list schedules and other messages that repeat, and when they are due next."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import NAME, TEXT, Cell, Column, Output, first_line, warn
from bide.cli.store import CommandStore
from bide.cli.times import now_ms, relative
from bide.model.errors import StoreUnavailable
from bide.model.times import to_datetime

EXAMPLE = "bide schedules shop:app"

COLUMNS = (
    Column("schedule", least=NAME),
    Column("when", extra=True),
    Column("next"),
    Column("", right=True, extra=True),
    Column("", least=TEXT),
)

RULE_FACTS = ("when", "timezone", "missed")

REMARK_TEXTS = {"running": "running", "retrying": "tried again", "dead": "dead"}

TIME_FORMAT = "%a %Y-%m-%d %H:%M:%S %z"

MOST = 1_000
"""How many messages are read of each queue, and listed of all, at most."""


@on_store(option.optional_app)
@option.count("-n", "--count", most=1_000, default=3, help="The number of due times of each.")
def schedules(store: CommandStore, out: Output, target: str | None, count: int) -> None:
    """List schedules and messages that repeat, and when they are due next.

    Without MODULE:APP, list the schedules that a worker has run on the store, and the messages that
    repeat: of each queue, those among the first 1,000 messages, and 1,000 in all. With MODULE:APP,
    list first the schedules of the app, on the store that it names, even if no worker has run yet.

    In a pipe, each line is: queue, id, when, time zone, state or "held", the number of runs in
    progress and of those being retried, the number of dead letters of a schedule, error, and the
    next due times. With --json, also the last ten runs, if the queue keeps its history.

    \b
    Example:
      bide schedules
      bide schedules shop:app -n 10
      bide schedules --json | jq 'select(.error)'
    """
    if target is None:
        store.must_exist("name another store with --url or BIDE_URL, or name the app: " + EXAMPLE)
        rows = _of_store(store, count)
    else:
        rows = _of_app(store, target, count)
    out.items(
        rows,
        COLUMNS,
        line=_line,
        cells=_cells,
        empty=f"no schedules in {target or store.shown}",
        most=MOST,
        more=f"only the first {MOST:,} are shown; 'bide scan QUEUE' lists messages",
    )


def _line(facts: dict[str, Any]) -> list[object]:
    return [
        facts["queue"],
        facts["id"],
        facts["when"],
        facts["timezone"],
        "held" if facts["held"] else facts.get("state", ""),
        facts["running"],
        facts["retrying"],
        facts.get("dead", ""),
        first_line(facts.get("error")),
        *[moment.isoformat() for moment in _moments(facts)],
    ]


def _of_app(store: CommandStore, target: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield the facts about the schedules of an app, and what else repeats in its store."""
    from bide.worker.app.loading import load
    from bide.worker.periodic.progress import declared_facts

    app = load(target)
    store_of_app = store.of_app(app._url)
    stored: dict[tuple[str, str], dict[str, Any]] = {}
    try:
        for facts in _of_store(store_of_app, count):
            stored[facts["queue"], facts["id"]] = facts
    except StoreUnavailable:  # no worker has run yet
        stored = {}
    for schedule in app.schedules.values():
        times = schedule.recurrence
        facts = declared_facts(schedule.queue, times, times.after(now_ms()), count)
        facts["missed"] = schedule.rule.missed
        stored_facts = stored.pop((schedule.queue, facts["id"]), None)
        if stored_facts is not None and (
            "edited" in stored_facts or all(stored_facts[key] == facts[key] for key in RULE_FACTS)
        ):
            facts = stored_facts  # else the next worker with this schedule changes it
        yield facts
    yield from stored.values()


def _of_store(store: CommandStore, count: int) -> Iterator[dict[str, Any]]:
    """Yield the facts about all that repeats in a store."""
    from bide.worker.periodic.progress import repeating_progress

    for name in store.names():
        repeating = store.run(repeating_progress(name, count, MOST))
        for id, error in repeating.unreadable.items():
            warn(f"{name}: {id}: {error}")
        if repeating.read is not None:
            warn(f"{name}: only the first {repeating.read:,} messages were read")
        yield from repeating.facts


def _moments(facts: dict[str, Any]) -> list[Any]:
    """Return the next due times in the zone of the schedule."""
    from zoneinfo import ZoneInfo

    zone = ZoneInfo(facts["timezone"])
    return [to_datetime(moment).astimezone(zone) for moment in facts["ticks"]]


def _cells(facts: dict[str, Any]) -> list[Cell]:
    from bide.worker.periodic.ticks import SCHEDULE_ID

    name = facts["queue"] if facts["id"] == SCHEDULE_ID else f"{facts['queue']}\n{facts['id']}"
    when = f"{facts['when']}\n{facts['timezone']}"
    moments = "\n".join(moment.strftime(TIME_FORMAT) for moment in _moments(facts))
    distances = "\n".join(map(relative, facts["ticks"]))
    return [(name, "bold"), when, moments or "held", (distances, "dim"), _remark(facts)]


def _remark(facts: dict[str, Any]) -> Cell:
    """Return notes on retried, dead or changed ticks, and on the last runs."""
    state = facts.get("state", "no worker has run it yet")
    notes = [] if state in ("delayed", "leased") else [state]
    notes += ["edited"] if "edited" in facts else []
    notes += [f"{facts[name]} {text}" for name, text in REMARK_TEXTS.items() if facts.get(name)]
    if runs := facts.get("runs"):
        ways = Counter(run["how"] for run in runs)
        last_ones = ", ".join(f"{number} {how}" for how, number in ways.items())
        notes.append(f"last {len(runs)}: {last_ones}")
    if "error" in facts:
        notes.append(first_line(facts["error"]))
    return ", ".join(notes), "red" if "error" in facts else "yellow"
