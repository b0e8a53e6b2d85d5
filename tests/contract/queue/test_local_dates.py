"""Local dates on each kind of store, and what becomes of them when the rules of zones change."""

import asyncio
import os
import zoneinfo
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.clock import SYSTEM_CLOCK, Timer
from bide.consuming.store_lock import Ask
from bide.consuming.zone_update import (
    LOCK,
    LOOK_EVERY,
    PAGE,
    REST,
    keep_planned,
    record_of,
    update_queue,
)
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import (
    Cancel,
    Claim,
    Command,
    Edit,
    Find,
    Lease,
    Put,
    RetryCommand,
    Scan,
)
from bide.model.internal_queues import InternalQueue
from bide.model.message import Item, Message
from bide.model.replies import Claimed, expect
from bide.model.times import iso, unix
from bide.model.zones import own_zones
from bide.testing.clock import FakeClock
from bide.testing.hooks import lane_of
from tests.stores_of_each_kind import STORES, url_of
from tests.system.server.process import urls_of_namespaces
from tests.zone_data import BEFORE, EARLIER, LATER, TOWN, machine_with, write_zones

SLOW = ("cluster", "http")
"""Stores whose servers take long to start."""

HOUR = timedelta(hours=1)


class Killed(Exception):
    """Stands for the death of a process."""


@pytest.fixture(
    params=[pytest.param(kind, marks=pytest.mark.full if kind in SLOW else ()) for kind in STORES]
)
def url(request: pytest.FixtureRequest, old_zones: Path) -> Iterator[str]:
    with url_of(request.param, request) as url:
        yield url


@pytest.fixture
def orders(url: str) -> Iterator[bide.Queue]:
    with bide.Queue("orders", url) as orders:
        yield orders


@pytest.fixture(scope="module")
def zones_of_town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide time zones in which a town is two hours ahead of UTC."""
    return write_zones(tmp_path_factory.mktemp("zones-2099a"), "2099a", {TOWN: BEFORE})


@pytest.fixture(scope="module")
def http_url(
    tmp_path_factory: pytest.TempPathFactory, zones_of_town: Path
) -> Iterator[Callable[[], str]]:
    """Provide URLs of a server that has these zones."""
    with pytest.MonkeyPatch.context() as environment:
        path = os.pathsep.join([str(zones_of_town), *zoneinfo.TZPATH])
        environment.setenv("PYTHONTZPATH", path)
        with urls_of_namespaces(tmp_path_factory.mktemp("server")) as urls:
            yield urls


@pytest.fixture(autouse=True)
def old_zones(zones_of_town: Path) -> Iterator[Path]:
    """Let this process have these zones."""
    with machine_with(zones_of_town):
        yield zones_of_town


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """Provide newer zones, by which dates in the town are an hour later."""
    return write_zones(tmp_path / "zones-2099b", "2099b", {TOWN: LATER})


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Provide newer zones, by which dates in the town are an hour earlier."""
    return write_zones(tmp_path / "zones-2099c", "2099c", {TOWN: EARLIER})


def in_town(moment: datetime) -> str:
    """Return what the clocks of the town show, by its old rules."""
    return (moment + 2 * HOUR).strftime("%Y-%m-%d %H:%M:%S")


def from_now(**difference: float) -> datetime:
    return (datetime.now(UTC) + timedelta(**difference)).replace(microsecond=0)


def get(queue: bide.Queue, id: str = "a") -> Message:
    message = queue.get(id)
    assert message is not None
    return message


def run(url: str, work: Callable[[Ask], Coroutine[Any, Any, Any]]) -> Any:
    """Run work on a store, as a worker does."""
    lane = open_lane(url)
    try:
        return asyncio.run(work(lane.acall))
    finally:
        close_lane(lane)


def update(url: str, queue: str = "orders", *, put: float = 0) -> int:
    """Let a process with the present zones plan a queue anew."""
    count: int = run(url, lambda ask: update_queue(ask, queue, own_zones(), put=put))
    return count


