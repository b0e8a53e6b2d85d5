"""Arguments and options that commands share, and how their values are read."""

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
from click.shell_completion import CompletionItem

from bide.cli.errors import NOT_DONE, in_options
from bide.cli.output import Output
from bide.cli.program import DEBUG
from bide.cli.store import Store, refuse_lone
from bide.cli.times import now_ms
from bide.engines.registry import mask
from bide.model.body import MAX_BODY
from bide.model.errors import BideError, InvalidArgument
from bide.model.message import STATES
from bide.model.moments import LATEST, milliseconds, unix
from bide.model.options import OPTIONS, Option
from bide.queue.values import checked_version

__all__ = [
    "DURATION", "MOMENT", "STATE", "complete_queue", "count_option", "debug_option", "flag",
    "grace_option", "if_due_option", "log_options", "max_body_option", "message_options",
    "networks_option", "on_any_store", "on_store", "output_options", "prefix_argument",
    "queue_argument", "rabbitmq_option", "rule_options", "text_option", "time_option",
    "version_option", "when_options",
]  # fmt: skip

F = Callable[..., Any]
Decorator = Callable[[F], F]


def read_duration(value: str | float) -> float:
    """Read a duration, "1h30m" or a plain number of seconds; return seconds.

    Raises:
        click.BadParameter: it is neither, or ends past the year 2100.
    """
    return _read_duration(value, "time")


