"""Servers for tests: in a thread, on a port of its own."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bide.server.access.rights import SCOPES
from bide.server.access.tokens import Tokens
from bide.server.app import ServerApp
from bide.server.http.http_server import HttpServer
from bide.server.serve import bind
from bide.server.settings import Settings
from bide.worker.process.child import loop_factory
from tests.system.server.client import Client

SERVERS: dict[int, HttpServer] = {}
"""By port."""


@contextmanager
def running(app: ServerApp) -> Iterator[int]:
    """Serve an application, and give its port."""
    with bind(Settings(port=0)) as listening:
        port: int = listening.getsockname()[1]
        server = SERVERS[port] = HttpServer(app)
        loop = (loop_factory() or asyncio.new_event_loop)()
        thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve(listening)))
        thread.start()
        try:
            yield port
        finally:
            loop.call_soon_threadsafe(server.stop)
            thread.join()
            left = asyncio.all_tasks(loop)
            loop.close()
            assert not left


Serve = Callable[..., Client]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Provide a function that starts a server and returns a client of it."""
    with ExitStack() as stack:

        def start(app: ServerApp | None = None, **settings: Any) -> Client:
            told = {"store": f"sqlite:///{tmp_path}/bide.db", **settings}
            app = app or ServerApp(Settings(**told))
            port = stack.enter_context(running(app))
            return stack.enter_context(Client(port, app))

        yield start


@pytest.fixture
def client(serve: Serve) -> Client:
    """Provide a client of a server without tokens, on SQLite."""
    return serve()


@pytest.fixture
def make_token(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Provide a function that makes tokens in the store of `serve`."""
    from bide.lane.shared import close_lane, open_lane

    lane = open_lane(f"sqlite:///{tmp_path}/bide.db")
    tokens = Tokens(lane)

    def make(namespace: str | None, *scopes: str, rights: Sequence[str] = (), **fields: Any) -> str:
        allowed = [*rights, *(right for scope in scopes for right in SCOPES[scope])]
        return tokens.create(namespace, allowed, **fields)[0]

    yield make
    close_lane(lane)
