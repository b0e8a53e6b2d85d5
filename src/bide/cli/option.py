"""Arguments and options that commands share."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import click

from bide.cli.errors import DEBUG
from bide.cli.store import CommandStore
from bide.cli.times import (
    read_cron,
    read_due,
    read_duration,
    read_holidays,
    read_hours,
    read_moment,
    read_period,
    read_zone,
)
from bide.engines.registry import mask
from bide.model.commands import EDITED
from bide.model.errors import BideError
from bide.model.limits import MAX_BODY
from bide.model.options import OPTIONS, Option
from bide.model.undoing import UNDO_FOR

F = Callable[..., Any]
Decorator = Callable[[F], F]

SCREEN = 100
"""How many messages a terminal shows by default."""

MORE = "... there are more: --limit N shows N, a pipe shows all"

MINUTES = UNDO_FOR // 60_000


def flag(*names: str, help: str) -> Decorator:
    """Take an option without a value."""
    return click.option(*names, is_flag=True, help=help)


def time(
    name: str, help: str, default: str | float | None = None, what: str = "time", **more: Any
) -> Decorator:
    """Take a duration; a default that is text is shown.

    Args:
        name: the name of the option.
        help: its help text.
        default: its value if it is not given.
        what: "delay" where the user could give `--at` instead.
        more: other arguments of `click.option`.
    """
    return click.option(
        name,
        type=lambda text: read_duration(text, what),
        metavar="TIME",
        default=default,
        show_default=isinstance(default, str),
        help=help,
        **more,
    )


def moment(name: str, help: str) -> Decorator:
    """Take a time."""
    argument = name.removeprefix("--").replace("-", "_")
    return click.option(
        name, type=lambda text: read_moment(text, argument), metavar="DATETIME", help=help
    )


def text(name: str, metavar: str, help: str, default: str | None = None, **more: Any) -> Decorator:
    """Take a text."""
    return click.option(name, metavar=metavar, default=default, help=help, **more)


class WholeNumber(click.IntRange):
    """A whole number between two bounds."""

    name = "whole number"  # for errors: the own name of click's type is "integer range"


def count(
    *names: str, help: str, least: int = 1, most: int | None = None, default: int | None = None
) -> Decorator:
    """Take a whole number; a default is shown."""
    return click.option(
        *names,
        type=WholeNumber(least, most),
        default=default,
        show_default=default is not None,
        metavar="N",
        help=help,
    )


def choice(
    name: str, values: Sequence[str], help: str, default: str | None = None, **more: Any
) -> Decorator:
    """Take one of several words."""
    if default is not None:  # None would be a value: a required option could be left out
        more |= {"default": default, "show_default": True}
    return click.option(name, type=click.Choice(values), help=help, **more)


def many(name: str, dest: str, metavar: str, help: str, **more: Any) -> Decorator:
    """Take an option that can be repeated."""
    return click.option(
        name, dest, multiple=True, metavar=metavar, help=f"{help}; can be repeated.", **more
    )


def headers(help: str, sign: str = "=") -> Decorator:
    """Take headers, NAME=VALUE, or NAME: VALUE as HTTP has them; `None` without one.

    Args:
        help: the help text.
        sign: "=", or ":" for headers of HTTP, whose names are the same in upper and lower case.
    """
    of_http = sign == ":"

    def read(
        ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
    ) -> dict[str, str] | None:
        headers: dict[str, str] = {}
        names_so_far: set[str] = set()
        for value in values:
            name, sign_in_value, text = value.partition(sign)
            if of_http:
                name, text = name.strip(), text.strip()
            if not sign_in_value or not name:
                form = "NAME: VALUE" if of_http else "NAME=VALUE"
                raise click.BadParameter(f"{value!r} must be {form}", ctx, param)
            comparable_name = name.lower() if of_http else name
            if comparable_name in names_so_far:
                raise click.BadParameter(f"{name!r} is given twice", ctx, param)
            names_so_far.add(comparable_name)
            headers[name] = text
        return headers or None

    return many("--header", "headers", "'NAME: VALUE'" if of_http else "K=V", help, callback=read)


def together(*options: Decorator) -> Decorator:
    """Take several options, in the order of the help."""

    def take(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return take


def complete_queue(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the names of the queues in the store, if there is one."""
    logging.disable()  # a warning would be printed beside what the user types
    try:
        with CommandStore(ctx.params.get("url")) as store:
            return store.names(incomplete)
    except (BideError, OSError):  # no store, or a broken one: there is nothing to offer
        return []
    finally:
        logging.disable(logging.NOTSET)


def no_url(fix: str = "write --url before it") -> Callable[[str], str]:
    """Return what reads a name, and refuses the URL of a store, which users may write there.

    Args:
        fix: what the user should do instead.
    """

    def read(text: str) -> str:
        if "://" in text:
            raise click.BadParameter(f"{mask(text)} is a store; {fix}")
        return text

    return read