def read_delay(value: str | float) -> float:
    """Read a delay, where the user could give `--at` as well; return seconds.

    Raises:
        click.BadParameter: it is no duration, or ends past the year 2100.
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
                "is not a valid duration; write 250ms, 30s, 30m, 1h30m or 7d, or a plain number "
                "of seconds"
            )
        raise click.BadParameter(f"{value!r} {why}") from None
    if now_ms() + ms > LATEST:
        raise click.BadParameter(f"{value!r} from now is past the year 2100")
    return ms / 1000


def read_moment(value: str | float) -> float:
    """Read a time, ISO 8601 with a zone or Unix seconds; return Unix seconds.

    Raises:
        click.BadParameter: it is neither, or names no zone.
    """
    number = _number(value)
    try:
        moment = datetime.fromisoformat(number) if isinstance(number, str) else number
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a valid time; write ISO 8601 with a zone, as "
            "2026-12-01T09:00+01:00 or 2026-12-01T08:00Z, or Unix seconds"
        ) from None
    if isinstance(moment, datetime) and moment.tzinfo is None:
        here = moment.astimezone().isoformat(timespec="minutes")
        raise click.BadParameter(
            f"{value!r} has no time zone; for the zone of this machine write {here}, for UTC "
            "add a Z"
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


def flag(*names: str, help: str) -> Decorator:
    """Take an option without a value."""
    return click.option(*names, is_flag=True, help=help)


def time_option(name: str, help: str, default: str | float | None = None, **more: Any) -> Decorator:
    """Take a duration; a default that is text is shown."""
    shown = isinstance(default, str)
    return click.option(
        name, type=DURATION, metavar="TIME", default=default, show_default=shown, help=help, **more
    )


def moment_option(name: str, help: str) -> Decorator:
    """Take a time."""
    return click.option(name, type=MOMENT, metavar="MOMENT", help=help)


def text_option(
    name: str, metavar: str, help: str, default: str | None = None, dest: str | None = None
) -> Decorator:
    """Take a text; `dest` is the name of the argument, if not that of the option."""
    names = [name] if dest is None else [name, dest]
    return click.option(*names, metavar=metavar, default=default, help=help)


def count_option(
    *names: str, help: str, least: int = 1, most: int | None = None, default: int | None = None
) -> Decorator:
    """Take a whole number of at least 1; a default is shown."""
    return click.option(
        *names, type=click.IntRange(least, most), default=default, show_default=default is not None,
        metavar="N", help=help,
    )  # fmt: skip


def together(*options: Decorator) -> Decorator:
    """Take several options, in the order of the help."""

    def take(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return take


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


queue_argument = click.argument("queue", shell_complete=complete_queue, callback=_no_url)

prefix_argument = click.argument("prefix", default="", callback=_no_url)
"""The beginning of the names of queues; by default that of all."""

when_options = together(
    click.option(
        "--delay", type=read_delay, metavar="TIME",
        help="The time from now until it is due: 250ms, 30s, 1h30m, 7d, or seconds.",
    ),
    moment_option(
        "--at",
        "The due time instead: ISO 8601 with a zone (2026-12-01T09:00+01:00), or Unix seconds. "
        "A time in the past means at once.",
    ),
)  # fmt: skip

rule_options = together(
    text_option("--group", "NAME", "Only messages of this group."),
    moment_option("--after", "Only messages due then or later."),
    moment_option("--before", "Only messages due before then."),
)


def _message_option(option: Option) -> Decorator:
    """Take one option of a message as `Options` declares it."""
    name = f"--{option.name.replace('_', '-')}"
    if option.least is None:
        return text_option(name, "NAME", option.help)
    return click.option(
        name, type=click.IntRange(option.least, option.most), metavar="N", show_default=True,
        default=option.default, help=option.help,
    )  # fmt: skip


message_options = together(*map(_message_option, OPTIONS.values()))


def if_due_option(verb: str) -> Decorator:
    """Take when the message was due when the user saw it: `--if-due`."""
    return moment_option(
        "--if-due", f"{verb.capitalize()} the message only if it is still due then."
    )


def _version(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            checked_version(value)
        except InvalidArgument:
            raise click.BadParameter(
                f"{value!r} is not a version; 'bide get' shows the version of a message"
            ) from None
    return value


def version_option(what: str) -> Decorator:
    """Take the version of the message that the user saw: `--if-version`.

    Args:
        what: what is done only if it is still the same.
    """
    return click.option(
        "--if-version", metavar="VERSION", callback=_version,
        help=f"{what} the message still has this version; 'bide get' shows it.",
    )  # fmt: skip


max_body_option = click.option(
    "--max-body", type=click.IntRange(1), default=MAX_BODY, metavar="BYTES",
    help="The maximum size of a body; 1 MiB by default.",
)  # fmt: skip


def _remember_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True


debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, is_eager=True, callback=_remember_debug,
    help="Show tracebacks of errors.",
)  # fmt: skip


def grace_option(what: str) -> Decorator:
    """Take how long to wait when the process is stopped: `--grace`.

    Args:
        what: what may take that time.
    """
    return time_option("--grace", f"How long {what} may take to finish after a stop signal.", "30s")


def log_options(each: str) -> Decorator:
    """Take how a long-running process logs: `--log-json` and `--log-level`.

    Args:
        each: the kind of message that has a line of its own at debug.
    """
    return together(
        flag("--log-json", help="Log one JSON object a line."),
        click.option(
            "--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
            default="info", show_default=True,
            help=f"debug logs each message that was {each}; info logs failures, and a summary of "
            "the rest every 10 s.",
        ),
    )  # fmt: skip


def _network(text: str) -> str:
    from ipaddress import ip_network

    try:
        return str(ip_network(text))
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 10.1.0.0/16, or 127.0.0.1") from None


def networks_option(**more: Any) -> Decorator:
    """Take to which private networks push may send: `--allow-network`."""
    return click.option(
        "--allow-network", "networks", type=_network, multiple=True, metavar="NETWORK",
        help="A private network that push may send to, such as 10.1.0.0/16; can be repeated.",
        **more,
    )  # fmt: skip


output_options = together(
    flag("--json", "as_json", help="Print one JSON object a line."), debug_option
)


def rabbitmq_option(**more: Any) -> Decorator:
    """Take the URLs of exchanges whose delayed messages are taken in."""
    return click.option(
        "--rabbitmq", multiple=True, metavar="URL", envvar="BIDE_RABBITMQ", show_envvar=True,
        help="Delay the messages of an exchange, amqp://user@host/vhost?exchange=NAME, and publish "
        "them when they are due; can be repeated. See bide rabbitmq.",
        **more,
    )  # fmt: skip


def on_store(function: Callable[..., bool | None]) -> F:
    """Call the command with the store, which must exist, and the output.

    The command returns whether it did what was asked for; `False` ends it with exit code 1.
    """
    return _with_store(function, makes=False)


def on_any_store(function: Callable[..., bool | None]) -> F:
    """Do as `on_store`, but make the store if it does not exist yet."""
    return _with_store(function, makes=True)


def _with_store(function: Callable[..., bool | None], *, makes: bool) -> F:
    @click.option(
        "--url", envvar="BIDE_URL", show_envvar=True, metavar="URL", is_eager=True,
        help="The store: sqlite:///file.db, ...  By default bide.db in this folder.",
    )  # fmt: skip
    @output_options
    @functools.wraps(function)
    def run(url: str | None, as_json: bool, **arguments: Any) -> None:
        refuse_lone(url or "")
        with Store(url, makes=makes) as store:
            done = function(store, Output(as_json), **arguments)
        if done is False:
            click.get_current_context().exit(NOT_DONE)

    return run
