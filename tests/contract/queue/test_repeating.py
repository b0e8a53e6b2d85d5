"""Messages that repeat on each kind of store, by the methods of a queue."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide.lane.steps import run_steps
from bide.model.commands import Ack, BuryCommand, Edit, Lease
from bide.model.message import HELD, Message
from bide.model.times import LATEST, iso, unix
from bide.queue.command_builder import CommandBuilder
from bide.queue.repeating import holding
from bide.testing import FakeClock, ManualWorker, ScratchStore
from bide.testing.hooks import execute
from bide.testing.hooks import url_of as url_of_queue
from tests.start import START
from tests.stores_of_each_kind import STORES, url_of

FULL_HOURS = bide.Every("1h")
DAILY = bide.Cron("0 9 * * *", "Europe/Berlin")


SLOW = ("cluster", "http")
"""Stores whose servers take long to start: their own tests have what they add."""

KINDS = {
    kind: pytest.param(kind, marks=pytest.mark.full if kind in SLOW else ()) for kind in STORES
}


@pytest.fixture(params=KINDS.values())
def reminders(request: pytest.FixtureRequest) -> Iterator[bide.Queue]:
    with url_of(request.param, request) as url, bide.Queue("reminders", url) as reminders:
        yield reminders


@pytest.fixture
def hourly() -> bide.Every:
    """Provide a rule none of whose times comes in the half hour before a test, or while it runs."""
    return bide.Every("1h", start=datetime.now(UTC) - timedelta(minutes=45))


def some_hours_ago(hours: float) -> datetime:
    return datetime.now(UTC) - timedelta(hours=hours)


def test_one_message_runs_again_and_again(reminders: bide.Queue, hourly: bide.Every) -> None:
    outcome = reminders.put("stand up", id="ann", repeat=hourly, at=some_hours_ago(2), group="g")
    assert outcome.state == "ready"
    for number in range(3):
        (delivery,) = reminders.claim()
        assert (delivery.body, delivery.attempt) == ("stand up", 1)
        assert delivery.message.repeat == hourly
        if number:
            delivery.ack()
        else:
            assert reminders.ack([delivery])[0].state == "delayed"
        message = reminders.get("ann")
        assert message is not None
        assert (message.state, message.group) == ("delayed", "g")
        assert message.due_at == message.run_at
        assert datetime.now(UTC) < message.due_at <= datetime.now(UTC) + timedelta(hours=1)
        assert reminders.run_now("ann")
    assert reminders.counts().flow.put == 4
    assert reminders.audit()


def test_a_block_acks_a_run(reminders: bide.Queue) -> None:
    reminders.put(1, id="ann", repeat=bide.Every("1h", times=2), at=some_hours_ago(0.5))
    with reminders.take(wait=5) as delivery:
        assert delivery.message.run is not None
        assert delivery.message.run.endswith(" left=2")
    message = reminders.get("ann")
    assert message is not None
    assert message.state == "delayed"
    reminders.run_now("ann")
    for _ in range(2):
        with reminders.take(wait=5) as delivery:
            pass
        reminders.reschedule("ann", at=some_hours_ago(0.1))
    assert reminders.get("ann") is None
    assert reminders.audit()


def test_a_run_without_attempts_is_a_dead_letter_and_the_next_one_comes(
    reminders: bide.Queue,
    hourly: bide.Every,
) -> None:
    began = some_hours_ago(0.5)
    reminders.configure(history="1h")
    reminders.put("x", id="ann", repeat=hourly, at=began, attempts=2, headers={"a": "b"})
    for attempt in (1, 2):
        (delivery,) = reminders.claim()
        assert delivery.attempt == attempt
        delivery.retry(reason=f"no {attempt}")
    assert reminders.claim() == []
    message = reminders.get("ann")
    assert message is not None
    assert (message.state, message.attempt, message.failures) == ("delayed", 0, ())
    (letter,) = reminders.dead()
    assert letter.id == f"ann@{iso(unix(began))}"
    assert [failure.reason for failure in letter.failures] == ["no 1", "no 2"]
    assert (letter.body, letter.headers, letter.rule, letter.attempt) == ("x", {"a": "b"}, None, 2)
    assert [end.how for end in reminders.history("ann")] == ["dead"]
    assert reminders.audit()


def test_a_run_that_is_buried_is_a_dead_letter(reminders: bide.Queue, hourly: bide.Every) -> None:
    reminders.put("x", id="ann", repeat=hourly, at=some_hours_ago(0.5))
    (delivery,) = reminders.claim()
    delivery.bury("no")
    assert reminders.claim() == []
    assert [letter.error for letter in reminders.dead()] == ["no"]
    message = reminders.get("ann")
    assert message is not None
    assert message.state == "delayed"


def test_the_last_run_is_a_dead_letter_of_its_own_name(reminders: bide.Queue) -> None:
    reminders.put("x", id="ann", repeat=bide.Every("1h", times=1), at=some_hours_ago(0.5))
    (delivery,) = reminders.claim()
    delivery.bury("no")
    assert reminders.claim() == []
    assert [letter.id for letter in reminders.dead()] == ["ann"]
    assert reminders.audit()


def test_runs_that_come_too_late_are_not_delivered(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    reminders.put("x", id="late", repeat=hourly, at=some_hours_ago(0.5), expires="1m")
    skip = bide.Every("1h", start=some_hours_ago(5.5), missed="skip", grace="1m")
    reminders.put("x", id="missed", repeat=skip, at=skip.start)
    reminders.put("x", id="once", repeat=hourly, at=some_hours_ago(5))
    assert [delivery.id for delivery in reminders.claim(5)] == ["once"]
    for id in ("late", "missed"):
        message = reminders.get(id)
        assert message is not None
        assert (message.state, message.attempt) == ("delayed", 0)
    flow = reminders.counts().flow
    assert (flow.put, flow.expired) == (4, 1)
    assert reminders.audit()


def test_the_last_of_the_missed_runs_is_delivered(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    reminders.put("x", id="ann", repeat=hourly, at=some_hours_ago(5))
    (delivery,) = reminders.claim()
    run_at = delivery.message.run_at
    assert run_at is not None
    assert some_hours_ago(1) < run_at <= datetime.now(UTC)
    delivery.ack()
    message = reminders.get("ann")
    assert message is not None
    assert message.due_at == run_at + timedelta(hours=1)


def test_each_missed_run_may_be_made_up_for(reminders: bide.Queue) -> None:
    every = bide.Every("1h", missed="all")
    reminders.put("x", id="ann", repeat=every, at=some_hours_ago(3))
    runs = []
    while deliveries := reminders.claim():
        runs.append(deliveries[0].message.run_at)
        deliveries[0].ack()
    assert len(runs) == 4
    assert runs == sorted(set(runs), key=str)


def test_each_run_has_its_result(reminders: bide.Queue) -> None:
    reminders.configure(result_ttl="1h", history="1h")
    reminders.put("x", id="ann", repeat=bide.Every("1h", missed="all"), at=some_hours_ago(1.5))
    runs = []
    for result in ("first", "second"):
        (delivery,) = reminders.claim()
        runs.append(f"ann@{iso(delivery.message.due)}")
        delivery.ack(result)
    assert [reminders.result(run) for run in runs] == ["first", "second"]
    assert [end.result for end in reminders.history("ann")] == [b'"second"', b'"first"']
    assert [end.attempt for end in reminders.history(runs[0])] == [1]
    with pytest.raises(bide.NotEnded):
        reminders.result("ann")
    with pytest.raises(bide.NotRemembered):
        reminders.result("ann@2020-01-01T00:00:00.000Z")


def test_nobody_waits_in_vain_for_the_end_of_one_run(reminders: bide.Queue) -> None:
    reminders.configure(result_ttl="1h")
    reminders.put("x", id="ann", repeat=bide.Every("1h"))
    message = reminders.get("ann")
    assert message is not None
    run = f"ann@{iso(message.due)}"
    with pytest.raises(bide.NotEnded, match=rf"^{run} is delayed; it has no result yet$"):
        reminders.result(run)
    with pytest.raises(bide.InvalidArgument, match=rf"{run} is one run of 'ann', which repeats"):
        reminders.result(run, wait="1h")
    with pytest.raises(bide.NotRemembered):
        reminders.result("ann@2020-01-01T00:00:00.000Z", wait="1h")
    reminders.cancel("ann")
    with pytest.raises(bide.NotAcked):
        reminders.result(run, wait="1h")


def test_a_cancel_of_a_run_under_way_ends_the_message_after_it(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    reminders.put("x", id="ann", repeat=hourly, at=some_hours_ago(0.5))
    (delivery,) = reminders.claim()
    outcome = reminders.cancel("ann")
    assert (bool(outcome), outcome.state) == (False, "ending")
    assert str(outcome).startswith("ann was not cancelled: worker ")
    assert " holds its last run until " in str(outcome)
    delivery.ack()
    assert reminders.get("ann") is None
    reminders.put("x", id="ann", repeat=hourly)
    assert reminders.cancel("ann")
    assert reminders.get("ann") is None
    assert reminders.audit()


def test_who_runs_may_be_stopped_for_good(reminders: bide.Queue, hourly: bide.Every) -> None:
    reminders.put("x", id="ann", repeat=hourly, at=some_hours_ago(0.5))
    (delivery,) = reminders.claim()
    assert reminders.cancel("ann", running=True).state == "stopping"
    delivery.release()
    assert reminders.get("ann") is None
    assert reminders.counts().flow.cancelled == 1


def test_a_message_is_held_and_resumed(reminders: bide.Queue, hourly: bide.Every) -> None:
    reminders.put("x", id="ann", repeat=hourly)
    assert reminders.hold("ann")
    message = reminders.get("ann")
    assert message is not None
    assert (message.held, message.due, message.state) == (True, LATEST, "delayed")
    assert reminders.run_now("ann")
    (delivery,) = reminders.claim()
    delivery.ack()
    message = reminders.get("ann")
    assert message is not None
    assert (message.held, message.due) == (True, LATEST)
    assert reminders.resume("ann")
    message = reminders.get("ann")
    assert message is not None
    assert (message.held, message.due_at) == (False, message.run_at)
    assert not reminders.hold("nobody")
    reminders.put("x", id="plain", delay=60)
    with pytest.raises(
        bide.InvalidArgument, match="'plain' does not repeat; to make it repeat, edit it"
    ):
        reminders.hold("plain")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(params=["memory", "sqlite"])
def timed(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[bide.Queue]:
    """Provide a queue whose clock is that of the test."""
    with url_of(request.param, request) as url, bide.Queue("timed", url, clock=clock) as timed:
        yield timed


def test_a_message_that_was_held_and_repeats_no_longer_is_delivered(timed: bide.Queue) -> None:
    for id, window in (("ann", None), ("bob", bide.Window("09:00-10:00", "UTC"))):
        timed.put("x", id=id, repeat=FULL_HOURS, window=window)
        timed.hold(id)
        assert timed.edit(id, repeat=None)
    (delivery,) = timed.claim(2)
    assert delivery.id == "ann"
    assert get(timed, "bob").due_at == datetime(2023, 11, 15, 9, tzinfo=UTC)


@pytest.mark.parametrize("missed", ["once", "all", "skip"])
def test_a_message_that_is_resumed_after_its_last_time_ends(
    timed: bide.Queue, clock: FakeClock, missed: Any
) -> None:
    until = START / 1000 + 3 * 3_600
    timed.put("x", id="ann", repeat=bide.Every("1h", until=until, missed=missed))
    timed.hold("ann")
    clock.advance("5h")
    assert timed.resume("ann")
    assert timed.claim() == []
    assert timed.get("ann") is None
    assert timed.audit()


def test_a_run_now_is_one_more(reminders: bide.Queue) -> None:
    reminders.put("x", id="ann", repeat=bide.Every("1h", times=3))
    before = reminders.get("ann")
    assert reminders.run_now("ann").state == "ready"
    assert reminders.resume("ann")  # it is not held: nothing changes
    (delivery,) = reminders.claim()
    assert not reminders.resume("ann")
    outcome = reminders.run_now("ann")
    assert (bool(outcome), outcome.state) == (False, "leased")
    assert str(outcome).startswith("ann was not let run now: worker ")
    assert str(reminders.hold("ann")).startswith("ann was not held: worker ")
    delivery.ack()
    after = reminders.get("ann")
    assert before is not None
    assert after is not None
    # Unless an hour began meanwhile, it is as it was before.
    assert (after.run_at, after.due, after.version) == (before.run_at, before.due, before.version)
    assert after.run is not None
    assert after.run.endswith(" left=3")


def get(queue: bide.Queue, id: str = "ann") -> Message:
    message = queue.get(id)
    assert message is not None
    return message


@pytest.mark.parametrize("end", [bide.Delivery.retry, bide.Delivery.bury])
@pytest.mark.parametrize("is_held", [False, True])
def test_a_run_now_follows_a_run_without_attempts(
    reminders: bide.Queue,
    end: Callable[[bide.Delivery], object],
    is_held: bool,
    hourly: bide.Every,
) -> None:
    began = some_hours_ago(0.5)
    rule = bide.Every("1h", start=hourly.start, times=2)
    reminders.put("x", id="ann", repeat=rule, at=began, attempts=1)
    (delivery,) = reminders.claim()
    end(delivery)
    if is_held:
        assert reminders.hold("ann")
    for _ in range(2):  # however often somebody asks
        assert reminders.run_now("ann").state == "ready"
    (delivery,) = reminders.claim(wait=5)
    assert (delivery.id, delivery.attempt, delivery.message.failures) == ("ann", 1, ())
    assert (delivery.message.run or "").endswith(" left=2 added" + HELD * is_held)
    assert [letter.id for letter in reminders.dead()] == [f"ann@{iso(unix(began))}"]
    delivery.ack()
    message = get(reminders)
    assert (message.held, message.due == LATEST) == (is_held, is_held)
    assert " left=1" in (message.run or "")
    assert reminders.claim() == []
    assert reminders.audit()


def test_a_run_now_follows_a_run_whose_last_lease_is_over(hourly: bide.Every) -> None:
    with ScratchStore(clock=FakeClock(START)) as store, bide.Queue("reminders") as reminders:
        reminders.put("x", id="ann", repeat=hourly, delay=0, attempts=1)
        reminders.claim(lease="10s")
        store.clock.advance("9s")
        assert not reminders.run_now("ann")
        store.clock.advance("1s")
        assert reminders.run_now("ann")
        now = iso(store.clock.now())
        assert f"the next one that of {now[:10]} {now[11:19]}" in str(reminders.explain("ann"))
        (delivery,) = reminders.claim()
        assert (delivery.attempt, delivery.message.run_at) == (1, store.clock.datetime())
        assert [letter.id for letter in reminders.dead()] == [f"ann@{iso(START)}"]


def test_a_run_now_follows_the_last_one_too(reminders: bide.Queue) -> None:
    began = some_hours_ago(0.5)
    reminders.put("x", id="ann", repeat=bide.Every("1h", times=1), at=began, attempts=1)
    reminders.claim()[0].retry(reason="no")
    assert reminders.run_now("ann")
    (delivery,) = reminders.claim(wait=5)
    delivery.ack()
    assert reminders.get("ann") is None
    assert [letter.id for letter in reminders.dead()] == [f"ann@{iso(unix(began))}"]


def end_without_plan(queue: bide.Queue, *deliveries: bide.Delivery) -> None:
    """Ack as a client does that plans no run."""
    leases = [Lease(delivery.id, delivery.token) for delivery in deliveries]
    execute(queue, Ack(queue.name, leases))


def test_a_run_now_follows_a_run_that_nobody_has_planned(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    began = some_hours_ago(0.5)
    rule = bide.Every("1h", start=hourly.start, times=3)
    reminders.put("x", id="ann", repeat=rule, at=began)
    end_without_plan(reminders, *reminders.claim())
    assert reminders.run_now("ann").state == "ready"
    (delivery,) = reminders.claim(wait=5)
    assert f" after={iso(unix(began))} left=3 added" in (delivery.message.run or "")
    delivery.ack()
    assert " left=2" in (get(reminders).run or "")
    assert reminders.counts().flow.acked == 2


def test_a_run_that_nobody_has_planned_is_counted_though_the_message_is_held(
    reminders: bide.Queue,
    hourly: bide.Every,
) -> None:
    rule = bide.Every("1h", start=hourly.start, times=3)
    reminders.put("x", id="ann", repeat=rule, at=some_hours_ago(0.5))
    end_without_plan(reminders, *reminders.claim())
    assert reminders.hold("ann")
    assert reminders.claim() == []
    message = get(reminders)
    assert (message.held, message.due) == (True, LATEST)
    assert reminders.resume("ann")
    assert " left=2" in (get(reminders).run or "")


@pytest.mark.parametrize(
    "options", [{"expires": "1m"}, {"repeat": bide.Every("1h", missed="skip", grace="1m")}]
)
def test_a_run_that_is_too_late_runs_now(
    reminders: bide.Queue, options: dict[str, Any], hourly: bide.Every
) -> None:
    began = some_hours_ago(0.5)
    reminders.put("x", **{"id": "ann", "repeat": hourly, "at": began, **options})
    assert reminders.run_now("ann").state == "ready"
    (delivery,) = reminders.claim()
    assert unix(delivery.message.run_at or 0) == unix(began)
    assert reminders.counts().flow.expired == 0


@pytest.mark.parametrize("window", [None, bide.Window("20:00-06:00")])
def test_what_is_explained_is_delivered(
    timed: bide.Queue, clock: FakeClock, window: bide.Window | None
) -> None:
    timed.put("x", id="ann", repeat=FULL_HOURS, window=window)
    clock.advance("17h10m")
    waiting = timed.explain("ann").run
    clock.advance(0 if window is None else window.opening(clock.now()) / 1000 - clock.now() / 1000)
    (delivery,) = timed.claim()
    leased = timed.explain("ann").run
    assert waiting is not None
    assert leased is not None
    assert waiting.at == leased.at == unix(delivery.message.run_at or 0)
    if window is None:
        delivery.ack()
        assert get(timed).due == waiting.next == leased.next


@pytest.mark.parametrize("waits", ["0s", "60m", "90m"], ids=["added", "in time", "missed"])
def test_a_run_now_waits_for_a_worker(timed: bide.Queue, clock: FakeClock, waits: str) -> None:
    timed.put("x", id="ann", repeat=bide.Every("1h", missed="skip", grace="1m"))
    clock.advance(waits)
    run_at = get(timed).run_at if waits != "0s" else clock.datetime()
    assert timed.run_now("ann").state == "ready"
    clock.advance("70m")
    assert "run-missed" not in timed.explain("ann").reasons
    (delivery,) = timed.claim()
    assert delivery.message.run_at == run_at
    clock.advance("1s")
    delivery.ack()
    after = get(timed)
    assert (after.state, " added" in (after.run or "")) == ("delayed", False)
    assert timed.audit()


def test_what_is_not_to_be_delivered_does_not_run_now(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    reminders.configure(keep="1h")
    began = some_hours_ago(0.5)
    reminders.put("x", id="buried", repeat=hourly, at=began)
    execute(reminders, BuryCommand(reminders.name, ids=["buried"]))
    reminders.put("x", id="acked", repeat=bide.Every("1h", times=1), at=began)
    (delivery,) = reminders.claim()
    delivery.ack()
    for id, state in (("buried", "dead"), ("acked", "acked")):
        for change in (reminders.run_now, reminders.hold):
            outcome = change(id)
            assert (bool(outcome), outcome.state) == (False, state)
    assert not reminders.resume("buried")
    assert reminders.run_now("nobody").state is None


def test_runs_now_are_counted_once(reminders: bide.Queue) -> None:
    reminders.put("x", id="ann", repeat=bide.Every("1h", times=3))
    for change in (reminders.run_now, reminders.run_now, reminders.hold, reminders.resume):
        assert change("ann")
    message = reminders.get("ann")
    assert message is not None
    assert message.run is not None
    assert message.run.endswith(" left=4 added")
    (delivery,) = reminders.claim()
    delivery.ack()
    message = reminders.get("ann")
    assert message is not None
    assert message.run is not None
    assert message.run.endswith(" left=3")


def test_what_is_held_waits_for_the_end_of_a_run_that_is_retried(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    reminders.put("x", id="ann", repeat=hourly, at=some_hours_ago(0.5), attempts=2)
    (delivery,) = reminders.claim()
    delivery.retry("1h", "no")
    assert reminders.hold("ann")
    message = reminders.get("ann")
    assert message is not None
    assert (message.held, message.attempt) == (True, 1)
    assert message.due < LATEST
    assert reminders.run_now("ann").state == "ready"
    (delivery,) = reminders.claim()
    assert delivery.attempt == 2
    delivery.retry(reason="no again")
    assert reminders.hold("ann")  # it has no attempt left, and nobody has planned the next run
    assert reminders.claim() == []
    assert [len(letter.failures) for letter in reminders.dead()] == [2]
    message = reminders.get("ann")
    assert message is not None
    assert (message.due, message.attempt, message.failures) == (LATEST, 0, ())
    assert reminders.resume("ann")
    assert reminders.resume("ann")
    assert reminders.audit()


def test_a_group_is_rescheduled_without_those_that_are_held(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    for id in ("ann", "bob"):
        reminders.put("x", id=id, repeat=hourly, group="g")
    reminders.hold("bob")
    assert reminders.reschedule(group="g", delay=0, dry_run=True) == 1
    assert reminders.reschedule(group="g", at=some_hours_ago(0.1)) == 1
    assert reminders.reschedule(group="g", at=some_hours_ago(0.1), undo=True) == 1
    assert [delivery.id for delivery in reminders.claim(5)] == ["ann"]


def test_each_id_in_a_list_leaves_room_for_the_ids_of_its_runs(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    messages = [bide.NewMessage("x", id=id, repeat=hourly) for id in ("short", "x" * 500)]
    with pytest.raises(bide.InvalidArgument, match="may have 487 bytes"):
        reminders.put_many(messages)
    assert reminders.counts().sizes.total == 0


def test_past_runs_are_put_once(reminders: bide.Queue) -> None:
    reminders.put("x", id="ann", repeat=DAILY, priority=3)
    after, before = datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC)
    ids = [
        f"ann@2026-03-{time}:00:00.000Z"
        for time in ("28T08", "29T07", "30T07")  # summer time begins
    ]
    outcomes = reminders.backfill("ann", after=after, before=before)
    assert [(outcome.id, outcome.done) for outcome in outcomes] == [(id, True) for id in ids]
    again = reminders.backfill("ann", after=after, before=before)
    assert not any(again)
    deliveries = reminders.claim(9)
    assert [delivery.id for delivery in deliveries] == ids
    assert {delivery.message.priority for delivery in deliveries} == {3}
    reminders.ack(deliveries)
    with pytest.raises(bide.InvalidArgument, match="there is no message 'bob'"):
        reminders.backfill("bob", after=after, before=before)
    reminders.put("x", id="cat", repeat=FULL_HOURS)
    with pytest.raises(bide.InvalidArgument, match="more than 10,000 runs"):
        reminders.backfill("cat", after=0, before=before)


def test_a_rule_is_edited(reminders: bide.Queue, hourly: bide.Every) -> None:
    reminders.put("x", id="ann", repeat=hourly)
    message = reminders.get("ann")
    assert message is not None
    reminders.run_now("ann")
    assert reminders.edit("ann", repeat=DAILY, body="y", if_version=message.version)
    assert not reminders.edit("ann", repeat=hourly, if_version=message.version)
    message = reminders.get("ann")
    assert message is not None
    assert (message.body, message.repeat, message.due_at) == ("y", DAILY, message.run_at)
    assert reminders.edit("ann", repeat=None, delay=0)
    (delivery,) = reminders.claim()
    delivery.ack()
    assert reminders.get("ann") is None


def test_a_message_that_repeats_no_longer_is_delivered_once_more(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    reminders.put("x", id="ann", repeat=hourly, at=some_hours_ago(0.5), attempts=1)
    reminders.claim()[0].retry(reason="no")
    assert reminders.edit("ann", repeat=None)
    (delivery,) = reminders.claim()
    assert delivery.attempt == 1
    delivery.ack()
    assert reminders.get("ann") is None


def test_a_put_replaces_the_rule_also_while_a_worker_holds_a_run(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    reminders.put("x", id="ann", repeat=hourly, at=some_hours_ago(0.5))
    assert not reminders.put("y", id="ann", repeat=DAILY)
    (delivery,) = reminders.claim()
    assert not reminders.put("y", id="ann", repeat=DAILY, on_conflict="replace")
    delivery.ack()
    assert reminders.put("y", id="ann", repeat=DAILY, on_conflict="replace")
    message = reminders.get("ann")
    assert message is not None
    assert (message.body, message.repeat) == ("y", DAILY)


def test_an_export_carries_rule_and_run(reminders: bide.Queue) -> None:
    reminders.put("x", id="ann", repeat=bide.Every("1h", times=7, missed="skip"))
    before = reminders.get("ann")
    lines = list(reminders.export())
    reminders.cancel("ann")
    assert reminders.load(lines).stored == 1
    assert reminders.get("ann") == before
    broken = lines[0].replace('\\"every\\"', '\\"weekly\\"')
    with pytest.raises(
        bide.InvalidArgument, match=r"line 1 is not a message of an export: .* rule"
    ):
        reminders.load([broken])


def test_a_move_carries_rule_and_run(reminders: bide.Queue, hourly: bide.Every) -> None:
    with bide.Queue("moved", "memory://moved") as target:
        reminders.put("x", id="ann", repeat=hourly)
        before = reminders.get("ann")
        assert bide.move(reminders, target).moved == 1
        after = target.get("ann")
        assert before is not None
        assert after is not None
        assert (after.rule, after.run, after.due) == (before.rule, before.run, before.due)


def test_an_undo_restores_rule_and_run_unless_a_run_began(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    for id in ("ann", "bob"):
        reminders.put("x", id=id, repeat=hourly, group="g")
    before = reminders.get("ann")
    undo = reminders.cancel(group="g", undo=True).undo
    assert reminders.undo(undo).restored == 2
    assert reminders.get("ann") == before
    undo = reminders.reschedule(group="g", at=some_hours_ago(0.1), undo=True).undo
    deliveries = {delivery.id: delivery for delivery in reminders.claim(5)}
    deliveries["ann"].ack()
    deliveries["bob"].release()
    undone = reminders.undo(undo)
    assert undone.restored == 1
    assert reminders.audit()


def test_many_repeat_by_one_rule(reminders: bide.Queue, hourly: bide.Every) -> None:
    outcomes = reminders.put_many(range(50), repeat=hourly, at=some_hours_ago(0.1))
    assert all(outcomes)
    deliveries = reminders.claim(50)
    assert [outcome.state for outcome in reminders.ack(deliveries)] == ["delayed"] * 50
    assert reminders.counts().sizes.delayed == 50
    reminders.put("plain", id="plain")
    reminders.run_now(deliveries[0].id)
    both = reminders.claim(5)
    assert sorted(outcome.state or "" for outcome in reminders.ack(both)) == ["", "delayed"]


def test_a_forecast_counts_all_runs_if_asked(reminders: bide.Queue) -> None:
    reminders.put("x", id="ann", repeat=FULL_HOURS)
    reminders.put("x", id="thrice", repeat=bide.Every("1h", times=3))
    reminders.put("x", id="held", repeat=FULL_HOURS)
    reminders.hold("held")
    reminders.put("x", delay="30m")
    assert sum(reminders.forecast("1h", "12h").counts) == 3
    forecast = reminders.forecast("1h", "12h", repeats=True)
    assert sum(forecast.counts) == 11 + 3 + 1
    assert forecast.later == 1


@pytest.mark.parametrize(
    ("missed", "window"),
    [("once", None), ("all", None), ("once", "09:00-18:00"), ("all", "09:00-18:00")],
)
@pytest.mark.parametrize("moved", [True, False])
def test_a_forecast_counts_the_runs_that_were_missed(
    timed: bide.Queue, clock: FakeClock, missed: Any, window: str | None, *, moved: bool
) -> None:
    timed.put(
        "x",
        id="ann",
        repeat=bide.Every("1h", missed=missed),
        window=None if window is None else bide.Window(window),
    )
    if moved:
        timed.reschedule("ann", delay="4h")
    for hours_away in ("3h", "6h"):
        clock.advance(hours_away)
        forecast = timed.forecast("1h", "24h", repeats=True)
        end, now = unix(forecast.start) + 24 * 3_600_000, clock.now()
        begun: list[int] = []
        while (due := get(timed).due) < end:
            clock.advance(max(1, due - clock.now()) / 1000)
            for delivery in timed.claim():
                begun.append(clock.now())
                delivery.ack()
        assert forecast.overdue + sum(forecast.counts) == len(begun)
        if window is None:
            assert forecast.overdue == sum(moment - now < 1_000 for moment in begun)


def test_what_counts_many_runs_lets_other_tasks_go_on(clock: FakeClock) -> None:
    async def story() -> None:
        steps = 0

        async def other() -> None:
            nonlocal steps
            while True:
                steps += 1
                await asyncio.sleep(0)

        async with bide.AsyncQueue("q", "memory://forecast-beside", clock=clock) as queue:
            await queue.put("x", id="ann", repeat=bide.Every("1m"))
            beside = asyncio.create_task(other())
            forecast = await queue.forecast("1h", "5h", repeats=True)
            assert steps > sum(forecast.counts) - 10 > 200
            before_put = steps
            now = clock.now() / 1000
            put = await queue.backfill("ann", after=now - 6_000, before=now)
            beside.cancel()
            assert len(put) == 100
            assert steps - before_put >= 100

    asyncio.run(story())


def test_a_forecast_counts_the_runs_after_one_under_way(
    timed: bide.Queue, clock: FakeClock
) -> None:
    timed.put("x", id="ann", repeat=FULL_HOURS)
    timed.put("x", id="twice", repeat=bide.Every("1h", times=2))
    timed.put("x", id="held", repeat=FULL_HOURS)
    clock.advance("1h")
    deliveries = {delivery.id: delivery for delivery in timed.claim(3)}
    under_way = timed.forecast("1h", "6h", repeats=True).counts
    assert sum(under_way) == 5 + 1 + 5
    for delivery in deliveries.values():
        delivery.ack()
    assert timed.forecast("1h", "6h", repeats=True).counts == under_way
    timed.hold("held")
    assert sum(timed.forecast("1h", "6h", repeats=True).counts) == 5 + 1


@pytest.mark.parametrize(  # in memory another queue of this name has a store of its own
    "reminders", [KINDS[kind] for kind in STORES if kind != "memory"], indirect=True
)
def test_an_event_loop_repeats_messages(reminders: bide.Queue, hourly: bide.Every) -> None:
    async def repeat() -> Any:
        async with bide.AsyncQueue("reminders", url_of_queue(reminders)) as queue:
            await queue.put("x", id="ann", repeat=hourly, at=some_hours_ago(0.5))
            async with queue.take(wait=5):
                pass
            assert await queue.hold("ann")
            return await queue.get("ann")

    message = asyncio.run(repeat())
    assert message.held


# Workers, at a time of the test's.


def test_a_worker_runs_a_task_again_and_again() -> None:
    app = bide.App("memory://")
    runs: list[str] = []

    @app.task(queue="digests", retry=bide.Backoff(attempts=2, first="1m"))
    def send_digest(user: int) -> None:
        runs.append(f"{store.clock.datetime():%a %H:%M}")
        if len(runs) in (2, 3):
            raise OSError("mail is down")

    with ScratchStore(clock=FakeClock(START)) as store:
        send_digest.later(id="user-7", repeat=bide.Cron("0 9 * * MON", "Europe/Berlin")).put(7)
        with ManualWorker(app, store, errors="collect") as worker:
            worker.advance("28d")
        queue = send_digest.queue
        message = queue.get("user-7")
        assert message is not None
        assert (message.state, message.attempt) == ("delayed", 0)
        (letter,) = queue.dead()
        assert letter.id.startswith("user-7@")
        assert letter.error is not None
        assert "mail is down" in letter.error
        assert queue.audit()
    # The second one failed twice.
    assert runs == ["Mon 08:00", "Mon 08:00", "Mon 08:01", "Mon 08:00", "Mon 08:00"]


def test_a_run_that_is_acked_meanwhile_stays_acked(
    reminders: bide.Queue, hourly: bide.Every
) -> None:
    rule = bide.Every("1h", start=hourly.start, times=5)
    reminders.put(1, id="ann", repeat=rule, at=some_hours_ago(0.5))

    def ask(command: Any) -> Any:
        if isinstance(command, Edit) and not runs:
            (delivery,) = reminders.claim()
            delivery.ack()
            runs.append(delivery.message.run)
        return execute(reminders, command)

    runs: list[str | None] = []
    outcome = run_steps(holding(CommandBuilder("reminders"), "ann"), ask)
    message = reminders.get("ann")
    assert message is not None
    assert message.run is not None
    assert (outcome.done, message.held, len(runs)) == (True, True, 1)
    assert " left=4" in message.run
    assert reminders.counts().flow.acked == 1
