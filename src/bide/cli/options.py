"""Arguments and options that commands share, and how what people write there is read."""

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
from click.shell_completion import CompletionItem

from bide.cli.exits import NOT_DONE, in_options
from bide.cli.moments import now_ms
from bide.cli.output import Output
from bide.cli.program import DEBUG
from bide.cli.store import Store, refuse_lone
from bide.engines.registry import mask
from bide.model.body import MAX_BODY
from bide.model.errors import BideError, InvalidArgument
from bide.model.message import STATES
from bide.model.moments import LATEST, milliseconds, unix
from bide.queue.values import checked_version

__all__ = [
    "DURATION",
    "MOMENT",
    "STATE",
    "complete_queue",
    "debug_option",
    "grace_option",
    "log_options",
    "max_body_option",
    "networks_option",
    "on_any_store",
    "on_store",
    "output_options",
    "prefix_argument",
    "queue_argument",
    "rule_options",
    "version_option",
    "when_options",
]


def read_duration(value: str | float) -> float:
    """Read a length of time, "1h30m" or a plain number of seconds; return seconds.

    Raises:
        click.BadParameter: it is neither, or one that nobody can mean.
    """
    return _read_duration(value, "time")


def read_delay(value: str | float) -> float:
    """Read how long from now a message is due, where `--at` could say it as well.

    Raises:
        click.BadParameter: it is no length of time, or one that nobody can mean.
    """
    return _read_duration(value, "delay")


def _read_duration(value: str | float, what: str) -> float:
    number = _number(value)
    try:
        ms = milliseconds(number, what)
    except InvalidArgument as error:
        why = in_options(str(error).removeprefix(f"{what}={number!r} "))
        if why.startswith("is no duration"):
            why = (
                "is no length of time; write 250ms, 30s, 30m, 1h30m or 7d, or a plain number of "
                "seconds"
            )
        raise click.BadParameter(f"{value!r} {why}") from None
    if now_ms() + ms > LATEST:
        raise click.BadParameter(f"{value!r} from now is past the year 2100")
    return ms / 1000


def read_moment(value: str | float) -> float:
    """Read a moment, ISO 8601 with a zone or Unix seconds; return Unix seconds.

    Raises:
        click.BadParameter: it is neither, or names no zone.
    """
    number = _number(value)
    try:
        moment = datetime.fromisoformat(number) if isinstance(number, str) else number
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is no moment; write ISO 8601 with a zone, as 2026-12-01T09:00+01:00 or "
            "2026-12-01T08:00Z, or Unix seconds"
        ) from None
    if isinstance(moment, datetime) and moment.tzinfo is None:
        mended = moment.astimezone().isoformat(timespec="minutes")
        raise click.BadParameter(
            f"{value!r} has no time zone, so it names no moment; for this machine's zone write "
            f"{mended}, for UTC add a Z"
        )
    try:
        return unix(moment) / 1000
    except InvalidArgument:
        counted = isinstance(number, float) and number > LATEST / 1000
        hint = "; a plain number counts seconds, not milliseconds" if counted else ""
        raise click.BadParameter(f"{value!r} is not between 1970 and 2100{hint}") from None


def _number(text: str | float) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


DURATION = read_duration
MOMENT = read_moment
STATE = click.Choice(STATES)

F = Callable[..., Any]


