from datetime import UTC, datetime
from typing import Any

from bide import NewMessage
from bide.testing.clock import FakeClock
from tests.start import START


def ids(found: Any) -> list[str]:
    return [one.id for one in found]


def fill(orders: Any) -> None:
    orders.put_many([NewMessage(body=n, id=f"m{n}", delay=n * 10) for n in range(6)])


def test_get_finds_a_message_or_nothing(orders: Any) -> None:
    fill(orders)
    assert orders.get("m3").body == 3
    assert orders.get("m9") is None


def test_peek_shows_what_goes_out_next_and_takes_nothing(orders: Any, clock: FakeClock) -> None:
    fill(orders)
    clock.advance(15)
    assert ids(orders.peek(3)) == ["m0", "m1", "m2"]
    assert [message.state for message in orders.peek(3)] == ["ready", "ready", "delayed"]
    assert len(orders.peek()) == 6
    assert orders.counts().sizes.leased == 0


def test_scan_by_state_in_its_order(orders: Any, clock: FakeClock) -> None:
    fill(orders)
    clock.advance(25)
    held = orders.claim(1)
    assert ids(orders.scan("ready")) == ["m1", "m2"]
    assert ids(orders.scan("delayed")) == ["m3", "m4", "m5"]
    assert ids(orders.scan("leased")) == ids(held) == ["m0"]
    assert ids(orders.scan("dead")) == []


def test_scan_by_group_and_span(orders: Any) -> None:
    fill(orders)
    orders.put(0, id="mine", group="g", delay=25)
    assert ids(orders.scan(group="g")) == ["mine"]
    after, before = START / 1000 + 20, START / 1000 + 40
    found = orders.scan("delayed", after=after, before=before)
    assert ids(found) == ["m2", "mine", "m3"]
    assert ids(orders.scan(after=datetime.fromtimestamp(before, UTC))) == ["m4", "m5"]


def test_scan_reads_lazily_page_by_page(orders: Any) -> None:
    orders.put_many([NewMessage(body=n, id=f"m{n:03}", delay=60) for n in range(95)])
    scan = iter(orders.scan(page=10))
    first = [next(scan).id for _ in range(10)]
    assert first == [f"m{n:03}" for n in range(10)]
    orders.cancel_many([f"m{n:03}" for n in range(20, 95)])  # not read yet: it is not seen
    assert ids(scan) == [f"m{n:03}" for n in range(10, 20)]


def test_scan_misses_no_message_while_they_move(orders: Any, clock: FakeClock) -> None:
    orders.put_many([NewMessage(body=n, id=f"m{n:02}", delay=n) for n in range(40)])
    seen = []
    for message in orders.scan(page=7):
        seen.append(message.id)
        clock.advance(1)
        for delivery in orders.claim(1):
            delivery.retry(delay=100)
    assert sorted(set(seen)) == [f"m{n:02}" for n in range(40)]


def test_counts_tell_what_is_where_and_what_became_of_the_rest(
    orders: Any, clock: FakeClock
) -> None:
    fill(orders)
    clock.advance(31)
    deliveries = orders.claim(3)
    deliveries[0].ack()
    deliveries[1].bury("no")
    orders.cancel("m5")
    counts = orders.counts()
    sizes, flow = counts.sizes, counts.flow
    assert (sizes.delayed, sizes.ready, sizes.leased, sizes.dead) == (1, 1, 1, 1)
    assert (flow.put, flow.acked, flow.cancelled, flow.died) == (6, 1, 1, 1)
    assert sizes.total + flow.gone == flow.put
    assert counts.oldest == START + 30_000


def test_counts_of_a_queue_that_does_not_exist_are_zero(orders: Any) -> None:
    assert orders.counts().sizes.total == 0
    assert orders.claim() == []
    assert list(orders.scan()) == []
    assert orders.audit()


def test_the_audit_adds_up_on_a_live_store(orders: Any, clock: FakeClock) -> None:
    fill(orders)
    clock.advance(31)
    orders.claim(2)
    audit = orders.audit()
    assert audit
    assert audit.problems == []
    assert audit.queue == "orders"
    assert audit.counts.recount == audit.counts.sizes


def test_forecast_counts_what_falls_due_when(orders: Any, clock: FakeClock) -> None:
    fill(orders)
    clock.advance(5)
    orders.put(1, delay="3h")
    forecast = orders.forecast(bucket="20s", horizon="1m")
    assert forecast.start == datetime.fromtimestamp(START / 1000 + 5, UTC)
    assert (forecast.overdue, forecast.counts, forecast.later) == (1, [2, 2, 1], 1)
    assert forecast.total == 7
    assert forecast.bucket == 20.0
    pairs = list(forecast)
    assert [count for _, count in pairs] == [2, 2, 1]
    assert pairs[1][0] == datetime.fromtimestamp(START / 1000 + 25, UTC)


def test_queues_of_one_store_are_apart(make: Any) -> None:
    first, second, third = make("orders"), make("mails"), make("tenant/orders")
    first.put(1, id="a")
    second.put(2, id="a")
    third.put(3, id="a")
    assert [queue.claim()[0].body for queue in (first, second, third)] == [1, 2, 3]
    assert first.claim() == []


def test_two_queues_of_one_name_are_the_same(make: Any) -> None:
    first, second = make("orders"), make("orders")
    first.put(1, id="a")
    assert second.get("a").body == 1
    first.close()
    assert second.claim()[0].id == "a"
