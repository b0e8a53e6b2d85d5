"""`bide serve`: the queue over HTTP."""

from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import msgspec

from bide.cli import option
from bide.cli.errors import require_packages
from bide.cli.output import Output, grid
from bide.cli.times import read_duration
from bide.model.times import format_duration
from bide.server.settings import SPANS, Settings

SETTING_TYPES = get_type_hints(Settings)

OPTIONS = {
    "store": ("URL", "The store: sqlite:///file.db, ...  By default bide.db in this folder."),
    "host": ("HOST", "The address to listen on; 127.0.0.1 by default. Others need tokens."),
    "port": ("PORT", "The port to listen on; 8642 by default; 0 takes a free port."),
    "socket": ("PATH", "A Unix socket to listen on instead."),
    "socket_mode": ("MODE", "The mode of the socket; 600 by default, 660 also admits the group."),
    "tls_cert": ("FILE", "A certificate and its chain (PEM): speak HTTPS. SIGHUP reads it again."),
    "tls_key": ("FILE", "The key of that certificate (PEM)."),
    "tls_client_ca": ("FILE", "CA certificates (PEM): clients must show one that these issued."),
    "workers": ("N", "The number of server processes; 1 by default."),
    "auth": ("", "Whether requests need a token; auto: as soon as the store has a token."),
    "grace": ("TIME", "How long requests may take to finish after a stop signal; 30s by default."),
    "log_json": ("", "Log one JSON object per line."),
    "log_level": ("", "info and debug log each request."),
    "push": ("", "Whether to send due messages to subscriptions; on by default."),
    "dashboard": ("", "Show the dashboard at /dashboard; its visitors log in with a token."),
    "dashboard_hide": (
        "NAME",
        "A part of bodies, or a header, whose value the dashboard does not show; can be repeated.",
    ),
    "trusted_proxies": (
        "CIDR",
        "A proxy whose X-Forwarded-For or Forwarded names the client, such as 10.1.0.0/16, "
        "or unix for the one at the Unix socket; can be repeated.",
    ),
    "action_log": (
        "FILE",
        "A file for a JSON line per action: who did what, from where. SIGHUP reopens it.",
    ),
}
"""The settings that can be values as options: their metavar and help."""

OPTION_NAMES = {
    "store": ("--store", "--url"),
    "push": ("--push/--no-push",),
    "trusted_proxies": ("--trusted-proxy",),
}
"""The options that are not named as their settings; the other commands say --url."""

VARIABLE_NAMES = {"store": "BIDE_URL", "action_log": "BIDE_ACTION_LOG"}
"""The environment variables that are not named BIDE_SERVE_SETTING."""


def _setting(name: str, metavar: str, help: str) -> option.Decorator:
    """Take a setting of the server, of the type that `Settings` declares."""
    setting_type = SETTING_TYPES[name]
    attributes: dict[str, Any] = {"metavar": metavar or None}
    if setting_type is bool:
        attributes |= {"is_flag": True, "default": None}  # `None`: as the file or `Settings` says
    elif get_origin(setting_type) is Literal:
        attributes["type"] = click.Choice(get_args(setting_type))
    elif get_origin(setting_type) is list:
        attributes["multiple"] = True
    elif setting_type is float:
        attributes["type"] = lambda text: read_duration(text, "time")
    elif setting_type is int:
        attributes["type"] = int
    return click.option(
        *OPTION_NAMES.get(name, (f"--{name.replace('_', '-')}",)),
        name,
        help=help,
        show_envvar=True,
        envvar=VARIABLE_NAMES.get(name, f"BIDE_SERVE_{name.upper()}"),
        **attributes,
    )


@click.command()
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    envvar="BIDE_SERVE_CONFIG",
    show_envvar=True,
    help="A TOML file with settings; options and the environment override it.",
)
@option.together(*[_setting(name, metavar, help) for name, (metavar, help) in OPTIONS.items()])
@option.networks("push_networks", envvar="BIDE_SERVE_PUSH_NETWORKS", show_envvar=True)
@option.rabbitmq
@option.flag("--check", help="Check whether the server could start, print its settings, exit.")
@option.flag("--json", "as_json", help="With --check: print one JSON object.")
@option.debug
@click.pass_context
def serve(
    ctx: click.Context, /, config: Path | None, check: bool, as_json: bool, **values: Any
) -> None:
    """Offer the queue over HTTP, for programs in any language.

    Without tokens, the server listens on this machine only, and every local user may do anything.
    Once the store has a token (bide token create), each request needs one; this takes effect within
    a second. The API is documented at /docs and /openapi.json.

    The server also sends due messages to the URLs of subscriptions (bide subscription), at public
    addresses and those of --allow-network.

    On SIGTERM or Ctrl-C, the server answers waiting claims and gives requests the grace time to
    finish; pushes that take longer return to the queue. SIGHUP replaces the processes one by one;
    in a terminal it means that the terminal was closed, and stops the server like SIGTERM.

    \b
    Example:
      bide serve
      bide serve --store sqlite:////var/lib/bide/bide.db --workers 2
      bide serve --config serve.toml --check
    """
    import asyncio

    require_packages("bide serve", "h11", "httptools", "jinja2", "prometheus_client")
    from bide.observing.logs import configure
    from bide.server.serve import serve as run
    from bide.server.settings import read_file

    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value not in (None, ())
    }
    settings = Settings(**({} if config is None else read_file(config)) | options)
    if check:
        _check(settings, Output(as_json))
        return
    configure(as_json=settings.log_json, level=settings.log_level)
    ctx.exit(asyncio.run(run(settings)))


def _check(settings: Any, out: Output) -> None:
    """Check that a server with these settings could start, and print them.

    Raises:
        InvalidArgument: one of the settings is not valid, or they do not go together.
        StoreError: the store cannot be opened.
    """
    from bide.cli.store import CommandStore
    from bide.model.errors import StoreUnavailable
    from bide.server.access.admission import must_be_local
    from bide.server.access.tokens import Tokens
    from bide.server.http.tls import context_of
    from bide.server.serve import bind

    settings.check()
    context_of(settings)
    bind(settings).close()
    if settings.socket is not None:
        Path(settings.socket).unlink()
    tokens = 0
    with CommandStore(settings.store) as store:
        try:
            store.names("")
        except StoreUnavailable:  # a file that the server will create
            if not settings.store.startswith("sqlite:"):
                raise
        else:
            tokens = 0 if settings.behind else len(Tokens(store.lane).listed())
    requires_tokens = settings.auth == "required" or settings.oidc is not None
    requires_tokens |= settings.auth == "auto" and tokens > 0
    must_be_local(settings, requires_tokens=requires_tokens)
    facts = {**settings.without_secrets(), "tokens": tokens}
    for name in SPANS:
        facts[name] = round(facts[name] * 1000)  # all output has milliseconds
    texts = {name: _text(value) for name, value in facts.items()}
    if out.terminal:
        texts |= {name: format_duration(facts[name]) for name in SPANS}
        out.console.print(grid([[(name, "dim"), text] for name, text in texts.items()], "ll"))
    else:
        out.report(facts if out.as_json else texts)


def _text(value: Any) -> str:
    """Return a setting as text: a list with spaces between its items, a table as JSON."""
    if value is None or value == {}:
        return ""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
