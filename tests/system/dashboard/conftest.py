"""A visitor of the dashboard without a browser, and one with Chromium."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

import bide
from bide.dashboard.access import ACTIONS, Access
from bide.dashboard.app import Dashboard
from bide.testing import FakeClock
from tests.system.dashboard.served import Served

ANN = Access(name="ann", actions=ACTIONS)

_stores = itertools.count()


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Visitor:
    """Sends requests to an ASGI application in this process.

    Args:
        app: the application.
        headers: of every request.
    """

    def __init__(self, app: Any, headers: Mapping[str, str] | None = None) -> None:
        self.app = app
        self.headers = {"host": "bide.test", **(headers or {})}
        self._runner = asyncio.Runner()

    def get(self, path: str, **headers: str) -> Reply:
        return self._runner.run(self._ask("GET", path, b"", headers))

    def post(self, path: str, fields: Any, **headers: str) -> Reply:
        data = urlencode(fields, doseq=True).encode()
        return self._runner.run(self._ask("POST", path, data, headers))

    def do(self, action: str, **fields: Any) -> Reply:
        return self.post("/do", {"action": action, "back": "/", **fields})

    async def _ask(self, method: str, path: str, data: bytes, headers: Mapping[str, str]) -> Reply:
        plain, _, query = path.partition("?")
        sent = {**self.headers, **{n.replace("_", "-"): v for n, v in headers.items()}}
        scope = {
            "type": "http",
            "method": method,
            "path": plain,
            "raw_path": plain.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "client": ("192.0.2.7", 4711),
            "server": ("bide.test", 80),
            "scheme": "http",
            "http_version": "1.1",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        }
        messages: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        await self.app(scope, receive, send)
        start, *rest = messages
        body = b"".join(message["body"] for message in rest)
        named = {name.decode(): value.decode() for name, value in start["headers"]}
        return Reply(start["status"], named, body.decode())

    def close(self) -> None:
        self._runner.close()


class Stage:
    """A store in memory, a clock, and dashboards of it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.url = f"memory://dashboard-{next(_stores)}"
        self._open: list[Any] = []

    def queue(self, name: str, **more: Any) -> bide.Queue:
        queue = bide.Queue(name, self.url, clock=self.clock, **more)
        self._open.append(queue.close)
        return queue

    def visitor(self, access: Any = ANN, **more: Any) -> Visitor:
        decide = access if callable(access) else lambda scope: access
        app = Dashboard(self.url, decide, clock=self.clock, **more)
        visitor = Visitor(app)
        self._open += [visitor.close, lambda: asyncio.run(app.close())]
        return visitor

    def close(self) -> None:
        for close in self._open:
            close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture
def ann(stage: Stage) -> Visitor:
    """Provide a visitor who may do everything."""
    return stage.visitor()


MakeDead = Callable[..., None]


def bury(queue: bide.Queue, *letters: tuple[str, str]) -> None:
    """Put messages and make them dead letters: pairs of id and error."""
    for id, error in letters:
        queue.put({"n": id}, id=id)
        queue.claim(1)[0].bury(error)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    with served.open:
        yield served
