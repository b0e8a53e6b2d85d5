"""Exit codes, and how errors are printed."""

import importlib.util
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from bide.cli.output import escape
from bide.engines.registry import mask
from bide.model import errors
from bide.model.errors import BideError, InvalidArgument

DEBUG = "bide.debug"
"""The key in the context that says whether to print tracebacks."""

COMMAND = "bide.command"
"""The key in the context with the command that runs."""

OPTIONS_ELSEWHERE = {
    "--countdown": "--delay",
    "--db": "--url",
    "--eta": "--at",
    "--host": "--url",
    "--in": "--delay",
    "--key": "--id",
    "--max-retries": "--attempts",
    "--retries": "--attempts",
    "--task-id": "--id",
    "--ttl": "--expires",
}
"""What other programs call an option of bide."""

DONE = 0
NOT_DONE = 1
"""The store answered no: nothing found, held by a worker, does not balance."""
WRONG_USAGE = 2
FAILED = 3
"""The store, or a file, could not be read or written."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""The reader of the output has ended, as `head` does. Shells give this code for SIGPIPE."""

_EXIT_CODES = (
    ((InvalidArgument, errors.Unsupported), WRONG_USAGE),
    ((BrokenPipeError,), BROKEN_PIPE),
    (
        (
            errors.AlreadyExists,
            errors.AlreadyMoving,
            errors.Empty,
            errors.GroupClosed,
            errors.LeaseLost,
            errors.NotEmpty,
            errors.NothingToUndo,
        ),
        NOT_DONE,
    ),
)


def command_error(error: BideError | OSError) -> click.ClickException:
    """Return an error of the store, or of a file, in the words of the command line."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    click_error = click.ClickException(in_options(text))
    codes = (code for classes, code in _EXIT_CODES if isinstance(error, classes))
    # click declares the code for the class.
    click_error.exit_code = next(codes, FAILED)  # type: ignore[misc]
    return click_error


def in_options(text: str) -> str:
    """Return an error text with arguments named as options; options in a URL stay.

    `delay='5 mins'` becomes `--delay '5 mins'`, if the command that runs has this option.
    """
    text = text.replace("send the header 'Authorization: Bearer ...'", "set BIDE_TOKEN")
    context = click.get_current_context(silent=True)
    command = None if context is None else context.meta.get(COMMAND)
    options: list[str] = []
    if command is not None:
        options = [name for parameter in command.params for name in parameter.opts]
    if url := os.environ.get("BIDE_URL"):
        store = repr(mask(url))
        text = text.replace(f"url={store}", f"BIDE_URL {store}")  # which is easily forgotten
    text = re.sub(r"(?<![?&\w])url=(?=')", "", text)  # an option or an argument

    def as_option(argument: re.Match[str]) -> str:
        option = f"--{argument[1].replace('_', '-')}"
        if option not in options:
            return argument[0]
        return f"{option} {argument[2]}" if argument[2] else option

    return re.sub(r"(?<![?&])\b(\w+)=([\w'\"\[-])?", as_option, text)


def usage_error(text: str) -> click.UsageError:
    """Return the error of a command that cannot be carried out as it was written."""
    return click.UsageError(text, click.get_current_context())


def require_packages(what: str, *packages: str, extra: str = "server") -> None:
    """Check that the packages of an extra of bide are installed.

    Raises:
        InvalidArgument: one of these packages is missing.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InvalidArgument(
                f"{what} needs the package {package!r}, which is not installed: "
                f"pip install 'bide[{extra}]'"
            )


def print_error(error: click.ClickException) -> int:
    """Print an error to stderr, in a line or two, and return its exit code.

    It says nothing to a reader that has left.
    """
    if error.exit_code == BROKEN_PIPE:
        return BROKEN_PIPE
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        instead = OPTIONS_ELSEWHERE.get(error.option_name, "")
        if any(instead in parameter.opts for parameter in error.ctx.command.params):
            error = click.UsageError(
                f"{error.message.rstrip('.')}; did you mean {instead!r}?", error.ctx
            )
    lines = [line for line in error.format_message().splitlines() if line.strip()]
    text = escape(" ".join(line.strip() for line in lines))
    hint = ""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"\n       {_usage(error, error.ctx)}see '{error.ctx.command_path} --help'"
    without_color = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    label = "error:" if without_color else click.style("error:", fg="red", bold=True)
    click.echo(f"{label} {text}{hint}", err=True)
    return error.exit_code


def _usage(error: click.UsageError, ctx: click.Context) -> str:
    """Return how the command is written, if an argument is missing or one is too many."""
    is_missing = isinstance(error, click.MissingParameter) and isinstance(
        error.param, click.Argument
    )
    if not is_missing and not error.message.startswith(_TOO_MANY):
        return ""
    return f"usage: {ctx.command_path} {' '.join(ctx.command.collect_usage_pieces(ctx))}; "


_TOO_MANY = "Got unexpected extra argument"
"""How click begins the error about arguments that no parameter takes."""


def flush_output() -> None:
    """Send everything that was printed.

    Raises:
        OSError: it cannot be written.
    """
    if sys.stdout is not None:  # it may be closed
        sys.stdout.flush()


def open_closed_streams() -> None:
    """Open the null device in place of a closed stdin or stderr, as under cron and in daemons.

    Python has `None` there, on which progress bars, warnings and logs fail. And the next file that
    is opened would get the number of a closed stream, so that others would write into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null_device = os.open(os.devnull, os.O_RDWR)
            if null_device != number:
                os.dup2(null_device, number)
                os.close(null_device)
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115  (it stays open)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115


def drop_output() -> None:
    """Discard all further output, so that a closed pipe causes no further error."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)


TERMINATION_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""The signals that end a command besides Ctrl-C: a request to stop, and a closed terminal.

Windows has no SIGHUP.
"""


def end_on_termination_as_first_process() -> None:
    """Let SIGTERM end this process if it is the first of a container: there it has no effect else.

    So a container that is stopped while its program starts need not be killed.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def raise_on_termination() -> Iterator[None]:
    """Exit from the block on SIGTERM and SIGHUP, as Ctrl-C does.

    An ignored signal stays ignored, as under nohup.
    """
    with _handled(TERMINATION_SIGNALS, _leave):
        yield


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Provide a list that gets the number of Ctrl-C, SIGTERM or SIGHUP; a second one interrupts.

    So a step of work can end before the signal is obeyed.
    """
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    with _handled((signal.SIGINT, *TERMINATION_SIGNALS), receive):
        yield received


@contextmanager
def _handled(numbers: Iterable[signal.Signals], handler: Callable[..., None]) -> Iterator[None]:
    """Handle signals while the block runs, except for those that are ignored."""
    previous_handlers = {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)
