"""`bide sources`: the progress of the sources of a store."""

from typing import Any

import click
import msgspec

from bide.cli.output import STYLES, Output, first_line
from bide.cli.store import Store, on_store
from bide.cli.tables import ID, TEXT, Cell, Column
from bide.cli.times import iso, local, now_ms, relative
from bide.model.commands import Scan
from bide.model.message import Message
from bide.model.replies import Page

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
    found = [facts for home in store.names(own=True) if (facts := _facts(store, home)) is not None]
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


def _facts(store: Store, home: str) -> dict[str, Any] | None:
    """Return the facts about a source; `None` if the queue belongs to no source."""
    from bide.worker.periodic.source import read_window, source_of

    if (named := source_of(home)) is None:
        return None
    window = _window(store, home)
    if window is None:
        return None
    body = read_window(window)
    facts: dict[str, Any] = {
        "queue": named[0], "name": named[1], "state": window.state, "next": window.due,
        "every": body.every, "window": body.window, "put": body.put, "attempt": window.attempt,
    }  # fmt: skip
    if body.last is not None:
        facts["last"] = msgspec.structs.asdict(body.last)
    if window.holder is not None:
        facts["holder"] = window.holder
    if window.error is not None:
        facts["error"] = window.error
    return facts


def _window(store: Store, home: str) -> Message | None:
    """Return the window that is being read, else the next one, else the dead one."""
    for state in ("leased", "next", "leased", "dead"):
        if found := store.ask(Page, Scan(home, state, limit=1)).messages:
            return found[0]
    return None


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
