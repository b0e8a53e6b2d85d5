"""What is overdue, and plans for it, on every kind of store."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.lane.steps import run_steps
from bide.model.commands import Scan
from bide.model.recovery import Recovery
from bide.model.undoing import PART
from bide.testing.clock import FakeClock
from bide.testing.hooks import lane_of
from bide.undoing.changes import in_store
from bide.undoing.recovering import recovering
from tests.start import START
from tests.stores_of_each_kind import STORES, url_of

HOUR = 3_600
TEXT = "drop 6h, spread 10m"


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with url_of(request.param, request) as url:
        yield url


@pytest.fixture
def orders(url: str) -> Iterator[bide.Queue]:
    with bide.Queue("orders", url) as queue:
        yield queue


def put_late(
    orders: bide.Queue, hours: dict[str, float], now: float | None = None, **options: Any
) -> None:
    """Put messages that have been due for so many hours."""
    now = time.time() if now is None else now
    orders.put_many(
        [bide.NewMessage(id, id=id, at=now - late * HOUR, **options) for id, late in hours.items()]
    )


def place(message: bide.Message) -> tuple[Any, ...]:
    """Return what a recovery and its undo may change of a message."""
    return message.due, message.planned, message.priority, message.expires, message.version


def test_a_plan_is_carried_out_and_taken_back(orders: bide.Queue) -> None:
    put_late(orders, {"a": 8, "b": 5, "c": 4, "d": 3}, expires="9h", priority=3)
    orders.put("later", id="later", delay="1h")
    before = {message.id: place(message) for message in orders.scan()}
    looked = orders.overdue()
    assert (looked.messages, looked.late) == (4, [0, 0, 0, 3, 1])
    would = orders.recover(TEXT, dry_run=True)
    assert (would.dropped, would.moved, would.undo) == (1, 3, "")
    assert {message.id: place(message) for message in orders.scan()} == before

    done = orders.recover(Recovery(drop_later_than="6h", spread="10m", fresh_first=True))
    assert (done.overdue, done.dropped, done.moved, done.left) == (4, 1, 3, 0)
    assert orders.get("a") is None
    moved = {message.id: message for message in orders.scan() if message.id != "later"}
    dues = [moved[id].due for id in "bcd"]
    assert dues == sorted(dues)
    assert done.first is not None
    assert done.last is not None
    assert (dues[0], dues[-1], dues[-1] - dues[0]) == (done.first, done.last, 400_000)
    for id, message in moved.items():
        due, _planned, _priority, expires, _version = before[id]
        assert (message.planned, message.priority) == (due, 0)
        assert message.expires is not None
        assert message.due + message.expires == due + expires
    assert orders.audit()
    assert orders.overdue().messages <= 1  # the first may be due again

    undone = orders.undo(done.undo)
    assert (undone.restored, undone.taken, undone.claimed) == (4, 0, 0)
    assert {message.id: place(message) for message in orders.scan()} == before
    assert orders.undo(done.undo).restored == 0
    assert orders.audit()


def test_a_plan_keeps_the_priorities(orders: bide.Queue) -> None:
    """Also of messages that no claim has looked at since they were due."""
    now = time.time()
    priorities = {"a": 0, "b": 3, "c": 9, "d": 3, "e": 0}
    orders.put_many(
        [
            bide.NewMessage(id, id=id, at=now - HOUR + number, priority=priority)
            for number, (id, priority) in enumerate(priorities.items())
        ]
    )
    done = orders.recover(Recovery(rate="1/d"))
    moved = sorted(orders.scan(), key=lambda message: message.due)
    assert [message.id for message in moved] == ["c", "b", "d", "a", "e"]
    assert orders.undo(done.undo).restored == len(priorities)


def test_what_is_claimed_or_moved_since_stays_so(orders: bide.Queue) -> None:
    put_late(orders, {"a": 3, "b": 2, "c": 1})
    done = orders.recover(Recovery(rate="1/d"))
    orders.reschedule("c", delay="2h")
    claimed, *_ = orders.claim(wait=10)
    assert claimed.id == "a"
    assert claimed.message.planned is not None
    undone = orders.undo(done.undo)
    assert (undone.restored, undone.taken, undone.claimed) == (1, 1, 1)
    assert [message.id for message in orders.scan("ready")] == ["b"]
    claimed.ack()


def test_many_are_thinned_out_in_parts(orders: bide.Queue) -> None:
    count, now = PART + 30, time.time()
    orders.put_many(
        [
            bide.NewMessage(number, at=now - HOUR - count + number, group=f"g{number % 7}")
            for number in range(count)
        ]
    )
    done = orders.recover(Recovery(latest_of_group=True, spread="1h"))
    assert (done.overdue, done.superseded, done.moved) == (count, count - 7, 7)
    assert sorted(message.body for message in orders.scan()) == list(range(count - 7, count))
    assert orders.undo(done.undo).restored == count
    assert orders.audit()


@pytest.mark.parametrize("page", [1, 4, 7])
def test_a_claim_between_two_pages_hides_no_message(orders: bide.Queue, page: int) -> None:
    """It makes messages ready, at places that have been read already."""
    count, now = 2 * PART, time.time()
    orders.put("claimed", priority=9)
    orders.put_many(
        [
            bide.NewMessage(
                number, at=now - HOUR + number, priority=number % 2, group=f"g{number % 7}"
            )
            for number in range(count)
        ]
    )
    lane, scans = lane_of(orders), 0

    def ask(command: Any) -> Any:
        nonlocal scans
        reply = lane.call(command)
        scans += isinstance(command, Scan)
        if isinstance(command, Scan) and scans == page:
            orders.claim()
        return reply

    plan = Recovery(latest_of_group=True)
    done = run_steps(recovering("orders", plan, in_store(lane)), ask)
    assert sorted(message.body for message in orders.scan("ready")) == list(range(count - 7, count))
    assert done.superseded == count - 7


def test_a_setting_is_kept(orders: bide.Queue, url: str) -> None:
    assert orders.configure(overdue="drop 6h,  spread 600s").overdue == TEXT
    assert orders.configure(keep="1h").overdue == TEXT
    assert (orders.counts().overdue, orders.overdue().plan) == (TEXT, TEXT)
    assert orders.configure(overdue=Recovery(rate="5/s")).overdue == "rate 5/s"
    assert orders.configure(overdue="0").overdue == ""
    assert orders.counts().overdue == ""
    with pytest.raises(bide.InvalidArgument, match="is not a plan"):
        orders.configure(overdue="soon")
    with bide.Queue("made", url, overdue=TEXT) as made:
        made.put(1)
        assert made.counts().overdue == TEXT


def test_an_async_queue_does_the_same(url: str) -> None:
    async def story() -> None:
        async with bide.AsyncQueue("orders", url) as orders:
            await orders.put("a", id="a", at=time.time() - HOUR)
            assert (await orders.overdue()).messages == 1
            assert (await orders.recover("spread 10m", dry_run=True)).moved == 1
            done = await orders.recover("rate 5/s")
            assert done.moved == 1
            assert (await orders.undo(done.undo)).restored == 1

    asyncio.run(story())


class Killed(BaseException):
    """The process ends here, as by `kill -9`."""


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[Lane]:
    """The lane to a store in memory."""
    lane = open_lane(f"memory://recovering-{tmp_path.name}", FakeClock(START))
    yield lane
    close_lane(lane)


@pytest.fixture
def watched(lane: Lane, tmp_path: Path) -> Iterator[bide.Queue]:
    """A queue in that store."""
    clock = lane.clock
    with bide.Queue("orders", f"memory://recovering-{tmp_path.name}", clock=clock) as queue:
        yield queue


@pytest.mark.parametrize("steps_before", range(3, 16))
def test_a_recovery_that_was_killed_is_completed_by_the_next(
    lane: Lane, watched: bide.Queue, steps_before: int
) -> None:
    """Wherever it was killed, each message is moved or dropped once."""
    count, now = 2 * PART + 20, START / 1000
    watched.put_many([bide.NewMessage(n, id=str(n), at=now - 2 * HOUR + n) for n in range(count)])
    plan = Recovery(drop_later_than=2 * HOUR - 10, spread="10m")
    asked = 0

    def ask(command: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked > steps_before:
            raise Killed
        return lane.call(command)

    with pytest.raises(Killed):
        run_steps(recovering("orders", plan, in_store(lane)), ask)
    moved_first = {
        message.id: message.due for message in watched.scan() if message.planned is not None
    }
    assert watched.recover(plan).moved == count - 10 - len(moved_first)
    assert watched.overdue().messages == 0
    moved = {message.id: message for message in watched.scan()}
    assert sorted(map(int, moved)) == list(range(10, count))
    for id, message in moved.items():
        assert message.planned == START - 2 * HOUR * 1000 + int(id) * 1000
        assert message.due == moved_first.get(id, message.due)
    assert watched.audit()


def test_what_changes_between_a_look_and_a_change_stays_as_it_is(
    lane: Lane, watched: bide.Queue
) -> None:
    put_late(watched, {"claimed": 4, "moved": 3, "cancelled": 2, "kept": 1}, START / 1000)
    scans = 0

    def ask(command: Any) -> Any:
        nonlocal scans
        reply = lane.call(command)
        scans += isinstance(command, Scan)
        if isinstance(command, Scan) and scans == 3:  # the survey is complete
            watched.claim()
            watched.reschedule("moved", delay="5h")
            watched.cancel("cancelled")
        return reply

    plan = Recovery(drop_later_than="150m", spread="10m")
    done = run_steps(recovering("orders", plan, in_store(lane)), ask)
    assert (done.dropped, done.moved, done.changed) == (0, 1, 3)
    states = {message.id: message.state for message in watched.scan()}
    assert states == {"claimed": "leased", "moved": "delayed", "kept": "delayed"}
    assert watched.undo(done.undo).restored == 1
