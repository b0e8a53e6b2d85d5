"""History and results, as a queue of either face tells of them."""

import asyncio
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import pydantic
import pytest

import bide
from bide.lane import waiting_claims
from bide.model.limits import MAX_BODY, MAX_RESULT
from bide.testing.clock import FakeClock
from bide.testing.hooks import count_waiting, lane_of
from tests.queue.conftest import Make

BOUND = 60


class Total(TypedDict):
    total: int


class Sum(pydantic.BaseModel):
    total: int


def test_history_tells_how_a_message_ended(make: Make, clock: FakeClock) -> None:
    orders = make(history="1d", holder="w1", actor="ann")
    orders.put(1, id="a")
    assert orders.history("a") == []
    orders.cancel("a")
    orders.put(2, id="a", attempts=2)
    clock.advance(1)
    held = orders.claim()
    clock.advance(1)
    orders.retry(held, reason="no luck")
    clock.advance(1)
    [delivery] = orders.claim()
    clock.advance(1)
    delivery.ack()
    acked, cancelled = orders.history("a")
    assert (cancelled.how, cancelled.by, cancelled.attempts) == ("cancelled", "ann", [])
    assert (acked.how, acked.by, acked.attempt) == ("acked", "w1", 2)
    now = clock.now()
    assert [(a.number, a.start, a.end, a.outcome, a.error) for a in acked.attempts] == [
        (1, now - 3_000, now - 2_000, "failed", "no luck"),
        (2, now - 1_000, now, "acked", None),
    ]


def test_a_result_is_returned_and_typed(make: Make) -> None:
    orders = make(result_ttl="1h")
    orders.put_many([bide.NewMessage(n, id=f"m{n}") for n in range(3)])
    first, *others = orders.claim(3)
    first.ack(result={"total": 3})
    orders.ack(others, [None, "é"])
    assert [orders.result(f"m{n}") for n in range(3)] == [{"total": 3}, None, "é"]
    assert orders.result("m0", type=Total) == {"total": 3}
    assert orders.result("m0", type=Sum) == Sum(total=3)
    for id, kind, why in (("m0", list[Sum], "list"), ("m2", Sum, "Sum"), ("m2", "Sum", "Sum")):
        with pytest.raises(bide.InvalidArgument, match=f"of '{id}' is no {why}.*; leave type= out"):
            orders.result(id, type=kind)
    with pytest.raises(bide.InvalidArgument, match="results must be a list of 0"):
        orders.ack([], [1])


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (b"raw", "result is bytes"),
        (float("nan"), "result is nan"),
        (object(), r"result is of type object.*; convert it \(keys to str\)$"),
        ("x" * MAX_RESULT, r"result takes 65,538 bytes, the limit is 65,536"),
        ("x" * MAX_BODY, r"result takes 1,048,578 bytes, the limit is 65,536; .* reference$"),
    ],
)
def test_what_cannot_be_a_result(make: Make, result: Any, why: str) -> None:
    orders = make(result_ttl="1h")
    orders.put(1, id="a")
    [delivery] = orders.claim()
    with pytest.raises(bide.InvalidArgument, match=why):
        delivery.ack(result=result)
    delivery.ack(result="x" * (MAX_RESULT - 2))
    assert len(orders.result("a")) == MAX_RESULT - 2


def test_the_errors_say_why_there_is_no_result(make: Make, clock: FakeClock) -> None:
    orders = make(result_ttl="1h", history="1h", holder="w1", actor="ann")

    def refusal(id: str) -> bide.BideError:
        with pytest.raises(bide.BideError) as caught:
            orders.result(id)
        return caught.value

    assert "nothing is remembered of 'a': there was no such" in str(refusal("a"))
    orders.put(1, id="a")
    assert str(refusal("a")) == "a is ready; it has no result yet"
    assert isinstance(refusal("a"), bide.NotEnded)
    orders.bury(orders.claim(), "bad card\nTraceback")
    died = refusal("a")
    assert isinstance(died, bide.NotAcked)
    assert str(died) == "a died at w1: bad card; it has no result"
    assert died.end == orders.history("a")[0]
    orders.put(1, id="silent")
    orders.bury(orders.claim())
    assert str(refusal("silent")) == "silent died at w1; it has no result"
    orders.put(1, id="b")
    orders.cancel("b")
    assert str(refusal("b")) == "b was cancelled by ann; it has no result"
    orders.put(1, id="c", expires="1s")
    clock.advance(2)
    orders.claim()
    assert str(refusal("c")) == "c expired before a worker took it; it has no result"
    orders.configure(history=0, result_ttl=0)
    assert isinstance(refusal("a"), bide.NotAcked)  # it is still there, dead
    assert isinstance(refusal("b"), bide.NotRemembered)