def planned_by(url: str) -> str:
    record = run(url, lambda ask: record_of(ask, "orders"))
    version: str = record.zones
    return version


def test_a_message_keeps_its_date(orders: bide.Queue) -> None:
    due = from_now(hours=5)
    outcome = orders.put(1, id="a", at=in_town(due), timezone=TOWN)
    assert (outcome.state, outcome.due) == ("delayed", unix(due))
    assert str(get(orders).local_date).endswith(f" {TOWN}")
    due += HOUR
    naive = (due + 2 * HOUR).replace(tzinfo=None)
    assert orders.reschedule("a", at=naive, timezone=TOWN)
    assert get(orders).due_at == due
    date = get(orders).local_date
    assert date is not None
    assert date.at == due
    assert orders.edit("a", body=2, at=in_town(due + HOUR), timezone=TOWN, priority=3)
    message = get(orders)
    assert (message.due_at, message.body, message.priority) == (due + HOUR, 2, 3)
    assert message.local_date is not None
    assert orders.reschedule("a", delay="1h")
    assert get(orders).local_date is None
    assert orders.audit()


def test_many_messages_keep_theirs(orders: bide.Queue) -> None:
    due = from_now(hours=5)
    new = [bide.NewMessage(n, id=str(n), at=in_town(due), timezone=TOWN) for n in range(2)]
    orders.put_many(new)
    orders.put_many([2, 3], at=in_town(due), timezone=TOWN, group="g", spread="1m")
    assert all(message.local_date is not None for message in orders.scan())
    assert orders.reschedule(group="g", at=in_town(due + HOUR), timezone=TOWN) == 2
    assert {message.due_at for message in orders.scan(group="g")} == {due + HOUR}
    assert orders.audit()


def test_a_message_that_repeats_moves_to_a_date_and_keeps_its_rule(orders: bide.Queue) -> None:
    due = from_now(hours=5)
    orders.put(1, id="a", repeat=bide.Every("1d"))
    assert orders.reschedule("a", at=in_town(due), timezone=TOWN)
    assert (get(orders).due_at, get(orders).repeat) == (due, bide.Every("1d"))
    assert orders.edit("a", at=in_town(due + HOUR), timezone=TOWN)
    assert (get(orders).due_at, get(orders).repeat) == (due + HOUR, bide.Every("1d"))


def test_a_text_with_an_offset_is_an_instant(orders: bide.Queue) -> None:
    due = from_now(hours=5)
    orders.put(1, id="a", at=due.isoformat())
    assert (get(orders).due_at, get(orders).local_date) == (due, None)
    assert orders.reschedule("a", at=(due + HOUR).isoformat(), if_due=due)
    assert get(orders).due_at == due + HOUR
    assert orders.edit("a", at=due.isoformat(), priority=3)
    assert (get(orders).due_at, get(orders).local_date) == (due, None)


def test_conditions_hold_for_dates(orders: bide.Queue) -> None:
    due = from_now(hours=5)
    orders.put(1, id="a", at=in_town(due), timezone=TOWN)
    version = get(orders).version
    to: dict[str, Any] = {"at": in_town(due + HOUR), "timezone": TOWN}
    assert not orders.reschedule("a", **to, if_due=due + HOUR)
    assert orders.reschedule("a", **to, if_due=due, if_version=version)
    assert not orders.reschedule("a", **to, if_version=version)
    assert not orders.edit("a", **to, if_version=version)
    assert not orders.reschedule("b", **to)
    choices: list[dict[str, Any]] = [{"undo": True, "group": "g"}, {"id": "a", "within": object()}]
    for options in choices:
        with pytest.raises(bide.InvalidArgument, match="and timezone= cannot be combined"):
            orders.reschedule(**to, **options)
    with pytest.raises(bide.InvalidArgument, match="repeat= and timezone= cannot be combined"):
        orders.edit("a", **to, repeat=None)
    with pytest.raises(bide.InvalidArgument, match="delay= and timezone= cannot be combined"):
        orders.reschedule("a", delay=5, **to)