queue = click.argument("queue", shell_complete=complete_queue, type=no_url())
optional_queue = click.argument(
    "queue", required=False, shell_complete=complete_queue, type=no_url()
)
queues = click.argument(
    "queues", nargs=-1, metavar="[QUEUE]...", shell_complete=complete_queue, type=no_url()
)

id = click.argument("id")

internal = flag("--all", "own", help="Include the internal queues of bide.")

prefix = click.argument("prefix", default="", type=no_url())
"""The beginning of the names of queues; by default that of all."""

when = together(
    time(
        "--delay",
        "The time from now until it is due: 250ms, 30s, 1h30m, 7d, or seconds.",
        what="delay",
    ),
    click.option(
        "--at",
        type=read_due,
        metavar="DATETIME",
        help="The due time instead: ISO 8601 with a zone (2026-12-01T09:00+01:00, or "
        "'2026-12-01 09:00 Europe/Berlin'), or Unix seconds; with --timezone a local date "
        "(2026-12-01 09:00). A time in the past means at once.",
    ),
)
timezone = click.option(
    "--timezone",
    type=read_zone,
    metavar="ZONE",
    help="The zone of --at, a local date: it moves if the rules of the zone change.",
)

limit = count("-n", "--limit", help=f"The maximum number; {SCREEN} on a terminal, all in a pipe.")

undo = flag(
    "--undo", "undoable", help=f"Let it be taken back for {MINUTES} minutes: see bide undo."
)

rule = together(
    text("--group", "NAME", "Only messages of this group."),
    moment("--after", "Only messages due then or later."),
    moment("--before", "Only messages due before then."),
)


def _message_option(option: Option, *, default: bool = True) -> Decorator:
    """Take one option of a message as `Options` declares it, with or without its default."""
    name = f"--{option.name.replace('_', '-')}"
    if option.least is None:  # a name, not a number
        return text(name, "NAME", option.help)
    value = option.default if default else None
    return count(name, least=option.least, most=option.most, default=value, help=option.help)


message = together(*map(_message_option, OPTIONS.values()))
changed = together(
    *(
        _message_option(option, default=False)
        for option in OPTIONS.values()
        if option.name in EDITED
    )
)
"""Options of a message that is there already: without defaults."""

body_form = together(
    click.option("--text", "form", flag_value="text", help="The body is text, not JSON."),
    click.option("--bytes", "form", flag_value="bytes", help="The body is bytes, unchanged."),
)
"""Take what a body is, if it is not JSON; of both options, the last one counts."""

body_file = click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="PATH",
    help="Read the body from a file.",
)


expires = time("--expires", "How long after its due time the message is still worth delivering.")


if_due = moment("--if-due", "Only if it is still due then.")
if_version = text("--if-version", "VERSION", "Only if it still has this version: see bide get.")


rule_times = together(
    click.option(
        "--cron",
        type=read_cron,
        metavar="EXPRESSION",
        help="Let it repeat: five fields in quotes, as '0 9 * * MON', or @daily.",
    ),
    click.option(
        "--every",
        type=read_period,
        metavar="TIME",
        help="Let it repeat after a period instead: 15m, 1d.",
    ),
    click.option(
        "--timezone",
        type=read_zone,
        metavar="ZONE",
        help="The zone of --cron and --window (UTC by default), or of --at: Europe/Berlin.",
    ),
)
rule_bounds = together(
    moment("--start", "If it repeats: not before this time; --every counts from it."),
    moment("--until", "If it repeats: not after this time."),
    count("--times", help="If it repeats: how many runs there are."),
    choice(
        "--missed",
        ["once", "all", "skip"],
        "If it repeats: runs whose time passes while no worker is running become one run (once, "
        "the default), are all delivered (all), or are left out (skip).",
    ),
    time("--grace", "If it repeats: how late a run may begin without counting as missed."),
)
repeat = together(rule_times, rule_bounds)
"""Take the rule of a message that repeats; see `bide.cli.rules.set_rule`."""

window = together(
    click.option(
        "--window",
        type=read_hours,
        metavar="HOURS",
        help="When it is delivered, in quotes: 'Mon-Fri 09:00-18:00', '22:00-06:00', 'Sat-Sun'.",
    ),
    click.option(
        "--holidays",
        type=read_holidays,
        metavar="FILE",
        help="Days on which --window is closed: the whole-day events of an iCalendar file for the "
        "next two years, or dates: 2026-12-25,2027-01-01.",
    ),
)
"""Take the window of a message, but its `--timezone`; see `bide.cli.rules.set_window`."""


