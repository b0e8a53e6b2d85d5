"""`bide counts`: count the messages in each state."""

import msgspec

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import STYLES, Output, counted, grid
from bide.cli.queue_output import facts_of, paused_text
from bide.cli.store import CommandStore
from bide.cli.times import when
from bide.model.times import limits_text


@on_store(option.queue)
def counts(store: CommandStore, out: Output, queue: str) -> None:
    """Count the messages in each state.

    \b
    In a pipe, each line is a name and a value; JSON has the same names:
      delayed, ready, leased, dead       messages that are in this state
      put, acked, cancelled, expired,
      purged                             messages since the queue began
      moved                              messages that are in another store now
      died, revived                      dead letters since then
      retried                            failed attempts, followed by another
      lapsed                             leases that lapsed, likewise
      kept                               ids of acked and expired messages
      keep                               milliseconds for which these are refused
      paused                             whether claims get nothing
      oldest                             when the oldest due message was due
      limit, rate, group_limit,
      group_rate                         the limits of the queue, if it has any
      overdue                            its plan for what is overdue

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
    numbers = msgspec.structs.asdict(counts.sizes) | {"kept": counts.kept}
    numbers |= msgspec.structs.asdict(counts.flow)
    rows = [
        [(name, "dim"), counted(number, STYLES.get(name, ""))] for name, number in numbers.items()
    ]
    paused = f"  {paused_text(counts)}: claims get nothing" if counts.paused else ""
    out.text((queue, "bold"), (paused, "yellow"))
    out.console.print(grid(rows, "lr"))
    if limits := limits_text(counts):
        out.text(("limits: ", "dim"), limits)
    if counts.overdue:
        out.text(("what is overdue after a gap without workers: ", "dim"), counts.overdue)
    if counts.oldest is not None:
        out.text(("the oldest waiting message was due ", "dim"), when(counts.oldest))
