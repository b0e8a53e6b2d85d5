"""`bide zones`: what an update of time zones moves, and by which version messages are planned."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.errors import usage_error
from bide.cli.output import DONE, ID, NAME, NOTHING, Cell, Column, Output, plural, warn
from bide.cli.rules import words_of
from bide.cli.store import CommandStore
from bide.cli.times import iso, local
from bide.cli.zone_files import zones_in
from bide.consuming.store_lock import Ask
from bide.consuming.zone_update import (
    DueMove,
    messages_with_zone,
    queues_of,
    record_of,
    update_queue,
    what_moves,
)
from bide.model.errors import AccessDenied, InvalidArgument
from bide.model.zones import ZoneData, is_newer, own_zones

T = TypeVar("T")

QUEUES = (
    Column("queue", least=NAME),
    Column("planned by"),
    Column("dates", right=True),
    Column("cron runs", right=True),
    Column("would move", right=True),
)
MOVES = (
    Column("queue", least=NAME),
    Column("id", least=ID),
    Column("date or rule"),
    Column("due"),
    Column("then due"),
)

NEWEST = "9999z"
"""Stands for the version of data that do not say theirs."""


class PlannedQueue(NamedTuple):
    """What is shown of a queue."""

    queue: str
    zones: str
    """The version by which it is planned; empty: not known."""
    dates: int
    """How many messages with a local date wait in it."""
    runs: int
    """How many messages that repeat by a cron expression in a time zone."""
    moving: int
    """How many of them this machine would move."""


@on_store()
@click.option(
    "--what-if",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="List the messages that other time zones would move, and change nothing.",
)
@option.flag("--apply", help="Move now what must move under the time zones of this machine.")
def zones(store: CommandStore, out: Output, what_if: Path | None, apply: bool) -> bool:
    """Show which version of the time zones messages are planned by, or move them.

    Without an option: the version of this machine and, for each queue with local dates or with
    cron expressions in a time zone, the version by which it is planned, how many there are, and
    how many this machine would move.

    With --what-if, before an update: FILE is a wheel of the package tzdata, as `pip download
    --no-deps tzdata` fetches it; a folder of compiled zones, such as /usr/share/zoneinfo of a
    machine or an image that has the update; or tzdataVERSION.tar.gz from IANA, or a folder with
    what is in it, which needs the program zic. In a pipe, each line is: queue, id, date or rule,
    when it is due, and when it then would be.

    Workers and `bide serve` do by themselves what --apply does, when they start with a greater
    version than that of the store. A smaller or an unknown version moves nothing.

    \b
    Example:
      bide zones
      pip download --no-deps tzdata
      bide zones --what-if tzdata-2026.2-py2.py3-none-any.whl
      bide zones --apply
    """
    if what_if is not None and apply:
        raise usage_error("--what-if changes nothing, and --apply does: give one of them")
    if what_if is not None:
        with ExitStack() as stack:
            _show_moves(store, out, zones_in(what_if, stack))
        return True
    own = own_zones()
    if apply:
        return _apply(store, out, own)
    planned = _run(store, lambda ask: _planned(ask, own))
    if out.terminal:
        out.text(f"this machine has time zones {own.version or 'of an unknown version'}")
    out.items(
        planned,
        QUEUES,
        facts=lambda row: {**row._asdict(), "here": own.version},
        line=lambda row: [row.queue, row.zones, row.dates, row.runs, row.moving],
        cells=_queue_cells,
        empty=f"no local dates, and no cron expressions in a time zone, in {store.shown}",
    )
    return True


def _run(store: CommandStore, work: Callable[[Ask], Coroutine[Any, Any, T]]) -> T:
    """Run work on the store in an event loop, so that many commands share a commit."""
    lane = store.lane
    return asyncio.run(work(lane.acall))


async def _planned(ask: Ask, own: ZoneData) -> list[PlannedQueue]:
    """Return the queues with messages whose times depend on time zones."""
    planned: list[PlannedQueue] = []
    for queue in await queues_of(ask):
        counts: Counter[bool] = Counter()
        moving = 0
        async for messages in messages_with_zone(ask, queue):
            counts.update(message.repeats for message in messages)
            moving += len(what_moves(messages, own))
        if counts:
            version = ""
            with suppress(AccessDenied):  # a token that may not read the queues of bide itself
                version = (await record_of(ask, queue)).zones
            planned.append(PlannedQueue(queue, version, counts[False], counts[True], moving))
    return planned


def _queue_cells(row: PlannedQueue) -> list[Cell]:
    moving: Cell = (f"{row.moving:,}", "yellow") if row.moving else ""
    return [(row.queue, "bold"), row.zones or "-", f"{row.dates:,}", f"{row.runs:,}", moving]


def _show_moves(store: CommandStore, out: Output, data: ZoneData) -> None:
    """List the messages that some data would move."""
    if not data.version:
        warn("these time zones have no version; they count as newer than all others")
    newer_data = data._replace(version=data.version or NEWEST)
    own = own_zones().version
    if not is_newer(newer_data.version, own):
        warn(
            f"these time zones, {data.version}, are not newer than those of this machine, {own}: "
            "messages planned by these do not move"
        )

    async def find_moves(ask: Ask) -> list[DueMove]:
        moves: list[DueMove] = []
        for queue in await queues_of(ask):
            async for messages in messages_with_zone(ask, queue):
                moves += what_moves(messages, newer_data)
        return moves

    out.items(
        _run(store, find_moves),
        MOVES,
        facts=_move_facts,
        line=lambda moved: list(_move_facts(moved).values()),
        cells=_move_cells,
        empty=f"no message in {store.shown} would move",
    )


def _move_facts(moved: DueMove) -> dict[str, Any]:
    message, new_plan = moved
    return {
        "queue": message.queue,
        "id": message.id,
        "rule": _rule_in_words(moved),
        "due": iso(message.due),
        "then": iso(new_plan.due),
    }


def _rule_in_words(moved: DueMove) -> str:
    """Return the date or the rule of a message."""
    return str(moved.message.local_date or words_of(moved.message))


def _move_cells(moved: DueMove) -> list[Cell]:
    message, new_plan = moved
    return [
        message.queue,
        message.id,
        _rule_in_words(moved),
        local(message.due, 0),
        (local(new_plan.due, 0), "yellow"),
    ]


def _apply(store: CommandStore, out: Output, own: ZoneData) -> bool:
    """Move what must move by the time zones of this machine, and print how many in each queue."""
    if not own.version:
        raise InvalidArgument(
            "the version of the time zones of this machine is not known, so they move nothing; "
            "install the package tzdata of your system, or pip install tzdata"
        )
    store.must_exist()

    async def update(ask: Ask) -> dict[str, int]:
        return {
            queue: await update_queue(ask, queue, own, put=inf) for queue in await queues_of(ask)
        }

    counts = {queue: count for queue, count in _run(store, update).items() if count}
    for queue, count in counts.items():
        if out.terminal:
            out.text(DONE, f"moved {plural(count, 'message')} of {queue}")
        else:
            out.line({"queue": queue, "moved": count}, queue, count)
    if not counts and out.terminal:
        out.text(NOTHING, f"all is planned by time zones {own.version}, or newer ones")
    return True
