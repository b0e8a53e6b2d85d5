"""Exit codes, and what failures look like to somebody at a shell."""

import os
import re
import sys

import click

from bide.model.errors import (
    AlreadyExists,
    AlreadyMoving,
    BideError,
    Empty,
    InvalidArgument,
    LeaseLost,
    Unsupported,
)

__all__ = [
    "BROKEN_PIPE",
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "NOT_DONE",
    "WRONG_USAGE",
    "code_of",
    "drop_output",
    "in_options",
    "say",
    "warn",
]

DONE = 0
NOT_DONE = 1
"""The store answered, and the answer is no: nothing found, held by a worker, does not balance."""
WRONG_USAGE = 2
FAILED = 3
"""The store, or a file, could not be read or written."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""Whoever read the output has left, as `head` does. What a shell says of any other program then."""

_NO = (AlreadyExists, AlreadyMoving, Empty, LeaseLost)
_WRONG = (InvalidArgument, Unsupported)


def code_of(error: BideError) -> int:
    """Return the exit code that an error of bide's ends a command with."""
    if isinstance(error, _WRONG):
        return WRONG_USAGE
    return NOT_DONE if isinstance(error, _NO) else FAILED


_ARGUMENT = re.compile(
    r"(?<![?&])\b(after|at|attempts|before|bucket|ceiling|concurrency|delay|expires|failures|first|group|"
    r"health_port|horizon|if_due|if_version|lease|on_conflict|priority|probe|rate|timeout|url|wait)=(\w|['\"])?"
)


def in_options(text: str) -> str:
    """Return what an error says with the names that options have here; options of a URL stay.

    Example:
        >>> in_options("give delay= or at=, not both; on_conflict='keep' keeps")
        "give --delay or --at, not both; --on-conflict 'keep' keeps"
    """
    text = text.replace("Queue(..., max_body=...)", "--max-body")
    text = text.replace("metrics cannot be served at", "--metrics cannot be served at")
    return _ARGUMENT.sub(
        lambda found: (
            f"--{found[1].replace('_', '-')}" + (f" {found[2]}" if found[2] is not None else "")
        ),
        text,
    )


def say(error: click.ClickException) -> None:
    """Print what went wrong to stderr, in a line or two."""
    lines = [line for line in error.format_message().splitlines() if line.strip()]
    text = " ".join(line.strip() for line in lines)
    hint = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"\n       see '{error.ctx.command_path} --help'"
    click.echo(click.style("error:", fg="red", bold=True) + f" {text}{hint}", err=True)


def warn(text: str) -> None:
    """Print a remark to stderr."""
    click.echo(text, err=True)


def drop_output() -> None:
    """Write what is still to come to nowhere, so that nothing complains of a closed pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
