"""The record of the past on every kind of store: who comes first records, and nothing grows."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import bide
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.lane.steps import run_steps
from bide.model.commands import (
    Ack,
    BuryCommand,
    Cancel,
    Claim,
    Count,
    Delete,
    Lease,
    Put,
    RetryCommand,
)
from bide.model.internal_queues import InternalQueue
from bide.model.message import Item
from bide.model.past import KEPT_SLOTS, past_command
from bide.model.replies import Claimed, Counts, expect
from bide.observing import recorder as module
from bide.observing.heartbeat import Report, put_report
from bide.observing.past import PAST, reading_past
from bide.observing.recorder import PastRecorder
from bide.observing.tally import Histogram, Tally
from bide.testing.clock import FakeClock
from tests.start import START
from tests.stores_of_each_kind import STORES, url_of

MINUTE, HOUR = 60_000, 3_600_000

START_OF_HOUR = START - START % HOUR


@pytest.fixture(params=[kind for kind in STORES if kind != "http"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with url_of(request.param, request) as url:
        yield url


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START_OF_HOUR)


@pytest.fixture
def lane(url: str, clock: FakeClock) -> Iterator[Lane]:
    lane = open_lane(url, clock)
    yield lane
    close_lane(lane)


def record(lane: Lane, clock: FakeClock, recorders: int = 1, **options: Any) -> None:
    """Let so many processes record at the same time."""

    async def together() -> None:
        await asyncio.gather(
            *(PastRecorder(lane.acall, clock, **options).record() for _ in range(recorders))
        )

    asyncio.run(together())


def put(lane: Lane, *ids: str, queue: str = "orders") -> None:
    lane.call(Put(queue, [Item(id, b"1") for id in ids]))


def past(lane: Lane, queue: str = "orders", span: str = "1h", by: Any = None) -> bide.Past:
    command = past_command(queue, span, by)
    capabilities = lane.capabilities
    return run_steps(
        reading_past(
            command, lambda name: name == queue, has_server=lambda: capabilities.has_server
        ),
        lane.call,
    )


def figures(read: bide.Past) -> dict[int, tuple[int, int]]:
    """Return by minute, from the start of the hour: what was put and done."""
    return {
        round(time.timestamp() * 1_000 - START_OF_HOUR) // MINUTE: (slot.put, slot.done)
        for time, slot in read
        if slot is not None
    }


def records(lane: Lane) -> Counts:
    return expect(Counts, lane.call(Count(PAST)))


def test_what_happens_is_there_minute_by_minute(lane: Lane, clock: FakeClock) -> None:
    assert past(lane).why_empty == "no worker or server has recorded yet"
    put(lane, "before")
    record(lane, clock)
    begun = past(lane).why_empty
    assert begun is not None
    assert "just begun" in begun
    put(lane, "a", "b", "c")
    clock.advance(60)
    record(lane, clock)
    claimed = expect(Claimed, lane.call(Claim("orders", 2, 30_000, "w")))
    lane.call(Ack("orders", [Lease(message.id, claimed.token) for message in claimed.messages]))
    lane.call(Cancel("orders", ["c"]))
    clock.advance(60)
    record(lane, clock)
    read = past(lane)
    assert figures(read) == {0: (3, 0), 1: (0, 2)}
    assert read.slots[-1] is not None
    assert read.slots[-1].cancelled == 1
    assert past(lane, "other").slots[-1] == bide.PastSlot()


def test_each_attempt_that_fails_is_counted_once(lane: Lane, clock: FakeClock) -> None:
    record(lane, clock)
    lane.call(Put("orders", [Item(id, b"1", attempts=2) for id in ("lapses", "fails", "buried")]))
    lane.call(Put("orders", [Item("imported", b"1", died=clock.now())]))
    for buried in ([], ["buried"]):
        claimed = expect(Claimed, lane.call(Claim("orders", 3, 1_000, "w")))
        leases = {message.id: Lease(message.id, claimed.token) for message in claimed.messages}
        lane.call(RetryCommand("orders", [leases["fails"]], 0, "no"))
        lane.call(BuryCommand("orders", [leases[id] for id in buried], "never"))
        clock.advance(1)
    lane.call(Claim("orders", 3, 1_000, "w"))  # the next claim ends leases that are over
    flow = expect(Counts, lane.call(Count("orders"))).flow
    assert (flow.retried, flow.lapsed, flow.died) == (1, 2, 3)
    clock.advance(59)
    record(lane, clock)
    (slot,) = [slot for slot in past(lane).slots if slot is not None]
    assert (slot.failed, slot.died) == (6, 3)


def test_the_first_one_records_and_a_second_does_not(lane: Lane, clock: FakeClock) -> None:
    for _ in range(3):
        record(lane, clock, recorders=3)
    flow = records(lane).flow
    assert (flow.put, records(lane).sizes.total) == (2, 2)  # a minute and its hour
    clock.advance(60)
    record(lane, clock, recorders=3)
    assert records(lane).flow.put == 3


def test_the_ring_does_not_grow(lane: Lane, clock: FakeClock) -> None:
    """A record replaces that of a round before, in the same place."""
    record(lane, clock)
    put(lane, "a")
    clock.advance(60)
    record(lane, clock)
    clock.advance((KEPT_SLOTS["minute"] + 1) * 60 - 60)
    record(lane, clock, recorders=2)
    sizes = records(lane).sizes
    assert (sizes.total, sizes.delayed) == (4, 4)  # two minutes and two hours
    put(lane, "b", "c")
    clock.advance(60)
    record(lane, clock)
    assert records(lane).sizes.total == 4
    read = past(lane)
    assert [slot.put for slot in read.slots if slot is not None] == [2]


def test_hours_last_for_days(lane: Lane, clock: FakeClock) -> None:
    for number in range(3):
        record(lane, clock)
        put(lane, *(f"{number}-{place}" for place in range(number + 1)))
        clock.advance(3_600)
    record(lane, clock)
    put(lane, "now")
    clock.advance(60)
    record(lane, clock)
    read = past(lane, span="5h")
    assert [None if slot is None else slot.put for slot in read.slots] == [None, 1, 2, 3, 1]


def test_a_queue_that_is_made_again_gives_a_gap(lane: Lane, clock: FakeClock) -> None:
    put(lane, "a", "b")
    lane.call(Cancel("orders", ["a", "b"]))
    for _ in range(2):
        record(lane, clock)
        clock.advance(60)
    lane.call(Delete("orders"))
    put(lane, "c")
    record(lane, clock)
    put(lane, "d")
    clock.advance(60)
    record(lane, clock)
    assert figures(past(lane)) == {0: (0, 0), 2: (1, 0)}


def test_the_lateness_is_that_of_the_reports(lane: Lane, clock: FakeClock) -> None:
    put(lane, "a")
    record(lane, clock)
    clock.advance(60)
    late = Histogram()
    late.observe(0.004, 0.2)
    tallies = {"orders": Tally(lateness=late.plus(late))}
    for holder in ("w1", "w2"):
        lane.call(put_report(holder, Report({holder: ["orders"]}, {"orders": late})))
    of_process = None if lane.capabilities.shared else lambda: tallies
    record(lane, clock, tallies=of_process)
    slot = past(lane).slots[-1]
    assert slot is not None
    assert (slot.delivered, slot.p50, slot.p99) == (4, 5.0, 250.0)
    (hour,) = past(lane, span="1h", by="hour").slots
    assert hour is not None
    assert (hour.delivered, hour.p99) == (4, 250.0)


def test_queues_beyond_the_most_are_left_out(
    lane: Lane, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_RECORDED", 2)
    for number in range(4):
        put(lane, *map(str, range(number + 1)), queue=f"q{number}")
    for _ in range(2):
        record(lane, clock)
        clock.advance(60)
    assert past(lane, "q3").why_empty is None
    read = past(lane, "q0")
    assert read.left_out == 2
    assert read.why_empty is not None
    assert "left out" in read.why_empty


def test_internal_queues_are_not_recorded(lane: Lane, clock: FakeClock) -> None:
    put(lane, "a", queue=InternalQueue.MOVE.value)
    for _ in range(2):
        record(lane, clock)
        clock.advance(60)
    page = lane.call(Count(PAST))
    assert expect(Counts, page).sizes.total == 2 + 1
    assert past(lane, PAST).slots[-1] == bide.PastSlot()


def test_queues_of_threads_and_of_tasks_answer_the_same(url: str, clock: FakeClock) -> None:
    lane = open_lane(url, clock)
    orders = bide.Queue("orders", url, clock=clock)
    record(lane, clock)
    orders.put(1)
    clock.advance(60)
    record(lane, clock)
    read = orders.past("1h")

    async def story() -> bide.Past:
        async with bide.AsyncQueue("orders", url, clock=clock) as same:
            return await same.past("1h")

    assert asyncio.run(story()) == read
    assert figures(read) == {0: (1, 0)}
    orders.close()
    close_lane(lane)
