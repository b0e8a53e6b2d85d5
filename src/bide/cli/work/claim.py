"""`bide claim`: take due messages by hand, or run a command for each."""

import os
from contextlib import suppress
from shlex import quote

import click

from bide.cli import option
from bide.cli.command import on_any_store
from bide.cli.errors import flush_output, usage_error
from bide.cli.message_output import as_json, body_bytes, body_line, sentence_of
from bide.cli.output import ID, TEXT, Column, Output, warn
from bide.cli.queue_output import paused_text
from bide.cli.store import CommandStore
from bide.cli.times import rounded, when
from bide.model.errors import StoreError
from bide.model.limits import MAX_COUNT
from bide.queue.arguments import own_name
from bide.queue.delivery import Delivery
from bide.queue.sync import Queue

COLUMNS = (
    Column("id", least=ID),
    Column("token", right=True),
    Column("attempt", right=True, extra=True),
    Column("late by", right=True, extra=True),
    Column("body", least=TEXT),
)


@on_any_store(option.queue)
@option.count("-n", "--count", most=MAX_COUNT, help="The maximum number; 1 by default.")
@option.time("--wait", "How long to wait for a due message; by default not at all.")
@option.time(
    "--lease", "How long the lease lasts; without an ack, the message is redelivered.", "30s"
)
@option.flag("--ack", help="Ack after the messages are printed and the output is flushed.")
@option.flag("--body", "only_body", help="With --ack: print only bodies; text and bytes unchanged.")
@click.option("--exec", "command", metavar="CMD", help="Run a shell command for each message.")
@option.time("--retry", "With --exec: the delay before a failed message is retried; 10s.")
@option.flag("--loop", help="With --exec: repeat until interrupted.")
def claim(
    store: CommandStore,
    out: Output,
    queue: str,
    count: int | None,
    wait: float | None,
    lease: float,
    ack: bool,
    only_body: bool,
    command: str | None,
    retry: float | None,
    loop: bool,
) -> bool:
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
    """
    if command is not None and not command.strip():  # a shell variable may be unset
        raise usage_error("--exec has no command: it would ack every message without any work")
    if command is None:
        conflict = loop or retry is not None or (only_body and not ack)
    else:
        conflict = ack or only_body or (loop and count is not None)
    if conflict:
        raise usage_error(
            "claim takes --ack and, with it, --body; or --exec (which acks by the exit code) and, "
            "with it, --retry and either --loop or --count"
        )
    if wait is None and not loop:  # with a wait, the first put may come later
        store.must_exist()
        store.must_have(queue)
    orders = store.queue(queue)
    if command is not None:
        import asyncio

        from bide.cli.work.claim_exec import execute

        running = execute(
            queue,
            store.lane,
            own_name(),
            lease,
            command=command,
            environment={**os.environ, "BIDE_URL": store.url},
            retry=10 if retry is None else retry,
            count=None if loop else count or 1,
            wait=wait,
            out=out,
        )
        return asyncio.run(running)
    deliveries = orders.claim(count or 1, wait=wait, lease=lease)
    if not deliveries:
        if out.terminal:
            warn(_why_nothing(orders, wait))
        return False
    if only_body:
        for delivery in deliveries:
            out.body(body_bytes(delivery.message), is_json=delivery.message.json)
    else:
        _print(out, deliveries, ack)
    flush_output()
    lost = [outcome for outcome in orders.ack(deliveries) if not outcome] if ack else []
    for outcome in lost:
        warn(f"not acked, the lease had ended: {sentence_of(out, outcome, outcome.id)}")
    return not lost


def _why_nothing(orders: Queue, wait: float | None) -> str:
    with suppress(StoreError):  # a token may allow claims only
        counts = orders.counts()
        if counts.paused_until is not None:
            return f"{orders.name} is {paused_text(counts)}, or 'bide resume {orders.name}'"
        if counts.paused:
            return f"{orders.name} is paused: claims get nothing until 'bide resume {orders.name}'"
    time_limit = f" within {rounded(wait * 1000)}" if wait else ""
    return f"no message is due in {orders.name}{time_limit}"


def _token(delivery: Delivery) -> int | str:
    """Return the lease's token as JSON has it: a number, or text with a server's secret part."""
    lease = delivery.lease
    return lease.token if lease.secret is None else lease.text


def _print(out: Output, deliveries: list[Delivery], ack: bool) -> None:
    """Print claimed messages; on a terminal also how to ack the first, unless `ack` has done so."""
    out.items(
        deliveries,
        COLUMNS,
        facts=lambda delivery: as_json(
            delivery.message,
            token=_token(delivery),
            lateness=round(delivery.lateness * 1000),
        ),
        line=lambda delivery: (delivery.id, delivery.lease.text, body_line(delivery.message)),
        cells=lambda delivery: (
            delivery.id,
            delivery.lease.text,
            f"{delivery.attempt}/{delivery.message.attempts}",
            rounded(delivery.lateness * 1000),
            body_line(delivery.message)[:500],
        ),
        empty="",
    )
    first, *_ = deliveries
    until = first.message.until
    if out.terminal and not ack and until is not None:
        ack_command = f"bide ack {first.message.queue} {quote(first.id)} {first.lease.text}"
        out.text(("yours until ", "dim"), when(until), ("; then ", "dim"), ack_command)
