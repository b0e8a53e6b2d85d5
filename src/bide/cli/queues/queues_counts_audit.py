"""`bide queues`, `bide counts` and `bide audit`."""

from typing import Any

import click
import msgspec

from bide.cli import option, output
from bide.cli.output import NAME, STYLES, Bar, Cell, Column, Output, counted, grid, plural
from bide.cli.store import Store, on_store
from bide.cli.times import now_ms, rounded, when
from bide.model.commands import Count
from bide.model.replies import GONE, SIZES, Counts
from bide.model.times import limits_of, limits_text
from bide.queue.results import Audit

COLUMNS = (
    Column("queue", least=NAME),
    *[Column(name, right=True, extra=True) for name in (*SIZES, "late by")],
    Column(""),
)

all_option = option.flag("--all", "own", help="Include the internal queues of bide.")


def facts_of(counts: Counts) -> dict[str, Any]:
    """Return counts as names and values."""
    facts = msgspec.structs.asdict(counts.sizes) | msgspec.structs.asdict(counts.flow)
    facts |= {"kept": counts.kept, "paused": counts.paused, "keep": counts.keep}
    if counts.oldest is not None:
        facts["oldest"] = counts.oldest
    return facts | {name: value for name, value in limits_of(counts).items() if value}


def size_cells(counts: Counts) -> list[Cell]:
    """Return the numbers of messages in each state, as cells."""
    return [counted(getattr(counts.sizes, size), STYLES[size]) for size in SIZES]


@on_store(option.prefix, all_option)
def queues(store: Store, out: Output, prefix: str, own: bool) -> None:
    """List the queues of the store.

    With PREFIX, only those whose names begin with it. In a pipe, each line is: name, delayed,
    ready, leased, dead, and "paused" if it is.

    \b
    Example:
      bide queues
      bide queues shop- --json
    """
    rows = [(name, store.ask(Counts, Count(name))) for name in store.names(prefix, own=own)]
    if prefix and not rows:
        raise store.no_queue(prefix, "no queue begins with")
    out.items(
        rows,
        COLUMNS,
        facts=lambda row: {"queue": row[0], **facts_of(row[1])},
        line=lambda row: [
            row[0],
            *[getattr(row[1].sizes, size) for size in SIZES],
            *["paused"] * row[1].paused,
        ],
        cells=lambda row: _cells(*row),
        empty=f"no queues in {store.shown}",
    )


def _cells(name: str, counts: Counts) -> list[Cell]:
    late = "" if counts.oldest is None else rounded(max(0, now_ms() - counts.oldest))
    return [(name, "bold"), *size_cells(counts), late, ("paused" * counts.paused, "yellow")]


@on_store(option.queue)
def counts(store: Store, out: Output, queue: str) -> None:
    """Count the messages in each state.

    \b
    In a pipe, each line is a name and a value; JSON has the same names:
      delayed, ready, leased, dead       messages that are in this state
      put, acked, cancelled, expired,
      purged                             messages since the queue began
      died, revived                      dead letters since then
      retried                            failed attempts, followed by another
      lapsed                             leases that ended without an ack
      kept ("remembered" on a terminal)  ids of acked and expired messages
      keep                               milliseconds for which these are refused
      paused                             whether claims get nothing
      oldest                             when the oldest due message was due
      limit, rate, group_limit,
      group_rate                         the limits of the queue, if it has any

    \b
    Example:
      bide counts orders
      bide counts orders --json | jq .ready
    """
    counts = store.existing(queue).counts()
    if not out.terminal:
        facts = facts_of(counts)
        out.report({"queue": queue, **facts} if out.as_json else facts)
        return
    numbers = msgspec.structs.asdict(counts.sizes) | {"remembered": counts.kept}
    numbers |= msgspec.structs.asdict(counts.flow)
    rows = [[(name, "dim"), counted(n, STYLES.get(name, ""))] for name, n in numbers.items()]
    out.text((queue, "bold"), ("  paused: claims get nothing", "yellow") if counts.paused else "")
    out.console.print(grid(rows, "lr"))
    if limits := limits_text(counts):
        out.text(("limits: ", "dim"), limits)
    if counts.oldest is not None:
        out.text(("the oldest waiting message was due ", "dim"), when(counts.oldest))


@on_store()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...", shell_complete=option.complete_queue)
@all_option
def audit(store: Store, out: Output, queues: tuple[str, ...], own: bool) -> bool:
    """Check that every message is accounted for.

    Audits the named queues or all, on a live store. The counters must add up: put = acked +
    cancelled + expired + purged + delayed + ready + leased + dead. The audit also counts the
    messages one by one. If the sums differ, the exit code is 1. In a pipe, each line is: name,
    value; the verdict comes last.

    \b
    Example:
      bide audit orders
      bide audit --json
    """
    audited = [store.existing(name) for name in queues]
    audited = audited or [store.queue(name) for name in store.names(own=own)]
    with Bar("auditing queues", len(audited)) as bar:
        audits = [queue.audit() for queue in bar.over(audited)]
    for audit in audits:
        _print_audit(out, audit)
    if out.terminal and not audits:
        out.text((f"no queues in {store.shown}", "dim"))
    return all(audits)


def _print_audit(out: Output, audited: Audit) -> None:
    """Print how many messages were put, are gone, and are in each state, and the verdict."""
    flow, sizes = audited.counts.flow, audited.counts.sizes
    parts = {name: getattr(flow, name) for name in GONE}
    parts |= {name: getattr(sizes, name) for name in SIZES}
    facts = {"queue": audited.queue, "put": flow.put, **parts}
    problems = "; ".join(audited.problems)
    if out.as_json:
        facts |= {"balanced": bool(audited), "problems": audited.problems}
    else:
        facts["balanced"] = f"no: {problems}" if problems else "yes"
    mark, verdict = output.NOT_DONE, f"does not balance: {problems}; please report it"
    if audited:
        total = " + ".join(f"{count:,} {name}" for name, count in parts.items() if count)
        mark, verdict = output.DONE, f"balances: {plural(flow.put, 'message')} put = {total or 0}"
    out.report(facts, mark, f"{audited.queue} {verdict}")
