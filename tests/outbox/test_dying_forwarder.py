"""A forwarder dies at any step, while somebody changes the message: each row is executed once."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from redis import Redis

import bide
from bide.lane.lane import Lane
from bide.model.commands import Command
from bide.model.replies import Reply
from bide.outbox.forwarder import Forwarder, table_of
from bide.outbox.rows import Table
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing.hooks import lane_of
from tests.outbox.shop import connected, forward, rows
from tests.server.conftest import running


class Killed(BaseException):
    """Stands for the end of the process, at this step."""


class Mortal:
    """The outbox and the store of a forwarder that dies at its n-th step."""

    def __init__(self, table: Table, lane: Lane, steps: int) -> None:
        self.table = table
        self.lane = lane
        self.left = steps

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def call(self, command: Command) -> Reply:
        self._step()
        reply = self.lane.call(command)
        self._step()
        return reply

    async def acall(self, command: Command) -> Reply:
        self._step()
        reply = await self.lane.acall(command)
        self._step()
        return reply

    def delete(self, numbers: Sequence[int]) -> None:
        self._step()
        self.table.delete(numbers)
        self._step()

    def bury(self, number: int, reason: str) -> None:
        self._step()
        self.table.bury(number, reason)
        self._step()


def forward_and_die(orders: bide.Queue, url: str, steps: int) -> bool:
    """Forward a batch, and die after so many steps; tell whether it was done before."""
    with closing(table_of(url)) as table:
        mortal: Any = Mortal(table, lane_of(orders), steps)
        try:
            Forwarder(lambda: table, mortal).forward(mortal)
        except Killed:
            return False
        return True


@pytest.fixture(params=["redis", "http"])
def store(
    request: pytest.FixtureRequest, redis_url: Callable[[], str], tmp_path: Path
) -> Iterator[str]:
    if request.param == "redis":
        yield redis_url()
    else:
        with running(ServerApp(Settings(store=f"sqlite:///{tmp_path}/store.db"))) as port:
            yield f"http://127.0.0.1:{port}"


def acked(orders: bide.Queue) -> None:
    for delivery in orders.claim(10):
        delivery.ack()


def cancelled(orders: bide.Queue) -> None:
    orders.cancel("m1")
    orders.cancel("m2")


def cancelled_and_put_again(orders: bide.Queue) -> None:
    if orders.cancel("m1"):
        orders.put("again", id="m1", delay=60)


def rescheduled(orders: bide.Queue) -> None:
    orders.reschedule("m0", delay=60)


def replaced(orders: bide.Queue) -> None:
    if orders.get("m0") is not None:
        orders.put("new", id="m0", on_conflict="replace", delay=60)


def moved(orders: bide.Queue) -> None:
    with bide.Queue(f"{orders.name}-moved", orders.url) as other:
        bide.move(orders, other)


MEANWHILE = {
    "acked-keep": acked,
    "acked-replace": acked,
    "cancelled-replace": cancelled,
    "cancelled_and_put_again-keep": cancelled_and_put_again,
    "rescheduled-replace": rescheduled,
    "replaced-replace": replaced,
    "moved-keep": moved,
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_forwarder_that_dies_at_any_step_neither_loses_nor_doubles(
    store: str, url: str, shop: Any, meanwhile: str
) -> None:
    change = MEANWHILE[meanwhile]
    conflict: Any = meanwhile.rpartition("-")[2]
    for steps in itertools.count():
        with bide.Queue(f"q{steps}", store) as orders:
            for number in range(3):
                assert (
                    orders.put(number, id=f"m{number}", on_conflict=conflict, within=shop).state
                    == "pending"
                )
            shop.commit()
            done = forward_and_die(orders, url, steps)
            put = orders.counts().flow.put
            assert put in (0, 3)
            change(orders)
            before = orders.counts().flow, sorted(orders.scan(), key=attrgetter("id"))
            forward(orders, url)
            after = orders.counts().flow, sorted(orders.scan(), key=attrgetter("id"))
            assert rows(shop) == rows(shop, "bide_outbox_dead") == []
            if put:
                assert after == before
            else:
                assert [message.body for message in after[1]] == [0, 1, 2]
            assert orders.audit()
        if done:
            break
    assert steps == 4  # before and after the put and the deletion


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_a_row_that_was_executed_leaves_a_later_message_alone(
    store: str, url: str, shop: Any, verb: str
) -> None:
    for steps in itertools.count():
        with bide.Queue(f"q{steps}", store) as orders:
            orders.put("first", id="a", delay=60)
            if verb == "cancel":
                assert orders.cancel("a", within=shop).state == "pending"
            else:
                assert orders.reschedule("a", delay=120, within=shop).state == "pending"
            shop.commit()
            done = forward_and_die(orders, url, steps)
            if steps in (0, 1):  # the store has not heard of it, or has, but nobody knows
                assert len(rows(shop)) == 1
            orders.cancel("a")
            orders.put("second", id="a", delay=60)
            before = orders.get("a")
            forward(orders, url)
            if steps:
                assert orders.get("a") == before
            elif verb == "cancel":
                assert orders.get("a") is None
            else:
                assert orders.get("a") != before
            assert rows(shop) == rows(shop, "bide_outbox_dead") == []
        if done:
            break
    assert steps == 4


def test_several_queues_and_commands_in_a_batch(store: str, url: str, shop: Any) -> None:
    for steps in itertools.count():
        with (
            bide.Queue(f"q{steps}", store) as orders,
            bide.Queue(f"mails{steps}", store) as mails,
        ):
            orders.put(0, id="old", delay=60)
            for number in range(2):
                assert orders.put(number, id=f"m{number}", within=shop).state == "pending"
                assert (
                    mails.put(number, id=f"m{number}", on_conflict="replace", within=shop).state
                    == "pending"
                )
            assert orders.cancel("old", within=shop).state == "pending"
            assert orders.cancel("nowhere", within=shop).state == "pending"
            shop.commit()
            done = forward_and_die(orders, url, steps)
            acked(orders)
            acked(mails)
            forward(orders, url)
            acked(orders)
            acked(mails)
            for queue, put in ((orders, 3), (mails, 2)):
                assert queue.counts().flow.put == put
                assert queue.counts().flow.acked == 2
            assert orders.counts().flow.cancelled == 1
            assert rows(shop, "bide_outbox_dead") == [("nowhere",)] * (steps + 1)
        if done:
            break
    assert steps > 8


def test_a_row_is_forwarded_whose_number_was_used_before(
    orders: bide.Queue, url: str, shop: Any
) -> None:
    """As after the database was restored from a backup."""
    orders.put("first", id="a", within=shop)
    shop.commit()
    assert not forward_and_die(orders, url, 2)
    shop.execute("UPDATE bide_outbox SET id = 'b', command = replace(command, '\"a\"', '\"b\"')")
    shop.commit()
    forward(orders, url)
    assert sorted(message.id for message in orders.scan()) == ["a", "b"]


def test_the_store_forgets_rows_that_were_deleted(orders: bide.Queue, url: str, shop: Any) -> None:
    client = Redis(
        unix_socket_path=urlsplit(orders.url).path,
        db=int(parse_qs(urlsplit(orders.url).query)["db"][0]),
    )
    with closing(client):
        for number in range(3):
            assert orders.put_many([number] * 4, within=shop)
            shop.commit()
            forward(orders, url)
            assert client.zcard("bide:{orders#0}:forwarded") == 4


def test_a_small_number_that_is_committed_late(orders: bide.Queue, database: str) -> None:
    table_of(database).close()
    with connected(database) as late, connected(database) as shop:
        orders.put("late", id="late", within=late)
        for number in range(3):
            orders.put(number, id=f"m{number}", within=shop)
            shop.commit()
            assert not forward_and_die(orders, database, 2)  # the row is still there
        late.commit()
        acked(orders)
        assert not forward_and_die(orders, database, 2)
        acked(orders)
        forward(orders, database)
        assert orders.counts().flow.put == 4
