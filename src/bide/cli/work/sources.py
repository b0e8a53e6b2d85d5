"""`bide sources`: list sources, their progress and their errors."""

from typing import Any

from bide.cli.command import on_store
from bide.cli.output import NAME, STYLES, TEXT, Cell, Column, Output, first_line
from bide.cli.store import CommandStore
from bide.cli.times import iso, local, relative

COLUMNS = (
    Column("source", least=NAME),
    Column("state"),
    Column("next"),
    Column("", right=True, extra=True),
    Column("reached", extra=True),
    Column("found", right=True, extra=True),
    Column("put", right=True, extra=True),
    Column("error", least=TEXT),
)


@on_store()
def sources(store: CommandStore, out: Output) -> None:
    """List sources, their progress and their errors.

    A source is listed after a worker with it has run on this store. `state` is the state of its
    next window: leased means that the worker is reading the source now.

    In a pipe, each line is: queue, name, state, next, last window from, to, messages found,
    messages put, messages put since the source started, attempt, error.

    \b
    Example:
      bide sources
      bide sources --json | jq 'select(.error)'
    """
    from bide.worker.periodic.progress import source_progress

    # Each source has an internal queue, with a message for its next window.
    progress = (store.run(source_progress(name)) for name in store.names(own=True))
    rows = [facts for facts in progress if facts is not None]
    out.items(
        rows,
        COLUMNS,
        line=_line,
        cells=_cells,
        empty=f"no worker with a source has run on {store.shown}",
    )


def _line(facts: dict[str, Any]) -> tuple[object, ...]:
    last = facts.get("last") or {}
    return (
        facts["queue"],
        facts["name"],
        facts["state"],
        iso(facts["next"]),
        iso(last.get("after")),
        iso(last.get("before")),
        last.get("found", ""),
        last.get("put", ""),
        facts["put"],
        facts["attempt"],
        first_line(facts.get("error")),
    )


def _cells(facts: dict[str, Any]) -> list[Cell]:
    last = facts.get("last")
    return [
        [(facts["queue"], "bold"), f" {facts['name']}"],
        (facts["state"], STYLES[facts["state"]]),
        local(facts["next"]),
        (relative(facts["next"]), "dim"),
        "" if last is None else local(last["before"]),
        "" if last is None else f"{last['found']:,}",
        f"{facts['put']:,}",
        (first_line(facts.get("error")), "red"),
    ]
