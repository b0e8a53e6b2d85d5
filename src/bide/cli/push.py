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

    bide serve does the same and also answers HTTP. bide subscription creates subscriptions; this
    command notices new, changed and deleted ones. Several of these processes can run on one store:
    they share the work, and when one dies, another sends the messages that it held.

    Messages go to public addresses only, unless --allow-network names other networks. On SIGTERM or
    Ctrl-C, requests under way get the grace time to finish; the rest returns to the queue, and the
    attempt does not count. A second signal returns it at once.

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
