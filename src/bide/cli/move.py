"""`bide move`: queues from one store to another, while they are in use."""

import time
from contextlib import ExitStack
from typing import Any

import click
import msgspec

from bide.cli.exits import NOT_DONE
from bide.cli.options import output_options
from bide.cli.output import Output
from bide.cli.progress import Bar
from bide.cli.signals import leaving
from bide.cli.store import Store
from bide.engines.registry import opener
from bide.model.errors import InvalidArgument
from bide.queue.move import Moved, Mover
from bide.queue.move.ledger import ledger_name
from bide.telemetry.presence import is_register

__all__ = ["move"]

WOULD = {"moved": "would-move", "dead": "would-move-dead"}

SOON, LATER = 0.1, 1.0
"""How many seconds `--follow` waits before it counts again what is in the source: at first, and at
most. What falls due meanwhile is still delivered by the source."""


def _a_store(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse what is no URL of a store, by the argument's own name."""
    try:
        opener(value)
    except InvalidArgument as error:
        raise click.BadParameter(str(error).removeprefix("url=")) from None
    return value


@click.command()
@click.argument("source", callback=_a_store)
@click.argument("target", callback=_a_store)
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--follow", is_flag=True, help="Go on moving what comes, until Ctrl-C.")
@click.option("--dry-run", is_flag=True, help="Only say what would be moved.")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=500, metavar="N",
    help="How many messages are in transit at a time; 500 by default.",
)  # fmt: skip
@output_options
def move(
    source: str, target: str, queues: tuple[str, ...], follow: bool, dry_run: bool, batch: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Move queues to another store, live: from the URL SOURCE to the URL TARGET.

    All queues, or those that are named. Everything comes over: due moments, bodies, priorities,
    attempts, failures, groups, headers, dead letters. What a worker holds stays until it is given
    back, and so does what the target has an id of. Interrupted or killed at any point, the same
    command goes on.

    Exit code 1 when something is left in the source.

    \b
    Example:
      bide move sqlite:///bide.db sqlite:///new.db --dry-run
      bide move sqlite:///bide.db sqlite:///new.db orders --follow
    """  # fmt: skip
    out = Output(as_json)
    if follow and dry_run:
        raise click.UsageError("--follow moves and --dry-run does not", click.get_current_context())
    with Store(source) as there, Store(target, makes=True) as here:
        there.must_stand("SOURCE is the URL of a store that is there: sqlite:///bide.db")
        _must_be_shared(there, here)
        for name in queues:
            there.existing(name)
        if dry_run:
            results = [_plan(out, there, here, name, batch) for name in _names(there, queues)]
        elif follow:
            results = _follow(there, here, queues, batch)
        else:
            results = [_move(there, here, name, batch) for name in _names(there, queues)]
        for moved in results:
            _report(out, moved, dry_run)
        if not results and out.terminal:
            out.text((f"no queues in {there.shown}", "dim"))
    if not all(results):
        click.get_current_context().exit(NOT_DONE)


def _names(store: Store, queues: tuple[str, ...]) -> list[str]:
    names = store.names(own=True)
    passing = {name for name in names if is_register(name) or name == ledger_name(name)}
    return list(queues) or [name for name in names if name not in passing]


def _must_be_shared(*stores: Store) -> None:
    for store in stores:
        if store.missing is None and not store.capabilities.shared:
            raise click.UsageError(
                f"{store.shown} lives and dies with this command; move it in the process that has "
                "it, with bide:move",
                click.get_current_context(),
            )


def _plan(out: Output, there: Store, here: Store, name: str, batch: int) -> Moved:
    orders = there.queue(name)
    if here.missing is not None:  # looking must not make a store
        sizes = orders.counts().sizes
        found = Moved(name, sizes.delayed + sizes.ready, sizes.dead)
        found.held = found.left = sizes.leased
        return found
    with Bar(f"looking at {name}", orders.counts().sizes.total) as bar:
        return Mover(orders, here.queue(name), batch=batch, progress=bar.advance).plan()


def _move(there: Store, here: Store, name: str, batch: int) -> Moved:
    orders = there.queue(name)
    with Bar(f"moving {name}", orders.counts().sizes.total) as bar, leaving(KeyboardInterrupt):
        return Mover(orders, here.queue(name), batch=batch, progress=bar.advance).run()


def _follow(there: Store, here: Store, queues: tuple[str, ...], batch: int) -> list[Moved]:
    """Move until somebody interrupts it, which is how it ends well."""
    movers: dict[str, Mover] = {}
    pause = SOON
    with ExitStack() as stack:
        bar = stack.enter_context(Bar("moving what comes"))
        stack.enter_context(leaving(KeyboardInterrupt))
        try:
            while True:
                busy = False
                for name in _names(there, queues):
                    if name not in movers:
                        movers[name] = Mover(
                            there.queue(name), here.queue(name), batch=batch, progress=bar.advance
                        )
                    if movers[name].has_work():
                        before = movers[name].moved.moved + movers[name].moved.dead
                        after = movers[name].run()
                        busy = busy or after.moved + after.dead > before
                pause = SOON if busy else min(LATER, pause * 2)
                time.sleep(pause)
        except KeyboardInterrupt:
            return [mover.moved for mover in movers.values()]


def _report(out: Output, moved: Moved, dry_run: bool) -> None:
    facts: dict[str, Any] = msgspec.structs.asdict(moved)
    ids = facts.pop("known_ids")
    if out.as_json:
        facts |= {"known_ids": ids, "dry_run": dry_run}
    will = "would be moved" if dry_run else "moved"
    dead = f" and {_many(moved.dead, 'dead letter')}" if moved.dead else ""
    went = moved.moved + moved.dead
    mark = ("✓ ", "green") if went else ("= ", "dim")
    out.report(facts, mark, f"{moved.queue}: {_many(moved.moved, 'message')}{dead} {will}",
               would=WOULD if dry_run else None)  # fmt: skip
    if not out.terminal:
        return
    if moved.finished:
        out.text(f"  {moved.finished:,} of them were left in transit by an earlier run")
    if moved.held:
        out.text(("! ", "yellow"), f"{moved.held:,} are held by workers and stay; run it again, or "
                 "use --follow")  # fmt: skip
    if moved.known:
        more = ", ..." if moved.known > 3 else ""
        shown = ", ".join(ids[:3]) + more
        out.text(("! ", "yellow"), f"{moved.known:,} stay, the target has their ids: {shown}")
    rest = moved.left - moved.held - moved.known
    if rest > 0:
        out.text(("! ", "yellow"), f"{rest:,} have come since; run it again, or use --follow")
    if moved.remembered:
        out.text(f"  {moved.remembered:,} that are done are remembered by the source only")


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
