"""`bide ack`: acknowledge a claimed message."""

from collections.abc import Sequence

import click
import msgspec

from bide.cli import option
from bide.cli.work.settling import on_leases
from bide.model.commands import Command, Lease
from bide.model.ended import check_result
from bide.model.errors import InvalidArgument
from bide.queue.command_builder import CommandBuilder


def _result(text: str) -> bytes:
    try:
        check_result(text.encode())
    except InvalidArgument as error:
        raise click.BadParameter(f"{error}; a text needs quotes inside: '\"done\"'") from None
    return text.encode()


@on_leases(
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
