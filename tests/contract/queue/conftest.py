import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.testing.clock import FakeClock
from tests.start import START
from tests.unit.queue.sync_and_async import Blocking, Loop

_numbers = itertools.count()

Make = Callable[..., Any]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


_USUAL = [("sync", "sqlite"), ("async", "redis")]
_OTHERS = [("sync", "memory"), ("sync", "redis"), ("async", "memory"), ("async", "sqlite")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests their pairs: those of `make test-full` are too many to be left out one by one."""
    if "pair" in metafunc.fixturenames and not hasattr(metafunc.module, "pair"):
        others = _OTHERS if metafunc.config.getoption("full") else []
        metafunc.parametrize("pair", _USUAL + others, ids="-".join, indirect=True)


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A face, and what kind of store it is on."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def url(request: pytest.FixtureRequest, pair: tuple[str, str], tmp_path: Path) -> str:
    kind = pair[1]
    if kind == "redis":
        fresh: Callable[[], str] = request.getfixturevalue("redis_url")
        return fresh()
    if kind == "memory":
        return f"memory://test{next(_numbers)}"
    return f"sqlite:///{tmp_path}/bide.db?durability=normal"


@pytest.fixture
def make(pair: tuple[str, str], url: str, clock: FakeClock, loop: Loop) -> Iterator[Make]:
    """Makes queues of one face on one store; all are closed at the end."""
    made: list[Any] = []

    def make(name: str = "orders", url: str = url, **options: Any) -> Any:
        options.setdefault("clock", clock)
        if pair[0] == "sync":
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