def test_settings_of_the_constructor_are_stored_with_the_first_change(make: Make) -> None:
    orders = make(keep="1m", history="2m", result_ttl="3m")
    assert orders.counts().history == 0
    orders.put(1)
    counts = orders.counts()
    assert (counts.keep, counts.history, counts.result_ttl) == (60_000, 120_000, 180_000)
    settings = orders.configure(history="1d")
    assert (settings.keep, settings.history, settings.result_ttl) == (60_000, 86_400_000, 180_000)


# Waiting: threads and tasks, by the system's clock.


@pytest.fixture
def plain(url: str) -> Iterator[bide.Queue]:
    with bide.Queue("orders", url, result_ttl="1h") as queue:
        yield queue


def test_a_waiting_result_comes_with_the_end(plain: bide.Queue) -> None:
    plain.put_many([bide.NewMessage(n, id=f"m{n}") for n in range(3)])
    deliveries = {delivery.id: delivery for delivery in plain.claim(3)}
    found: dict[str, Any] = {}

    def ask(id: str) -> None:
        try:
            found[id] = plain.result(id, wait=BOUND)
        except bide.NotAcked as error:
            found[id] = error.end.how  # type: ignore[union-attr]

    threads = [threading.Thread(target=ask, args=(id,)) for id in deliveries for _ in range(2)]
    for thread in threads:
        thread.start()
    deliveries["m0"].ack(result=[1])
    deliveries["m1"].bury("bad")
    plain.ack([deliveries["m2"]])
    for thread in threads:
        thread.join()
    assert found == {"m0": [1], "m1": "dead", "m2": None}


def test_tasks_wait_for_results(url: str) -> None:
    async def story() -> list[Any]:
        async with bide.AsyncQueue("orders", url, result_ttl="1h") as orders:
            await orders.put_many([bide.NewMessage(n, id=f"m{n}") for n in range(20)])
            waits = [asyncio.create_task(orders.result(f"m{n}", wait=BOUND)) for n in range(20)]
            while deliveries := await orders.claim(7):
                await orders.ack(deliveries, [delivery.body for delivery in deliveries])
            return await asyncio.gather(*waits)

    assert asyncio.run(story()) == list(range(20))


def test_a_wait_for_a_result_is_over(plain: bide.Queue) -> None:
    plain.put(1, id="a", delay="1h")
    with pytest.raises(bide.NotEnded, match="a is delayed"):
        plain.result("a", wait=0.05)


def test_closing_ends_the_wait_for_a_result(plain: bide.Queue) -> None:
    plain.put(1, id="a", delay="1h")
    ended: list[str] = []

    def ask() -> None:
        with pytest.raises(bide.Closed):
            plain.result("a", wait=BOUND)
        ended.append("closed")

    thread = threading.Thread(target=ask)
    thread.start()
    _until_waiting(plain)
    plain.close()
    thread.join()
    assert ended == ["closed"]


def ack_all(url: str) -> None:
    with bide.Queue("orders", url) as orders:
        for delivery in orders.claim(10, wait=BOUND):
            delivery.ack(result=delivery.id)


@pytest.mark.process
@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_an_end_in_another_process_wakes_who_waits(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_claims, "LOOK_AGAIN", 1e6)  # so that hints alone wake
    url = f"sqlite:///{tmp_path}/bide.db"
    if kind != "sqlite":
        fresh: Callable[[], str] = request.getfixturevalue(f"{kind}_url")
        url = fresh()
    with bide.Queue("orders", url, result_ttl="1h") as orders:
        orders.put(1, id="order 42")
        found: list[Any] = []
        waits = threading.Thread(target=lambda: found.append(orders.result("order 42", wait=BOUND)))
        waits.start()
        _until_waiting(orders)
        other = multiprocessing.get_context("spawn").Process(target=ack_all, args=(url,))
        other.start()
        waits.join()
        other.join()
    assert found == ["order 42"]


def _until_waiting(orders: bide.Queue) -> None:
    """Wait until the lane has parked a request."""
    ready = threading.Event()
    while count_waiting(lane_of(orders)) == 0:
        ready.wait(0.01)
