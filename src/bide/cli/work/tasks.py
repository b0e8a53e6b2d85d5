"""`bide tasks`: list the tasks, jobs and handlers of an app."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from bide.cli import option
from bide.cli.output import NAME, TEXT, Cell, Column, Output
from bide.model.message import MAX_ATTEMPTS
from bide.model.times import format_duration

if TYPE_CHECKING:
    from bide.worker.app.app import App

COLUMNS = (
    Column("kind", extra=True),
    Column("name", least=NAME),
    Column("takes", least=TEXT),
    Column("queue", least=TEXT),
    Column("lease", right=True, extra=True),
    Column("concurrency", right=True, extra=True),
    Column("timeout", right=True, extra=True),
    Column("attempts", right=True, extra=True),
)

LINE = ("kind", "name", "queue", "takes", "lease", "concurrency", "timeout", "attempts")
"""The columns in a pipe."""

STYLES = {"task": "green", "job": "green", "handler": "cyan"}


@click.command()
@click.argument("target", metavar="MODULE:APP")
@option.output
def tasks(target: str, as_json: bool) -> None:
    """List the tasks, jobs and handlers of an app.

    Its sources and schedules, too: everything that a worker with this app works on. Only the app is
    read, no store. A queue shares its lease and concurrency among its tasks; a task without timeout
    may take as long as it does.

    In a pipe, each line is: kind (task, job, handler, source or schedule), name, queue, what it
    takes, lease, concurrency, timeout, attempts. Times are milliseconds.

    \b
    Example:
      bide tasks shop:app
      bide tasks shop:app --json | jq -r 'select(.kind == "task").name'
    """
    from bide.worker.app.loading import load

    out = Output(as_json)
    out.items(
        _facts(load(target)),
        COLUMNS,
        line=lambda facts: [facts.get(name, "") for name in LINE],
        cells=_cells,
        empty=f"{target} has no tasks, jobs or handlers; make one with @app.task",
    )


def _facts(app: "App") -> Iterator[dict[str, Any]]:
    """Yield what is known of each task, job, handler, source and schedule, in the order of code."""
    for queue, queue_handlers in app.queue_handlers.items():
        for name, handler in queue_handlers.handlers.items():
            source = app.sources.get(queue)
            if source is not None:
                kind = "source"
            elif queue in app.schedules:
                kind = "schedule"
            elif name is None:
                kind = "handler"
            else:
                task = app.tasks.get(name)
                kind = "task" if task is not None and task.queue_name == queue else "job"
            facts = {
                "kind": kind,
                "name": name or (handler.name if source is None else source.name),
                "queue": queue if source is None else source.queue,
                "takes": handler.takes,
                "function": handler.name,
                "lease": queue_handlers.lease,
                "concurrency": queue_handlers.concurrency,
                "attempts": handler.retry.attempts,
            }
            if handler.timeout is not None:
                facts["timeout"] = round(handler.timeout * 1000)
            yield facts


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
    ]
