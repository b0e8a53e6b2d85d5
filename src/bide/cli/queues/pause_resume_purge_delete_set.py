"""`bide pause`, `resume`, `purge`, `delete` and `set`."""

from typing import Any

from bide.cli import option
from bide.cli.bulk import purge_state
from bide.cli.errors import usage_error
from bide.cli.output import DONE, Output, warn
from bide.cli.store import Store, on_any_store, on_store
from bide.cli.times import rounded
from bide.model.message import State
from bide.model.times import limits_of


@on_any_store(option.queue)
def pause(store: Store, out: Output, queue: str) -> None:
    """Stop claims from a queue, until it is resumed.

    That holds for every process. Puts continue. A queue that does not exist yet can be paused. A
    line on stderr says so: it may be a typo.

    \b
    Example:
      bide pause orders
    """
    known = store.has(queue)
    store.queue(queue).pause()
    if not known:
        warn(f"{queue} is new: there was no such queue in {store.shown}")
    out.report({"queue": queue, "paused": True}, ("⏸ ", "yellow"), f"{queue} is paused")


@on_store(option.queue)
def resume(store: Store, out: Output, queue: str) -> None:
    """Let messages be claimed again.

    The exit code is 1 if the queue does not exist.

    \b
    Example:
      bide resume orders
    """
    store.existing(queue).resume()
    out.report({"queue": queue, "paused": False}, ("▶ ", "green"), f"{queue} is resumed")


@on_store(option.queue)
@option.choice(
    "--state",
    ["delayed", "ready", "dead", "acked", "expired"],
    "The state. For acked and expired: forget these messages and their ids.",
    required=True,
)
@option.moment("--before", "Only what entered the state (delayed, ready: is due) before then.")
@option.flag("--dry-run", help="Only count, and show the first.")
@option.undo
@option.flag("-y", "--yes", help="Do not ask.")
def purge(
    store: Store,
    out: Output,
    queue: str,
    state: State,
    before: float | None,
    dry_run: bool,
    undoable: bool,
    yes: bool,
) -> None:
    """Delete all messages of a state permanently. Messages that a worker holds stay.

    Asks first on a terminal; elsewhere it needs --yes, unless it can be taken back (--undo). Prints
    how many were deleted ("purged" in a pipe and in JSON).

    Acked and expired messages have left the queue, which remembers their ids for a time. After a
    purge these ids can be put again.

    \b
    Example:
      bide purge orders --state dead --before 2026-11-01T00:00Z
      bide purge orders --state delayed --yes
      bide purge orders --state dead --undo
    """
    purge_state(store, out, queue, state, before, dry_run=dry_run, undoable=undoable, yes=yes)


@on_store(option.queue)
def delete(store: Store, out: Output, queue: str) -> None:
    """Delete an empty queue, with its settings and counters.

    The exit code is 1 if there is no such queue, or if it holds messages: purge these first. A
    later put makes the queue again.

    \b
    Example:
      bide delete odrers
    """
    store.existing(queue).delete()
    out.report({"queue": queue, "deleted": True}, DONE, f"{queue} deleted")


@on_any_store(option.queue, name="set")
@option.time("--keep", "How long acked messages are remembered, so that their ids are refused.")
@option.time("--history", "How long the queue remembers how messages ended. Their ids are free.")
@option.time("--result-ttl", "How long it remembers the results of messages.")
@option.count("--limit", help="How many messages may be leased at a time.", least=0)
@option.text("--rate", "RATE", "How many may be delivered: 5/s, 100/m, 1000/h, 20/d.")
@option.count("--group-limit", help="--limit for each group.", least=0)
@option.text("--group-rate", "RATE", "--rate for each group.")
def set_(store: Store, out: Output, queue: str, **given: Any) -> None:
    """Set what a queue remembers, and its limits; 0 switches one off.

    What is not given stays as it is. In a pipe, each line is: setting, milliseconds; for a limit
    the number of messages, for a rate its text.

    \b
    Example:
      bide set orders --history 7d
      bide set reports --result-ttl 1h
      bide set calls --rate 100/m --group-limit 1
    """
    if all(value is None for value in given.values()):
        raise usage_error("set needs what to set, such as --keep, --history or --limit")
    known = store.has(queue)
    configuration = store.queue(queue).configure(**given)
    if not known:
        warn(f"{queue} is new: there was no such queue in {store.shown}")
    facts = {
        "keep": configuration.keep,
        "history": configuration.history,
        "result_ttl": configuration.result_ttl,
    }
    settings = ", ".join(f"{name} {rounded(ms) if ms else 'off'}" for name, ms in facts.items())
    limits = {name: value or 0 for name, value in limits_of(configuration).items()}
    settings += "".join(f", {name} {value}" for name, value in limits.items() if value)
    out.report(facts | limits, DONE, f"{queue}: {settings}")