def test_an_update_moves_what_must_move(orders: bide.Queue, url: str, later: Path) -> None:
    due = from_now(hours=5)
    orders.put("dated", id="a", at=in_town(due), timezone=TOWN, expires="10m", priority=7)
    orders.put("instant", id="instant", at=due)
    orders.put("utc", id="utc", at=due.strftime("%Y-%m-%d %H:%M:%S"), timezone="UTC")
    orders.put("moved", id="moved", at=in_town(due), timezone=TOWN)
    orders.reschedule("moved", at=due + timedelta(minutes=1))
    with machine_with(later):
        assert update(url) == 1
        assert update(url) == 0
        assert planned_by(url) == "2099b"
        message = get(orders)
        assert (message.due_at, message.expires, message.priority) == (due + HOUR, 600_000, 7)
        assert message.local_date is not None
        assert orders.audit()
    assert get(orders, "instant").due_at == get(orders, "utc").due_at == due
    assert get(orders, "moved").due_at == due + timedelta(minutes=1)
    # A process with the old ones moves nothing back.
    assert (update(url), planned_by(url)) == (0, "2099b")
    assert get(orders).due_at == due + HOUR


def test_the_next_update_moves_it_again(
    orders: bide.Queue, url: str, later: Path, earlier: Path
) -> None:
    due = from_now(hours=5)
    orders.put(1, id="a", at=in_town(due), timezone=TOWN)
    for folder, moved in ((later, due + HOUR), (earlier, due - HOUR)):
        with machine_with(folder):
            assert update(url) == 1
            assert get(orders).due_at == moved


def test_an_unknown_version_moves_nothing(orders: bide.Queue, url: str, tmp_path: Path) -> None:
    due = from_now(hours=5)
    orders.put(1, id="a", at=in_town(due), timezone=TOWN)
    with machine_with(write_zones(tmp_path / "unknown", "", {TOWN: LATER})):
        assert update(url) == 0
        orders.put(2, id="b", at=in_town(due), timezone=TOWN)
    assert (get(orders).due_at, planned_by(url)) == (due, "")
    # What was put by unknown data is planned anew by those that are known.
    assert get(orders, "b").due_at == due + HOUR
    assert update(url) == 1
    assert get(orders, "b").due_at == due


def test_nothing_is_early_by_newer_rules(orders: bide.Queue, later: Path) -> None:
    due = from_now(minutes=-1)
    orders.put(1, id="a", at=in_town(due), timezone=TOWN, expires="10m")
    orders.put(2, id="b", at=due)
    with machine_with(later):
        assert [delivery.body for delivery in orders.claim(5)] == [2]
        message = get(orders)
        assert (message.state, message.due_at) == ("delayed", due + HOUR)
        assert (message.attempt, message.expires, message.planned) == (0, 600_000, None)
        assert message.local_date is not None
        assert orders.audit()
    orders.reschedule("a", delay=0)  # somebody wants it now
    with machine_with(later):
        assert [delivery.body for delivery in orders.claim()] == [1]


def test_what_is_late_by_newer_rules_is_delivered(
    orders: bide.Queue, url: str, earlier: Path
) -> None:
    due = from_now(minutes=1)
    orders.put(1, id="a", at=in_town(due), timezone=TOWN)
    with machine_with(earlier):
        assert orders.claim() == []
        assert update(url) == 1
        (delivery,) = orders.claim()
        assert delivery.message.due_at == due - HOUR
        delivery.retry("1h")
        assert update(url, put=inf) == 0  # it is under way


def test_a_retry_is_not_moved(orders: bide.Queue, url: str, later: Path) -> None:
    orders.put(1, id="a", at=in_town(from_now(minutes=-1)), timezone=TOWN)
    (delivery,) = orders.claim()
    delivery.retry(0)
    with machine_with(later):
        assert update(url) == 0
        (delivery,) = orders.claim()
        assert (delivery.body, delivery.attempt) == (1, 2)


