"""`bide push`: send due messages to the URLs of subscriptions."""

import click

from bide.cli import option
from bide.cli.errors import require_packages
from bide.cli.service.pushing import run_pusher


@click.command()
@option.url
@option.networks()
@option.grace("requests under way")
@option.logs("sent")
@option.debug
def push(
    url: str | None, networks: tuple[str, ...], grace: float, log_json: bool, log_level: str
) -> None:
    """Send due messages to the URLs of subscriptions.

    No server is needed: bide serve does the same and also answers HTTP. bide subscription creates
    subscriptions; this command notices new, changed and deleted ones. Several of these processes
    can run on one store: they share the work, and when one dies, another sends the messages that it
    held.

    Messages go to public addresses only, unless --allow-network names other networks. On SIGTERM,
    Ctrl-C or a closed terminal, requests under way get the grace time to finish; the rest returns
    to the queue, and the attempt does not count. A second SIGTERM or Ctrl-C returns it at once.

    \b
    Example:
      bide push
      bide push --allow-network 10.1.0.0/16 --log-json
    """
    require_packages("bide push", "h11")
    run_pusher(
        url,
        ", which pushes by itself (bide serve); name its store here",
        log_json,
        log_level,
        networks=networks,
        grace=grace,
    )
