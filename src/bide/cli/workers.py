"""`bide workers`: list worker processes, and have one replaced."""

import click
import msgspec

from bide.cli import option
from bide.cli.errors import CommandError
from bide.cli.output import DONE, NOT_DONE, Output
from bide.cli.program import Group
from bide.cli.store import Store, on_store
from bide.cli.tables import ID, TEXT, Cell, Column
from bide.cli.times import now_ms, rounded
from bide.observing.workers import WorkerProcess
from bide.queue.stores import ask_to_stop, read_workers

COLUMNS = (
    Column("worker", least=ID), Column("running", right=True),
    Column("longest", falls=1, right=True, unless=""), Column("", falls=2, unless=""),
    Column("queues", least=TEXT),
)  # fmt: skip


class _WorkersGroup(Group):
    """Takes `bide workers` for `bide workers list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_WorkersGroup)
def workers() -> None:
    """List worker processes, or have one replaced.

    `bide workers` lists them.

    \b
    Example:
      bide workers
      bide workers stop web1:4711
    """


@workers.command("list")
@on_store
def list_(store: Store, out: Output) -> None:
    """List the worker processes that report that they are alive.

    With the number of messages that they handle of the number that they can, and the message that
    they have handled for the longest time. In a pipe, each line is: name, messages that it handles,
    the longest of them, for how many seconds, seconds that its report is overdue, queues with
    commas between them.

    \b
    Example:
      bide workers list --json | jq 'select(.silent)'
    """
    now = now_ms()
    out.items(
        read_workers(store.lane), COLUMNS, facts=msgspec.structs.asdict,
        line=lambda one: _line(one, now), cells=lambda one: _cells(one, now),
        empty=lambda: f"no worker reports that it is alive in {store.shown}",
    )  # fmt: skip


@workers.command()
@click.argument("name")
@option.time("--wait", "How long to wait for its supervisor, which looks every 5 s.", "15s")
@on_store
def stop(store: Store, out: Output, name: str, wait: float) -> bool:
    """Have a worker process replaced, such as one that hangs.

    Its supervisor starts a new process and asks the old one to end: its handlers get the grace time
    of `bide worker`, then it is killed. Asked again, it ends at once. The messages that it held are
    delivered again. The exit code is 1 if no supervisor takes the request in time; then it is
    withdrawn.

    \b
    Example:
      bide workers stop web1:4711
    """
    there = {one.holder for one in read_workers(store.lane)}
    if name not in there:
        raise CommandError(
            f"no worker {name!r} reports that it is alive; `bide workers` lists those that do"
        )
    taken = ask_to_stop(store.lane, name, store.actor, wait)
    if taken:
        out.report({"worker": name, "taken": True}, DONE, f"{name} is being replaced")
    else:
        out.report(
            {"worker": name, "taken": False}, NOT_DONE,
            f"no supervisor of {name} has answered within {rounded(wait * 1000)}: it is dead, "
            "cannot reach the store, or is older than this command; the request was withdrawn",
        )  # fmt: skip
    return taken


def _longest(one: WorkerProcess, now: int) -> tuple[str, float | None]:
    """Return the message that it has handled for the longest time, and the milliseconds."""
    lasting = [(busy.since, busy.longest) for busy in one.busy.values() if busy.since is not None]
    if not lasting:
        return "", None
    since, id = min(lasting)
    return id or "", max(0, now - since)


def _line(one: WorkerProcess, now: int) -> tuple[object, ...]:
    id, lasting = _longest(one, now)
    running = sum(busy.running for busy in one.busy.values())
    seconds = "" if lasting is None else f"{lasting / 1000:g}"
    silent = "" if one.silent is None else f"{one.silent / 1000:g}"
    return one.holder, running, id, seconds, silent, ",".join(one.queues)


def _cells(one: WorkerProcess, now: int) -> list[Cell]:
    id, lasting = _longest(one, now)
    running = sum(busy.running for busy in one.busy.values())
    places = sum(busy.places for busy in one.busy.values())
    silent = "" if one.silent is None else f"silent for {rounded(one.silent)}"
    return [
        one.holder, f"{running} of {places}" if places else "",
        "" if lasting is None else f"{id} {rounded(lasting)}", (silent, "red"),
        ", ".join(one.queues),
    ]  # fmt: skip
