"""`bide tasks`: list the tasks, jobs and handlers of an app."""

from typing import Any

import click

from bide.cli import option
from bide.cli.output import NAME, TEXT, Cell, Column, Output
from bide.model.message import MAX_ATTEMPTS
from bide.model.times import format_duration, settings_text

COLUMNS = (
    Column("kind", extra=True),
    Column("name", least=NAME),
    Column("takes", least=TEXT),
    Column("queue", least=TEXT),
    Column("lease", right=True, extra=True),
    Column("concurrency", right=True, extra=True),
    Column("timeout", right=True, extra=True),
    Column("attempts", right=True, extra=True),
    Column("settings", least=TEXT, extra=True),
)

LINE_FACTS = ("kind", "name", "queue", "takes", "lease", "concurrency", "timeout", "attempts")
"""The first columns in a pipe."""

STYLES = {"task": "green", "job": "green", "handler": "cyan"}


@click.command()
@option.app
@option.output
def tasks(target: str, as_json: bool) -> None:
    """List the tasks, jobs and handlers of an app.

    Its sources and schedules, too: everything that a worker with this app works on. Only the app is
    read, no store. A queue shares its lease and concurrency among its tasks; a task without timeout
    may take as long as it does.

    In a pipe, each line is: kind (task, job, handler, source or schedule), name, queue, what it
    takes, lease, concurrency, timeout, attempts, and the settings of the queue that the app
    declares, with its window. Times are milliseconds.

    \b
    Example:
      bide tasks shop:app
      bide tasks shop:app --json | jq -r 'select(.kind == "task").name'
    """
    from bide.consuming.declared_settings import settings_out
    from bide.worker.app.listing import facts_of
    from bide.worker.app.loading import load

    out = Output(as_json)
    out.items(
        facts_of(load(target)),
        COLUMNS,
        facts=lambda facts: {**facts, "declared": settings_out(facts["declared"])},
        line=lambda facts: [
            *(facts.get(name, "") for name in LINE_FACTS),
            _settings(facts),
        ],
        cells=_cells,
        empty=f"{target} has no tasks, jobs or handlers; make one with @app.task",
    )


def _cells(facts: dict[str, Any]) -> list[Cell]:
    timeout = facts.get("timeout")
    return [
        (facts["kind"], STYLES.get(facts["kind"], "dim")),
        (facts["name"], "bold"),
        facts["takes"],
        facts["queue"],
        format_duration(facts["lease"]),
        str(facts["concurrency"]),
        "" if timeout is None else format_duration(timeout),
        "" if facts["attempts"] == MAX_ATTEMPTS else str(facts["attempts"]),
        _settings(facts),
    ]


def _settings(facts: dict[str, Any]) -> str:
    """Return the settings of a queue that the app declares, and its window."""
    return "; ".join(filter(None, (settings_text(facts["declared"]), facts.get("window"))))
