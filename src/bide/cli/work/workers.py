"""`bide workers`: list worker processes, or have one replaced."""

from collections.abc import Mapping
from typing import Any

import click
import msgspec

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import DONE, NAME, NOT_DONE, TEXT, Cell, Column, Output, warn
from bide.cli.program import ListGroup
from bide.cli.store import CommandStore
from bide.cli.times import now_ms, relative, rounded
from bide.consuming.declared_settings import declared_of, settings_out
from bide.model.times import settings_text
from bide.observing.workers import WorkerProcess
from bide.queue.stores import ask_to_stop, read_workers

COLUMNS = (
    Column("worker", least=NAME),
    Column("running", right=True),
    Column("longest", right=True, extra=True),
    Column("queues", least=TEXT),
)


Declared = Mapping[str, Mapping[str, int | str]]
"""The settings that apps declare, by queue."""


@click.group(cls=ListGroup)
def workers() -> None:
    """List worker processes, or have one replaced.

    `bide workers` lists them.

    \b
    Example:
      bide workers
      bide workers stop web1:4711
    """


@on_store(group=workers, name="list")
def list_(store: CommandStore, out: Output) -> None:
    """List the worker processes that report that they are alive.

    Each line shows how many messages the process handles and how many it can, the message that has
    run longest, and behind a queue the settings that its app declares and the window of its
    handlers. In a pipe, each line is:
    name, messages that it handles, the longest of them, its milliseconds so far, milliseconds that
    its report is overdue, queues with commas between them.

    \b
    Example:
      bide workers list --json | jq 'select(.silent)'
    """
    listing = read_workers(store.lane)
    queues = {queue for worker in listing.workers for queue in worker.queues}
    declared = {queue: store.run(declared_of(queue)) for queue in sorted(queues)}
    out.items(
        listing.workers,
        COLUMNS,
        facts=lambda worker: _facts(worker, declared),
        line=_line,
        cells=lambda worker: _cells(worker, declared),
        empty=f"no running workers in {store.shown}",
    )
    if listing.partly:
        warn("there are more: of each namespace, 256 KiB of reports are read, and 1,000 at most")


@on_store(click.argument("name"), group=workers)
@option.time("--wait", "How long to wait for its supervisor, which looks every 5 s.", "15s")
def stop(store: CommandStore, out: Output, name: str, wait: float) -> bool:
    """Have a worker process replaced, such as one that hangs.

    Its supervisor starts a new process and asks the old one to end: its handlers get the grace time
    of `bide worker`, then it is killed. Asked again, it ends at once. The messages that it held are
    delivered again. The exit code is 1 if no supervisor takes the request in time; then it is
    withdrawn.

    \b
    Example:
      bide workers stop web1:4711
    """
    alive = {worker.holder for worker in read_workers(store.lane).workers}
    if name not in alive:
        raise click.ClickException(
            f"no running worker is named {name!r}; `bide workers` lists them all"
        )
    was_taken = ask_to_stop(store.lane, name, store.actor, wait)
    if was_taken:
        out.report({"worker": name, "taken": True}, DONE, f"{name} is being replaced")
    else:
        out.report(
            {"worker": name, "taken": False},
            NOT_DONE,
            f"no supervisor of {name} has answered within {rounded(wait * 1000)}: it is dead, or "
            "cannot reach the store; the request was withdrawn",
        )
    return was_taken


def _longest(worker: WorkerProcess) -> tuple[str, float | None]:
    """Return the id of the message that it has handled for the longest time, and for how long.

    The time is in milliseconds; `None`, and "" as the id, if it handles none.
    """
    beginnings = [
        (busy.since, busy.longest) for busy in worker.busy.values() if busy.since is not None
    ]
    if not beginnings:
        return "", None
    since, id = min(beginnings)
    return id or "", max(0, now_ms() - since)


def _line(worker: WorkerProcess) -> tuple[object, ...]:
    id, duration = _longest(worker)
    running = sum(busy.running for busy in worker.busy.values())
    times = ("" if ms is None else f"{ms:.0f}" for ms in (duration, worker.silent))
    return worker.holder, running, id, *times, ",".join(worker.queues)


def _facts(worker: WorkerProcess, declared: Declared) -> dict[str, Any]:
    settings = {queue: settings_out(declared[queue]) for queue in worker.queues if declared[queue]}
    return msgspec.structs.asdict(worker) | ({"declared": settings} if settings else {})


def _cells(worker: WorkerProcess, declared: Declared) -> list[Cell]:
    id, duration = _longest(worker)
    running = sum(busy.running for busy in worker.busy.values())
    places = sum(busy.places for busy in worker.busy.values())
    state: Cell = f"{running} of {places}" if places else ""
    if worker.silent is not None:
        state = f"silent for {rounded(worker.silent)}", "red"
    longest = "" if duration is None else f"{id} {rounded(duration)}"
    queues = [_with_settings(queue, worker, declared) for queue in worker.queues]
    return [worker.holder, state, longest, ", ".join(queues)]


def _with_settings(queue: str, worker: WorkerProcess, declared: Declared) -> str:
    """Return a queue with its settings and the window in which the worker takes its messages."""
    texts = [settings_text(declared[queue])] if declared[queue] else []
    busy = worker.busy.get(queue)
    if busy is not None and busy.hours is not None:
        opening = "" if busy.opens is None else f", opens {relative(busy.opens)}"
        texts.append(f"{busy.hours} in {busy.timezone}{opening}")
    return f"{queue} ({'; '.join(texts)})" if texts else queue
