"""`bide move`: queues from one store to another, while they are in use."""

import time
from collections.abc import Sequence
from contextlib import suppress

import click

from bide.cli import option
from bide.cli.errors import NOT_DONE, raise_on_termination, stop_requests, usage_error
from bide.cli.output import DONE, NOTHING, WARNING, Bar, Output, plural
from bide.cli.store import CommandStore, refuse_memory
from bide.engines.registry import opener
from bide.model.internal_queues import InternalQueue
from bide.model.limits import MAX_BODY, MAX_PAGE
from bide.moving import Moved, Mover
from bide.moving.mover import BATCH

FOLLOW_EVERY = 0.5
"""Seconds that `--follow` waits before it counts the source again. What falls due meanwhile is
still delivered by the source."""

MOST_SHOWN_IDS = 3
"""How many ids of messages that stay are printed for people; JSON has more."""


@click.command()
@click.argument("source")
@click.argument("target")
@click.argument(
    "queues", nargs=-1, metavar="[QUEUE]...", type=option.no_url("move takes two, then queues")
)
@option.flag("--follow", help="Keep moving new messages until Ctrl-C.")
@option.flag("--dry-run", help="Only print what would be moved.")
@option.count("--batch", most=MAX_PAGE, default=BATCH, help="How many messages move at a time.")
@option.output
def move(
    source: str,
    target: str,
    queues: tuple[str, ...],
    follow: bool,
    dry_run: bool,
    batch: int,
    as_json: bool,
) -> None:
    """Move queues to another store, live.

    From the URL SOURCE to the URL TARGET: all queues, or those that you name, with everything: due
    times, bodies, priorities, attempts, failures, groups, headers, dead letters, and the limits of
    the queue, unless the target has its own. If it is interrupted or killed, run the same command
    again: it continues where it stopped.

    \b
    In a pipe and in JSON, for each queue:
      moved       delayed and ready messages that are now in the target
      dead        dead letters that are now in the target
      finished    moved messages that an interrupted run had left in transit
      held        messages that stay because a worker holds them; run it again
      known       messages that stay because the target has the same id
      unreadable  messages that stay because their records cannot be read
      remembered  acked and expired messages, which only the source remembers
      left        all messages that are still in the source
    In a dry run, the first two are would-move and would-move-dead in a pipe.

    The exit code is 1 if messages are left in the source.

    \b
    Example:
      bide move sqlite:///bide.db sqlite:///new.db --dry-run
      bide move sqlite:///bide.db sqlite:///new.db orders --follow
    """
    out = Output(as_json)
    if follow and dry_run:
        raise usage_error("--follow moves messages, --dry-run does not; use one of them")
    for url in (source, target):
        opener(url)  # says what is wrong with a URL
        refuse_memory(url, "call bide.move in the process that has the store")
    with CommandStore(source) as old, CommandStore(target, makes=True) as new:
        old.must_exist("SOURCE must be the URL of a store that exists: sqlite:///bide.db")
        for name in queues:
            old.existing(name)  # raises if there is no such queue
        if follow:
            results = _follow(old, new, queues, batch)
        else:
            names = _names(old, queues)
            results = [_move(old, new, name, batch, dry_run=dry_run) for name in names]
        for moved in results:
            _report(out, moved, dry_run=dry_run)
        if not results and out.terminal:
            out.text((f"no queues in {old.shown}", "dim"))
    if any(moved.left for moved in results):
        click.get_current_context().exit(NOT_DONE)


_QUEUES_THAT_STAY = (
    InternalQueue.WORKERS,
    InternalQueue.STOPS,
    InternalQueue.UNDO,
    InternalQueue.MOVE,
    InternalQueue.RECOVERY,
    InternalQueue.PAST,
    InternalQueue.PUSHERS,
    InternalQueue.KEYS,
)
"""They say what processes of their store do, hold and can undo, and what happened there."""


def _names(store: CommandStore, queues: tuple[str, ...]) -> list[str]:
    """Return the queues to move: those that were named, else all of the store."""
    if queues:
        return list(queues)
    names = store.names(own=True)
    return [name for name in names if not any(queue.matches(name) for queue in _QUEUES_THAT_STAY)]


def _move(old: CommandStore, new: CommandStore, name: str, batch: int, *, dry_run: bool) -> Moved:
    """Move a queue, or count what would be moved."""
    source = old.queue(name)
    target = new.trial(name, MAX_BODY, dry_run=dry_run)
    activity = "looking at" if dry_run else "moving"
    with Bar(f"{activity} {name}", source.counts().sizes.total) as bar, raise_on_termination():
        mover = Mover(source, target, batch=batch, progress=bar.advance)
        return mover.plan() if dry_run else mover.run()


def _follow(
    old: CommandStore, new: CommandStore, queues: tuple[str, ...], batch: int
) -> list[Moved]:
    """Move until Ctrl-C or SIGTERM: a normal end, after the batch that moves."""
    movers: dict[str, Mover] = {}
    with Bar("moving new messages") as bar, suppress(KeyboardInterrupt), stop_requests() as stop:

        def progress(count: int) -> None:
            bar.advance(count)
            if stop:
                raise KeyboardInterrupt

        while not stop:
            for name in _names(old, queues):  # again: new queues may have come
                if name not in movers:
                    source, target = old.queue(name), new.queue(name)
                    movers[name] = Mover(source, target, batch=batch, progress=progress)
                if movers[name].has_work():
                    movers[name].run()
            time.sleep(FOLLOW_EVERY)
    return [mover.counted() for mover in movers.values()]


def _report(out: Output, moved: Moved, *, dry_run: bool) -> None:
    """Print what was moved of a queue, and for people what stays and why."""
    verb = "would be moved" if dry_run else "moved"
    dead = f" and {plural(moved.dead, 'dead letter')}" if moved.dead else ""
    mark = DONE if moved.moved + moved.dead else NOTHING
    sentence = f"{moved.queue}: {plural(moved.moved, 'message')}{dead} {verb}"
    out.report_run(moved, ["known_ids", "unreadable_ids"], mark, sentence, dry_run=dry_run)
    again = "run it again, or use --follow"
    known, unreadable = _first_of(moved.known_ids), _first_of(moved.unreadable_ids)
    # The other messages that are left were not there when it began.
    put_since = moved.left - moved.held - moved.known - moved.unreadable
    for count, mark, text in (
        (moved.finished, "  ", "of these left in transit by an earlier run"),
        (moved.held, WARNING, f"not moved, held by a worker; {again}"),
        (moved.known, WARNING, f"not moved, the target has the same id: {known}"),
        (moved.unreadable, WARNING, f"not moved, the records cannot be read: {unreadable}"),
        (put_since, WARNING, f"put since; {again}"),
        (moved.remembered, "  ", "acked or expired earlier: only the source remembers their ids"),
    ):
        if out.terminal and count > 0:
            out.text(mark, f"{plural(count, 'message')} {text}")


def _first_of(ids: Sequence[str]) -> str:
    """Return the first of some ids as a text."""
    ellipsis = ", ..." if len(ids) > MOST_SHOWN_IDS else ""
    return ", ".join(ids[:MOST_SHOWN_IDS]) + ellipsis
