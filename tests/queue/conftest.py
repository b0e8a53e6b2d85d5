import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.testing.clock import FakeClock
from tests.queue.faces import Blocking, Loop

_numbers = itertools.count()

Make = Callable[..., Any]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(params=["memory", "redis", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        fresh: Callable[[], str] = request.getfixturevalue("redis_url")
        return fresh()
    if request.param == "memory":
        return f"memory://test{next(_numbers)}"
    return f"sqlite:///{tmp_path}/bide.db?durability=normal"


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest, url: str, clock: FakeClock, loop: Loop) -> Iterator[Make]:
    """Makes queues of one face on one store; all are closed at the end."""
    made: list[Any] = []

    def make(name: str = "orders", url: str = url, **options: Any) -> Any:
        options.setdefault("clock", clock)
        if request.param == "sync":
            made.append(bide.Queue(name, url, **options))
        else:
            made.append(Blocking(bide.AsyncQueue(name, url, **options), loop))
        return made[-1]

    yield make
    for queue in made:
        queue.close()


@pytest.fixture
def orders(make: Make) -> Any:
    return make()