def test_an_old_process_puts_by_its_own_rules(
    orders: bide.Queue, url: str, old_zones: Path, earlier: Path
) -> None:
    due = from_now(minutes=30)
    orders.put(0, id="first", at=in_town(due), timezone=TOWN)
    with machine_with(earlier):
        assert update(url) == 1
    with machine_with(old_zones):
        orders.put(1, id="a", at=in_town(due + 2 * HOUR), timezone=TOWN)
        orders.put(2, id="b", at=in_town(from_now(minutes=-1)), timezone=TOWN)
    with machine_with(earlier):
        assert update(url) == 0
        # The claim of such a message shows that there may be others.
        orders.reschedule("first", delay="1d")
        assert [delivery.body for delivery in orders.claim(5)] == [2]
        keep_planned_until(url, lambda: get(orders).due_at == due + HOUR)
    with machine_with(old_zones):
        orders.put(3, id="c", at=in_town(due + 2 * HOUR), timezone=TOWN)
    with machine_with(earlier):
        # What was there when the queue was planned is no reason to read it again.
        assert update(url, put=get(orders).created or 0) == 0
        assert update(url, put=inf) == 1


def keep_planned_until(url: str, condition: Callable[[], bool]) -> None:
    """Run what a worker runs in the background until a condition holds, and it has noted that."""

    async def work(ask: Ask) -> None:
        async with asyncio.timeout(60):
            before = await record_of(ask, "orders")
            task = asyncio.create_task(keep_planned(ask, SYSTEM_CLOCK))
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110  (no event is set)
                await asyncio.sleep(0.01)
            while await record_of(ask, "orders") == before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()

    run(url, work)


class PassingClock(FakeClock):
    """A clock by which each pause is over at once."""

    def call_later(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], object]
    ) -> Timer:
        self.advance(seconds)
        return loop.call_soon(callback)


def test_the_background_leaves_most_of_the_time_to_others() -> None:
    clock = PassingClock()
    begun: list[float] = []

    async def update(orders: bide.Queue) -> None:
        async def ask_for_a_second(command: Command) -> Any:
            begun.append(clock.monotonic())
            clock.advance(1)
            reply = await lane_of(orders).acall(command)
            if isinstance(command, Put) and command.items[0].id == "orders":  # all is read
                done.set()
            return reply

        done = asyncio.Event()
        task = asyncio.create_task(keep_planned(ask_for_a_second, clock))
        async with asyncio.timeout(60):
            await done.wait()
        task.cancel()

    with bide.Queue("orders", "memory://") as orders:
        orders.put_many([bide.NewMessage(1, delay="1h")] * 2 * PAGE)
        asyncio.run(update(orders))
    pauses = [after - before - 1 for before, after in pairwise(begun)]
    assert len(pauses) > 3
    assert min(pauses) >= REST


def test_a_cron_in_a_zone_moves(orders: bide.Queue, url: str, later: Path) -> None:
    daily = bide.Cron("0 9 * * *", TOWN)
    for id in ("a", "b", "held", "moved"):
        orders.put(id, id=id, repeat=daily)
    at = get(orders).due_at
    orders.put("utc", id="utc", repeat=bide.Cron("0 9 * * *"))
    orders.hold("held")
    orders.reschedule("moved", at=at + timedelta(minutes=7))
    utc = get(orders, "utc").due_at
    with machine_with(later):
        assert update(url) == 2
        assert update(url, put=inf) == 0
        for id in ("a", "b"):
            message = get(orders, id)
            assert message.due_at == message.run_at == at + HOUR
            assert message.repeat == bide.Cron("0 9 * * *", TOWN)
        assert orders.audit()
        assert (get(orders, "held").held, get(orders, "utc").due_at) == (True, utc)
        assert get(orders, "moved").due_at == at + timedelta(minutes=7)
    assert update(url) == 0
    assert get(orders).due_at == at + HOUR


