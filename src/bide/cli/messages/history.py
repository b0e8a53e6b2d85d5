"""`bide history`: show how messages with an id have ended, the newest first."""

import msgspec

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import STYLES, Output, warn
from bide.cli.store import CommandStore
from bide.cli.times import iso, local, span


@on_store(option.queue, option.id)
def history(store: CommandStore, out: Output, queue: str, id: str) -> bool:
    """Show how messages with an id have ended, the newest first.

    The queue remembers it for as long as `bide set --history` says. In a pipe, each line is: how,
    when, by whom, attempts. The exit code is 1 if nothing is remembered.

    \b
    Example:
      bide history orders order-42
      bide history orders order-42 --json | jq .attempts
    """
    orders = store.existing(queue)
    ends = orders.history(id)
    for end in ends:
        if out.terminal:
            by = f" by {end.by}" if end.by else ""
            noun = "time" if end.attempt == 1 else "times"
            deliveries = f", delivered {end.attempt} {noun}"
            out.text((end.how, STYLES[end.how]), f" {local(end.moment)}{by}{deliveries}")
            for attempt in end.attempts:
                duration = span(attempt.start, attempt.end)
                heading = f"  attempt {attempt.number}, {duration}, {attempt.holder}: "
                first_line, *_ = (attempt.error or attempt.outcome).splitlines()
                out.text((heading, "dim"), first_line)
        else:
            facts = {
                "id": id,
                "queue": queue,
                "how": end.how,
                "moment": end.moment,
                "by": end.by,
                "due": end.due,
                "attempt": end.attempt,
                "attempts": end.attempts,
            }
            if end.result:
                facts["result"] = msgspec.Raw(end.result)
            out.line(facts, end.how, iso(end.moment), end.by or "", end.attempt)
    if not ends:
        hint = "" if orders.counts().history else f"; 'bide set {queue} --history 7d' remembers"
        warn(f"nothing is remembered of {id} in {queue}: {orders.explain(id).sentence}{hint}")
    return bool(ends)
