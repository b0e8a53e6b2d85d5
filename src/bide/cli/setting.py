"""`bide set`: settings of a queue."""

import click

from bide.cli import option
from bide.cli.errors import usage_error
from bide.cli.output import DONE, Output, warn
from bide.cli.store import Store, on_any_store
from bide.cli.times import rounded


@click.command("set")
@option.queue
@option.time("--keep", "How long acked messages are remembered, so that their ids are refused.")
@option.time("--history", "How long the queue remembers how messages ended. Their ids are free.")
@option.time("--result-ttl", "How long it remembers the results of messages.")
@on_any_store
def set_(
    store: Store, out: Output, queue: str, keep: float | None, history: float | None,
    result_ttl: float | None,
) -> None:  # fmt: skip
    """Set what a queue remembers; 0 switches it off.

    What is not given stays as it is. In a pipe, each line is: setting, milliseconds.

    \b
    Example:
      bide set orders --history 7d
      bide set reports --result-ttl 1h
    """  # fmt: skip
    if keep is None and history is None and result_ttl is None:
        raise usage_error("set needs what to set: --keep, --history or --result-ttl")
    known = store.has(queue)
    found = store.queue(queue).configure(keep=keep, history=history, result_ttl=result_ttl)
    if not known:
        warn(f"{queue} is new: there was no such queue in {store.shown}")
    facts = {"keep": found.keep, "history": found.history, "result_ttl": found.result_ttl}
    told = ", ".join(f"{name} {rounded(ms) if ms else 'off'}" for name, ms in facts.items())
    out.report(facts, DONE, f"{queue}: {told}")
