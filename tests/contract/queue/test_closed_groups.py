"""Closed groups on each kind of store, by the methods of a queue."""

import asyncio
import copy
import pickle
from collections.abc import Iterator

import pytest

import bide
from bide.model.errors import GroupClosed, InvalidArgument
from tests.stores_of_each_kind import STORES, url_of


@pytest.fixture(params=STORES)
def orders(request: pytest.FixtureRequest) -> Iterator[bide.Queue]:
    with url_of(request.param, request) as url, bide.Queue("orders", url) as orders:
        yield orders


def test_a_payment_that_overtakes_the_put_is_not_lost(orders: bide.Queue) -> None:
    orders.put("survey", delay="7d", group="order:42")
    orders.put("running", id="running", group="order:42")
    (delivery,) = orders.claim()
    cancelled = orders.close_group("order:42", keep="1d")
    assert (cancelled, cancelled.stopping) == (1, 0)
    outcome = orders.put("time-out", id="a", delay="30m", group="order:42")
    assert (bool(outcome), outcome.state, outcome.due) == (False, "closed", None)
    until = f"{cancelled.until:%Y-%m-%d %H:%M:%S} UTC"
    assert str(outcome) == f"a was not stored: its group is closed until {until}"
    with pytest.raises(GroupClosed, match=r"its group is closed until .* reopen_group"):
        orders.put("time-out", id="a", group="order:42", on_conflict="raise")
    delivery.retry("10s")
    (closed,) = orders.closed_groups()
    assert (closed.group, closed.until_at) == ("order:42", cancelled.until)
    assert str(closed) == f"group order:42 is closed until {until}"
    counts = orders.counts()
    assert (counts.sizes.total, counts.flow.cancelled, counts.closed) == (0, 2, 1)
    assert orders.audit()
    assert orders.reopen_group("order:42")
    assert not orders.reopen_group("order:42")
    assert orders.put("time-out", id="a", delay="30m", group="order:42")


def test_what_runs_is_asked_to_stop(orders: bide.Queue) -> None:
    orders.put("running", id="running", group="order:42")
    (delivery,) = orders.claim()
    cancelled = orders.close_group("order:42", running=True)
    assert (cancelled, cancelled.stopping) == (0, 1)
    with pytest.raises(bide.StopRequested):
        delivery.extend()
    delivery.release()
    assert orders.counts().flow.cancelled == 1


def test_an_outcome_says_that_a_dead_letter_was_cancelled(orders: bide.Queue) -> None:
    orders.put("dead", id="dead", group="g", attempts=1)
    (delivery,) = orders.claim()
    delivery.retry()
    orders.close_group("g")
    (outcome,) = orders.revive(["dead"])
    assert not outcome
    assert str(outcome).startswith("dead was not revived: its group is closed until ")
    assert orders.get("dead") is None


def test_an_import_counts_what_is_refused(orders: bide.Queue) -> None:
    orders.put("a", id="a", delay="1h", group="g")
    orders.put("b", id="b", delay="1h")
    lines = list(orders.export())
    orders.close_group("g")
    orders.cancel("b")
    imported = orders.load(lines)
    assert (imported.stored, imported.kept, imported.refused) == (1, 0, 1)


def test_undo_brings_nothing_back_into_a_closed_group(orders: bide.Queue) -> None:
    orders.put("a", id="a", delay="1h", group="g")
    undoable = orders.cancel(group="g", undo=True)
    orders.close_group("g")
    undone = orders.undo(undoable.undo)
    assert (undone.restored, undone.taken) == (0, 1)


def test_many_messages_are_cancelled_and_many_groups_are_listed() -> None:
    with bide.Queue("orders", "memory://many") as orders:
        orders.put_many([bide.NewMessage(body=n, delay="1h", group="g") for n in range(2_500)])
        assert orders.close_group("g") == 2_500
        for number in range(25):
            orders.close_group(f"g{number:02}", keep=f"{number + 1}h")
        page = orders.closed_groups(limit=20)
        assert [closed.group for closed in page[:3]] == ["g00", "g01", "g02"]
        rest = orders.closed_groups(after=page[-1])
        assert len(page) + len(rest) == 26


def test_wrong_arguments_are_refused() -> None:
    with bide.Queue("orders", "memory://wrong") as orders:
        with pytest.raises(InvalidArgument, match="keep=0 must be longer than 0"):
            orders.close_group("g", keep=0)
        with pytest.raises(InvalidArgument, match="group"):
            orders.close_group("")
        with pytest.raises(InvalidArgument, match="limit"):
            orders.closed_groups(limit=0)


def test_the_same_on_an_event_loop() -> None:
    async def main() -> None:
        async with bide.AsyncQueue("orders", "memory://async") as orders:
            await orders.put("a", delay="1h", group="g")
            assert await orders.close_group("g") == 1
            assert [closed.group for closed in await orders.closed_groups()] == ["g"]
            assert not await orders.put("b", group="g")
            assert await orders.reopen_group("g")

    asyncio.run(main())


def test_what_a_close_answers_can_be_copied_and_sent_to_another_process() -> None:
    with bide.Queue("orders", "memory://closing-pickled") as orders:
        orders.put("a", id="a", group="g")
        closing = orders.close_group("g")
        for other in (pickle.loads(pickle.dumps(closing)), copy.deepcopy(closing)):
            assert (other, other.stopping, other.until) == (1, 0, closing.until)
    cancelled = copy.copy(bide.Cancelled(3, stopping=1))
    assert (cancelled, cancelled.stopping) == (3, 1)