def put_options(message_options: Decorator) -> Decorator:
    """Take the options of a put.

    Args:
        message_options: takes priority, attempts and group: `message`, or `changed`, which has no
            defaults, so that those of a task count.
    """
    own_id = together(
        text("--id", "ID", "Your own id; generated by default."),
        time(
            "--latest",
            "With --id, --delay and --on-conflict replace: it is due at most this long after the "
            "first put of the id, however often it is put again.",
        ),
    )
    existing_id = together(
        choice(
            "--on-conflict",
            ["keep", "replace", "raise"],
            "What to do if the id exists already.",
            "keep",
        ),
        if_version,
    )
    spread = time(
        "--spread",
        "Make it due up to this long after --delay or --at, always at the same time for an id.",
    )
    return together(
        together(when, repeat, window, spread),
        own_id,
        expires,
        message_options,
        headers("A header, stored with the message"),
        existing_id,
    )


max_body = click.option(
    "--max-body",
    type=WholeNumber(1),
    default=MAX_BODY,
    metavar="BYTES",
    help="The maximum size of a body; 1 MiB by default.",
)


url = text(
    "--url",
    "URL",
    "The store: sqlite:///file.db, redis://host/0, http://host, ...  By default bide.db in this "
    "folder.",
    envvar="BIDE_URL",
    show_envvar=True,
    is_eager=True,
)

debug = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    help="Show tracebacks of errors.",
    callback=lambda ctx, param, value: ctx.meta.setdefault(DEBUG, value),
)

output = together(flag("--json", "as_json", help="Print one JSON object per line."), debug)


def grace(work: str) -> Decorator:
    """Take how long to wait when the process is stopped: `--grace`.

    Args:
        work: what may take that time, for the help.
    """
    return time("--grace", f"How long {work} may take to finish after a stop signal.", "30s")


def logs(verb: str) -> Decorator:
    """Take how a long-running process logs: `--log-json` and `--log-level`.

    Args:
        verb: what was done to the messages that have a line each at debug, for the help.
    """
    return together(
        flag("--log-json", help="Log one JSON object per line."),
        choice(
            "--log-level",
            ["debug", "info", "warning", "error"],
            f"debug logs each message that was {verb}; info logs failures, and a summary of the "
            "rest every 10 s.",
            "info",
        ),
    )


def read_address(text: str) -> tuple[str, int]:
    """Read an address to listen on: "9464" (this machine only), "0.0.0.0:9464", "[::1]:9464"."""
    host, _, port = text.rpartition(":")
    if port.isdigit() and 1 <= int(port) <= 65_535:
        return host.strip("[]") or "127.0.0.1", int(port)
    raise click.BadParameter(f"{text!r} is not a port; write 9464 or 0.0.0.0:9464")


def port(name: str, purpose: str, usual: int) -> Decorator:
    """Take an address to listen on.

    Args:
        name: the name of the option.
        purpose: a sentence for the help: what is served there.
        usual: a port, as the example in the help.
    """
    return click.option(
        name,
        type=read_address,
        metavar="[HOST:]PORT",
        help=f"{purpose} Without a host, only this machine can connect; 0.0.0.0:{usual} listens on "
        "all addresses.",
    )


_MODULE = no_url("name the module of the app here")
app = click.argument("target", metavar="MODULE:APP", type=_MODULE)
optional_app = click.argument("target", metavar="[MODULE:APP]", required=False, type=_MODULE)
task = click.argument("target", metavar="MODULE:TASK", type=_MODULE)

metrics = port("--metrics", "Serve Prometheus metrics.", 9464)


def _network(text: str) -> str:
    from ipaddress import ip_network

    try:
        return str(ip_network(text))
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 10.1.0.0/16, or 127.0.0.1") from None


def networks(dest: str = "networks", **more: Any) -> Decorator:
    """Take to which private networks push may send: `--allow-network`."""
    return many(
        "--allow-network",
        dest,
        "NETWORK",
        "A private network that push may send to, such as 10.1.0.0/16",
        type=_network,
        **more,
    )


action_log = text(
    "--action-log",
    "FILE",
    "A file for a JSON line per action.",
    envvar="BIDE_ACTION_LOG",
    show_envvar=True,
)


outbox = text(
    "--outbox",
    "URL",
    "The database of your program: forward what is committed to its outbox (see bide forward).",
    envvar="BIDE_OUTBOX",
    show_envvar=True,
)

rabbitmq = many(
    "--rabbitmq",
    "rabbitmq",
    "URL",
    "Delay the messages of an exchange, amqp://user@host/vhost?exchange=NAME, and publish them "
    "when they are due (see bide rabbitmq)",
    envvar="BIDE_RABBITMQ",
    show_envvar=True,
)
"""Exchanges of RabbitMQ whose delayed messages are stored."""
