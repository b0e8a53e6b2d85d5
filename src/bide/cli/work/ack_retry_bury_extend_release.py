"""`bide ack`, `retry`, `bury` and `extend` settle a claimed message; `bide release`."""

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import click
import msgspec

from bide.cli import option
from bide.cli.errors import usage_error
from bide.cli.message_output import print_outcomes
from bide.cli.output import Output
from bide.cli.store import Store, on_store
from bide.model.commands import Command, Lease
from bide.model.ended import check_result
from bide.model.errors import InvalidArgument
from bide.model.parts import in_parts
from bide.model.replies import Outcome, Outcomes
from bide.queue.command_builder import CommandBuilder


def _token(text: str) -> str:
    with suppress(ValueError):
        if (lease := Lease.of("", text)).token:
            return lease.text
    raise click.BadParameter(
        f"{text!r} is not a token; the token is the second column that claim prints"
    )


def _leases(id: str, token: str | None) -> list[Lease]:
    """Return the given lease or, for '-', the leases that `claim` printed."""
    if id != "-":
        if token is None:
            raise usage_error("Missing argument 'TOKEN'. It is the second column that claim prints")
        return [Lease.of(id, token)]
    return [_parsed(line, number) for number, line in enumerate(sys.stdin, 1) if line.strip()]


def _parsed(line: str, number: int) -> Lease:
    try:
        if line.startswith("{"):
            fields = msgspec.json.decode(line)
            return Lease.of(str(fields["id"]), str(fields["token"]))
        id, token = line.rstrip("\r\n").split("\t")[:2]
        return Lease.of(id, token)
    except (ValueError, KeyError, TypeError) as error:
        raise usage_error(
            f"line {number} of stdin is not a line that claim prints: id, tab, token"
        ) from error


def _settles(
    verb: str, *options: option.Decorator
) -> Callable[[Callable[..., Command]], click.Command]:
    """Settle the given leases, a thousand per command, and print each outcome.

    The decorated function takes a builder of commands, leases and its own options, and returns the
    command.

    Args:
        verb: what it does to messages, such as "acked".
        options: its own.
    """

    def decorate(function: Callable[..., Command]) -> click.Command:
        @on_store(*options, option.queue, option.id)
        @click.argument("token", required=False, type=_token)
        @functools.wraps(function)
        def run(
            store: Store, out: Output, queue: str, id: str, token: str | None, **given: Any
        ) -> bool:
            def outcomes() -> Iterator[Outcome]:
                for part in in_parts(_leases(id, token)):
                    command = function(CommandBuilder(queue), part, **given)
                    yield from store.ask(Outcomes, command).outcomes

            return print_outcomes(store, out, queue, outcomes(), verb)

        return run

    return decorate


def _result(text: str) -> bytes:
    try:
        check_result(text.encode())
    except InvalidArgument as error:
        raise click.BadParameter(f"{error}; a text needs quotes inside: '\"done\"'") from None
    return text.encode()


@_settles(
    "acked", option.text("--result", "JSON", "Its result; see bide set --result-ttl.", type=_result)
)
def ack(builder: CommandBuilder, leases: Sequence[Lease], result: bytes | None) -> Command:
    """Acknowledge a claimed message: it is done.

    The message leaves the queue. ID and TOKEN are what `bide claim` printed; with '-', they are
    read as such lines from stdin. In a pipe, each line is: id, "acked" or "no", state, why not. The
    exit code is 1 if the lease had ended: another worker may hold the message now.

    \b
    Example:
      bide ack orders order-42 7
      bide claim orders -n 100 | tee done.tsv | bide ack orders -
    """
    results = [] if result is None else [result] * len(leases)
    return msgspec.structs.replace(builder.ack(leases), results=results)


@_settles(
    "given back",
    option.time("--delay", "The delay from now; none by default.", 0),
    option.text("--reason", "TEXT", "What went wrong; stored with the message.", ""),
)
def retry(builder: CommandBuilder, leases: Sequence[Lease], delay: float, reason: str) -> Command:
    """Return a claimed message for another attempt.

    After its last attempt, the message becomes a dead letter.

    \b
    Example:
      bide retry orders order-42 7 --delay 1m --reason "the bank is closed"
    """
    return builder.retry(leases, delay, reason)


@_settles("buried", option.text("--reason", "TEXT", "Why; stored with the message.", ""))
def bury(builder: CommandBuilder, leases: Sequence[Lease], reason: str) -> Command:
    """Make a claimed message a dead letter.

    \b
    Example:
      bide bury orders order-42 7 --reason "no such customer"
    """
    return builder.bury(leases, reason)


@_settles("extended", option.time("--lease", "The new length of the lease, from now.", "30s"))
def extend(builder: CommandBuilder, leases: Sequence[Lease], lease: float) -> Command:
    """Extend the lease of a claimed message.

    \b
    Example:
      bide extend orders order-42 7 --lease 5m
    """
    return builder.extend(leases, lease)


@on_store(option.queue, option.id)
@option.text("--reason", "TEXT", 'Why; by default "released by" and your name.')
def release(store: Store, out: Output, queue: str, id: str, reason: str | None) -> bool:
    """End the lease of a message that any worker holds.

    Use it when a worker hangs. It counts as a failed attempt: the message is ready again at once,
    or a dead letter if its attempts are used up. The worker can no longer ack it. The exit code is
    1 if no worker held the message.

    \b
    Example:
      bide release orders order-42
      bide release orders order-42 --reason "worker 7 hangs"
    """
    outcome = store.queue(queue).release(id, reason=reason)
    return print_outcomes(store, out, queue, [outcome], "released")
