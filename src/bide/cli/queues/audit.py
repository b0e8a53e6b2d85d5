"""`bide audit`: check that every message is accounted for."""

from bide.cli import option, output
from bide.cli.command import on_store
from bide.cli.output import Bar, Output, plural
from bide.cli.store import CommandStore
from bide.model.replies import GONE, SIZES
from bide.queue.results import Audit


@on_store(option.queues)
@option.internal
def audit(store: CommandStore, out: Output, queues: tuple[str, ...], own: bool) -> bool:
    """Check that every message is accounted for.

    Audits the named queues or all, on a live store. The counters must add up: put = acked +
    cancelled + expired + purged + moved + delayed + ready + leased + dead. The audit also counts
    the messages one by one. If the sums differ, the exit code is 1. In a pipe, each line is: name,
    value; the verdict comes last.

    \b
    Example:
      bide audit orders
      bide audit --json
    """
    if queues:
        audited_queues = [store.existing(name) for name in queues]
    else:
        audited_queues = [store.queue(name) for name in store.names(own=own)]
    with Bar("auditing queues", len(audited_queues)) as bar:
        audits = [queue.audit() for queue in bar.over(audited_queues)]
    for audit in audits:
        _print_audit(out, audit)
    if out.terminal and not audits:
        out.text((f"no queues in {store.shown}", "dim"))
    return all(audits)


def _print_audit(out: Output, audit: Audit) -> None:
    """Print how many messages were put, are gone, and are in each state, and the verdict."""
    flow, sizes = audit.counts.flow, audit.counts.sizes
    summands = {name: getattr(flow, name) for name in GONE}
    summands |= {name: getattr(sizes, name) for name in SIZES}
    facts = {"queue": audit.queue, "put": flow.put, **summands}
    problems = "; ".join(audit.problems)
    balances = bool(audit)
    if out.as_json:
        facts |= {"balanced": balances, "problems": audit.problems}
    else:
        facts["balanced"] = f"no: {problems}" if problems else "yes"
    if balances:
        total = " + ".join(f"{count:,} {name}" for name, count in summands.items() if count)
        mark, verdict = output.DONE, f"balances: {plural(flow.put, 'message')} put = {total or 0}"
    else:
        mark, verdict = output.NOT_DONE, f"does not balance: {problems}; please report it"
    out.report(facts, mark, f"{audit.queue} {verdict}")
