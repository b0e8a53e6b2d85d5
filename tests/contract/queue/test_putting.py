"""Puts, and the limits of a queue, by a queue of either face."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import bide
from bide import AlreadyExists, InvalidArgument, NewMessage
from bide.model.times import Rate, interval, limits_of, place_in_span, rate_text
from bide.testing.clock import FakeClock
from tests.contract.queue.conftest import Make
from tests.start import START


def ids(found: Any) -> list[str]:
    return [message.id for message in found]


def test_put_stores_a_message_with_all_it_was_given(orders: Any) -> None:
    outcome = orders.put(
        {"order": 42},
        delay="30m",
        id="order-42",
        priority=5,
        expires="1h",
        attempts=5,
        group="order:42",
        headers={"trace": "abc"},
    )
    assert outcome
    assert (outcome.id, outcome.state, outcome.due) == ("order-42", "delayed", START + 1_800_000)
    message = orders.get("order-42")
    assert message.body == {"order": 42}
    assert (message.queue, message.priority, message.attempts) == ("orders", 5, 5)
    assert (message.attempt, message.state, message.group) == (0, "delayed", "order:42")
    assert (message.expires, message.headers) == (3_600_000, {"trace": "abc"})
    assert message.due_at == datetime(2023, 11, 14, 22, 43, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    "body",
    [
        None,
        True,
        0,
        -1.5,
        2**53,
        2**70,
        "",
        "Grüße \u2603 \x00",
        [],
        {},
        {"a": [1, {"b": None}]},
        b"",
        b"\x00\xff",
        b"{}",
    ],
)
def test_any_json_value_and_bytes_come_back_as_they_were(orders: Any, body: object) -> None:
    orders.put(body)
    (delivery,) = orders.claim()
    assert delivery.body == body
    assert type(delivery.body) is type(body)


def test_what_is_due_at_once_is_ready(orders: Any) -> None:
    outcome = orders.put(1)
    assert (outcome.state, outcome.due) == ("ready", START)
    assert len(outcome.id) == 26


def test_a_spread_is_a_time_of_the_id(orders: Any) -> None:
    at = (START + 60_000) / 1000
    place = place_in_span("user-1", 900_000)
    due = START + 60_000 + place
    assert 0 < place < 900_000
    assert orders.put(1, at=at, spread="15m", id="user-1").due == due
    again = {"id": "user-1", "on_conflict": "replace"}
    assert orders.put(2, delay="1m", spread=timedelta(minutes=15), **again).due == due
    assert orders.put(NewMessage(3, id="user-2", at=at, spread=900)).due != due
    assert orders.put(4, spread="15m", **again).due == START + place
    assert orders.put(5, delay="1m", spread="15m", latest="90s", **again).due <= START + 90_000
    with pytest.raises(InvalidArgument, match="spread='soon' is not a valid duration"):
        orders.put(1, spread="soon")


def test_many_messages_are_spread(orders: Any) -> None:
    bodies = ["text", {"a": 1}, 3] * 100
    outcomes = orders.put_many(bodies, delay="1m", spread="15m")
    same_options = [NewMessage(n, id=f"n-{n}", delay="1m", spread="15m") for n in range(50)]
    alone = NewMessage(0, id="alone", delay="1m")
    outcomes += orders.put_many([*same_options, alone])
    assert {outcome.id: outcome.due for outcome in outcomes} == {
        outcome.id: START
        + 60_000
        + (place_in_span(outcome.id, 900_000) if outcome.id != "alone" else 0)
        for outcome in outcomes
    }
    assert len({outcome.due for outcome in outcomes}) > 300


@pytest.mark.parametrize(
    "delay", [90, 90.0, "90s", "1m30s", "1.5m", timedelta(seconds=90), "90000ms"]
)
def test_delays_in_every_form(orders: Any, delay: Any) -> None:
    assert orders.put(1, delay=delay).due == START + 90_000


@pytest.mark.parametrize(
    "at",
    [
        START / 1000 + 90,
        datetime.fromtimestamp(START / 1000 + 90, UTC),
        datetime.fromtimestamp(START / 1000 + 90, UTC).astimezone(),
    ],
)
def test_times_in_every_form(orders: Any, at: Any) -> None:
    assert orders.put(1, at=at).due == START + 90_000


def test_a_moment_in_the_past_is_due_at_once_and_goes_first(orders: Any) -> None:
    orders.put("now", id="now")
    assert orders.put("past", at=0, id="past").state == "ready"
    assert ids(orders.claim(2)) == ["past", "now"]


def test_a_second_put_of_an_id_keeps_what_is_there_and_says_so(orders: Any) -> None:
    orders.put("first", id="a", delay=60)
    outcome = orders.put("second", id="a")
    assert not outcome
    assert outcome.state == "delayed"
    assert orders.get("a").body == "first"


def test_replace_changes_body_and_due_while_nobody_holds_it(orders: Any) -> None:
    orders.put("first", id="a", delay=60)
    outcome = orders.put("second", id="a", on_conflict="replace")
    assert outcome
    assert outcome.state == "ready"
    (delivery,) = orders.claim()
    assert delivery.body == "second"
    refused = orders.put("third", id="a", on_conflict="replace")
    assert (refused.done, refused.state) == (False, "leased")
    assert orders.get("a").body == "second"


def test_raise_raises_and_tells_where_the_other_is(orders: Any) -> None:
    assert orders.put("first", id="a", on_conflict="raise")
    with pytest.raises(
        AlreadyExists, match=r"a was not stored: it is ready, due 2023.*another id, or.*keep"
    ):
        orders.put("second", id="a", on_conflict="raise")
    assert orders.get("a").body == "first"


def test_put_many_stores_messages_and_bodies_alike(orders: Any) -> None:
    outcomes = orders.put_many(
        [{"order": 1}, NewMessage(body=b"x", id="mine", delay=60, priority=9), "text"],
        delay=5,
        priority=1,
        expires="1m",
        attempts=3,
        group="g",
    )
    assert [outcome.done for outcome in outcomes] == [True] * 3
    assert [outcome.due for outcome in outcomes] == [START + 5_000, START + 60_000, START + 5_000]
    mine = orders.get("mine")
    assert (mine.body, mine.priority, mine.group, mine.attempts) == (b"x", 9, None, 10)
    first = orders.get(outcomes[0].id)
    assert (first.body, first.priority, first.group) == ({"order": 1}, 1, "g")
    assert (first.attempts, first.expires) == (3, 60_000)


def test_put_many_takes_any_iterable_and_nothing_at_all(orders: Any) -> None:
    assert len(orders.put_many(number for number in range(3))) == 3
    assert orders.put_many([]) == []
    assert orders.counts().sizes.ready == 3


def test_put_many_stores_all_or_nothing(orders: Any) -> None:
    with pytest.raises(ValueError, match="body"):
        orders.put_many(["good", object()])
    assert orders.counts().sizes.total == 0


def test_put_many_keeps_or_replaces(orders: Any) -> None:
    orders.put("old", id="a")
    again = [NewMessage(body="new", id="a")]
    assert [o.done for o in orders.put_many(again)] == [False]
    assert [o.done for o in orders.put_many(again, on_conflict="replace")] == [True]
    assert orders.get("a").body == "new"


def test_ids_made_up_sort_as_they_were_put(orders: Any) -> None:
    made = [outcome.id for outcome in orders.put_many(range(50))]
    made += [orders.put(number).id for number in range(50)]
    assert made == sorted(set(made))


def test_weight_decides_among_what_is_due_together_and_in_a_backlog(
    orders: Any, clock: FakeClock
) -> None:
    orders.put(1, id="light", delay=10)
    orders.put(1, id="heavy", delay=10, priority=200)
    orders.put(1, id="early", delay=5)
    clock.advance(60)
    assert ids(orders.claim(1)) == ["heavy"]
    assert ids(orders.claim(2)) == ["early", "light"]


def test_what_is_too_late_is_never_delivered_but_counted_and_listed(
    orders: Any, clock: FakeClock
) -> None:
    orders.put(1, id="late", delay=10, expires="5s")
    orders.put(1, id="in time", delay=10, expires="1h")
    clock.advance(15.001)
    assert ids(orders.claim(10)) == ["in time"]
    assert orders.counts().flow.expired == 1
    assert ids(orders.scan("expired")) == ["late"]
    assert orders.get("late").state == "expired"
    assert orders.audit()


def test_a_whole_message_is_put_with_its_own_options(orders: Any) -> None:
    outcome = orders.put(NewMessage({"order": 1}, id="a", delay="1h", priority=7))
    assert (outcome.id, outcome.state) == ("a", "delayed")
    message = orders.get("a")
    assert (message.body, message.priority) == ({"order": 1}, 7)
    assert not orders.put(NewMessage(2, id="a"))
    for options in ({"id": "b"}, {"delay": 5}, {"priority": 1}):
        with pytest.raises(InvalidArgument, match="has its own id, due time and options"):
            orders.put(NewMessage(1), **options)


def test_latest_bounds_how_long_puts_delay_a_message(make: Any) -> None:
    orders = make()
    more = {"id": "a", "on_conflict": "replace", "delay": "5m", "latest": "7m"}
    assert orders.put(1, **more).due == START + 300_000
    message = NewMessage(2, id="a", delay="10m", latest="7m")
    (outcome,) = orders.put_many([message], on_conflict="replace")
    assert outcome.due == START + 420_000
    assert orders.put(message, on_conflict="replace").due == START + 420_000
    assert (orders.get("a").body, orders.get("a").created) == (2, START)


def test_a_put_with_latest_follows_the_message_that_a_worker_holds(make: Any) -> None:
    orders = make()
    orders.put(1, id="a")
    (held,) = orders.claim()
    more = {"id": "a", "on_conflict": "replace", "delay": "5m", "latest": "7m", "group": "g"}
    outcome = orders.put(b"2", **more)
    assert (outcome.done, outcome.state, outcome.successor) == (True, "leased", START + 300_000)
    assert str(outcome).endswith("; its successor is stored")
    (line,) = orders.export()
    copy = make("copy")
    assert copy.load([line]).stored == 1
    held.ack()
    for queue in (orders, copy):
        message = queue.get("a")
        assert (message.body, message.group, message.attempt) == (b"2", "g", 0)
        assert (message.due, message.created) == (START + 300_000, START)


def test_a_cancel_says_that_it_removed_the_successor(make: Any) -> None:
    orders = make()
    orders.put(1, id="a")
    (held,) = orders.claim()
    orders.put(2, id="a", on_conflict="replace", delay=5, latest=9)
    outcome = orders.cancel("a")
    assert (outcome.done, outcome.successor) == (False, START + 5_000)
    assert str(outcome).endswith("; its successor is cancelled")
    held.ack()
    assert orders.get("a") is None


@pytest.mark.parametrize(
    "more",
    [
        {"delay": 5, "on_conflict": "replace"},
        {"id": "a", "on_conflict": "replace"},
        {"id": "a", "at": 2_000_000_000, "on_conflict": "replace"},
        {"id": "a", "delay": 5},
        {"id": "a", "delay": 5, "on_conflict": "raise"},
        {"id": "a", "delay": 5, "on_conflict": "replace", "if_version": "0" * 16},
    ],
)
def test_latest_needs_an_id_a_delay_and_replace(make: Any, more: dict[str, Any]) -> None:
    orders = make()
    with pytest.raises(InvalidArgument, match="latest"):
        orders.put(1, latest="1h", **more)
    assert orders.counts().flow.put == 0


def test_latest_of_many_needs_ids_delays_and_replace(make: Any) -> None:
    orders = make()
    for message in (NewMessage(1, delay=5, latest=9), NewMessage(1, id="a", latest=9)):
        with pytest.raises(InvalidArgument, match="latest= bounds"):
            orders.put_many([message], on_conflict="replace")
    named = NewMessage(1, id="a", delay=5, latest=9)
    with pytest.raises(InvalidArgument, match="latest= bounds"):
        orders.put_many([named, NewMessage(2, delay=5, latest=9)], on_conflict="replace")
    with pytest.raises(InvalidArgument, match="on_conflict"):
        orders.put_many([NewMessage(1, id="a", delay=5, latest=9)])
    with pytest.raises(InvalidArgument, match="latest='soon' is not a valid duration"):
        orders.put(1, id="a", delay=5, latest="soon", on_conflict="replace")


def test_limits_are_given_with_the_queue_or_set_later(tmp_path: Path, clock: FakeClock) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    calls = bide.Queue("calls", url, limit=2, group_rate="1/s", clock=clock)
    calls.put_many([1, 2, 3], group="a")
    calls.put(4)
    held = calls.claim(9)
    assert [one.body for one in held] == [1, 4]
    assert calls.claim(9) == []
    found = calls.configure(limit=0, rate="5/s", group_rate=0)
    assert (found.limit, found.rate, found.group_limit, found.group_rate) == (0, 200_000, 0, 0)
    assert limits_of(calls.counts())["rate"] == "5/s"
    clock.advance(0.2)
    assert [one.body for one in calls.claim(9)] == [2]
    assert calls.audit()
    calls.close()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"limit": -1}, "limit=-1 must be a whole number from 0 to 100,000"),
        ({"limit": True}, "limit=True must be a whole number"),
        ({"group_limit": 1.5}, "group_limit=1.5 must be"),
        ({"limit": 100_001}, "to 100,000"),
        ({"rate": "fast"}, "rate='fast' is not a valid rate; write '5/s'"),
        ({"rate": "5/w"}, "is not a valid rate"),
        ({"rate": "-5/s"}, "is not a valid rate"),
        ({"rate": "9" * 99}, "is not a valid rate"),
        ({"rate": -1}, "rate=-1 is not from '1/d' to '100000/s'"),
        ({"rate": 100_001}, "is not from"),
        ({"rate": float("nan")}, "is not from"),
        ({"rate": True}, "rate cannot be of type bool"),
        ({"group_rate": "0.9/d"}, "group_rate='0.9/d' is not from '1/d'"),
        ({"group_rate": [1]}, "group_rate cannot be of type list"),
    ],
)
def test_what_is_no_limit_is_refused(make: Make, given: dict[str, Any], error: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=error):
        make().configure(**given)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (5, "5/s"),
        ("5", "5/s"),
        (" 100 / m ", "100/m"),
        (0.5, "30/m"),
        ("7/h", "7/h"),
        ("60/m", "1/s"),
        ("90/m", "90/m"),
        ("1/d", "1/d"),
        (100_000, "100000/s"),
        (3, "3/s"),
        ("0.7/s", "42/m"),
        (1.001, "1.001/s"),
    ],
)
def test_a_rate_is_shown_as_it_is_written(rate: Rate, text: str) -> None:
    assert rate_text(interval(rate)) == text
    assert interval(text) == pytest.approx(interval(rate), abs=2)


def test_no_rate_is_exceeded_by_rounding() -> None:
    for rate in range(1, 1_000):
        assert interval(rate) * rate >= 1_000_000
        assert interval(f"{rate}/m") * rate >= 60_000_000
