"""`bide dashboard`: queues and messages in a browser."""

import click

from bide.cli import option
from bide.cli.errors import flush_output, require_packages
from bide.cli.output import Output
from bide.cli.store import CommandStore, refuse_memory


@click.command()
@click.argument("store", metavar="[URL]", required=False)
@option.url
@option.count("--port", least=0, most=65_535, default=8643, help="The port; 0 takes a free one.")
@option.flag("--read-only", help="Show everything, allow no actions.")
@option.many("--hide", "hide", "NAME", "A part of bodies, or a header, that is not shown")
@option.action_log
@option.output
def dashboard(
    store: str | None,
    url: str | None,
    port: int,
    read_only: bool,
    hide: tuple[str, ...],
    action_log: str | None,
    as_json: bool,
) -> None:
    """Show queues, messages and workers in a browser.

    The dashboard of a store, on this machine alone: http://127.0.0.1:8643. There is no login, so
    every local user may open it; --read-only allows them no actions. For other machines use
    bide.dashboard.asgi in an application of yours.

    It shows what falls due when, lists messages by state, due time and group, and cancels,
    reschedules, copies, revives and purges them. The pages work without JavaScript.

    \b
    Example:
      bide dashboard
      bide dashboard redis://localhost/0 --read-only
      bide dashboard --hide card --hide authorization
    """
    require_packages("bide dashboard", "jinja2", "h11", "httptools", extra="dashboard")
    from bide.dashboard.local import run
    from bide.observing.logs import configure

    refuse_memory(store or url or "")
    out = Output(as_json)

    with CommandStore(store or url) as command_store:

        def announce(address: str) -> None:
            out.report({"url": address}, f"the dashboard of {command_store.shown} is at {address}")
            flush_output()

        configure(as_json=as_json, level="warning")
        run(
            command_store.url,
            port,
            announce,
            read_only=read_only,
            hide=hide,
            action_log=action_log,
        )
