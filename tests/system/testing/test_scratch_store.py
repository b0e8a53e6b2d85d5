"""The store of a test: who lives in it, and what it says about what was put."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

import bide
from bide.clock import SYSTEM_CLOCK
from bide.engines.memory import MemoryEngine
from bide.engines.port import Capabilities
from bide.testing import FakeClock, ManualWorker, ScratchStore
from bide.testing import store as store_module
from bide.testing.hooks import lane_of
from tests.start import START


@dataclass
class Order:
    id: int
    total: float


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ScratchStore]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'bide.db'}"
    with ScratchStore(url, FakeClock(START)) as store:
        yield store


def test_queues_made_before_and_meanwhile_live_in_it(tmp_path: Path) -> None:
    before = bide.Queue("orders", f"sqlite:///{tmp_path / 'never.db'}")
    with ScratchStore() as store:
        before.put(1, delay="1m")
        bide.Queue("orders", "sqlite:////nowhere/at/all.db").put(2, delay="2m")
        assert [record.body for record in store.puts("orders")] == [1, 2]
        store.clock.advance(120)
        assert len(before.claim(10)) == 2
    assert not (tmp_path / "never.db").exists()
    before.close()


def test_afterwards_a_queue_is_where_it_was(tmp_path: Path) -> None:
    with bide.Queue("orders", f"sqlite:///{tmp_path / 'real.db'}") as orders:
        orders.put("real", id="r")
        with ScratchStore():
            assert orders.get("r") is None
            meanwhile = bide.Queue("orders", f"sqlite:///{tmp_path / 'real.db'}")
        assert orders.get("r") is not None
        with meanwhile:
            assert meanwhile.get("r") is not None
            assert meanwhile._clock is SYSTEM_CLOCK


def test_a_test_that_fails_leaves_its_store(tmp_path: Path) -> None:
    with bide.Queue("orders", f"sqlite:///{tmp_path / 'real.db'}") as orders:
        orders.put("real", id="r")
        with pytest.raises(ZeroDivisionError), ScratchStore():
            1 / 0  # noqa: B018
        assert orders.get("r") is not None


def test_a_message_in_memory_is_there_again_afterwards() -> None:
    with bide.Queue("orders", "memory://home") as orders:
        orders.put(1, id="a")
        with ScratchStore():
            assert orders.get("a") is None
        assert orders.get("a") is not None


def test_a_store_is_closed_once_its_queues_are(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'real.db'}"
    orders = bide.Queue("orders", url)
    lane = lane_of(orders)
    with ScratchStore():
        orders.close()
    with pytest.raises(bide.Closed):
        lane.open()


def test_a_search_looks_into_it(tmp_path: Path) -> None:
    with ScratchStore() as store:
        store.queue("orders").put(1, id="a")
        page = bide.search(f"sqlite:///{tmp_path / 'real.db'}", id="a")
        assert [message.id for message in page.messages] == ["a"]


def test_a_queue_that_is_closed_meanwhile_stays_closed(tmp_path: Path) -> None:
    orders = bide.Queue("orders", f"sqlite:///{tmp_path / 'real.db'}")
    orders.put(1)
    with ScratchStore() as store:
        orders.close()
        store.queue("orders").put(2)  # the store goes on
        with bide.Queue("orders") as brief:
            brief.put(3)
        assert len(store.puts()) == 2
    with pytest.raises(bide.Closed):
        orders.get("x")


def test_a_queue_with_a_clock_of_its_own_is_left_alone() -> None:
    with bide.Queue("orders", "memory://", clock=FakeClock()) as mine, ScratchStore() as store:
        mine.put(1)
        with bide.Queue("orders", "memory://", clock=FakeClock()) as other:
            other.put(2)
        assert store.puts() == []


def test_what_bide_puts_into_its_own_queues_is_no_put_of_the_program() -> None:
    app = bide.App("memory://")
    app.handler("orders", limit=1)(lambda body: None)
    with ScratchStore() as store, ManualWorker(app, store):
        assert store.puts() == []
        (record,) = store.puts("bide:declared")
        assert record.id == "orders"


def test_what_a_queue_keeps_is_told_to_each_store() -> None:
    with bide.Queue("orders", "memory://", keep="1h") as orders:
        for _ in range(2):
            with ScratchStore():
                orders.put(1, id="one")
                orders.claim()[0].ack()
                assert not orders.put(1, id="one")


def test_stores_can_stand_in_each_other() -> None:
    with ScratchStore() as outer, bide.Queue("q") as queue:
        with ScratchStore() as inner:
            queue.put("inner")
        queue.put("outer")
        assert [[one.body for one in store.puts()] for store in (outer, inner)] == [
            ["outer"],
            ["inner"],
        ]


def test_queues_are_not_kept_alive_by_being_known() -> None:
    from bide.queue.base import open_queues

    queue = bide.Queue("q", "memory://leak")
    assert queue in open_queues
    before = len(open_queues)
    queue.close()
    del queue
    gc.collect()
    assert len(open_queues) < before


def test_what_was_put_is_told_in_full(store: ScratchStore) -> None:
    orders = store.queue("orders")
    orders.put(
        Order(1, 9.5),
        delay="30m",
        id="order-1",
        priority=3,
        expires="1h",
        group="g",
        headers={"a": "b"},
        attempts=2,
    )
    record = store.assert_put(
        "orders",
        Order(1, 9.5),
        id="order-1",
        delay=1800,
        at=record_due(store),
        priority=3,
        expires="1h",
        group="g",
        headers={"a": "b"},
        attempts=2,
        times=1,
    )
    assert (record.delay, record.outcome.done) == (1800, True)
    assert record.due_at == datetime(2023, 11, 14, 22, 43, 20, tzinfo=UTC)
    assert str(record) == (
        "id='order-1' body={'id': 1, 'total': 9.5} (due 2023-11-14 22:43:20+00:00)"
    )
    store.assert_put("orders", {"id": ANY, "total": 9.5})


def record_due(store: ScratchStore) -> datetime:
    return datetime.fromtimestamp(store.clock.now() / 1000 + 1800, UTC)


@pytest.mark.parametrize(
    ("expected", "differs"),
    [
        ({"body": 2}, "body=1"),
        ({"body": object()}, "body=1"),
        ({"id": "b"}, "id='a'"),
        ({"delay": "31m"}, "delay=1800.0"),
        ({"delay": None}, "delay=1800.0"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, r"due_at=2023-11-14 22:43:20\+00:00"),
        ({"priority": 1, "group": "g"}, "priority=0 group=None"),
        ({"expires": None}, "expires=3600000"),
        ({"attempts": 3}, "attempts=10"),
        ({"headers": {}}, "headers=None"),
    ],
)
def test_a_failed_assertion_says_what_differs(
    store: ScratchStore, expected: dict[str, Any], differs: str
) -> None:
    store.queue("orders").put(1, id="a", delay="30m", expires="1h")
    with pytest.raises(AssertionError, match=rf"id='a' body=1 .*\n +differs in: {differs}$"):
        store.assert_put("orders", **expected)


def test_a_put_with_latest_is_told_with_the_time_at_which_it_is_due(store: ScratchStore) -> None:
    orders = store.queue("orders")

    def put() -> float:
        orders.put(1, id="a", delay=50, latest=60, on_conflict="replace")
        return store.puts()[-1].delay

    assert put() == 50
    store.clock.advance(40)
    assert put() == 20
    store.clock.advance(20)
    orders.claim()
    assert put() == 50  # of the successor


def test_a_put_that_was_not_stored_says_so(store: ScratchStore) -> None:
    orders = store.queue("orders")
    orders.put(1, id="a")
    orders.put(2, id="a")
    with pytest.raises(AssertionError, match="not stored: a is ready, due "):
        store.assert_put("orders", 3)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_is_not_open_gives_no_queue_of_a_real_one(when: str) -> None:
    store = ScratchStore()
    if when == "after":
        with store:
            store.queue("orders").put(1)
    with pytest.raises(bide.Closed, match="use it in its block: with ScratchStore"):
        store.queue("orders")


def test_how_often_counts(store: ScratchStore) -> None:
    with pytest.raises(bide.InvalidArgument, match=r"times=0 must be 1 .* assert_not_put"):
        store.assert_put("orders", 1, times=0)
    orders = store.queue("orders")
    orders.put_many([1, 1, 2])
    store.assert_put("orders", 1, times=2)
    with pytest.raises(AssertionError, match="such puts into 'orders': 2, not 1"):
        store.assert_put("orders", 1, times=1)
    with pytest.raises(AssertionError, match="such a message was put into 'orders'"):
        store.assert_not_put("orders", 2)
    store.assert_not_put("orders", 3)
    store.forget()
    store.assert_not_put("orders")


def test_nothing_put_is_told_as_such(store: ScratchStore) -> None:
    with pytest.raises(AssertionError, match="anything at all\nnothing was put into any queue"):
        store.assert_put("orders")
    store.queue("mail").put(1)
    with pytest.raises(AssertionError, match="nothing was put into 'orders'; puts went to: 'mail'"):
        store.assert_put("orders")


def test_a_long_list_is_cut(store: ScratchStore) -> None:
    store.queue("orders").put_many(range(25))
    with pytest.raises(AssertionError, match=r"10\. .*\n +differs.*\n +\.\.\. and 15 more"):
        store.assert_put("orders", "x")


def test_what_is_there_is_told(store: ScratchStore) -> None:
    orders = store.queue("orders")
    orders.put_many(
        [bide.NewMessage(number, id=f"o{number}", delay=600 - number) for number in range(550)]
    )
    orders.put("now", id="now")
    orders.put("held", id="held", priority=9)
    held = orders.claim()[0]
    assert len(store.messages("orders")) == 552
    assert [one.id for one in store.pending("orders")][:3] == ["held", "now", "o549"]
    held.bury("it is broken")
    assert [one.error for one in store.dead("orders")] == ["it is broken"]
    assert store.assert_dead("orders", id="held", error="is b.oken").body == "held"
    assert store.assert_dead("orders").id == "held"


def test_a_missing_dead_letter_says_where_the_message_is(store: ScratchStore) -> None:
    orders = store.queue("orders")
    orders.put(1, id="a", priority=1)
    orders.put(2, id="b")
    orders.claim()[0].bury("broken\nwith a tail")
    with pytest.raises(AssertionError, match=r"no dead letter 'b'\n    'a' is dead: broken\n"):
        store.assert_dead("orders", id="b")
    with pytest.raises(AssertionError, match=r"'b' is ready$"):
        store.assert_dead("orders", id="b")
    with pytest.raises(AssertionError, match=r"'c' is not in the queue$"):
        store.assert_dead("orders", id="c")
    with pytest.raises(AssertionError, match="with an error like 'burnt'"):
        store.assert_dead("orders", id="a", error="burnt")


def test_a_store_by_its_own_clock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Aloof(MemoryEngine):
        capabilities = Capabilities(caller_time=False)

    monkeypatch.setattr(store_module, "opener", lambda url: Aloof)
    with pytest.raises(bide.InvalidArgument, match=r"aloof:// uses its own clock"):
        with ScratchStore("aloof://secret@host"):
            pass
