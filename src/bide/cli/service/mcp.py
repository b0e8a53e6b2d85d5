"""`bide mcp`: queues for agents, over the Model Context Protocol."""

from contextlib import closing

import click

from bide.cli import option
from bide.cli.errors import require_packages
from bide.cli.store import CommandStore, refuse_memory
from bide.engines.registry import named_url


@click.command()
@click.argument("store", metavar="[URL]", required=False)
@option.url
@option.flag("--read-only", help="Offer no tool that changes anything.")
@option.flag("--no-bodies", help="Show no bodies and no headers.")
@option.action_log
def mcp(
    store: str | None, url: str | None, read_only: bool, no_bodies: bool, action_log: str | None
) -> None:
    """Let an agent look at queues, and change messages.

    A server of the Model Context Protocol on standard input and output; the program of the agent
    starts it. The tools: look, explain, preview (count what a change would change), cancel,
    reschedule, and undo. Changes by group or time can be taken back for ten minutes.

    With the URL of a server of bide, the agent has the rights and limits of its token. With the URL
    of a store, it may do what this user may do; --read-only leaves out the changes. Each change has
    the name of the agent's program and the user as its actor.

    \b
    Example:
      BIDE_TOKEN=... bide mcp https://bide.example.com
      bide mcp postgresql://localhost/shop --read-only --no-bodies
      bide mcp --action-log actions.log
    """
    require_packages("bide mcp", "mcp", extra="mcp")
    from bide.cli.service.mcp_server import serve
    from bide.cli.service.mcp_tools import AgentTools
    from bide.observing.logs import configure
    from bide.server.logs import ActionLog

    store_url = named_url(store, url)
    refuse_memory(store_url)
    configure(as_json=False, level="warning")
    with CommandStore(store_url) as command_store, closing(ActionLog(action_log)) as log:
        command_store.must_exist()
        serve(AgentTools(command_store, log, shows_bodies=not no_bodies), read_only=read_only)
