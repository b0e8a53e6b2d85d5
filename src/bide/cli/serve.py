"""`bide serve`: the queue over HTTP."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click

from bide.cli import option
from bide.cli.output import Output
from bide.cli.times import read_duration
from bide.model.errors import InvalidArgument

NEEDED = ("h11", "httptools", "prometheus_client")

F = TypeVar("F", bound=Callable[..., Any])


def _setting(name: str, help: str, **more: Any) -> Callable[[F], F]:
    """Take a setting from the option or from its environment variable, `BIDE_SERVE_NAME`."""
    variable = "BIDE_SERVE_" + name.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return click.option(name, help=help, **{"envvar": variable, "show_envvar": True, **more})


@click.command()
@_setting(
    "--config", "A TOML file with settings; options and the environment override it.",
    type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
)  # fmt: skip
@_setting(
    "--store", "The store: sqlite:///file.db, ...  By default bide.db in this folder.",
    envvar="BIDE_URL", metavar="URL",
)  # fmt: skip
@_setting(
    "--host", "The address to listen on; 127.0.0.1 by default. Others need tokens.", metavar="HOST"
)
@_setting(
    "--port", "The port to listen on; 8642 by default; 0 takes a free port.",
    type=click.IntRange(0, 65_535), metavar="PORT",
)  # fmt: skip
@_setting("--socket", "A Unix socket to listen on instead.", metavar="PATH")
@_setting(
    "--socket-mode", "The mode of the socket; 600 by default, 660 also admits the group.",
    metavar="MODE",
)  # fmt: skip
@_setting(
    "--tls-cert", "A certificate and its chain (PEM): speak HTTPS. SIGHUP reads it again.",
    metavar="FILE",
)  # fmt: skip
@_setting("--tls-key", "The key of that certificate (PEM).", metavar="FILE")
@_setting(
    "--tls-client-ca", "Certificates (PEM): clients must show one that these issued.",
    metavar="FILE",
)  # fmt: skip
@_setting(
    "--workers", "The number of server processes; 1 by default.",
    type=click.IntRange(1, 256), metavar="N",
)  # fmt: skip
@_setting(
    "--auth", "Whether requests need a token; auto: as soon as the store has a token.",
    type=click.Choice(["auto", "required", "off"]),
)  # fmt: skip
@_setting(
    "--grace", "How long requests may take to finish after a stop signal; 30s by default.",
    type=lambda text: read_duration(text, "time"), metavar="TIME",
)  # fmt: skip
@_setting("--log-json", "Log one JSON object per line.", is_flag=True, default=None)
@_setting(
    "--log-level", "info and debug log each request.",
    type=click.Choice(["debug", "info", "warning", "error"]),
)  # fmt: skip
@_setting(
    "--push/--no-push", "Whether to send due messages to subscriptions; on by default.",
    default=None,
)  # fmt: skip
@option.many(
    "--trusted-proxy", "proxies", "CIDR",
    "A proxy whose X-Forwarded-For or Forwarded names the client, such as 10.1.0.0/16, or unix "
    "for the one at the Unix socket", envvar="BIDE_SERVE_TRUSTED_PROXIES", show_envvar=True,
)  # fmt: skip
@_setting(
    "--action-log", "A file for a JSON line per act: who did what, from where. SIGHUP reopens it.",
    envvar="BIDE_ACTION_LOG", metavar="FILE",
)  # fmt: skip
@option.rabbitmq
@option.networks(envvar="BIDE_SERVE_PUSH_NETWORKS", show_envvar=True)
@option.flag("--check", help="Check whether the server could start, print its settings, exit.")
@option.flag("--json", "as_json", help="With --check: print one JSON object.")
@option.debug
@click.pass_context
def serve(
    ctx: click.Context, /, config: Path | None, check: bool, as_json: bool,
    networks: tuple[str, ...], rabbitmq: tuple[str, ...], proxies: tuple[str, ...], **given: Any,
) -> None:  # fmt: skip
    """Offer the queue over HTTP, for programs in any language.

    Without tokens, the server listens on this machine only, and every local user may do anything.
    Once the store has a token (bide token create), each request needs one; this takes effect within
    a second. The API is documented at /docs and /openapi.json.

    The server also sends due messages to the URLs of subscriptions (bide subscription), at public
    addresses and those of --allow-network.

    On SIGTERM or Ctrl-C, the server answers waiting claims and gives requests the grace time to
    finish; pushes that take longer return to the queue. SIGHUP replaces the processes one by one.

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
    if proxies:
        said["trusted_proxies"] = list(proxies)
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
    from bide.server.tls import context_of

    settings.check()
    context_of(settings)
    bind(settings).close()
    if settings.socket is not None:
        Path(settings.socket).unlink()
    tokens = 0
    with Store(settings.store) as store:
        try:
            store.names("")
        except StoreUnavailable:  # a file that the server will create
            if not settings.store.startswith("sqlite:"):
                raise
        else:
            tokens = 0 if settings.behind else len(Tokens(store.lane).listed())
            store.ask(Names, Queues(""))
    asks = tokens > 0 or settings.auth == "required" or settings.oidc is not None
    must_be_local(settings, asks=asks)
    shown = settings.shown()
    if out.as_json:
        out.json({**shown, "tokens": tokens})
        return
    for name, value in shown.items():
        out.row(name, str(value))
    out.row("tokens", str(tokens))
