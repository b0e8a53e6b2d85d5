"""The suite through a server: each engine of a test has a store of its own behind one port."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from bide.engines.http import address_of
from bide.engines.http.connection import HttpAddress
from bide.engines.http.engine import HttpEngine
from bide.engines.port import Engine, Identities
from bide.model.commands import Command
from bide.model.errors import InvalidArgument
from bide.model.replies import Reply
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing import FakeClock
from bide.testing.conformance import EngineConformance
from bide.testing.conformance.batches import BatchCases
from bide.testing.conformance.claiming import ClaimCases
from bide.testing.conformance.driver import OTHER_RULE, RULE, RUNS, Driver
from bide.testing.conformance.ending import EndCases
from bide.testing.conformance.explaining import ExplainCases
from bide.testing.conformance.repeating import RepetitionCases
from bide.testing.conformance.runs import RunCases
from bide.testing.conformance.scripts import EXAMPLES, ScriptCases
from bide.testing.hooks import plan_nothing, recover_nothing
from tests.effort import effort
from tests.system.server.conftest import running

KEPT = 8


class Stores:
    """An ASGI application in front of several: the first part of the path says which.

    Of the stores that were asked for last a few stay open; the others wait in their files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._apps: dict[str, ServerApp] = {}
        self.clocks: defaultdict[str, FakeClock] = defaultdict(FakeClock)
        self._settings = ServerApp(self._told("main"))
        self.service = self._settings.service

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._settings.running()

    def _told(self, name: str) -> Settings:
        return Settings(store=f"sqlite:///{self._folder}/{name}.db?durability=normal")

    async def _app(self, name: str) -> ServerApp:
        app = self._apps.pop(name, None)
        if app is None:
            app = ServerApp(self._told(name), self.clocks[name])
            plan_nothing(app.service.lane)  # the suite is about the store
            recover_nothing(app.service)
        self._apps[name] = app
        if len(self._apps) > KEPT:
            await self._apps.pop(next(iter(self._apps))).service.end()
        return app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._settings(scope, receive, send)
            return
        _, name, rest = scope["raw_path"].decode().split("/", 2)
        app = await self._app(name)
        await app({**scope, "raw_path": b"/" + rest.encode()}, receive, send)

    async def close(self) -> None:
        for app in self._apps.values():
            await app.service.end()


class Timed(HttpEngine):
    """Moves the clock of its store, which is in this process, to the time of the suite."""

    def __init__(self, address: HttpAddress, clock: FakeClock) -> None:
        self._clock = clock
        super().__init__(address)

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        if now is not None:
            self._clock.set_wall(now)
        return super().execute(commands, now, identities)

    def reader(self) -> "Timed":
        return Timed(self._address, self._clock)


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Engine]]:
    """Provide a function that opens an engine on the store of a name."""
    stores = Stores(tmp_path_factory.mktemp("stores"))
    with running(stores) as port:  # type: ignore[arg-type]
        yield lambda name: Timed(
            address_of(urlsplit(f"http://127.0.0.1:{port}/{name}"))[0], stores.clocks[name]
        )
    asyncio.run(stores.close())


numbers = itertools.count()


class OnServer:
    """Stores of one server."""

    @pytest.fixture
    def names(self) -> dict[Engine, str]:
        return {}

    @pytest.fixture
    def make_engine(
        self, names: dict[Engine, str], at: Callable[[str], Engine]
    ) -> Callable[[], Engine]:
        def make() -> Engine:
            name = str(next(numbers))
            engine = at(name)
            names[engine] = name
            return engine

        return make

    @pytest.fixture
    def reopen(
        self, names: dict[Engine, str], at: Callable[[str], Engine]
    ) -> Callable[[Engine], Engine]:
        return lambda engine: at(names[engine])

    def test_a_rule_and_a_run_are_kept_as_they_are(self, driver: Driver) -> None:
        """A server takes no rule and no run that it cannot read."""
        odd_run = f"{RUNS[0]} left={'1' * 10} held"
        spaced = OTHER_RULE.replace(":", " : ").ljust(512)
        driver.put("a", delay=5, rule=spaced, run=odd_run)
        message = driver.get("a")
        assert (message.rule, message.run) == (spaced, odd_run)
        for rule, run in [("other", RUNS[0]), ("other", None), (RULE, "1"), (None, RUNS[0])]:
            with pytest.raises(InvalidArgument):
                driver.put("b", rule=rule, run=run)
            with pytest.raises(InvalidArgument):
                driver.edit("a", rule=rule, run=run)
        assert driver.get("a") == message


class TestWhatTheProtocolCarries(
    OnServer, ScriptCases, BatchCases, RepetitionCases, RunCases, ExplainCases, EndCases, ClaimCases
):
    """Random scripts of all commands, and the cases to which the server adds something itself.

    The store behind it is proven by itself.
    """

    driver, bare = EngineConformance.driver, EngineConformance.bare
    examples = EXAMPLES // effort(20, 1)


@pytest.mark.full
class TestHttp(OnServer, EngineConformance):
    """The whole suite again."""

    examples = EXAMPLES // 20
