"""`bide push`: send the due messages of all subscriptions."""

import click

from bide.cli.options import debug_option, grace_option, log_options, networks_option
from bide.cli.store import refuse_lone
from bide.cli.subscription_access import remote, require_server_extra
from bide.engines.registry import DEFAULT_URL
from bide.model.errors import InvalidArgument

__all__ = ["push"]


@click.command()
@click.option(
    "--url",
    envvar="BIDE_URL",
    show_envvar=True,
    metavar="URL",
    help="The store: sqlite:///file.db, ...  By default bide.db in this folder.",
)
@networks_option()
@grace_option("requests under way")
@log_options("sent")
@debug_option
def push(
    url: str | None, networks: tuple[str, ...], grace: float, log_json: bool, log_level: str
) -> None:
    """Send due messages to the URLs of subscriptions, without a server.

    bide serve does the same beside answering HTTP. Subscriptions are made with bide subscription.
    Those that are new, changed or deleted meanwhile are noticed. Any number of these processes may
    run on one store: they share the work, and what one of them held when it died is sent by
    another.

    Only public addresses are sent to, unless --allow-network names others. SIGTERM and Ctrl-C let
    requests under way finish within the grace time; the rest is handed back, untouched. A second
    one hands it back at once.

    \b
    Example:
      bide push
      bide push --allow-network 10.1.0.0/16 --log-json
    """  # fmt: skip
    require_server_extra()
    if remote(url):
        raise InvalidArgument(
            "url names a server, which pushes by itself (bide serve); name its store here"
        )
    refuse_lone(url or "")
    import asyncio

    from bide.observing.logs import configure
    from bide.targets.http.process import push as run
    from bide.worker.process.child import loop_factory
    from bide.worker.process.descriptors import raise_descriptor_limit

    configure(as_json=log_json, level=log_level)
    raise_descriptor_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as loop:
        loop.run(run(url or DEFAULT_URL, networks, grace))
