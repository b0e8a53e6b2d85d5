from collections.abc import Iterator
from pathlib import Path

import pytest

import bide
from bide.testing.clock import FakeClock
from tests.start import START
from tests.system.moving.two_stores import Stores

_KINDS = [
    ("sqlite", "memory"),
    ("memory", "sqlite"),
    pytest.param(("memory", "memory"), marks=pytest.mark.full),
    pytest.param(("sqlite", "sqlite"), marks=pytest.mark.full),
]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(params=_KINDS, ids="-to-".join)
def stores(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Stores]:
    """Two stores, each with the engine that does the work behind one that can fail."""
    with Stores(request.param, tmp_path, clock) as stores:
        yield stores


@pytest.fixture
def old(stores: Stores) -> bide.Queue:
    return stores.queue("old")


@pytest.fixture
def new(stores: Stores) -> bide.Queue:
    return stores.queue("new")
