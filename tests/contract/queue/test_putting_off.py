"""Messages that a retry has put off, and that leave their queue after that."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bide
from bide.testing import FakeClock
from tests.start import START

Carry = Callable[[bide.Queue, bide.Queue], bide.Queue]
"""Takes the messages out of the first queue, and returns the queue in which they are then."""


def by_export(orders: bide.Queue, elsewhere: bide.Queue) -> bide.Queue:
    elsewhere.load(list(orders.export()))
    return elsewhere


def by_move(orders: bide.Queue, elsewhere: bide.Queue) -> bide.Queue:
    bide.move(orders, elsewhere)
    return elsewhere


def by_undo(orders: bide.Queue, elsewhere: bide.Queue) -> bide.Queue:
    cancelled = orders.cancel(group="g", undo=True)
    purged = orders.purge(state="dead", undo=True)
    restored = [orders.undo(change.undo).restored for change in (cancelled, purged) if change]
    assert sum(restored) == 1
    assert not elsewhere.counts().sizes.total
    return orders


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def orders(clock: FakeClock, tmp_path: Path) -> Iterator[bide.Queue]:
    with bide.Queue("orders", f"sqlite:///{tmp_path}/bide.db", clock=clock) as orders:
        yield orders


@pytest.fixture
def elsewhere(clock: FakeClock, tmp_path: Path) -> Iterator[bide.Queue]:
    with bide.Queue("orders", f"memory://{tmp_path.name}", clock=clock) as elsewhere:
        yield elsewhere


def expiry_of(queue: bide.Queue, id: str) -> int | None:
    message = queue.get(id)
    assert message is not None
    return message.as_edited().expires


@pytest.mark.parametrize("carry", [by_export, by_move, by_undo])
def test_a_message_that_repeats_keeps_how_late_its_runs_may_be(
    orders: bide.Queue, elsewhere: bide.Queue, clock: FakeClock, carry: Carry
) -> None:
    orders.put("x", id="ann", group="g", repeat=bide.Every("1h"), expires="10m")
    clock.advance("50m")
    (delivery,) = orders.claim()
    delivery.retry(delay="15m", reason="down")
    queue = carry(orders, elsewhere)
    assert expiry_of(queue, "ann") == 600_000
    clock.advance("15m")
    for delivery in queue.claim():
        delivery.ack()
    clock.advance("45m")
    (delivery,) = queue.claim()
    assert delivery.id == "ann"


@pytest.mark.parametrize("carry", [by_export, by_move, by_undo])
def test_a_dead_letter_that_is_revived_has_its_whole_time_again(
    orders: bide.Queue, elsewhere: bide.Queue, clock: FakeClock, carry: Carry
) -> None:
    orders.put("x", id="ann", expires="1h", attempts=2)
    (delivery,) = orders.claim()
    delivery.retry(delay="59m", reason="down")
    clock.advance("59m")
    (delivery,) = orders.claim()
    delivery.retry(reason="down")
    queue = carry(orders, elsewhere)
    assert queue.revive(["ann"])
    clock.advance("58m")
    assert [delivery.id for delivery in queue.claim()] == ["ann"]


@pytest.mark.parametrize("carry", [by_export, by_move, by_undo])
def test_a_message_that_waits_for_its_retry_expires_when_it_would_have(
    orders: bide.Queue, elsewhere: bide.Queue, clock: FakeClock, carry: Carry
) -> None:
    orders.put("x", id="ann", group="g", expires="1h")
    (delivery,) = orders.claim()
    delivery.retry(delay="30m", reason="down")
    queue = carry(orders, elsewhere)
    clock.advance("29m")
    assert queue.claim() == []
    clock.advance("32m")
    assert queue.claim() == []
    ended = queue.get("ann")
    assert ended is None or ended.state == "expired"


def test_the_undo_of_a_reschedule_lets_it_expire_when_it_would_have(
    orders: bide.Queue, clock: FakeClock
) -> None:
    for id, delay in (("ann", "30m"), ("bob", "90m")):
        orders.put("x", id=id, group="g", expires="1h")
        (delivery,) = orders.claim()
        delivery.retry(delay=delay, reason="down")
    orders.put("x", id="cat", group="g", repeat=bide.Every("1h"), expires="40m")
    clock.advance("50m")
    for delivery in orders.claim(2):
        delivery.retry(delay="15m", reason="down")
    before = {id: orders.get(id) for id in ("ann", "bob", "cat")}
    undo = orders.reschedule(group="g", delay="2h", undo=True).undo
    assert orders.undo(undo).restored == 3
    after = {id: orders.get(id) for id in ("ann", "bob", "cat")}
    for id, message in after.items():
        old = before[id]
        assert message is not None
        assert old is not None
        assert (message.due, message.attempt) == (old.due, old.attempt)
        assert message.failures == old.failures
    assert expiry_of(orders, "cat") == 2_400_000
    clock.advance("16m")
    (delivery,) = orders.claim(3)
    assert delivery.id == "cat"
    delivery.ack()
    clock.advance("30m")
    assert orders.claim(3) == []