def shown_window(start: datetime, timezone: str = TOWN) -> bide.Window:
    """Return the hour of each day that begins when the clocks of the town show a time."""
    hours = f"{in_town(start)[11:16]}-{in_town(start + HOUR)[11:16]}"
    return bide.Window(hours, timezone)


def in_some_hours() -> datetime:
    return from_now(hours=5).replace(second=0)


@pytest.mark.parametrize("new_zones", ["later", "earlier"])
def test_what_waits_for_a_window_moves(
    orders: bide.Queue, url: str, new_zones: str, request: pytest.FixtureRequest
) -> None:
    due = in_some_hours()
    opening = due + 2 * HOUR
    window, cron = shown_window(opening), bide.Cron(f"{due:%M} {due + 2 * HOUR:%H} * * *", TOWN)
    orders.put(1, id="date", at=in_town(due), timezone=TOWN, window=window)
    orders.put(1, id="cron", repeat=cron, window=window)
    for id in ("date moved", "cron moved"):
        orders.put(1, id=id, repeat=cron if id[0] == "c" else None, window=window, at=due)
        orders.reschedule(id, at=opening + timedelta(minutes=9))
    orders.put(1, id="held", repeat=cron, window=window)
    orders.hold("held")
    assert get(orders, "date").due_at == get(orders, "cron").due_at == opening
    assert get(orders, "cron").run_at == due
    shift = HOUR if new_zones == "later" else -HOUR
    with machine_with(request.getfixturevalue(new_zones)):
        assert update(url) == 2
        assert update(url, put=inf) == 0
        assert get(orders, "date").due_at == get(orders, "cron").due_at == opening + shift
        assert get(orders, "cron").run_at == due + shift
        date = get(orders, "date").local_date
        assert date is not None
        assert date.at == due + shift
        for id in ("date moved", "cron moved"):
            assert get(orders, id).due_at == opening + timedelta(minutes=9)
        assert get(orders, "held").held
        assert orders.audit()
    assert update(url) == 0


def test_the_window_moves_though_the_time_stays(orders: bide.Queue, url: str, later: Path) -> None:
    due = in_some_hours()
    opening = due + 2 * HOUR
    window = shown_window(opening)
    orders.put(1, id="date", at=f"{due:%Y-%m-%d %H:%M}", timezone="UTC", window=window)
    every = bide.Every("1d", start=due)
    orders.put(1, id="every", repeat=every, window=window)
    with machine_with(later):
        assert update(url) == 2
        for id in ("date", "every"):
            assert get(orders, id).due_at == opening + HOUR
        assert get(orders, "every").run_at == due
        assert get(orders, "date").local_date is not None


def test_the_time_moves_out_of_the_window(orders: bide.Queue, url: str, later: Path) -> None:
    due = in_some_hours()
    cron = bide.Cron(f"{due:%M} {due + 2 * HOUR:%H} * * *", TOWN)
    # The hour is one of UTC: from then on the time comes when it has just closed.
    window = bide.Window(f"{due:%H:%M}-{due + HOUR:%H:%M}")
    orders.put(1, id="date", at=in_town(due), timezone=TOWN, window=window)
    orders.put(1, id="cron", repeat=cron, window=window)
    assert get(orders, "date").due_at == get(orders, "cron").due_at == due
    with machine_with(later):
        assert update(url) == 2
        for id in ("date", "cron"):
            assert get(orders, id).due_at == due + 24 * HOUR
        assert get(orders, "cron").run_at == due + HOUR


