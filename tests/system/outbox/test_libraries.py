"""Every library writes to the outbox of its database, whose tables are where programs find them."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

import bide
from bide.outbox.forwarder import Forwarder, table_of
from bide.testing.hooks import lane_of
from tests.system.within.libraries import ASYNCHRONOUS, BLOCKING, Made


def url_of(kind: str, request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("database" if kind == "postgresql" else "file")
    table_of(url).close()  # makes the tables
    return url


def forward(orders: bide.Queue, url: str) -> None:
    assert Forwarder(lambda: table_of(url), lane_of(orders)).run_once()


@pytest.mark.parametrize(
    ("kind", "made"), BLOCKING, ids=[f"{made.__name__}-{kind}" for kind, made in BLOCKING]
)
def test_a_message_is_in_the_store_after_the_commit(
    kind: str, made: Made, orders: bide.Queue, request: pytest.FixtureRequest
) -> None:
    url = url_of(kind, request)
    user = made(url)
    try:
        user.begin()
        assert orders.put(1, id="rolled back", within=user.within).state == "pending"
        user.rollback()
        user.begin()
        outcome = orders.put(
            {"ü\0": 1}, id="a", delay="30m", headers={"h": "\0"}, within=user.within
        )
        assert outcome.state == "pending"
        many = orders.put_many([b"\0\xff", bide.NewMessage(2, id="b", delay=9)], within=user.within)
        assert [each.state for each in many] == ["pending"] * 2
        assert orders.reschedule("b", delay="2h", within=user.within).state == "pending"
        forward(orders, url)
        assert list(orders.scan()) == []
        user.commit()
        forward(orders, url)
    finally:
        user.close()
    message = orders.get("a")
    assert message is not None
    assert (message.body, message.headers, message.due) == ({"ü\0": 1}, {"h": "\0"}, outcome.due)
    there = orders.get("b")
    assert there is not None
    assert there.due - message.due > 60 * 60_000
    assert [message.body for message in orders.scan("ready")] == [b"\0\xff"]
    assert orders.counts().flow.put == 3


@pytest.mark.parametrize("ask", [bool, lambda outcome: outcome.done], ids=["bool", "done"])
def test_a_pending_outcome_is_neither_true_nor_false(
    ask: Callable[[bide.Outcome], bool], orders: bide.Queue, file: str
) -> None:
    """The store has not been asked: "true" would call a message cancelled that a worker holds."""
    table_of(file).close()
    with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as shop, shop:
        outcomes = [
            orders.cancel("never-put", within=shop),
            orders.reschedule("never-put", delay="1h", within=shop),
            orders.put(1, id="a", within=shop),
            orders.put(1, id="b", on_conflict="raise", within=shop),
            *orders.put_many([2], within=shop),
        ]
    for outcome in outcomes:
        assert outcome.state == "pending"
        with pytest.raises(
            bide.OutcomePending, match=f"{outcome.id} is pending.*neither true nor false.*within="
        ):
            ask(outcome)
    assert str(outcomes[0]) == "never-put is pending"


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_the_same_for_event_loops(
    name: str, redis_url: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    kind, made = ASYNCHRONOUS[name]
    url, store = url_of(kind, request), redis_url()

    async def main() -> None:
        user = await made(url)
        async with bide.AsyncQueue("orders", store) as orders:
            await user.begin()
            assert (await orders.put(1, id="a", within=user.within)).state == "pending"
            cancelled = await orders.cancel("a", within=user.within)
            with pytest.raises(bide.OutcomePending):
                bool(cancelled)
            assert (await orders.put(2, id="b", within=user.within)).state == "pending"
            await user.commit()
        await user.close()

    asyncio.run(main())
    with bide.Queue("orders", store) as orders:
        forward(orders, url)
        assert [message.id for message in orders.scan()] == ["b"]
        assert orders.counts().flow.cancelled == 1
