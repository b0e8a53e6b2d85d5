"""`bide push`: send the due messages of all subscriptions."""

import ipaddress
from typing import Any

import click

from bide.cli.options import DURATION
from bide.cli.program import DEBUG
from bide.engines.registry import DEFAULT_URL
from bide.model.errors import InvalidArgument

__all__ = ["networks_option", "push", "server_extra"]


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise click.BadParameter(f"{error}; write 10.1.0.0/16, or 127.0.0.1") from None


def networks_option(function: Any) -> Any:
    """Take which networks may be sent to: `--allow-network`."""
    return click.option(
        "--allow-network", "networks", type=_network, multiple=True, metavar="NETWORK",
        help="A private network that may be sent to, as 10.1.0.0/16; may be given several times.",
    )(function)  # fmt: skip


def _debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True


def server_extra() -> None:
    """Look whether what pushing needs is there.

    Raises:
        InvalidArgument: it is not installed.
    """
    from importlib.util import find_spec

    if find_spec("aiohttp") is None:
        raise InvalidArgument(
            "this needs the package aiohttp, which is not installed: pip install 'bide[server]'"
        )


@click.command()
@click.option(
    "--url",
    envvar="BIDE_URL",
    show_envvar=True,
    metavar="URL",
    help="The store: sqlite:///file.db, ...  By default bide.db in this folder.",
)
@networks_option
@click.option(
    "--grace",
    type=DURATION,
    default=30,
    show_default="30s",
    metavar="TIME",
    help="How long requests under way may take to finish when it is stopped.",
)
@click.option("--log-json", is_flag=True, help="Log one JSON object a line.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="At debug each message that was sent has a line; at info failures have, and every 10 s a "
    "line sums up the rest.",
)
@click.option(
    "--debug", is_flag=True, expose_value=False, is_eager=True, callback=_debug,
    help="Show tracebacks of errors.",
)  # fmt: skip
def push(
    url: str | None, networks: tuple[str, ...], grace: float, log_json: bool, log_level: str
) -> None:
    """Send due messages to the URLs of subscriptions.

    Subscriptions are made with bide subscription. Those that are new, changed or deleted meanwhile
    are noticed. Any number of these processes may run on one store: they share the work, and what
    one of them held when it died is sent by another.

    Only public addresses are sent to, unless --allow-network names others. SIGTERM and Ctrl-C let
    requests under way finish within the grace time; the rest is handed back, untouched.

    \b
    Example:
      bide push
      bide push --allow-network 10.1.0.0/16 --log-json
    """  # fmt: skip
    server_extra()
    import asyncio

    from bide.server.push.process import push as run
    from bide.worker.child import loop_factory
    from bide.worker.logs import configure

    configure(as_json=log_json, level=log_level)
    with asyncio.Runner(loop_factory=loop_factory()) as loop:
        loop.run(run(url or DEFAULT_URL, networks, grace))
