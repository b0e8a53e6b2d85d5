"""The dashboard for the user of this machine: a server of its own, on loopback, without a token."""

import asyncio
import signal
import socket
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from bide.dashboard.access import ACTIONS, Access
from bide.dashboard.app import Dashboard
from bide.lane.first_contact import lane_when_there, wait_for_file
from bide.queue.arguments import user_name
from bide.server.access.foreign_pages import refuse_foreign_hosts
from bide.server.app import ServerApp
from bide.server.http.http_server import HttpServer
from bide.server.limits.request_bodies import Receive
from bide.server.request import Scope
from bide.server.response import Send
from bide.server.serve import bind
from bide.server.settings import Settings
from bide.tasks import unless_stopped
from bide.worker.process.child import loop_factory

PORT = 8643


def open_access(actions: Collection[str]) -> Callable[[Mapping[str, Any]], Access]:
    """Return an access function that admits every client of this machine's loopback address.

    Args:
        actions: what can be done.
    """
    access = Access(name=user_name(), actions=actions, log=True)

    def admit(scope: Mapping[str, Any]) -> Access:
        # A page of another site may resolve its own name to this machine.
        host = dict(scope["headers"]).get(b"host")
        refuse_foreign_hosts(scope, None if host is None else host.decode("latin-1"))
        return access

    return admit


class _LocalApp(ServerApp):
    """The dashboard alone, without the API."""

    def __init__(self, settings: Settings, dashboard: Dashboard) -> None:
        super().__init__(settings)
        self._dashboard = dashboard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._dashboard(scope, receive, send)


def run(
    store: str,
    port: int,
    announce: Callable[[str], None],
    *,
    read_only: bool = False,
    hide: Collection[str] = (),
    action_log: str | None = None,
) -> None:
    """Serve the dashboard on 127.0.0.1 until SIGTERM or Ctrl-C.

    Args:
        store: the URL of the store.
        port: to listen on; 0 takes a free one.
        announce: is called with the URL of the dashboard once it can be opened.
        read_only: allow no actions.
        hide: names of the parts of bodies, and of the headers, that are not shown.
        action_log: a file for a JSON line per action.

    Raises:
        InvalidArgument: nothing can listen there, or the file cannot be written.
        StoreError: the store cannot be opened. One that is not there yet is waited for.
    """
    settings = Settings(
        store=store, port=port, auth="off", push=False, grace=1.0, action_log=action_log
    )
    settings.check()
    with asyncio.Runner(loop_factory=loop_factory()) as loop, bind(settings) as listening:
        loop.run(_serve(settings, listening, announce, () if read_only else ACTIONS, hide))


async def _store_is_there(url: str) -> Literal[True]:
    """Wait for the store: a dashboard makes none, since the user may be in the wrong folder."""
    await wait_for_file(url)
    async with lane_when_there(url):
        return True


async def _serve(
    settings: Settings,
    listening: socket.socket,
    announce: Callable[[str], None],
    actions: Collection[str],
    hide: Collection[str],
) -> None:
    """Serve the dashboard on a socket until a signal ends it; see `run`."""
    if not await unless_stopped(_store_is_there(settings.store)):
        return
    dashboard = Dashboard(settings.store, open_access(actions), hide)
    app = _LocalApp(settings, dashboard)
    dashboard.action_log = app.service.action_log
    server = HttpServer(app)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    try:
        await app.service.begin()
        _address, port = listening.getsockname()
        announce(f"http://127.0.0.1:{port}/")
        await server.serve(listening)
    finally:
        await app.service.end()
        await dashboard.close()
