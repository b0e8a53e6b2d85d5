from collections.abc import Callable, Iterator

import pytest

from bide.engines.memory import MemoryEngine
from bide.lane.lane import Lane
from bide.model.commands import Lease, RetryCommand
from bide.testing.clock import FakeClock
from bide.testing.faults import FlakyEngine
from tests.start import START
from tests.unit.lane.commands import claim, ids, put, sizes
from tests.waiting import until


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def engine() -> FlakyEngine:
    return FlakyEngine(MemoryEngine())


@pytest.fixture
def lane(engine: FlakyEngine, clock: FakeClock) -> Iterator[Lane]:
    lane = Lane(lambda: engine, clock)
    yield lane
    lane.close()


@pytest.fixture
def back(lane: Lane, engine: FlakyEngine, clock: FakeClock) -> Callable[[], None]:
    """One message is there; after the test's claim it must be there again, untouched."""
    lane.call(put("a"))

    def check() -> None:
        given_back = RetryCommand("q", [Lease("a", START + 1)], release=True)
        until(lambda: any(given_back in batch for batch in engine.batches))
        until(lambda: sizes(engine, clock.now()) == (0, 1, 0))
        (message,) = engine.engine.execute([claim()], clock.now())
        assert ids(message) == ["a"]
        assert message.messages[0].attempt == 1  # type: ignore[union-attr]

    return check
