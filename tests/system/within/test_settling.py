"""Deliveries that are settled within a transaction: their end shares its fate."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import psycopg
import pytest

import bide
from bide.engines.registry import guest as guest_of
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Outcomes
from bide.testing import FakeClock
from bide.testing.hooks import lane_of, plan_nothing, url_of
from bide.within import carry_out
from tests.system.within.libraries import ASYNCHRONOUS, BLOCKING, Made, User, libpq


class Shop(NamedTuple):
    user: User
    orders: bide.Queue

    def delivery(self, id: str = "a") -> bide.Delivery:
        self.orders.put({"order": 1}, id=id)
        (delivery,) = self.orders.claim(lease=60)
        return delivery


@pytest.fixture(params=BLOCKING, ids=[f"{made.__name__}-{kind}" for kind, made in BLOCKING])
def shop(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Iterator[Shop]:
    kind, made = request.param
    made_user: Made = made
    url = url_of(kind)
    with bide.Queue("orders", url, result_ttl="1h", history="1h") as orders:
        orders.resume()
        user = made_user(url)
        user.run("CREATE TABLE bill (id text)")
        user.commit()
        yield Shop(user, orders)
        user.rollback()
        user.run("DROP TABLE bill")
        user.commit()
        user.close()
        assert orders.audit()


def test_an_ack_is_committed_with_the_effect(shop: Shop) -> None:
    user, orders = shop
    delivery = shop.delivery()
    user.run("INSERT INTO bill VALUES ('a')")
    delivery.ack({"paid": "é"}, within=user.within)
    assert delivery.settled
    user.commit()
    assert orders.get("a") is None
    assert orders.result("a") == {"paid": "é"}
    assert orders.counts().flow.acked == 1


def test_after_a_rollback_the_lease_goes_on(shop: Shop) -> None:
    user, orders = shop
    delivery = shop.delivery()
    user.run("INSERT INTO bill VALUES ('a')")
    delivery.ack(within=user.within)
    user.rollback()
    message = orders.get("a")
    assert message is not None
    assert (message.state, message.holder) == ("leased", delivery.message.holder)
    delivery.extend(60)
    user.begin()
    delivery.ack(within=user.within)
    user.commit()
    assert orders.get("a") is None


def test_a_retry_and_a_burial_are_committed_with_the_effect(shop: Shop) -> None:
    user, orders = shop
    delivery = shop.delivery()
    user.begin()
    delivery.retry("1h", "the bank is closed: é\n", within=user.within)
    user.commit()
    again = orders.get("a")
    assert again is not None
    assert (again.state, again.attempt) == ("delayed", 1)
    assert again.failures[0].reason == "the bank is closed: é\n"
    delivery = shop.delivery("b")
    user.begin()
    delivery.bury("no such order", within=user.within)
    user.commit()
    dead = orders.get("b")
    assert dead is not None
    assert (dead.state, dead.failures[0].reason) == ("dead", "no such order")


def test_a_renewal_is_committed_with_the_effect(shop: Shop) -> None:
    user, orders = shop
    guest = guest_of(url_of(orders))
    assert guest is not None
    plan_nothing(lane_of(orders))

    def settle(command: cmd.Command) -> None:
        (reply,) = carry_out(user.within, guest, [command], None)
        assert isinstance(reply, Outcomes)
        assert all(reply.outcomes)

    def place() -> tuple[str, int, str | None, str | None] | None:
        message = orders.get("a")
        if message is None:
            return None
        return message.state, message.attempt, message.rule, message.run

    user.begin()
    settle(cmd.Put("orders", [Item("a", b"1", rule="hourly", run="1")]))
    user.commit()
    (delivery,) = orders.claim(lease=60)
    following = cmd.NextRun(delivery.message.due, "2")
    renew = cmd.Renew("orders", [delivery.lease], [following], results=[b'"paid"'])
    user.begin()
    settle(renew)
    user.rollback()
    assert place() == ("leased", 1, "hourly", "1")
    user.begin()
    settle(renew)
    user.commit()
    assert place() == ("ready", 0, "hourly", "2")
    assert orders.history("a")[0].result == b'"paid"'
    (delivery,) = orders.claim(lease=60)
    user.begin()
    settle(cmd.Ack("orders", [delivery.lease]))
    user.commit()
    assert place() == ("ready", 0, "hourly", "ended 2")
    (delivery,) = orders.claim(lease=60)
    user.begin()
    settle(cmd.Renew("orders", [delivery.lease], [None], "ended"))
    user.commit()
    assert place() is None
    flow = orders.counts().flow
    assert (flow.put, flow.acked, flow.cancelled) == (3, 2, 1)


def test_a_delivery_whose_lease_is_over_is_refused_and_the_transaction_goes_on(shop: Shop) -> None:
    user, orders = shop
    delivery = shop.delivery()
    orders.release("a")
    user.run("INSERT INTO bill VALUES ('a')")
    with pytest.raises(bide.LeaseLost, match="the message is ready again"):
        delivery.ack(within=user.within)
    assert orders.put(2, id="b", within=user.within)
    user.commit()
    assert orders.get("b") is not None


@pytest.mark.parametrize("library", ASYNCHRONOUS)
def test_an_async_delivery_is_settled_in_the_same_way(
    library: str, url_of: Callable[[str], str]
) -> None:
    kind, made = ASYNCHRONOUS[library]

    async def main(url: str) -> None:
        async with bide.AsyncQueue("orders", url, keep="1h") as orders:
            await orders.put_many([1, 2, 3])
            first, second, third = await orders.claim(3, lease=60)
            user = await made(url)
            await user.begin()
            await first.ack(within=user.within)
            await user.rollback()
            await user.begin()
            await first.ack(within=user.within)
            await second.retry(60, within=user.within)
            await third.bury("no", within=user.within)
            await user.commit()
            await user.close()
            counts = await orders.counts()
            assert (counts.kept, counts.sizes.delayed, counts.sizes.dead) == (1, 1, 1)
            assert await orders.audit()

    asyncio.run(main(url_of(kind)))


def test_other_stores_refuse_it(url_of: Callable[[str], str], redis_url: Callable[[], str]) -> None:
    user = next(made for kind, made in BLOCKING if kind == "sqlite")(url_of("sqlite"))
    for url, reason in (("memory://", "that other processes reach"), (redis_url(), "is elsewhere")):
        with bide.Queue("orders", url) as orders:
            orders.put(1)
            (delivery,) = orders.claim(lease=60)
            with pytest.raises(bide.Unsupported, match=reason):
                delivery.ack(within=user.within)
            delivery.ack()
    user.close()


@pytest.fixture
def orders(postgres_url: Callable[[], str]) -> Iterator[bide.Queue]:
    with bide.Queue("orders", postgres_url()) as orders:
        orders.resume()
        yield orders
        assert orders.audit()


@pytest.fixture
def open_transaction(orders: bide.Queue) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(libpq(url_of(orders)))) as connection:
        yield connection


def test_what_is_being_settled_is_skipped_and_its_neighbours_are_not(
    orders: bide.Queue, open_transaction: psycopg.Connection[Any]
) -> None:
    """Nobody waits for the transaction: it stays open for the whole test."""
    orders.put_many([bide.NewMessage(1, id=id) for id in "abc"])
    first, second, third = sorted(orders.claim(3, lease=60), key=lambda delivery: delivery.id)
    first.ack(within=open_transaction)

    outcome = orders.cancel("a")
    assert (outcome.done, outcome.state) == (False, "settling")
    assert str(outcome) == (
        f"a was not cancelled: worker {first.message.holder} settles it in a transaction that is "
        "still open"
    )
    assert orders.reschedule("a", delay=5).state == "settling"
    assert orders.edit("a", body=2).state == "settling"
    assert orders.release("a").state == "settling"
    assert [str(o) for o in orders.extend([first, second])][1].startswith("b is")
    with pytest.raises(bide.StoreBusy, match="settled in another transaction"):
        first.extend(60)
    second.ack()
    third.retry()
    assert [delivery.id for delivery in orders.claim(5, lease=60)] == ["c"]
    open_transaction.commit()
    assert not orders.cancel("a")
    assert orders.get("a") is None


def test_a_lease_that_ends_while_the_transaction_is_open_goes_to_nobody_else(
    postgres_url: Callable[[], str],
) -> None:
    clock, url = FakeClock(), postgres_url()
    with (
        bide.Queue("orders", url, clock=clock) as orders,
        closing(psycopg.connect(libpq(url))) as connection,
    ):
        orders.put(1, id="a")
        (delivery,) = orders.claim(lease=60)
        delivery.ack(within=connection)
        clock.advance(61)
        assert orders.claim() == []
        assert orders.cancel("a").state == "settling"
        connection.rollback()
        (again,) = orders.claim(lease=60)
        assert again.attempt == 2


def test_many_that_are_being_settled_are_waited_for_once(
    orders: bide.Queue, open_transaction: psycopg.Connection[Any]
) -> None:
    """Each for 50 ms would let the command run into the limit of its locks."""
    orders.put_many(range(300))
    deliveries = orders.claim(300, lease=60)
    for delivery in deliveries:
        delivery.ack(within=open_transaction)
    outcomes = orders.extend(deliveries, 60)
    assert {outcome.state for outcome in outcomes} == {"settling"}
    open_transaction.commit()
    assert orders.counts().flow.acked == 300


def test_above_read_committed_a_lease_that_was_extended_meanwhile_is_a_serialization_failure(
    orders: bide.Queue, open_transaction: psycopg.Connection[Any]
) -> None:
    orders.put(1, id="a")
    (delivery,) = orders.claim(lease=60)
    open_transaction.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    open_transaction.execute("SELECT 1")
    delivery.extend(90)
    with pytest.raises(psycopg.errors.SerializationFailure):
        delivery.ack(within=open_transaction)
    open_transaction.rollback()
    delivery.ack(within=open_transaction)
    open_transaction.commit()
    assert orders.get("a") is None
