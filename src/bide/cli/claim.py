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
@count_option("-n", "--count", most=MAX_COUNT, help="The maximum number of messages; 1 by default.")
@time_option("--wait", "How long to wait for a due message; by default not at all.")
@time_option(
    "--lease",
    "How long the message is leased; without an ack by then, it is delivered again.",
    "30s",
)
@flag("--ack", help="Ack after the messages are printed and the output is flushed.")
@flag("--body", "only_body", help="With --ack: print only the bodies, text and bytes unchanged.")
@text_option("--exec", "CMD", "Run a shell command for each message.", dest="command")
@time_option(
    "--retry", "With --exec: the delay before a failed message is retried; 10s by default."
)
@flag("--loop", help="With --exec: repeat until interrupted.")
@on_any_store
def claim(
    store: Store, out: Output, queue: str, count: int | None, wait: float | None, lease: float,
    ack: bool, only_body: bool, command: str | None, retry: float | None, loop: bool,
) -> bool:  # fmt: skip
    """Take due messages, or run a command for each.

    Each message is leased: no other worker gets it until the lease ends. In a pipe, each line is:
    id, token, body. Settle each message with `bide ack QUEUE ID TOKEN` (or retry, bury, extend)
    before its lease ends. The exit code is 1 if no message was due in time.

    --exec runs CMD for one message at a time, with the body on stdin and BIDE_QUEUE, BIDE_ID,
    BIDE_ATTEMPT, BIDE_LEASE_TOKEN, BIDE_DUE and BIDE_URL in its environment. It extends the lease
    while CMD runs. If CMD exits with 0, the message is acked. Otherwise the message is retried with
    the exit code as the reason, and `bide claim` exits with 1. An interrupt stops CMD and returns
    its message to the queue.

    \b
    Example:
      bide claim orders --wait 1h --ack
      bide claim orders -n 100 --json
      bide claim orders --exec './time-out.sh "$BIDE_ID"' --loop --retry 1m
    """  # fmt: skip
    _refuse_odd(count, ack, only_body, command, retry, loop)
    if wait is None and not loop:  # with a wait, the first put may come later
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
            warn(f"no message is due in {queue}{within}")
        return False
    _print(out, deliveries, only_body, ack)
    out.flush()
    return _ack(orders, out, deliveries) if ack else True


def _refuse_odd(
    count: int | None, ack: bool, only_body: bool, command: str | None, retry: float | None,
    loop: bool,
) -> None:  # fmt: skip
    wrong = None
    if command is not None and not command.strip():  # such as a shell variable that is not set
        wrong = "--exec has no command; an empty command would ack every message without any work"
    elif command is not None and (ack or only_body):
        wrong = "--exec acks by the exit code of the command; remove --ack and --body"
    elif command is None and (retry is not None or loop):
        wrong = "--retry and --loop need --exec"
    elif only_body and not ack:
        wrong = "--body prints no token to ack with; add --ack"
    elif loop and count is not None:
        wrong = "--loop repeats until it is interrupted, --count stops earlier; use one of them"
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
        warn(f"not acked, the lease had ended: {told}")
    return not lost
