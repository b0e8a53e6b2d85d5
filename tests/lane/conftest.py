from collections.abc import Iterator

import pytest

from bide.engines.memory import MemoryEngine
from bide.lane import Lane
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def engine() -> FlakyEngine:
    return FlakyEngine(MemoryEngine())


@pytest.fixture
def lane(engine: FlakyEngine, clock: FakeClock) -> Iterator[Lane]:
    lane = Lane(lambda: engine, clock)
    yield lane
    lane.close()
