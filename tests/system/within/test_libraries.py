"""Every library: what is put in a transaction shares its fate."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest

import bide
from bide.model.message import Message
from bide.testing.hooks import url_of
from tests.system.within.libraries import BLOCKING, Made, Psycopg, Sqlite3, User


class Shop(NamedTuple):
    user: User
    orders: bide.Queue


@pytest.fixture(params=BLOCKING, ids=[f"{made.__name__}-{kind}" for kind, made in BLOCKING])
def shop(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Iterator[Shop]:
    kind, made = request.param
    made_user: Made = made
    url = url_of(kind)
    with bide.Queue("orders", url) as orders:
        assert orders.counts().flow.put == 0  # the store is there
        user = made_user(url)
        user.run("CREATE TABLE bill (id text)")
        user.commit()
        yield Shop(user, orders)
        user.rollback()
        user.run("DROP TABLE bill")
        user.commit()
        user.close()
        assert orders.audit()


def test_a_message_is_there_with_the_commit_and_not_before(shop: Shop) -> None:
    user, orders = shop
    user.run("INSERT INTO bill VALUES ('a')")
    outcome = orders.put({"order": 1}, delay="30m", id="a", within=user.within)
    assert (outcome.done, outcome.state) == (True, "delayed")
    assert orders.get("a") is None
    user.commit()
    assert [message.body for message in orders.scan()] == [{"order": 1}]


def test_a_rollback_leaves_nothing(shop: Shop) -> None:
    user, orders = shop
    orders.put_many([bide.NewMessage(n, id=f"m{n}", delay=60, group="g") for n in range(4)])
    before, there = orders.counts(), list(orders.scan())
    user.run("INSERT INTO bill VALUES ('a')")
    assert orders.put(1, within=user.within)
    assert all(orders.put_many([1, 2], delay=9, within=user.within))
    assert orders.put("new", id="m0", on_conflict="replace", within=user.within)
    assert orders.reschedule("m1", delay="1h", within=user.within)
    assert orders.cancel("m2", within=user.within)
    assert orders.cancel(group="g", within=user.within) == 2
    user.rollback()
    assert (orders.counts(), list(orders.scan())) == (before, there)


def test_a_savepoint_that_is_rolled_back_takes_its_messages_along(shop: Shop) -> None:
    user, orders = shop
    user.begin()
    assert orders.put(1, id="first", within=user.within)
    user.run("SAVEPOINT part")
    assert orders.put(2, id="second", within=user.within)
    assert orders.cancel("first", within=user.within)
    user.run("ROLLBACK TO SAVEPOINT part")
    assert orders.put(3, id="third", within=user.within)
    user.commit()
    assert sorted(message.id for message in orders.scan()) == ["first", "third"]


def test_a_refusal_is_a_result_and_the_transaction_goes_on(shop: Shop) -> None:
    user, orders = shop
    orders.put(1, id="held")
    (held,) = orders.claim(lease=60)
    orders.put(1, id="there", delay=60)
    user.run("INSERT INTO bill VALUES ('a')")
    assert orders.put(2, id="there", within=user.within).state == "delayed"
    with pytest.raises(bide.AlreadyExists, match="there was not stored: it is delayed"):
        orders.put(2, id="there", on_conflict="raise", within=user.within)
    assert orders.put(2, id="held", on_conflict="replace", within=user.within).holder
    assert orders.cancel("held", within=user.within).state == "leased"
    assert orders.cancel("no", within=user.within).state is None
    assert not orders.reschedule("no", delay=5, within=user.within)
    assert not orders.cancel("there", if_due=1_700_000_000, within=user.within)
    assert orders.put(3, id="new", within=user.within)
    user.commit()
    assert {message.id: message.body for message in orders.scan()} == {
        "held": 1,
        "there": 1,
        "new": 3,
    }
    held.ack()


def test_a_put_with_latest_debounces_and_follows_what_is_leased(shop: Shop) -> None:
    user, orders = shop
    more: dict[str, Any] = {"on_conflict": "replace", "delay": "1h", "latest": 0}
    orders.put(1, id="held")
    (held,) = orders.claim(lease=60)
    user.begin()
    new = orders.put(1, id="new", within=user.within, **more)
    assert (new.done, new.state) == (True, "ready")
    stored = orders.put(2, id="held", within=user.within, **more)
    assert (stored.done, stored.state) == (True, "leased")
    user.commit()
    held.ack()
    message = orders.get("held")
    assert message is not None
    assert (message.body, message.due) == (2, stored.successor)
    assert {delivery.body for delivery in orders.claim(2)} == {1, 2}


@pytest.mark.parametrize("count", [1, 2])
def test_a_due_time_of_0_is_a_due_time(shop: Shop, count: int) -> None:
    user, orders = shop
    items = [bide.NewMessage(1, id=f"m{number}", at=0) for number in range(count)]
    user.begin()
    assert [outcome.due for outcome in orders.put_many(items, within=user.within)] == [0] * count
    user.commit()
    assert [message.due for message in orders.scan()] == [0] * count


def test_it_is_the_same_message_as_without_a_transaction(shop: Shop) -> None:
    user, orders = shop
    options: dict[str, Any] = {
        "at": 2_000_000_000,
        "priority": 7,
        "expires": "1h",
        "attempts": 3,
        "group": "größe",
        "headers": {"trace": 'ü\0"\\'},
    }
    bodies = [{"a": ["ü", "\0", None, 1.5]}, b"\0\xff\\x00", "", b"", None]
    user.begin()
    for number, body in enumerate(bodies):
        orders.put(body, id=f"usual{number}", **options)
    for number, body in enumerate(bodies):
        assert orders.put(body, id=f"within{number}", within=user.within, **options)
    mixed = [bide.NewMessage(body, id=f"m{n}", delay=n) for n, body in enumerate(bodies)]
    assert all(orders.put_many(mixed, within=user.within))
    spread: dict[str, Any] = {"at": 2_000_000_000, "spread": "15m", "id": "user-1"}
    assert orders.put(1, **spread, within=user.within).due == 2_000_000_698_765
    user.commit()

    def fields(id: str) -> tuple[Any, ...]:
        message = orders.get(id)
        assert isinstance(message, Message)
        return (
            message.body,
            message.data,
            message.due,
            message.priority,
            message.expires,
            message.attempts,
            message.group,
            message.headers,
        )

    for number, body in enumerate(bodies):
        assert fields(f"within{number}") == fields(f"usual{number}")
        found = orders.get(f"m{number}")
        assert found is not None
        assert found.body == body


def test_what_the_queue_keeps_is_stored_with_the_transaction(
    shop: Shop, request: pytest.FixtureRequest
) -> None:
    user, orders = shop
    with bide.Queue("kept", url_of(orders), keep="1d") as kept:
        user.begin()
        assert kept.put(1, id="a", within=user.within)
        user.commit()
    with bide.Queue("kept", url_of(orders)) as kept:
        assert kept.counts().keep == 86_400_000
        kept.claim()[0].ack()
        user.begin()
        assert kept.put(1, id="a", within=user.within).state == "acked"
        user.rollback()


def test_arguments_are_checked_as_usual(shop: Shop) -> None:
    user, orders = shop
    user.begin()
    for wrong in ({"priority": 300}, {"delay": "5 mins"}, {"id": ""}, {"on_conflict": "what"}):
        with pytest.raises(bide.InvalidArgument):
            orders.put(1, within=user.within, **wrong)
    with pytest.raises(bide.InvalidArgument, match="if_version= and within="):
        orders.cancel("a", if_version="0" * 16, within=user.within)
    with pytest.raises(bide.InvalidArgument, match="dry_run= only counts"):
        orders.cancel(group="a", dry_run=True, within=user.within)
    assert orders.put_many([], within=user.within) == []
    assert orders.put(1, within=user.within)
    user.commit()
    assert orders.counts().flow.put == 1


TRANSACTIONS = 1_000
IDS = [f"m{number}" for number in range(6)]


class Expected:
    """Bodies by id, as a transaction sees them."""

    def __init__(self) -> None:
        self.bodies: dict[str, int] = {}
        self.next = 0

    def step(self, chance: random.Random, orders: bide.Queue, user: User) -> None:
        """Do something at random, and compare the answer."""
        id, there = chance.choice(IDS), dict(self.bodies)
        self.next += 1
        match chance.randrange(5):
            case 0:
                assert bool(orders.put(self.next, id=id, delay=60, within=user.within)) is (
                    id not in there
                )
                self.bodies.setdefault(id, self.next)
            case 1:
                assert orders.put(
                    self.next, id=id, delay=60, on_conflict="replace", within=user.within
                )
                self.bodies[id] = self.next
            case 2:
                ids = chance.sample(IDS, 3)
                many = [bide.NewMessage(self.next, id=each, delay=60) for each in ids]
                done = orders.put_many(many, within=user.within)
                assert [bool(outcome) for outcome in done] == [each not in there for each in ids]
                for each in ids:
                    self.bodies.setdefault(each, self.next)
            case 3:
                assert bool(orders.cancel(id, within=user.within)) is (id in there)
                self.bodies.pop(id, None)
            case _:
                moved = orders.reschedule(id, delay=chance.randrange(1, 900), within=user.within)
                assert bool(moved) is (id in there)


@pytest.mark.parametrize(("kind", "made"), [("postgresql", Psycopg), ("sqlite", Sqlite3)])
def test_a_thousand_random_transactions(
    kind: str, made: Callable[[str], User], url_of: Callable[[str], str]
) -> None:
    chance = random.Random(42)
    url = url_of(kind)
    with bide.Queue("orders", url) as orders, closing(made(url)) as user:
        assert orders.counts().flow.put == 0
        if kind == "sqlite":
            user.run("PRAGMA synchronous = OFF")
        committed: dict[str, int] = {}
        expected = Expected()
        for number in range(TRANSACTIONS):
            user.run("BEGIN" if kind == "sqlite" else "SELECT 1")
            before_part = dict(expected.bodies)
            for step in range(chance.randrange(1, 4)):
                if step == 1 and chance.random() < 0.3:
                    user.run("SAVEPOINT part")
                    before_part = dict(expected.bodies)
                    expected.step(chance, orders, user)
                    if chance.random() < 0.5:
                        user.run("ROLLBACK TO SAVEPOINT part")
                        expected.bodies = before_part
                else:
                    expected.step(chance, orders, user)
            if chance.random() < 0.5:
                user.commit()
                committed = dict(expected.bodies)
            else:
                user.rollback()
                expected.bodies = dict(committed)
            if number % 50 == 0:
                assert {m.id: m.body for m in orders.scan()} == committed
        assert {m.id: m.body for m in orders.scan()} == committed
        assert orders.audit()
