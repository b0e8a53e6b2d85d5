"""Every library writes to the outbox of its database, in its transaction."""

import asyncio
from collections.abc import Callable

import pytest

import bide
from bide.outbox.forwarder import Forwarder, table_of
from tests.within.libraries import ASYNCHRONOUS, BLOCKING, Made


def url_of(kind: str, request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("database" if kind == "postgresql" else "file")
    table_of(url).close()  # makes the tables
    return url


def forward(orders: bide.Queue, url: str) -> None:
    assert Forwarder(lambda: table_of(url), orders._lane).run_once()


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
        assert (outcome.done, outcome.state) == (True, "pending")
        many = orders.put_many([b"\0\xff", bide.NewMessage(2, id="b", delay=9)], within=user.within)
        assert [each.state for each in many] == ["pending"] * 2
        assert orders.reschedule("b", delay="2h", within=user.within)
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
            assert await orders.cancel("a", within=user.within)
            assert await orders.put(2, id="b", within=user.within)
            await user.commit()
        await user.close()

    asyncio.run(main())
    with bide.Queue("orders", store) as orders:
        forward(orders, url)
        assert [message.id for message in orders.scan()] == ["b"]
        assert orders.counts().flow.cancelled == 1