def test_what_waits_for_a_window_is_not_early_by_newer_rules(
    orders: bide.Queue, later: Path
) -> None:
    now = from_now().replace(second=0)
    opening = now + HOUR
    window, date = shown_window(opening), now - HOUR
    cron = bide.Cron(f"{date:%M} {date + 2 * HOUR:%H} * * *", TOWN, grace="2h")
    orders.put(1, id="date", at=in_town(date), timezone=TOWN, window=window)
    orders.put(1, id="cron", repeat=cron, window=window)
    # As if they had been put an hour earlier, in a window that is open since now.
    for id in ("date", "cron"):
        message = get(orders, id)
        rule = (message.rule or "").replace(window.hours, shown_window(now).hours)
        run = message.run
        if run is None:
            rule = rule.replace(str(unix(opening)), str(unix(now)))
        else:
            run = f"{iso(unix(date))} zones=2099a opens={iso(unix(now))}"
        lane_of(orders).call(Edit("orders", [id], rule=rule, run=run, at=unix(now)))
    with machine_with(later):
        assert orders.claim(2) == []
        for id in ("date", "cron"):
            message = get(orders, id)
            assert (message.due_at, message.attempt, message.planned) == (now + HOUR, 0, None)
        assert get(orders, "date").local_date is not None
        assert get(orders, "cron").run_at == date + HOUR
        assert orders.audit()


def test_a_run_is_not_early_by_newer_rules(orders: bide.Queue, later: Path) -> None:
    # The clocks of the town show a time a minute from now twice a day: by the old rules it is due.
    soon = from_now(seconds=-20)
    shown = soon + 2 * HOUR
    cron = bide.Cron(f"{shown.minute} {shown.hour} * * *", TOWN, grace="1h")
    orders.put(1, id="a", repeat=cron)
    message = get(orders)
    at = soon.replace(second=0)
    run_text = (message.run or "").replace(f"{message.run_at:%Y-%m-%d}", f"{at:%Y-%m-%d}")
    edit = Edit("orders", ["a"], rule=message.rule, run=run_text, at=unix(at))
    lane_of(orders).call(edit)
    with machine_with(later):
        assert orders.claim() == []
        message = get(orders)
        assert message.due_at == message.run_at == at + HOUR
        assert message.attempt == 0
        assert orders.audit()


def test_a_run_that_waits_for_its_workers_moves(orders: bide.Queue, url: str, later: Path) -> None:
    """As while the window of their handler is closed: it is due, and nobody claims it."""
    orders.put(1, id="a", at=in_town(from_now(minutes=-5)), timezone=TOWN)
    at = from_now(minutes=-5).replace(second=0)
    cron = bide.Cron(f"{at:%M} {at + 2 * HOUR:%H} * * *", TOWN)
    orders.put(1, id="cron", repeat=cron)
    run_text = f"{iso(unix(at))} zones=2099a"
    lane_of(orders).call(Edit("orders", ["cron"], rule=cron.text, run=run_text, at=unix(at)))
    assert [get(orders, id).state for id in ("a", "cron")] == ["ready", "ready"]
    with machine_with(later):
        assert update(url) == 2
        assert [get(orders, id).state for id in ("a", "cron")] == ["delayed", "delayed"]
        assert get(orders, "cron").due_at == get(orders, "cron").run_at == at + HOUR


