"""`bide claim`: take due messages by hand, or run a command for each."""

import sys

import click

from bide.cli.errors import usage_error, warn
from bide.cli.messages import as_json, body_bytes, body_line, standing
from bide.cli.options import (
    count_option,
    flag,
    on_any_store,
    queue_argument,
    text_option,
    time_option,
)
from bide.cli.output import Output
from bide.cli.store import Store
from bide.cli.tables import ID, TEXT, Column
from bide.cli.times import local, relative, rounded
from bide.model.limits import MAX_COUNT
from bide.queue.delivery import Delivery
from bide.queue.sync import Queue

__all__ = ["claim"]

COLUMNS = (
    Column("id", least=ID), Column("token", right=True), Column("attempt", falls=2, right=True),
    Column("late by", falls=1, right=True), Column("body", least=TEXT),
)  # fmt: skip


@click.command()
@queue_argument
@count_option("-n", "--count", most=MAX_COUNT, help="How many at most; 1 by default.")
@time_option("--wait", "How long to wait for one to fall due; by default not at all.")
@time_option("--lease", "After so long without an ack it goes to another worker.", "30s")
@flag("--ack", help="Ack once they are printed, and the output flushed.")
@flag("--body", "only_body", help="With --ack: print bodies alone, text and bytes as they are.")
@text_option("--exec", "CMD", "Run a shell command for each message.", dest="command")
@time_option("--retry", "With --exec: try again so long after a failure; 10s by default.")
@flag("--loop", help="With --exec: go on until interrupted.")
@on_any_store
def claim(
    store: Store, out: Output, queue: str, count: int | None, wait: float | None, lease: float,
    ack: bool, only_body: bool, command: str | None, retry: float | None, loop: bool,
) -> bool:  # fmt: skip
    """Take due messages, or run a command for each.

    Each message is leased: until the lease ends, nobody else gets it. In a pipe a line is: id,
    token, body. Settle each with `bide ack QUEUE ID TOKEN` (or retry, bury, extend) before its
    lease ends. Exit code 1 when nothing was due in time.

    --exec runs CMD once a message, one after the other, with the body on stdin and BIDE_QUEUE,
    BIDE_ID, BIDE_ATTEMPT, BIDE_LEASE_TOKEN, BIDE_DUE and BIDE_URL in its environment. The lease is
    extended while it runs. Exit code 0 of CMD acks; any other has the message tried again, with the
    exit code as the reason, and makes the exit code of `bide claim` 1. An interrupt stops CMD and
    hands its message back.

    \b
    Example:
      bide claim orders --wait 1h --ack
      bide claim orders -n 100 --json
      bide claim orders --exec './time-out.sh "$BIDE_ID"' --loop --retry 1m
    """  # fmt: skip
    _refuse_odd(count, ack, only_body, command, retry, loop)
    if wait is None and not loop:  # one that waits may be called before the first put
        store.must_stand()
    orders = store.queue(queue)
    if command is not None:
        from bide.cli.execute import Runner

        runner = Runner(orders, store.url, command, lease, 10 if retry is None else retry, out)
        return runner.run(None if loop else count or 1, wait)
    deliveries = orders.claim(count or 1, wait=wait, lease=lease)
    if not deliveries:
        if out.terminal:
            within = f" within {rounded(wait * 1000)}" if wait else ""
            warn(f"nothing of {queue} is due{within}")
        return False
    _print(out, deliveries, only_body, ack)
    out.flush()
    return _ack(orders, out, deliveries) if ack else True


def _refuse_odd(
    count: int | None, ack: bool, only_body: bool, command: str | None, retry: float | None,
    loop: bool,
) -> None:  # fmt: skip
    wrong = None
    if command is not None and not command.strip():  # as of a variable that is not set
        wrong = "--exec has no command; an empty one would ack every message and do nothing"
    elif command is not None and (ack or only_body):
        wrong = "--exec acks by the exit code of the command; leave --ack and --body out"
    elif command is None and (retry is not None or loop):
        wrong = "--retry and --loop go with --exec"
    elif only_body and not ack:
        wrong = "--body prints no token to ack with; add --ack"
    elif loop and count is not None:
        wrong = "--loop goes on until it is interrupted, --count ends before; choose one"
    if wrong is not None:
        raise usage_error(wrong)


def _print(out: Output, deliveries: list[Delivery], only_body: bool, ack: bool) -> None:
    if only_body:
        stream = sys.stdout.buffer
        for delivery in deliveries:
            stream.write(body_bytes(delivery.message) + b"\n" * delivery.message.json)
        stream.flush()
    else:
        out.items(
            deliveries, COLUMNS,
            facts=lambda d: as_json(d.message, token=d.token, lateness=d.lateness),
            line=lambda d: (d.id, d.token, body_line(d.message)),
            cells=lambda d: (
                d.id, str(d.token), f"{d.attempt}/{d.message.attempts}",
                rounded(d.lateness * 1000), body_line(d.message)[:500],
            ),
            empty=str,
        )  # fmt: skip
        if out.terminal and not ack:
            _print_how_to_ack(out, deliveries[0])


def _print_how_to_ack(out: Output, first: Delivery) -> None:
    until, now = first.message.until, first.claimed
    if until is not None:
        told = f"{local(until, now)} ({relative(until, now)})"
        then = f"bide ack {first.message.queue} {first.id} {first.token}"
        out.text(("yours until ", "dim"), told, ("; then ", "dim"), then)


def _ack(orders: Queue, out: Output, deliveries: list[Delivery]) -> bool:
    lost = [outcome for outcome in orders.ack(deliveries) if not outcome]
    for outcome in lost:
        told = standing(outcome, outcome.id) if out.terminal else str(outcome)
        warn(f"not acked, the lease was over: {told}")
    return not lost
