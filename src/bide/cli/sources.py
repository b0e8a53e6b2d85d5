"""`bide sources`: the progress of the sources of a store."""

from typing import Any

import click

from bide.cli.output import STYLES, Output, first_line
from bide.cli.store import Store, on_store
from bide.cli.tables import ID, TEXT, Cell, Column
from bide.cli.times import iso, local, now_ms, relative

COLUMNS = (
    Column("source", least=ID), Column("state"), Column("next"),
    Column("", falls=3, right=True), Column("reached", falls=4),
    Column("found", falls=1, right=True), Column("put", falls=2, right=True),
    Column("error", least=TEXT),
)  # fmt: skip


@click.command()
@on_store
def sources(store: Store, out: Output) -> None:
    """List sources, their progress and their errors.

    A source is listed after a worker with it has run on this store. `state` is the state of its
    next window: leased means that the worker is reading the source now.

    In a pipe, each line is: queue, name, state, next, last window from, to, messages found,
    messages put, messages put since the source started, attempt, error.

    \b
    Example:
      bide sources
      bide sources --json | jq 'select(.error)'
    """  # fmt: skip
    from bide.worker.periodic.progress import source_progress

    homes = store.names(own=True)
    looks = (store.run(source_progress(home)) for home in homes)
    found = [facts for facts in looks if facts is not None]
    out.items(
        found, COLUMNS, facts=lambda one: one, line=_line, cells=_cells,
        empty=lambda: f"no worker with a source has run on {store.shown}",
    )  # fmt: skip


def _line(one: dict[str, Any]) -> tuple[object, ...]:
    last = one.get("last") or {}
    return (
        one["queue"], one["name"], one["state"], iso(one["next"]), iso(last.get("after")),
        iso(last.get("before")), last.get("found", ""), last.get("put", ""), one["put"],
        one["attempt"], first_line(one.get("error")),
    )  # fmt: skip


def _cells(one: dict[str, Any]) -> list[Cell]:
    now, last = now_ms(), one.get("last")
    return [
        [(one["queue"], "bold"), f" {one['name']}"],
        (one["state"], STYLES[one["state"]]),
        local(one["next"], now),
        (relative(one["next"], now), "dim"),
        "" if last is None else local(last["before"], now),
        "" if last is None else f"{last['found']:,}",
        f"{one['put']:,}",
        (first_line(one.get("error")), "red"),
    ]
