"""`bide audit`: everything that was put is accounted for."""

import click

from bide.cli.count import SIZES
from bide.cli.options import complete_queue, on_store
from bide.cli.output import STYLES, Output
from bide.cli.progress import Bar
from bide.cli.store import Store
from bide.cli.tables import ID, Column, print_table
from bide.queue.answers import Audit

__all__ = ["audit"]

GONE = ("acked", "cancelled", "expired", "purged")


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queue)
@click.option("--all", "own", is_flag=True, help="Those that bide keeps for itself as well.")
@on_store
def audit(store: Store, out: Output, queues: tuple[str, ...], own: bool) -> bool:
    """Check that every message is accounted for, on a live store: of one queue, or of all.

    What was put = acked + cancelled + expired + purged + delayed + ready + leased + dead, by the
    counters; and the messages that are there are counted one by one as well. Exit code 1 when it
    does not add up. In a pipe a line is: name, value; with the verdict last.

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
    for balance in found if not out.terminal else ():
        _print(out, balance)
    if out.terminal:
        if len(found) == 1:
            _sheet(out, found[0])
        elif found:
            _table(out, found)
        _verdict(out, store, found)
    return all(found)


def parts_of(audited: Audit) -> dict[str, int]:
    """Return where the messages are, by name."""
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


def _sheet(out: Output, audited: Audit) -> None:
    from rich.table import Table
    from rich.text import Text

    sheet = Table.grid(padding=(0, 2))
    sheet.add_column(justify="right")
    sheet.add_column(justify="right")
    sheet.add_column(style="dim")
    parts = parts_of(audited)
    put = audited.counts.flow.put
    width = len(f"{max(put, sum(parts.values())):,}") + 2
    sheet.add_row("put", Text(f"{put:,}", "bold"), "")
    for number, (name, count) in enumerate(parts.items()):
        label = Text(name, STYLES.get(name, "bright_black"))
        amount = Text(f"{count:,}", "" if count else "dim")
        place = "gone" if name in GONE else "in the queue"
        sheet.add_row(
            label,
            Text.assemble("+ " if number else "= ", f"{'':{width - len(amount) - 2}}", amount),
            place,
        )
    sheet.add_row("", "─" * width, "")
    sheet.add_row("", Text(f"{sum(parts.values()):,}", "bold"), "")
    out.text((audited.queue, "bold"))
    out.console.print(sheet)


def _table(out: Output, found: list[Audit]) -> None:
    from rich.text import Text

    names = ("put", *GONE, *SIZES)
    rows = []
    used = dict.fromkeys(names, False)
    for audited in found:
        counts = {"put": audited.counts.flow.put, **parts_of(audited)}
        used = {name: used[name] or n > 0 for name, n in counts.items()}
        cells = [Text(f"{n:,}", STYLES.get(name, "") if n else "dim") for name, n in counts.items()]
        mark = Text("✓", "green") if audited else Text("✗", "bold red")
        rows.append([Text(audited.queue, "bold"), *cells, mark])
    columns = [Column(name, falls=2 if used[name] else 1, right=True) for name in names[1:]]
    put = Column("put", right=True)
    print_table(out, [Column("queue", least=ID), put, *columns, Column("")], rows)


def _verdict(out: Output, store: Store, found: list[Audit]) -> None:
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