def complete_queue(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the names of the queues in the store, if there is one."""
    try:
        with Store(ctx.params.get("url")) as store:
            return [CompletionItem(name) for name in store.names(incomplete)]
    except BideError:  # no store, or a broken one: there is nothing to offer
        return []


def _no_url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if "://" in (value or ""):
        raise click.BadParameter(f"{mask(value or '')} is a store; write --url before it")
    return value


def queue_argument(function: F) -> F:
    """Take the queue as the first argument."""
    return click.argument("queue", shell_complete=complete_queue, callback=_no_url)(function)


def prefix_argument(function: F) -> F:
    """Take what the names of queues begin with; all do by default."""
    return click.argument("prefix", default="", callback=_no_url)(function)


def when_options(function: F) -> F:
    """Take a moment: `--delay` or `--at`."""
    function = click.option(
        "--at", type=MOMENT, metavar="MOMENT",
        help="When it is due instead: ISO 8601 with a zone (2026-12-01T09:00+01:00), or Unix "
        "seconds. In the past means at once.",
    )(function)  # fmt: skip
    return click.option(
        "--delay", type=read_delay, metavar="TIME",
        help="How long from now until it is due: 250ms, 30s, 1h30m, 7d, or seconds.",
    )(function)  # fmt: skip


def rule_options(function: F) -> F:
    """Take what several messages have in common: `--group`, `--after`, `--before`."""
    options = (
        click.option("--group", metavar="NAME", help="Only messages of this group."),
        click.option("--after", type=MOMENT, metavar="MOMENT", help="Only if due then or later."),
        click.option("--before", type=MOMENT, metavar="MOMENT", help="Only if due before then."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _version(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            checked_version(value)
        except InvalidArgument:
            raise click.BadParameter(
                f"{value!r} is no version; 'bide get' tells the version of a message as it is"
            ) from None
    return value


def version_option(what: str) -> Callable[[F], F]:
    """Take how the message was when it was seen: `--if-version`.

    Args:
        what: what is done only then.
    """
    return click.option(
        "--if-version", metavar="VERSION", callback=_version,
        help=f"{what} it is still as you saw it, by the version that 'bide get' tells.",
    )  # fmt: skip


def _remember_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True


def max_body_option(function: F) -> F:
    """Take how large a body may be: `--max-body`."""
    return click.option(
        "--max-body", type=click.IntRange(1), default=MAX_BODY, metavar="BYTES",
        help="How large a body may be; 1 MiB by default.",
    )(function)  # fmt: skip


def debug_option(function: F) -> F:
    """Take whether tracebacks are shown: `--debug`."""
    return click.option(
        "--debug", is_flag=True, expose_value=False, is_eager=True, callback=_remember_debug,
        help="Show tracebacks of errors.",
    )(function)  # fmt: skip


def grace_option(what: str) -> Callable[[F], F]:
    """Take how long to wait when it is stopped: `--grace`.

    Args:
        what: who or what may take that time.
    """
    return click.option(
        "--grace", type=DURATION, default="30s", show_default=True, metavar="TIME",
        help=f"How long {what} may take to finish when it is stopped.",
    )  # fmt: skip


def log_options(each: str) -> Callable[[F], F]:
    """Take how a process that goes on and on logs: `--log-json` and `--log-level`.

    Args:
        each: what has a line of its own at debug.
    """

    def take(function: F) -> F:
        function = click.option(
            "--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
            default="info", show_default=True,
            help=f"At debug each message that was {each} has a line; at info failures have, and "
            "every 10 s a line sums up the rest.",
        )(function)  # fmt: skip
        return click.option("--log-json", is_flag=True, help="Log one JSON object a line.")(
            function
        )

    return take


def _network(text: str) -> str:
    from ipaddress import ip_network

    try:
        return str(ip_network(text))
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 10.1.0.0/16, or 127.0.0.1") from None


def networks_option(**more: Any) -> Callable[[F], F]:
    """Take which networks may be sent to: `--allow-network`."""
    told = "A private network that push may send to, as 10.1.0.0/16; may be given several times."
    return click.option(
        "--allow-network", "networks", type=_network, multiple=True, metavar="NETWORK", help=told,
        **more,
    )  # fmt: skip


def output_options(function: F) -> F:
    """Take how results and errors are shown: `--json` and `--debug`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")(
        debug_option(function)
    )


def on_store(function: Callable[..., bool | None]) -> F:
    """Have a command called with the store, which must be there, and the output as it is wanted.

    The command returns whether what was asked for was done; `False` ends it with exit code 1.
    """
    return _with_store(function, makes=False)


def on_any_store(function: Callable[..., bool | None]) -> F:
    """Do as `on_store` for a command that may be the first, and makes the store then."""
    return _with_store(function, makes=True)


def _with_store(function: Callable[..., bool | None], *, makes: bool) -> F:
    @click.option(
        "--url",
        envvar="BIDE_URL",
        show_envvar=True,
        metavar="URL",
        is_eager=True,
        help="The store: sqlite:///file.db, ...  By default bide.db in this folder.",
    )
    @output_options
    @functools.wraps(function)
    def run(url: str | None, as_json: bool, **arguments: Any) -> None:
        refuse_lone(url or "")
        with Store(url, makes=makes) as store:
            done = function(store, Output(as_json), **arguments)
        if done is False:
            click.get_current_context().exit(NOT_DONE)

    return run
