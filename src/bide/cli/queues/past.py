"""`bide past`: what has happened, minute by minute or hour by hour."""

from collections.abc import Sequence
from datetime import datetime

import click

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import Cell, Output, counted, plural, text_of, warn
from bide.cli.queue_output import quantile_cell
from bide.cli.store import CommandStore
from bide.cli.times import iso, read_duration
from bide.model.past import Past, PastSlot, SlotLength, past_command
from bide.observing.past import reading_past

COLUMNS = ("put", "done", "failed", "late p50", "p99")


@on_store(option.optional_queue)
@click.option(
    "--for",
    "lasting",
    type=lambda text: read_duration(text, "for"),
    metavar="TIME",
    default="24h",
    show_default=True,
    help="How far to look back.",
)
@option.choice("--by", ("minute", "hour"), "The slots; minutes for 3h or less, else hours.")
def past(
    store: CommandStore, out: Output, queue: str | None, lasting: float, by: SlotLength | None
) -> None:
    """Show what has happened: how much was put, done, failed, and how late.

    Covers one queue or, without a name, all queues together. Workers and servers record it once a
    minute; minutes are kept for 24 hours, hours for 30 days.

    In a pipe, each line is: start of the slot, put, done, failed, cancelled, expired, died,
    deliveries, and the lateness within which half and 99 of 100 of these began, in milliseconds. A
    slot without a record has no line.

    \b
    Example:
      bide past orders --for 2h
      bide past --for 7d --json
    """
    command = past_command(queue or "", lasting, by, together=not queue, name="for")
    if queue:
        store.must_have(queue)
    steps = reading_past(
        command,
        lambda name: not queue or name == queue,
        has_server=lambda: store.lane.capabilities.has_server,
    )
    past_slots = store.run(steps)
    if (reason := past_slots.why_empty) is not None:
        warn(f"nothing to show: {reason}")
    elif out.terminal:
        _show(out, past_slots, queue or "all queues")
    else:
        for number, slot in enumerate(past_slots.slots):
            if slot is not None:
                start = past_slots.start + number * past_slots.slot
                quantiles = ["" if ms is None else f"{ms:g}" for ms in (slot.p50, slot.p99)]
                columns = [slot.put, slot.done, slot.failed, slot.cancelled, slot.expired]
                columns += [slot.died, slot.delivered]
                out.line(_facts(start, slot), iso(start), *columns, *quantiles)


def _facts(start: int, slot: PastSlot) -> dict[str, object]:
    """Return a slot for JSON."""
    names = PastSlot.__struct_fields__
    return {"start": start} | {name: getattr(slot, name) for name in names}


def _show(out: Output, past_slots: Past, name: str) -> None:
    """Show a past as a table with a bar of what was done in each slot."""
    known = [number for number, slot in enumerate(past_slots.slots) if slot is not None]
    first, last = known[0], known[-1]
    slots = past_slots.slots[first : last + 1]
    done = sum(slot.done for slot in slots if slot is not None)
    failed = sum(slot.failed for slot in slots if slot is not None)
    out.text(
        (name, "bold"),
        (f"  {plural(done, 'message')} done, {plural(failed, 'attempt')} failed", "dim"),
    )
    _print_table(out, past_slots, first, slots)


def _print_table(
    out: Output, past_slots: Past, first: int, slots: Sequence[PastSlot | None]
) -> None:
    """Print a row for each slot; slots in a row that nobody has recorded are one line."""
    from rich.bar import Bar
    from rich.table import Table

    most = max(1, *(slot.done for slot in slots if slot is not None))
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, pad_edge=False)
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column, justify="right", header_style="dim", no_wrap=True)
    table.add_column("", ratio=1)
    is_gap = False
    for number, slot in enumerate(slots, first):
        start = (past_slots.start + number * past_slots.slot) / 1000
        label = datetime.fromtimestamp(start).astimezone().strftime("%d %b %H:%M")
        if slot is not None:
            bar = Bar(most, 0, slot.done, color="green")
            table.add_row(label, *map(text_of, _cells(slot)), bar)
        elif not is_gap:
            table.add_row(label, *([""] * len(COLUMNS)), text_of(("nothing recorded", "dim")))
        is_gap = slot is None
    out.console.print(table)


def _cells(slot: PastSlot) -> list[Cell]:
    """Return the numbers of a slot."""
    quantiles: list[Cell] = ["", ""]
    if slot.delivered:
        quantiles = [quantile_cell(slot.p50), quantile_cell(slot.p99)]
    return [
        counted(slot.put),
        counted(slot.done),
        counted(slot.failed, "red"),
        *quantiles,
    ]
