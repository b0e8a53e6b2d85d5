"""A worker driven by hand, and handlers that take too long, or too many."""

import asyncio
import threading

import pytest

import bide
from bide.testing import ManualWorker, ScratchStore
from tests.testing.handlers import both, register


def test_a_handler_that_lets_time_pass_runs_out_of_it(app: bide.App, store: ScratchStore) -> None:
    @app.handler("q", timeout="30s")
    async def slow(body: int) -> None:
        store.clock.advance(31)
        await asyncio.sleep(60)

    store.queue("q").put(1)
    with ManualWorker(app, store) as worker:
        with pytest.raises(TimeoutError, match="took longer than its timeout of 30s"):
            worker.run_due()


def test_a_plain_handler_runs_out_of_time_too(app: bide.App, store: ScratchStore) -> None:
    @app.handler("q", timeout="30s")
    def slow(body: int, delivery: bide.Handling) -> None:
        store.clock.advance(31)
        assert delivery.lost.wait(60)

    store.queue("q").put(1)
    with ManualWorker(app, store, errors="collect") as worker:
        assert [one.outcome for one in worker.run_due()] == ["retried"]
        assert "took longer than its timeout" in str(worker.errors[0])


@both
def test_a_handler_that_never_ends_is_named(
    app: bide.App, store: ScratchStore, is_async: bool
) -> None:
    release = threading.Event()

    async def on_loop(body: int) -> None:
        await asyncio.Event().wait()

    def in_thread(body: int) -> None:
        release.wait()

    app.handler("q")(on_loop if is_async else in_thread)
    store.queue("q").put(1, id="stuck")
    with ManualWorker(app, store, patience=0.05) as worker:
        with pytest.raises(TimeoutError, match=r"on_loop|in_thread.*'stuck'.*within 0\.05 s"):
            worker.run_due()
    release.set()  # not before the worker has ended: it waits for no handler


def test_deliveries_without_end_are_an_error(app: bide.App, store: ScratchStore) -> None:
    queue = store.queue("q")

    def again(body: int, _: bide.Delivery) -> None:
        queue.put(body)

    register(app, again)
    queue.put(1)
    with ManualWorker(app, store) as worker:
        with pytest.raises(RuntimeError, match="more than limit=50 deliveries were made"):
            worker.run_due(limit=50)
        with pytest.raises(RuntimeError, match="more than limit=50 deliveries were made"):
            worker.advance("1h", limit=50)


def test_as_many_deliveries_as_the_limit_are_allowed(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)
    store.queue("q").put_many(range(3))
    with ManualWorker(app, store) as worker:
        assert len(worker.run_due(limit=3)) == 3


def test_deliveries_at_many_moments_are_not_too_many(app: bide.App, store: ScratchStore) -> None:
    register(app, lambda *_: None)
    store.queue("q").put_many([bide.NewMessage(n, delay=n) for n in range(20)])
    with ManualWorker(app, store) as worker:
        assert len(worker.advance("1m", limit=5)) == 20
