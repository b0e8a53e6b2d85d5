"""Messages with a window, on each kind of store: never delivered while it is closed."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide.model.commands import Claim
from bide.testing import FakeClock
from bide.testing.hooks import lane_of
from bide.testing.hooks import url_of as url_of_queue
from tests.stores_of_each_kind import STORES, url_of

OFFICE = bide.Window("Mon-Fri 09:00-18:00", "Europe/Berlin")
FRIDAY = datetime(2026, 12, 11, 16, tzinfo=UTC)
"""17:00 in Berlin: it is open for an hour more."""
SATURDAY = datetime(2026, 12, 12, 9, tzinfo=UTC)
MONDAY = datetime(2026, 12, 14, 8, tzinfo=UTC)
"""When it opens again."""
DAILY = bide.Cron("0 9 * * *", "Europe/Berlin")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(round(FRIDAY.timestamp() * 1000))


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.full if kind == "cluster" else ())
        for kind in STORES
        if kind != "http"  # its server has a clock of its own: see tests/system/server
    ]
)
def calls(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[bide.Queue]:
    with url_of(request.param, request) as url, bide.Queue("calls", url, clock=clock) as calls:
        yield calls


def go_to(clock: FakeClock, moment: datetime) -> None:
    clock.advance(moment.timestamp() - clock.now() / 1000)


def message(calls: bide.Queue, id: str = "ann") -> bide.Message:
    found = calls.get(id)
    assert found is not None
    return found


def test_a_put_is_due_at_the_opening(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("now", id="open", window=OFFICE)
    assert message(calls, "open").state == "ready"
    calls.put("later", id="ann", delay="2h", window=OFFICE)
    calls.put("x", id="at", at=SATURDAY, window=OFFICE, expires="1h")
    assert message(calls).due_at == message(calls, "at").due_at == MONDAY
    assert message(calls).window == OFFICE
    (delivery,) = calls.claim(9)
    assert delivery.id == "open"
    delivery.ack()
    calls.put_many(range(3), window=OFFICE, delay="3h", spread="1h")
    go_to(clock, MONDAY - timedelta(milliseconds=1))
    assert calls.claim(9) == []
    go_to(clock, MONDAY + timedelta(hours=1))
    deliveries = calls.claim(9)
    assert len(deliveries) == 5
    assert all(MONDAY <= d.message.due_at < MONDAY + timedelta(hours=1) for d in deliveries)
    assert len({delivery.message.due for delivery in deliveries}) == 4  # those with a spread differ
    assert calls.audit()


def test_a_retry_waits_for_the_opening(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", window=OFFICE, attempts=2)
    (delivery,) = calls.claim()
    delivery.retry("2h", reason="busy")
    assert message(calls).due_at == FRIDAY + timedelta(hours=2)
    go_to(clock, FRIDAY + timedelta(hours=2))
    assert calls.claim() == []
    waiting = message(calls)
    assert (waiting.due_at, waiting.attempt) == (MONDAY, 1)
    assert waiting.planned == round(FRIDAY.timestamp() * 1000)  # it is late by all that time
    go_to(clock, MONDAY)
    (delivery,) = calls.claim()
    assert (delivery.attempt, [failure.reason for failure in delivery.message.failures]) == (
        2,
        ["busy"],
    )
    delivery.ack()
    assert calls.audit()


def test_a_lapsed_lease_waits_for_the_opening(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", window=OFFICE)
    assert calls.claim(lease="1h")
    go_to(clock, FRIDAY + timedelta(hours=1))
    assert calls.claim() == []
    assert (message(calls).due_at, message(calls).attempt) == (MONDAY, 1)


def test_what_is_closed_hides_nothing_from_a_claim(calls: bide.Queue, clock: FakeClock) -> None:
    """Also where the claim does not wait, and takes one at a time."""
    closed = [bide.NewMessage("x", window=OFFICE, priority=1, group="closed") for _ in range(12)]

    async def use() -> None:
        async with bide.AsyncQueue("calls", url_of_queue(calls), clock=clock) as queue:
            await queue.reschedule(group="closed", at=FRIDAY)
            await queue.put_many([*closed, "two"])
            assert [delivery.body for delivery in await queue.claim()] == ["two"]

    calls.put_many(closed)
    calls.put("one", delay="2h")
    go_to(clock, FRIDAY + timedelta(hours=2))
    assert [delivery.body for delivery in calls.claim()] == ["one"]
    assert calls.counts().sizes.delayed == 12
    asyncio.run(use())


def test_a_revival_waits_for_the_opening(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", window=OFFICE, expires="1h")
    (delivery,) = calls.claim()
    delivery.bury("no")
    go_to(clock, SATURDAY)
    assert calls.revive(["ann"])[0]
    assert calls.claim() == []
    assert message(calls).due_at == MONDAY
    go_to(clock, MONDAY)
    assert [delivery.body for delivery in calls.claim()] == ["x"]
    assert calls.audit()


@pytest.mark.parametrize("expires", [None, "1h"])
def test_a_reschedule_waits_for_the_opening(
    calls: bide.Queue, clock: FakeClock, expires: str | None
) -> None:
    calls.put("x", id="ann", delay="30m", window=OFFICE, expires=expires)
    assert calls.reschedule("ann", at=SATURDAY)
    assert message(calls).due_at == SATURDAY
    go_to(clock, SATURDAY + timedelta(minutes=5))
    assert calls.claim() == []
    assert message(calls).due_at == MONDAY
    # It expires an hour after the opening, at which it is due now.
    go_to(clock, MONDAY + timedelta(minutes=59))
    (delivery,) = calls.claim()
    assert delivery.message.as_edited().expires == (None if expires is None else 3_600_000)
    delivery.ack()
    assert calls.audit()


def test_what_was_due_in_time_expires_as_ever(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", window=OFFICE, expires="2h")
    go_to(clock, FRIDAY + timedelta(hours=1, minutes=30))
    assert calls.claim() == []
    go_to(clock, MONDAY)
    assert calls.claim() == []
    assert message(calls).state == "expired"
    assert calls.audit()


def test_a_backlog_moves_to_the_opening(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put_many([bide.NewMessage(n, id=f"m{n}", window=OFFICE) for n in range(1_000)])
    calls.put("always", id="any", priority=1)
    assert [delivery.id for delivery in calls.claim(1)] == ["any"]
    assert len(calls.claim(10)) == 10
    go_to(clock, FRIDAY + timedelta(minutes=59))
    assert len(calls.claim(10)) == 10
    go_to(clock, FRIDAY + timedelta(hours=2))
    calls.put("always", id="other")  # behind all the others
    taken: list[str] = []
    for _ in range(30):
        taken += [delivery.id for delivery in calls.claim(100)]
    assert set(taken) == {"any", "other"}
    sizes = calls.counts().sizes
    assert (sizes.ready, sizes.delayed) == (0, 1_000)
    assert calls.counts().flow.retried == 0
    go_to(clock, MONDAY)
    assert len(calls.claim(1_000)) == 1_000
    assert calls.audit()


def test_a_waiting_claim_gets_what_is_behind_a_closed_window(
    calls: bide.Queue, clock: FakeClock
) -> None:
    calls.put("x", id="ann", window=OFFICE)
    go_to(clock, SATURDAY)
    calls.put("y", id="bob")
    with calls.take(wait=5) as delivery:
        assert delivery.id == "bob"


def test_an_edit_changes_the_window(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", delay="2h")
    version = message(calls).version
    assert calls.edit("ann", window=OFFICE, if_version=version)
    assert not calls.edit("ann", window=None, if_version=version)
    assert (message(calls).due_at, message(calls).window) == (MONDAY, OFFICE)
    saturdays = bide.Window("Sat", "Europe/Berlin")
    assert calls.edit("ann", window=saturdays, delay="2h", priority=3)
    assert message(calls).due_at == datetime(2026, 12, 11, 23, tzinfo=UTC)
    assert calls.edit("ann", body="y")
    assert message(calls).window == saturdays
    assert calls.edit("ann", window=None)
    assert (message(calls).window, message(calls).rule) == (None, None)
    assert not calls.edit("none", window=OFFICE)
    go_to(clock, SATURDAY)
    (delivery,) = calls.claim()
    assert calls.edit("ann", window=OFFICE).state == "leased"
    delivery.bury("no")
    assert calls.edit("ann", window=OFFICE)
    assert (message(calls).state, message(calls).window) == ("dead", OFFICE)


def test_debounced_puts_keep_the_window(calls: bide.Queue, clock: FakeClock) -> None:
    for _ in range(2):
        calls.put("x", id="ann", delay="50m", latest="2h", on_conflict="replace", window=OFFICE)
        clock.advance(900)
    assert message(calls).due_at == datetime(2026, 12, 11, 18, tzinfo=UTC)  # after two hours
    go_to(clock, SATURDAY)
    assert calls.claim() == []
    assert message(calls).due_at == MONDAY


# Messages that repeat.


def run_times(calls: bide.Queue, clock: FakeClock, rule: bide.Repeat, count: int) -> list[Any]:
    """Return when runs are due and of which times they are, of a worker that is always there."""
    calls.put("x", id="ann", repeat=rule, window=OFFICE)
    runs = []
    for _ in range(count):
        go_to(clock, max(message(calls).due_at, datetime.fromtimestamp(clock.now() / 1000, UTC)))
        (delivery,) = calls.claim()
        runs.append((f"{delivery.message.due_at:%a %H}", f"{delivery.message.run_at:%a %H}"))
        delivery.ack()
    return runs


@pytest.mark.parametrize("missed", ["once", "skip"])
def test_runs_while_it_is_closed_are_one(calls: bide.Queue, clock: FakeClock, missed: Any) -> None:
    daily = bide.Cron("0 9 * * *", "Europe/Berlin", missed=missed)
    assert run_times(calls, clock, daily, 3) == [
        ("Mon 08", "Mon 08"),
        ("Tue 08", "Tue 08"),
        ("Wed 08", "Wed 08"),
    ]
    assert calls.audit()


def test_runs_while_it_is_closed_may_all_come(calls: bide.Queue, clock: FakeClock) -> None:
    daily = bide.Cron("0 9 * * *", "Europe/Berlin", missed="all")
    assert run_times(calls, clock, daily, 4) == [
        ("Mon 08", "Sat 08"),
        ("Mon 08", "Sun 08"),
        ("Mon 08", "Mon 08"),
        ("Tue 08", "Tue 08"),
    ]
    assert calls.audit()


def test_a_run_alone_keeps_its_time(calls: bide.Queue, clock: FakeClock) -> None:
    saturdays = bide.Cron("0 9 * * SAT", "Europe/Berlin", missed="skip")
    assert run_times(calls, clock, saturdays, 2) == [("Mon 08", "Sat 08")] * 2


def test_a_run_that_is_not_begun_in_time_is_missed(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", repeat=DAILY, window=OFFICE, at=FRIDAY)
    go_to(clock, FRIDAY + timedelta(hours=1))
    assert calls.claim() == []
    waiting = message(calls)
    assert (waiting.due_at, waiting.run_at, waiting.attempt) == (MONDAY, FRIDAY, 0)
    go_to(clock, MONDAY)
    (delivery,) = calls.claim()
    assert delivery.message.run_at == MONDAY  # with those of Saturday and Sunday
    delivery.ack()
    assert message(calls).run_at == MONDAY + timedelta(days=1)


def test_a_dead_run_keeps_the_window(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", repeat=DAILY, window=OFFICE, at=FRIDAY, attempts=1)
    (delivery,) = calls.claim()
    delivery.retry(reason="no")
    assert calls.claim() == []
    (letter,) = calls.dead()
    assert (letter.window, letter.repeats) == (OFFICE, False)
    assert message(calls).due_at == MONDAY
    go_to(clock, SATURDAY)
    calls.revive([letter.id])
    assert calls.claim() == []
    go_to(clock, MONDAY)
    assert {delivery.id for delivery in calls.claim(9)} == {"ann", letter.id}
    assert calls.audit()


def test_run_now_waits_for_the_opening(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", repeat=bide.Cron("0 12 * * *"), window=OFFICE)
    go_to(clock, SATURDAY)
    assert calls.run_now("ann").due == round(MONDAY.timestamp() * 1000)
    assert calls.hold("ann")
    assert calls.resume("ann")
    assert calls.cancel("ann")


def test_hold_and_resume_know_the_window(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", repeat=DAILY, window=OFFICE)
    assert calls.hold("ann")
    assert message(calls).held
    assert calls.edit("ann", window=bide.Window("Tue-Thu", "Europe/Berlin"))
    assert message(calls).held
    assert calls.resume("ann")
    # At the end of Monday, which is a time of the rule, Tuesday begins.
    assert message(calls).due_at == datetime(2026, 12, 14, 23, tzinfo=UTC)
    assert message(calls).run_at == MONDAY


def test_an_edit_of_a_part_of_the_rule_keeps_the_other(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", repeat=DAILY, window=OFFICE)
    assert calls.edit("ann", repeat=bide.Every("1d"))
    assert (message(calls).window, message(calls).due_at) == (OFFICE, MONDAY)
    assert calls.edit("ann", repeat=DAILY)
    go_to(clock, SATURDAY)
    assert calls.edit("ann", window=None)
    assert message(calls).repeat == DAILY
    assert message(calls).due_at == datetime(2026, 12, 13, 8, tzinfo=UTC)
    assert calls.edit("ann", window=OFFICE)
    assert (message(calls).run_at, message(calls).due_at) == (MONDAY, MONDAY)
    assert calls.edit("ann", repeat=None)
    assert (message(calls).window, message(calls).repeats) == (OFFICE, False)
    assert message(calls).due_at == MONDAY


def test_a_backfill_waits_for_the_opening(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", repeat=DAILY, window=OFFICE)
    go_to(clock, SATURDAY)
    calls.backfill("ann", after=FRIDAY - timedelta(days=1), before=MONDAY)
    assert calls.claim(9) == []
    go_to(clock, MONDAY)
    assert len(calls.claim(9)) == 4


def test_a_forecast_counts_runs_at_the_opening(calls: bide.Queue) -> None:
    calls.put("x", id="ann", repeat=bide.Every("1h"), window=OFFICE)
    forecast = calls.forecast("1d", "5d", repeats=True)
    # Those of 09:00 to 17:00, from Monday on; a bucket begins at 17:00.
    assert forecast.counts == [0, 0, 8, 9, 9]


# What carries a rule.


def test_an_export_keeps_the_window(calls: bide.Queue) -> None:
    calls.put("x", id="ann", delay="2h", window=OFFICE)
    lines = list(calls.export())
    calls.cancel("ann")
    assert calls.load(lines).stored == 1
    assert (message(calls).window, message(calls).due_at) == (OFFICE, MONDAY)


def test_an_undo_keeps_the_window(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put_many([bide.NewMessage(n, id=f"m{n}", window=OFFICE, group="g") for n in range(3)])
    undoable = calls.cancel(group="g", undo=True)
    assert undoable == 3
    go_to(clock, FRIDAY + timedelta(minutes=5))
    calls.undo(undoable.undo)
    assert message(calls, "m1").window == OFFICE
    assert len(calls.claim(9)) == 3


def test_an_event_loop_has_the_same(calls: bide.Queue, clock: FakeClock) -> None:
    async def use() -> Any:
        async with bide.AsyncQueue("calls", url_of_queue(calls), clock=clock) as queue:
            await queue.put("x", id="ann", window=OFFICE, delay="2h")
            await queue.put_many([1, 2], window=OFFICE, delay="2h")
            assert await queue.edit("ann", window=bide.Window("Sun", "Europe/Berlin"))
            return await queue.get("ann"), await queue.counts()

    found, counts = asyncio.run(use())
    assert f"{found.due_at:%a %H:%M}" == "Sat 23:00"
    assert counts.sizes.delayed == 3


def test_a_rule_that_cannot_be_read_is_left_to_others(
    calls: bide.Queue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls.put("x", id="ann", window=OFFICE)

    def unknown(text: str) -> Any:
        raise bide.InvalidArgument("no such zone here")

    with monkeypatch.context() as patched:
        patched.setattr("bide.lane.planning.time_rule_of", unknown)
        assert calls.claim() == []
    assert message(calls).error == "not delivered: no such zone here"
    clock.advance(60)
    assert [delivery.attempt for delivery in calls.claim()] == [1]


def test_a_claim_command_plans_as_well(calls: bide.Queue, clock: FakeClock) -> None:
    calls.put("x", id="ann", window=OFFICE)
    go_to(clock, SATURDAY)
    reply: Any = lane_of(calls).call(Claim("calls", 5, 1_000, "raw"))
    opens_in = (MONDAY - SATURDAY) / timedelta(milliseconds=1)
    assert (reply.messages, reply.next) == ([], pytest.approx(opens_in, abs=1))


def test_a_local_date_and_a_window_go_together(calls: bide.Queue, clock: FakeClock) -> None:
    paris: dict[str, Any] = {"timezone": "Europe/Paris"}
    calls.put("x", id="ann", at="2026-12-12 10:00", window=OFFICE, **paris)
    assert message(calls).due_at == MONDAY
    assert str(message(calls).local_date) == "2026-12-12 10:00 Europe/Paris"
    calls.edit("ann", window=None)
    assert message(calls).due_at == SATURDAY
    assert message(calls).local_date is not None
    calls.edit("ann", window=OFFICE)
    calls.reschedule("ann", at="2026-12-13 12:00", **paris)
    assert (message(calls).due_at, message(calls).window) == (MONDAY, OFFICE)
    assert str(message(calls).local_date) == "2026-12-13 12:00 Europe/Paris"
    calls.reschedule("ann", at=SATURDAY)  # an instant takes the date, and leaves the window
    assert message(calls).local_date is None
    go_to(clock, SATURDAY)
    assert calls.claim() == []
    go_to(clock, MONDAY)
    assert [delivery.id for delivery in calls.claim()] == ["ann"]
