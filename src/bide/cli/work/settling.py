"""What `bide ack`, `retry`, `bury` and `extend` share: they name the leases of claimed messages."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import click
import msgspec

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.errors import usage_error
from bide.cli.message_output import print_outcomes
from bide.cli.output import Output
from bide.cli.store import CommandStore
from bide.model.commands import Command, Lease
from bide.model.parts import in_parts
from bide.model.replies import Outcome, Outcomes
from bide.queue.command_builder import CommandBuilder


def _token(text: str) -> str:
    """Return the token of a lease in its usual form."""
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
    """Return the lease in a line that `claim` has printed: as JSON, or with tabs.

    Args:
        line: the line.
        number: its number, for the error text.
    """
    try:
        if line.startswith("{"):
            fields = msgspec.json.decode(line)
            return Lease.of(str(fields["id"]), str(fields["token"]))
        id, token, *_ = line.rstrip("\r\n").split("\t")
        return Lease.of(id, token)
    except (ValueError, KeyError, TypeError) as error:
        raise usage_error(
            f"line {number} of stdin is not a line that claim prints: id, tab, token"
        ) from error


def on_leases(
    verb: str, *options: option.Decorator
) -> Callable[[Callable[..., Command]], click.Command]:
    """Make a command of the command line of a function that makes a store's command of leases.

    The function takes a `CommandBuilder`, leases and the values of its own options. It is called
    for each thousand of the leases that are given; each outcome is printed.

    Args:
        verb: what is done to messages, such as "acked".
        options: those of the function.
    """

    def decorate(function: Callable[..., Command]) -> click.Command:
        @on_store(*options, option.queue, option.id)
        @click.argument("token", required=False, type=_token)
        @functools.wraps(function)
        def run(
            store: CommandStore,
            out: Output,
            queue: str,
            id: str,
            token: str | None,
            **own_options: Any,
        ) -> bool:
            def outcomes() -> Iterator[Outcome]:
                for part in in_parts(_leases(id, token)):
                    command = function(CommandBuilder(queue), part, **own_options)
                    yield from store.ask(Outcomes, command).outcomes

            return print_outcomes(store, out, queue, outcomes(), verb)

        return run

    return decorate
