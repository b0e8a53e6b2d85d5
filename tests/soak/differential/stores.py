"""An empty store of each kind."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bide.engines.registry import opener
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing.clock import FakeClock
from bide.testing.hooks import recover_nothing
from tests.postgres_server import PostgresServer, new_folder
from tests.servers import RedisServer
from tests.soak.differential.store import Store
from tests.system.server.conftest import running

__all__ = ["KINDS", "opened"]


@contextmanager
def _sqlite(folder: Path) -> Iterator[Store]:
    yield Store("sqlite", opener(f"sqlite:///{folder}/bide.db?durability=normal"))


@contextmanager
def _postgres(folder: Path) -> Iterator[Store]:
    with new_folder() as place, ExitStack() as stack:
        server = PostgresServer(place)
        stack.callback(server.stop)
        yield Store("postgres", opener(server.url))


@contextmanager
def _redis(folder: Path) -> Iterator[Store]:
    server = RedisServer(folder)
    try:
        yield Store("redis", opener(server.url))
    finally:
        server.stop()


@contextmanager
def _http(folder: Path) -> Iterator[Store]:
    """Provide a server over SQLite.

    It applies no plan for overdue messages before a claim, as no `Queue` does.
    """
    settings = Settings(store=f"sqlite:///{folder}/served.db?durability=normal", push=False)
    clock = FakeClock()
    app = ServerApp(settings, clock)
    recover_nothing(app.service)
    with running(app) as port:
        yield Store("http", opener(f"http://127.0.0.1:{port}"), clock)


KINDS = {"sqlite": _sqlite, "postgres": _postgres, "redis": _redis, "http": _http}
"""What provides a store of each kind in a folder."""


@contextmanager
def opened(kinds: list[str], folder: Path) -> Iterator[list[Store]]:
    """Provide an empty store of each kind."""
    with ExitStack() as stack:
        stores = [stack.enter_context(KINDS[kind](folder)) for kind in kinds]
        for store in stores:
            stack.callback(store.lane.close)
        yield stores
