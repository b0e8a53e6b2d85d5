"""The texts of outcomes: each answers what its command asked for."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bide
from bide import NewMessage
from bide.testing import FakeClock
from tests.system.server.process import ServerProcess

START = 1_700_000_000_000
"""2023-11-14 22:13:20 UTC."""


@pytest.fixture
def orders() -> Iterator[bide.Queue]:
    with bide.Queue("orders", "memory://", clock=FakeClock(START), holder="w-1") as queue:
        yield queue


def test_what_was_done_says_where_the_message_is_now(orders: bide.Queue) -> None:
    def put(id: str, **options: Any) -> bide.Outcome:
        return orders.put(1, id=id, **options)

    assert str(put("a", delay="1m")) == "a is delayed, due 2023-11-14 22:14:20 UTC"
    assert str(orders.reschedule("a", delay="2m")) == "a is delayed, due 2023-11-14 22:15:20 UTC"
    assert str(orders.edit("a", priority=1)) == "a is delayed, due 2023-11-14 22:15:20 UTC"
    assert str(orders.cancel("a")) == "a is cancelled"
    put("b")
    (delivery,) = orders.claim()
    (extended,) = orders.extend([delivery], "1m")
    assert str(extended) == "b is held by w-1 until 2023-11-14 22:14:20 UTC"
    (acked,) = orders.ack([delivery])
    assert str(acked) == "b is acked"


def test_what_was_not_done_says_what_and_why(orders: bide.Queue) -> None:
    absent = "it is not in the queue"
    assert str(orders.cancel("a")) == f"a was not cancelled: {absent}"
    assert str(orders.reschedule("a", delay="1h")) == f"a was not rescheduled: {absent}"
    assert str(orders.edit("a", priority=1)) == f"a was not edited: {absent}"
    assert str(orders.release("a")) == f"a was not released: {absent}"
    assert list(map(str, orders.revive(["a"]))) == [f"a was not revived: {absent}"]
    assert list(map(str, orders.cancel_many(["a"]))) == [f"a was not cancelled: {absent}"]


def test_what_a_worker_holds_names_the_worker(orders: bide.Queue) -> None:
    orders.put(1, id="a")
    (delivery,) = orders.claim(lease="45s")
    held = "worker w-1 holds it until 2023-11-14 22:14:05 UTC"
    assert str(orders.put(1, id="a")) == f"a was not stored: {held}"
    (again,) = orders.put_many([NewMessage(1, id="a")])
    assert str(again) == f"a was not stored: {held}"
    assert str(orders.cancel("a")) == f"a was not cancelled: {held}"
    orders.put(2, id="a", on_conflict="replace", delay=5, latest=9)
    successor = "its successor is cancelled"
    assert str(orders.cancel("a")) == f"a was not cancelled: {held}; {successor}"
    with pytest.raises(bide.AlreadyExists, match=r"^a was not stored: worker .* another id, or"):
        orders.put(1, id="a", on_conflict="raise")
    delivery.bury("no")
    dead = "it is dead since 2023-11-14 22:13:20 UTC"
    assert str(orders.cancel("a")) == f"a was not cancelled: {dead}"


def test_the_outcomes_of_deliveries_whose_leases_are_over(orders: bide.Queue) -> None:
    orders.put(1, id="a")
    deliveries = orders.claim()
    deliveries[0].ack()
    absent = "it is not in the queue"
    for answers, participle in (
        (orders.ack(deliveries), "acked"),
        (orders.retry(deliveries), "retried"),
        (orders.bury(deliveries), "buried"),
        (orders.release(deliveries), "released"),
        (orders.extend(deliveries), "extended"),
    ):
        assert list(map(str, answers)) == [f"a was not {participle}: {absent}"]


def test_a_task_answers_as_its_queue() -> None:
    app = bide.App("memory://answers", clock=FakeClock(START))

    @app.task
    def expire(order: int) -> None: ...

    expire.later("30m", id="order-2").put(2)
    assert str(expire.later(id="order-2").put(2)) == (
        "order-2 was not stored: it is delayed, due 2023-11-14 22:43:20 UTC"
    )
    assert str(expire.cancel("order-2")) == "order-2 is cancelled"
    app.close()


def test_over_http_and_in_async_code(tmp_path: Path) -> None:
    async def story(url: str) -> None:
        async with bide.AsyncQueue("orders", url, holder="w-1") as orders:
            await orders.put(1, id="a")
            await orders.put(1, id="b", delay="1h")
            await orders.claim()
            held = str(await orders.cancel("a"))
            assert held.startswith("a was not cancelled: worker w-1 holds it until ")
            assert str(await orders.cancel("b")) == "b is cancelled"
            (gone,) = await orders.cancel_many(["b"])
            assert str(gone) == "b was not cancelled: it is not in the queue"

    with ServerProcess(tmp_path, "--store", f"sqlite:///{tmp_path}/bide.db") as server:
        asyncio.run(story(server.url))
