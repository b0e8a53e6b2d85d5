"""`bide audit`: check that every message is accounted for."""

import click

from bide.cli.counts import SIZES, all_option
from bide.cli.options import complete_queue, on_store
from bide.cli.output import STYLES, Output
from bide.cli.progress import Bar
from bide.cli.store import Store
from bide.cli.tables import ID, Cell, Column, counted, grid, print_table
from bide.queue.answers import Audit

__all__ = ["audit"]

GONE = ("acked", "cancelled", "expired", "purged")


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queue)
@all_option
@on_store
def audit(store: Store, out: Output, queues: tuple[str, ...], own: bool) -> bool:
    """Check that every message is accounted for, on a live store: of one queue, or of all.

    The counters must add up: put = acked + cancelled + expired + purged + delayed + ready + leased
    + dead. The audit also counts the messages one by one. If the sums differ, the exit code is 1.
    In a pipe, each line is: name, value; the verdict comes last.

    \b
    Example:
      bide audit orders
      bide audit --json
    """
    audited = [store.existing(name) for name in queues]
    audited = audited or [store.queue(name) for name in store.names(own=own)]
    found = []
    with Bar("auditing", len(audited) if len(audited) > 1 else None) as bar:
        for one in audited:
            found.append(one.audit())
            bar.advance()
    if not out.terminal:
        for balance in found:
            _print(out, balance)
        return all(found)
    if len(found) == 1:
        _print_sum(out, found[0])
    elif found:
        _print_table(out, found)
    _print_verdict(out, store, found)
    return all(found)


def parts_of(audited: Audit) -> dict[str, int]:
    """Return how many messages are in each state, or gone, by name."""
    counts = audited.counts
    gone = {name: int(getattr(counts.flow, name)) for name in GONE}
    return gone | {name: int(getattr(counts.sizes, name)) for name in SIZES}


def _print(out: Output, audited: Audit) -> None:
    facts: dict[str, object] = {"queue": audited.queue, "put": audited.counts.flow.put}
    facts |= parts_of(audited)
    if out.as_json:
        out.json({**facts, "balanced": bool(audited), "problems": audited.problems})
        return
    out.report(facts)
    out.row("balanced", "yes" if audited else "no: " + "; ".join(audited.problems))


def _print_sum(out: Output, audited: Audit) -> None:
    parts = parts_of(audited)
    put = audited.counts.flow.put
    width = len(f"{max(put, sum(parts.values())):,}") + 2
    rows: list[list[Cell]] = [["put", (f"{put:,}", "bold"), ""]]
    for number, (name, count) in enumerate(parts.items()):
        sign = "+ " if number else "= "
        amount = [f"{sign}{'':{width - len(f'{count:,}') - 2}}", counted(count)]
        place = "gone" if name in GONE else "in the queue"
        rows.append([(name, STYLES.get(name, "bright_black")), amount, (place, "dim")])
    rows += [["", "─" * width, ""], ["", (f"{sum(parts.values()):,}", "bold"), ""]]
    out.text((audited.queue, "bold"))
    out.console.print(grid(rows, "rrl"))


def _print_table(out: Output, found: list[Audit]) -> None:
    rows: list[list[Cell]] = []
    used = dict.fromkeys((*GONE, *SIZES), False)
    for audited in found:
        parts = parts_of(audited)
        used = {name: used[name] or count > 0 for name, count in parts.items()}
        cells = [counted(count, STYLES.get(name, "")) for name, count in parts.items()]
        mark = ("✓", "green") if audited else ("✗", "bold red")
        rows.append([(audited.queue, "bold"), counted(audited.counts.flow.put), *cells, mark])
    columns = [Column(name, falls=2 if wanted else 1, right=True) for name, wanted in used.items()]
    print_table(
        out, [Column("queue", least=ID), Column("put", right=True), *columns, Column("")], rows
    )


def _print_verdict(out: Output, store: Store, found: list[Audit]) -> None:
    if not found:
        out.text((f"no queues in {store.shown}", "dim"))
        return
    put = sum(audited.counts.flow.put for audited in found)
    problems = [f"{audited.queue}: {text}" for audited in found for text in audited.problems]
    for problem in problems:
        out.text(("✗ ", "bold red"), problem)
    if problems:
        out.text(("✗ it does not balance", "bold red"), ": please report it, with this output")
    else:
        out.text(("✓ it balances: ", "bold green"), f"all {put:,} that were put are accounted for")
