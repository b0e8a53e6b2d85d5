"""The store's clock decides. When somebody sets it, nothing is lost and nobody hangs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import bide
from bide.testing.clock import FakeClock
from bide.testing.hooks import has_waiting_queues, lane_of
from tests.start import START
from tests.unit.lane.commands import PATIENCE, spawn
from tests.waiting import until

DAY = 86_400_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture(params=["memory", "sqlite"])
def orders(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> Iterator[bide.Queue]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/bide.db"
    with bide.Queue("orders", url, clock=clock) as orders:
        yield orders


def test_a_clock_set_forward_makes_due_what_is_due_by_it(
    orders: bide.Queue, clock: FakeClock
) -> None:
    orders.put(1, id="a", delay="1d")
    clock.set_wall(START + DAY)
    assert [delivery.id for delivery in orders.claim(5)] == ["a"]


def test_a_clock_set_back_delivers_nothing_before_its_moment(
    orders: bide.Queue, clock: FakeClock
) -> None:
    orders.put(1, id="a", at=START / 1000)
    clock.set_wall(START - 1)
    assert orders.claim() == []
    clock.advance(0.001)
    assert len(orders.claim()) == 1


def test_a_clock_set_forward_lets_leases_lapse_and_their_holders_know(
    orders: bide.Queue, clock: FakeClock
) -> None:
    orders.put(1, id="a")
    (slow,) = orders.claim(lease=30)
    clock.set_wall(START + DAY)
    (quick,) = orders.claim()
    assert quick.token > slow.token
    with pytest.raises(bide.LeaseLost):
        slow.ack()
    quick.ack()
    assert orders.audit()


def test_a_clock_set_back_leaves_leases_longer_but_good(
    orders: bide.Queue, clock: FakeClock
) -> None:
    orders.put(1, id="a")
    (delivery,) = orders.claim(lease=30)
    clock.set_wall(START - DAY)
    assert orders.claim() == []
    delivery.ack()
    assert orders.counts().flow.acked == 1


def test_tokens_grow_though_the_clock_goes_back(orders: bide.Queue, clock: FakeClock) -> None:
    tokens = []
    for jump in (0, -DAY, DAY, -2 * DAY):
        clock.set_wall(START + jump)
        orders.put(jump, at=0)
        tokens.append(orders.claim()[0].token)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_whoever_waits_through_a_jump_is_served_within_a_second(
    orders: bide.Queue, clock: FakeClock, jump: int
) -> None:
    waiter = spawn(orders.claim, wait="3d")
    until(lambda: has_waiting_queues(lane_of(orders)))
    clock.wait_for_waiters()
    clock.set_wall(START + jump)
    orders.put(1, id="a", delay=0.5)
    clock.wait_for_waiters()
    clock.advance(0.5)
    assert waiter.result(PATIENCE)[0].id == "a"
    assert waiter.result()[0].lateness <= 1


def test_a_wait_is_measured_by_a_clock_that_nobody_sets(
    orders: bide.Queue, clock: FakeClock
) -> None:
    waiter = spawn(orders.claim, wait=0.75)
    until(lambda: has_waiting_queues(lane_of(orders)))
    clock.wait_for_waiters()
    clock.set_wall(START + DAY)
    assert not waiter.done()
    clock.advance(0.75)
    assert waiter.result(PATIENCE) == []


def test_the_audit_balances_after_any_jump(orders: bide.Queue, clock: FakeClock) -> None:
    for jump in (0, DAY, -DAY, 3 * DAY, 0):
        clock.set_wall(START + jump)
        orders.put_many(range(5), delay=60, expires="1h")
        orders.put_many(range(5))
        deliveries = orders.claim(6, lease=30)
        if deliveries:
            orders.ack(deliveries[:2])
            orders.retry(deliveries[2:4], 5)
        assert orders.audit(), orders.audit().problems
