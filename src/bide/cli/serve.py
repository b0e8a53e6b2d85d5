"""`bide serve`: the queue over HTTP."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from bide.cli.options import DURATION, debug_option, networks_option, rabbitmq_option
from bide.cli.output import Output
from bide.model.errors import InvalidArgument

__all__ = ["serve"]

NEEDED = ("h11", "httptools", "prometheus_client")


@click.command()
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="BIDE_SERVE_CONFIG",
    show_envvar=True,
    help="A TOML file with settings; flags and the environment go before it.",
)
@click.option(
    "--store",
    envvar="BIDE_URL",
    show_envvar=True,
    metavar="URL",
    help="The store: sqlite:///file.db, ...  By default bide.db in this folder.",
)
@click.option(
    "--host",
    envvar="BIDE_SERVE_HOST",
    show_envvar=True,
    metavar="HOST",
    help="The address to listen on; 127.0.0.1 by default. Others need tokens.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    envvar="BIDE_SERVE_PORT",
    show_envvar=True,
    metavar="PORT",
    help="The port to listen on; 8642 by default, 0: any.",
)
@click.option(
    "--socket",
    envvar="BIDE_SERVE_SOCKET",
    show_envvar=True,
    metavar="PATH",
    help="A Unix socket to listen on instead.",
)
@click.option(
    "--socket-mode",
    envvar="BIDE_SERVE_SOCKET_MODE",
    show_envvar=True,
    metavar="MODE",
    help="Who may open that socket; 600 by default, 660: the group as well.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    envvar="BIDE_SERVE_WORKERS",
    show_envvar=True,
    metavar="N",
    help="How many processes share the work; 1 by default.",
)
@click.option(
    "--auth",
    type=click.Choice(["auto", "required", "off"]),
    envvar="BIDE_SERVE_AUTH",
    show_envvar=True,
    help="Whether requests need a token; auto: from when on the store has one.",
)
@click.option(
    "--grace",
    type=DURATION,
    envvar="BIDE_SERVE_GRACE",
    show_envvar=True,
    metavar="TIME",
    help="How long requests get to finish when the server is stopped; 30s by default.",
)
@click.option(
    "--log-json",
    is_flag=True,
    default=None,
    envvar="BIDE_SERVE_LOG_JSON",
    show_envvar=True,
    help="Log one JSON object a line.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    envvar="BIDE_SERVE_LOG_LEVEL",
    show_envvar=True,
    help="From info on, each request has a line.",
)
@click.option(
    "--push/--no-push",
    default=None,
    envvar="BIDE_SERVE_PUSH",
    show_envvar=True,
    help="Whether this server sends what is due to the URLs of subscriptions; it does by default.",
)
@rabbitmq_option()
@networks_option(envvar="BIDE_SERVE_PUSH_NETWORKS", show_envvar=True)
@click.option(
    "--check",
    is_flag=True,
    help="Look whether the server could start, show its settings, and leave.",
)
@click.option("--json", "as_json", is_flag=True, help="With --check: one JSON object.")
@debug_option
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    config: Path | None,
    check: bool,
    as_json: bool,
    networks: tuple[str, ...],
    rabbitmq: tuple[str, ...],
    **given: Any,
) -> None:
    """Offer the queue over HTTP, for programs in any language.

    Without tokens the server listens on this machine alone, and whoever is on it may do anything.
    Once there is a token (bide token create) each request needs one, from the next second on. The
    API is described at /docs and
    /openapi.json.

    What is due is sent to the URLs of subscriptions (bide subscription) as well, to public
    addresses and those of --allow-network.

    SIGTERM and Ctrl-C answer the claims that wait and finish what is under way, within the grace
    time; what is still being pushed then is handed back. SIGHUP replaces the processes one after
    the other.

    \b
    Example:
      bide serve
      bide serve --store sqlite:////var/lib/bide/bide.db --workers 2
      bide serve --config serve.toml --check
    """  # fmt: skip
    import asyncio

    for package in NEEDED:
        if find_spec(package) is None:
            raise InvalidArgument(
                f"bide serve needs the package {package!r}, which is not installed: "
                "pip install 'bide[server]'"
            )
    from bide.observing.logs import configure
    from bide.server.serve import serve as run
    from bide.server.settings import Settings, read_file

    said = {name: value for name, value in given.items() if value is not None}
    if networks:
        said["push_networks"] = list(networks)
    if rabbitmq:
        said["rabbitmq"] = list(rabbitmq)
    settings = Settings(**({} if config is None else read_file(config)) | said)
    if check:
        _check(settings, Output(as_json))
        return
    configure(as_json=settings.log_json, level=settings.log_level)
    ctx.exit(asyncio.run(run(settings)))


def _check(settings: Any, out: Output) -> None:
    from bide.cli.store import Store
    from bide.model.commands import Queues
    from bide.model.errors import StoreUnavailable
    from bide.model.replies import Names
    from bide.server.access import Tokens
    from bide.server.admission import must_be_local
    from bide.server.serve import bind

    settings.check()
    bind(settings).close()
    if settings.socket is not None:
        Path(settings.socket).unlink()
    tokens = 0
    with Store(settings.store) as store:
        try:
            store.names("")
        except StoreUnavailable:  # a file that the server is going to make
            if not settings.store.startswith("sqlite:"):
                raise
        else:
            tokens = 0 if settings.behind else len(Tokens(store.lane).listed())
            store.ask(Names, Queues(""))
    must_be_local(settings, asks=tokens > 0 or settings.auth == "required")
    shown = settings.shown()
    if out.as_json:
        out.json({**shown, "tokens": tokens})
        return
    for name, value in shown.items():
        out.row(name, str(value))
    out.row("tokens", str(tokens))
