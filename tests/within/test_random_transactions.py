"""A thousand random transactions: what is committed is there, what is rolled back is not."""

import random
from collections.abc import Callable
from contextlib import closing

import pytest

import bide
from tests.within.libraries import Psycopg, Sqlite3, User

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
