"""`bide ack`, `bide retry`, `bide bury`, `bide extend`: what became of a claimed message."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import msgspec

from bide.cli.messages import print_outcomes
from bide.cli.options import DURATION, on_store, queue_argument
from bide.cli.output import Output
from bide.cli.store import Store
from bide.model import body as bodies
from bide.model.commands import Command, Lease
from bide.model.replies import Outcomes
from bide.queue.arguments import Arguments

__all__ = ["ack", "bury", "extend", "retry"]


def _token(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise click.BadParameter(f"{text!r} is no token; it is the number that claim prints second")
    return int(text)


def _lease_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.argument("token", required=False, type=_token)(function)
    return queue_argument(click.argument("id")(function))


def _leases(id: str, token: int | None) -> list[Lease]:
    """Return the lease that was named or, for '-', those that `claim` has printed."""
    context = click.get_current_context()
    if id != "-":
        if token is None:
            raise click.UsageError(
                "Missing argument 'TOKEN'. It is the second thing that claim prints", context
            )
        return [Lease(id, token)]
    lines = enumerate(sys.stdin, 1)
    return [_parsed(line, number) for number, line in lines if line.strip()]


def _parsed(line: str, number: int) -> Lease:
    try:
        if line.startswith("{"):
            found = msgspec.json.decode(line)
            return Lease(str(found["id"]), int(found["token"]))
        id, token = line.rstrip("\r\n").split("\t")[:2]
        return Lease(id, int(token))
    except (ValueError, KeyError, TypeError) as error:
        raise click.UsageError(
            f"line {number} of stdin is none that claim prints: id, a tab, token",
            click.get_current_context(),
        ) from error


def _settle(
    store: Store, out: Output, leases: Sequence[Lease],
    command: Callable[[Sequence[Lease]], Command], verb: str,
) -> bool:  # fmt: skip
    def outcomes() -> Iterator[Any]:
        for start in range(0, len(leases), 1_000):
            asked = command(leases[start : start + 1_000])
            yield from store.told(asked.queue, store.ask(Outcomes, asked).outcomes)

    return print_outcomes(out, outcomes(), verb)


@click.command()
@_lease_arguments
@on_store
def ack(store: Store, out: Output, queue: str, id: str, token: int | None) -> bool:
    """Say that a claimed message is done: it leaves the queue.

    ID and TOKEN are what `bide claim` printed; '-' instead reads such lines from stdin. Exit code 1
    when the lease was over: the message has gone to somebody else.

    \b
    Example:
      bide ack orders order-42 7
      bide claim orders -n 100 | tee done.tsv | bide ack orders -
    """
    ask = Arguments(queue, bodies.MAX_BODY)
    return _settle(store, out, _leases(id, token), ask.ack, "acked")


@click.command()
@_lease_arguments
@click.option(
    "--delay",
    type=DURATION,
    default=0,
    metavar="TIME",
    help="How long from now; at once by default.",
)
@click.option("--reason", default="", metavar="TEXT", help="What went wrong; it is remembered.")
@on_store
def retry(
    store: Store, out: Output, queue: str, id: str, token: int | None, delay: float, reason: str
) -> bool:
    """Have a claimed message tried again; its last attempt makes it a dead letter.

    \b
    Example:
      bide retry orders order-42 7 --delay 1m --reason "the bank is closed"
    """  # fmt: skip
    ask = Arguments(queue, bodies.MAX_BODY)
    leases = _leases(id, token)
    return _settle(store, out, leases, lambda part: ask.retry(part, delay, reason), "given back")


@click.command()
@_lease_arguments
@click.option("--reason", default="", metavar="TEXT", help="Why; it is remembered.")
@on_store
def bury(store: Store, out: Output, queue: str, id: str, token: int | None, reason: str) -> bool:
    """Make a claimed message a dead letter, to be looked at by people.

    \b
    Example:
      bide bury orders order-42 7 --reason "no such customer"
    """  # fmt: skip
    ask = Arguments(queue, bodies.MAX_BODY)
    return _settle(store, out, _leases(id, token), lambda part: ask.bury(part, reason), "buried")


@click.command()
@_lease_arguments
@click.option(
    "--lease",
    type=DURATION,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="How long from now it is yours.",
)
@on_store
def extend(store: Store, out: Output, queue: str, id: str, token: int | None, lease: float) -> bool:
    """Hold a claimed message for longer.

    \b
    Example:
      bide extend orders order-42 7 --lease 5m
    """  # fmt: skip
    ask = Arguments(queue, bodies.MAX_BODY)
    return _settle(store, out, _leases(id, token), lambda part: ask.extend(part, lease), "extended")