def test_a_kill_in_the_middle_is_completed(
    orders: bide.Queue, url: str, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.consuming.zone_update.PAGE", 3)
    due = from_now(hours=5)
    dates = [in_town(due + timedelta(minutes=n)) for n in range(10)]
    orders.put_many(
        [bide.NewMessage(n, id=str(n), at=date, timezone=TOWN) for n, date in enumerate(dates)]
    )
    edits = 0

    def dying(ask: Ask) -> Ask:
        async def answer(command: Command) -> Any:
            nonlocal edits
            if isinstance(command, Edit):
                edits += 1
                if edits > 2:
                    raise Killed
            return await ask(command)

        return answer

    with machine_with(later):
        with pytest.raises(Killed):
            run(url, lambda ask: update_queue(dying(ask), "orders", own_zones()))
        assert planned_by(url) == ""
        assert 0 < update(url) < 10
        assert planned_by(url) == "2099b"
    moved = sorted(message.due_at for message in orders.scan())
    assert moved == [due + HOUR + timedelta(minutes=n) for n in range(10)]
    assert orders.audit()


def test_two_at_once_do_no_harm(orders: bide.Queue, url: str, later: Path) -> None:
    due = from_now(hours=5)
    dates = [in_town(due + timedelta(minutes=n)) for n in range(40)]
    orders.put_many([bide.NewMessage(n, at=date, timezone=TOWN) for n, date in enumerate(dates)])

    async def twice(ask: Ask) -> tuple[int, int]:
        zones = own_zones()
        return await asyncio.gather(
            update_queue(ask, "orders", zones), update_queue(ask, "orders", zones)
        )

    with machine_with(later):
        assert sum(run(url, twice)) == 40
        assert planned_by(url) == "2099b"
    moved = sorted(message.due_at for message in orders.scan())
    assert moved == [due + HOUR + timedelta(minutes=n) for n in range(40)]


def test_one_process_at_a_time_plans_a_store_anew(
    orders: bide.Queue, url: str, later: Path
) -> None:
    due = from_now(hours=5)
    orders.put(1, id="a", at=in_town(due), timezone=TOWN)

    async def work(ask: Ask) -> None:
        readers: list[str] = []
        looks: list[str] = []
        is_amid, may_go_on, is_through = asyncio.Event(), asyncio.Event(), asyncio.Event()
        clock = FakeClock()

        def process(name: str) -> asyncio.Task[None]:
            async def answer(command: Command) -> Any:
                if isinstance(command, Scan):
                    readers.append(name)
                    is_amid.set()
                    await may_go_on.wait()
                reply = await ask(command)
                if isinstance(command, Find) and LOCK in command.ids:
                    looks.append(name)
                if isinstance(command, Cancel):
                    is_through.set()
                return reply

            return asyncio.create_task(keep_planned(answer, clock))

        async def pass_time(event: asyncio.Event) -> None:
            while not event.is_set():
                clock.advance(LOOK_EVERY)
                await asyncio.sleep(0.01)

        async with asyncio.timeout(60):
            first = process("first")
            await is_amid.wait()
            second = process("second")
            while len(looks) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert readers == ["first"]
            may_go_on.set()
            await is_through.wait()
            is_through.clear()
            await pass_time(is_through)
        assert (looks, readers) == (["first", "second", "second"], ["first"])
        for task in (first, second):
            assert not task.done()
            task.cancel()

    with machine_with(later):
        run(url, work)
        assert get(orders).due_at == due + HOUR


def test_another_process_goes_on_for_one_that_has_died(
    orders: bide.Queue, url: str, later: Path
) -> None:
    due = from_now(hours=5)
    orders.put(1, id="a", at=in_town(due), timezone=TOWN)

    async def lock_and_die(ask: Ask) -> None:
        await ask(Put(InternalQueue.ZONES.value, [Item(LOCK, b"dead", json=False, delay=0)]))

    run(url, lock_and_die)
    with machine_with(later):
        keep_planned_until(url, lambda: get(orders).due_at == due + HOUR)


def test_a_process_that_stops_asks_for_nothing_more(orders: bide.Queue, url: str) -> None:
    asked: list[Command] = []

    async def work(ask: Ask) -> None:
        is_amid = asyncio.Event()

        async def ask_until_amid(command: Command) -> Any:
            asked.append(command)
            if isinstance(command, Scan):  # the store is slow
                is_amid.set()
                await asyncio.Event().wait()
            return await ask(command)

        async with asyncio.timeout(60):
            task = asyncio.create_task(keep_planned(ask_until_amid, SYSTEM_CLOCK))
            await is_amid.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    orders.put(1, delay="1h")
    run(url, work)
    assert isinstance(asked[-1], Scan)


@pytest.mark.parametrize("error", [bide.AccessDenied, bide.StoreFull])
def test_what_may_be_changed_moves_where_nothing_may_be_put(
    orders: bide.Queue, url: str, later: Path, error: type[bide.StoreError]
) -> None:
    due = from_now(hours=5)
    orders.put(1, id="a", at=in_town(due), timezone=TOWN)

    async def work(ask: Ask) -> None:
        is_read = asyncio.Event()

        async def ask_without_put(command: Command) -> Any:
            if isinstance(command, Put):
                if command.items[0].id == "orders":  # the record of the queue
                    is_read.set()
                raise error("the token has no right 'put'")
            return await ask(command)

        async with asyncio.timeout(60):
            task = asyncio.create_task(keep_planned(ask_without_put, SYSTEM_CLOCK))
            await is_read.wait()
            task.cancel()

    with machine_with(later):
        run(url, work)
    assert get(orders).due_at == due + HOUR


def test_a_message_that_changes_meanwhile_is_left_alone(
    orders: bide.Queue, url: str, later: Path
) -> None:
    due = from_now(hours=5)
    for id in ("a", "b"):
        orders.put(id, id=id, at=in_town(due), timezone=TOWN)

    def interleaved(ask: Ask) -> Ask:
        async def answer(command: Command) -> Any:
            if isinstance(command, Edit):
                await asyncio.to_thread(orders.reschedule, "a", at=due + timedelta(days=1))
            return await ask(command)

        return answer

    with machine_with(later):
        steps = run(url, lambda ask: update_queue(interleaved(ask), "orders", own_zones()))
        assert steps == 1
    assert get(orders).due_at == due + timedelta(days=1)
    assert get(orders, "b").due_at == due + HOUR


def test_dates_travel(orders: bide.Queue, url: str, later: Path) -> None:
    due = from_now(hours=5)
    orders.put(1, id="a", at=in_town(due), timezone=TOWN, group="g")
    undoable = orders.cancel(group="g", undo=True)
    orders.undo(undoable.undo)
    assert get(orders).local_date is not None
    undoable = orders.reschedule(group="g", delay="1d", undo=True)
    assert get(orders).local_date is None
    orders.undo(undoable.undo)
    assert get(orders).local_date is not None
    with bide.Queue("copy", url) as copy:
        copy.load(list(orders.export()))
        assert get(copy).local_date == get(orders).local_date
        with machine_with(later):
            assert update(url, "copy") == 1
        assert get(copy).due_at == due + HOUR


@pytest.mark.parametrize("has_window", [False, True])
def test_a_date_that_was_put_off_travels(
    orders: bide.Queue, url: str, earlier: Path, *, has_window: bool
) -> None:
    window = bide.Window("Mon-Sun", TOWN) if has_window else None
    due = from_now(minutes=-1)
    orders.put(1, id="a", at=in_town(due), timezone=TOWN, window=window)
    claimed = expect(Claimed, lane_of(orders).call(Claim("orders", 1, 30_000, "w")))
    lease = Lease("a", claimed.token)
    lane_of(orders).call(RetryCommand("orders", [lease], 5 * 3_600_000, release=True))
    put_off = get(orders)
    with bide.Queue("copy", url) as copy, bide.Queue("third", url) as third:
        copy.load(list(orders.export()))
        bide.move(copy, third)
        copy.load(list(third.export()))
        for queue in (copy, third):
            assert get(queue).due_at == put_off.due_at
            assert get(queue).local_date == put_off.local_date is not None
            assert update(url, queue.name, put=inf) == 0
        copy.reschedule("a", delay="1d")
        assert get(copy).local_date is None
        with machine_with(earlier):
            assert update(url, "orders") == update(url, "third") == 1
            assert update(url, "copy") == 0
        assert get(third).due_at == get(orders).due_at == due - HOUR


def test_the_async_queue_has_the_same(url: str) -> None:
    due = from_now(hours=5)

    async def work() -> None:
        async with bide.AsyncQueue("orders", url) as orders:
            await orders.put(1, id="a", at=in_town(due), timezone=TOWN)
            assert await orders.reschedule("a", at=in_town(due + HOUR), timezone=TOWN)
            assert await orders.edit("a", at=in_town(due + 2 * HOUR), timezone=TOWN)
            message = await orders.get("a")
            assert message is not None
            assert message.local_date is not None
            assert message.due_at == due + 2 * HOUR

    asyncio.run(work())
