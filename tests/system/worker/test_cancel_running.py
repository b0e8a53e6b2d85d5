"""Messages that are cancelled while their handlers run."""

import asyncio
import contextvars
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest
from msgspec.json import decode

import bide
from bide.clock import sleep
from bide.consuming.consumer import CLEANUP
from bide.model.commands import Cancel, Extend, History
from bide.model.message import Progress
from bide.model.replies import Ends, Outcome, Outcomes
from bide.testing import ManualWorker, ScratchStore
from bide.worker.periodic.source import home_of
from tests.system.worker.worker_app import PATIENCE, Scene, until


async def stop(scene: Scene, *ids: str, queue: str = "q") -> list[Outcome]:
    reply = await scene.lane.acall(Cancel(queue, list(ids), running=True, actor="ann"))
    assert isinstance(reply, Outcomes)
    return reply.outcomes


async def cancelled(scene: Scene, count: int) -> None:
    await until(lambda: scene.counts_in_file("q").flow.cancelled == count)


async def ends(scene: Scene, id: str, queue: str = "q") -> list[tuple[str, str | None]]:
    reply = await scene.lane.acall(History(queue, id))
    assert isinstance(reply, Ends)
    return [(end.how, end.by) for end in reply.ends]


def test_an_async_handler_is_cancelled_and_may_clean_up(scene: Scene) -> None:
    began, log = asyncio.Event(), []

    @scene.app.handler("q")
    async def handle(body: str) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await scene.put("cleaned", queue="other")
            log.append("cleaned up")
            raise

    async def story() -> None:
        await scene.put("a", id="a")
        async with scene.at_work() as runner:
            await began.wait()
            assert [outcome.state for outcome in await stop(scene, "a")] == ["stopping"]
            await cancelled(scene, 1)  # by a hint: the clock has not moved
            assert log == ["cleaned up"]
            assert await ends(scene, "a") == [("cancelled", "ann")]
            await until(lambda: runner.tallies()["q"].outcomes.get("cancelled") == 1)
        assert (await scene.counts("other")).sizes.ready == 1

    scene.play(story())


def test_a_plain_handler_is_told_at_its_next_call_of_bide(scene: Scene) -> None:
    began, goes_on, log = threading.Event(), threading.Event(), list[Any]()
    others = bide.Queue("other", f"sqlite:///{scene.path}")

    @scene.app.handler("q")
    def handle(body: str, delivery: bide.Handling) -> None:
        began.set()
        assert delivery.lost.wait(60)
        log.append(delivery.stopping)
        goes_on.wait()
        try:
            others.put("never stored")
        except bide.StopRequested as error:
            log.append(str(error))
            others.put("cleaned up")  # it is told once
            raise

    async def story() -> None:
        await scene.put("a", id="a")
        async with scene.at_work():
            await until(began.is_set)
            await stop(scene, "a")
            await until(lambda: log == [True])
            goes_on.set()
            await cancelled(scene, 1)
        assert log[1:] == ["a was cancelled while its handler ran: clean up, and end"]
        assert (await scene.counts("other")).sizes.ready == 1

    with others:
        scene.play(story())


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_an_ack_in_time_counts(scene: Scene, is_async: bool) -> None:
    began = threading.Event()

    def handle(body: str, delivery: bide.Handling) -> None:
        began.set()
        assert delivery.lost.wait(60)

    async def handle_async(body: str) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return  # it is done nevertheless

    scene.app.handler("q")(handle_async if is_async else handle)

    async def story() -> None:
        await scene.put("a", id="a")
        async with scene.at_work():
            await until(began.is_set)
            holder = (await scene.find("a")).holder
            await stop(scene, "a")
            await scene.acked(1)
        assert await ends(scene, "a") == [("acked", holder)]

    scene.play(story())


@pytest.mark.parametrize("error", [ValueError("no"), bide.Bury("no"), bide.Retry("later")])
def test_any_other_end_counts_as_cancelled(scene: Scene, error: Exception) -> None:
    began = threading.Event()

    @scene.app.handler("q")
    def handle(body: str, delivery: bide.Handling) -> None:
        began.set()
        assert delivery.lost.wait(60)
        raise error

    async def story() -> None:
        await scene.put("a", id="a")
        async with scene.at_work():
            await until(began.is_set)
            await stop(scene, "a")
            await cancelled(scene, 1)
        assert (await scene.counts()).sizes.total == 0

    scene.play(story())


def test_if_no_hint_comes_the_next_beat_finds_out(scene: Scene) -> None:
    began = asyncio.Event()

    @scene.app.handler("q", lease="30s")
    async def handle(body: str) -> None:
        began.set()
        await asyncio.Event().wait()

    async def story() -> None:
        await scene.put("a", id="a")
        async with scene.at_work():
            await began.wait()
            with closing(sqlite3.connect(scene.path)) as file, file:  # no hint comes of it
                file.execute("UPDATE bide_lease SET stopping = 'ann'")
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.cancelled == 1, step=1)

    scene.play(story())


def test_what_waits_for_a_place_never_begins(scene: Scene) -> None:
    gate, began = asyncio.Event(), list[str]()

    @scene.app.handler("q", concurrency=1)
    async def handle(body: str) -> None:
        if body == "quick":  # so that the worker claims ahead
            return
        began.append(body)
        await gate.wait()

    async def story() -> None:
        await scene.put(*["quick"] * 150, "a", "b", "c")
        async with scene.at_work():
            await until(lambda: began and scene.counts_in_file("q").sizes.leased == 3)
            await stop(scene, "q-151")
            await cancelled(scene, 1)
            gate.set()
            await scene.acked(152)
        assert began == ["a", "c"]

    scene.play(story())


def test_a_handler_that_goes_on_is_given_up(scene: Scene) -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    @scene.app.handler("q", lease="30s")
    async def handle(body: str) -> None:
        began.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    async def story() -> None:
        await scene.put("a", id="a")
        async with scene.at_work() as runner:
            await began.wait()
            (handling,) = runner.consumers["q"].running
            await stop(scene, "a")
            await until(lambda: handling.stopping)
            assert not handling.outcome_ignored
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.cancelled == 1)
            assert handling.outcome_ignored
            assert handling.took >= CLEANUP
            gate.set()

    scene.play(story())


def test_a_batch_runs_to_its_end(scene: Scene) -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    @scene.app.handler("q", batch=2, linger=0)
    async def handle(bodies: list[str]) -> None:
        began.set()
        await gate.wait()

    async def story() -> None:
        await scene.put("a", "b")
        async with scene.at_work() as runner:
            await began.wait()
            handlings = list(runner.consumers["q"].running)
            await stop(scene, "q-0")
            await until(lambda: any(handling.stopping for handling in handlings))
            gate.set()
            await scene.acked(2)

    scene.play(story())


@pytest.mark.parametrize("kind", ["a generator", "a list", "a tick"])
def test_a_source_and_a_tick_that_return_are_cancelled(scene: Scene, kind: str) -> None:
    began, may_return = threading.Event(), threading.Event()
    queue = "tick" if kind == "a tick" else home_of("orders", "unpaid")

    def wait() -> None:
        began.set()
        assert may_return.wait(PATIENCE)

    if kind == "a tick":
        scene.app.schedule("tick", every="1m")(wait)
    elif kind == "a list":

        @scene.app.source("orders", every="1m", window="10m", name="unpaid")
        def all_unpaid(after: datetime, before: datetime) -> list[bide.NewMessage]:
            wait()
            return []

    else:

        @scene.app.source("orders", every="1m", window="10m", name="unpaid")
        def unpaid(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
            wait()
            while True:  # until it is put what it has yielded
                yield bide.NewMessage(1, id="o", at=after)

    async def story() -> None:
        async with scene.at_work() as runner:
            await scene.pass_time(began.is_set, step=10)
            (handling,) = runner.consumers[queue].running
            await stop(scene, handling.id, queue=queue)
            await until(lambda: handling.stopping)
            may_return.set()
            await until(lambda: scene.counts_in_file(queue).flow.cancelled == 1)
            assert await ends(scene, handling.id, queue) == [("cancelled", "ann")]
            assert scene.counts_in_file(queue).flow.acked == 0

    scene.play(story())


def test_with_a_worker_by_hand() -> None:
    app = bide.App("memory://")

    @app.handler("rows")
    def handle(body: str, delivery: bide.Handling) -> None:
        delivery.report(40, of=100, text="rows")
        assert not rows.cancel(delivery.id)
        assert rows.cancel(delivery.id, running=True).state == "stopping"
        assert delivery.lost.wait(60)
        delivery.report(41, of=100, text="rows")

    with ScratchStore() as store, ManualWorker(app, store, errors="collect") as worker:
        rows = store.queue("rows")
        rows.put("a")
        (handled,) = worker.run_due()
        assert handled.outcome == "cancelled"
        assert isinstance(handled.error, bide.StopRequested)
        assert rows.counts().flow.cancelled == 1


def test_a_hint_may_come_before_the_message_begins(scene: Scene) -> None:
    @scene.app.handler("q")
    async def handle(body: str) -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        async with scene.at_work():
            scene.lane.hint("q a", 0)
            await scene.put("a", id="a")
            await until(lambda: scene.sent(Extend))  # the clock has not moved: it looks at once
            assert [lease.id for lease in scene.sent(Extend)[0].leases] == ["a"]

    scene.play(story())


def test_a_stop_of_another_delivery_is_an_error_like_any_other() -> None:
    app = bide.App("memory://")

    @app.handler("rows", retry=bide.Backoff(first="10s", jitter=0))
    def handle(body: str) -> None:
        raise bide.StopRequested("of another delivery")

    with ScratchStore() as store, ManualWorker(app, store, errors="collect") as worker:
        rows = store.queue("rows")
        rows.put("a", id="a")
        (handled,) = worker.run_due()
        assert handled.outcome == "retried"
        message = rows.get("a")
        assert message is not None
        assert message.attempt == 1


def test_what_a_plain_handler_has_started_is_not_told(scene: Scene) -> None:
    began, log = threading.Event(), list[Any]()
    others = bide.Queue("other", f"sqlite:///{scene.path}")

    @scene.app.handler("q")
    def handle(body: str, delivery: bide.Handling) -> None:
        began.set()
        assert delivery.lost.wait(60)
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: log.append(context.run(others.put, 1)))
        thread.start()
        thread.join()
        try:
            others.put(2)
        except bide.StopRequested:
            log.append("told")
            raise

    async def story() -> None:
        await scene.put("a", id="a")
        async with scene.at_work():
            await until(began.is_set)
            await stop(scene, "a")
            await cancelled(scene, 1)
        assert [bool(log[0]), log[1]] == [True, "told"]

    with others:
        scene.play(story())


def test_a_member_of_a_batch_that_gathers_never_begins(scene: Scene) -> None:
    calls = list[list[str]]()

    @scene.app.handler("q", batch=2, linger="60s")
    async def handle(bodies: list[str]) -> None:
        calls.append(bodies)

    async def story() -> None:
        await scene.put("a", id="a")
        async with scene.at_work() as runner:
            await until(lambda: runner.consumers["q"].running)
            (handling,) = runner.consumers["q"].running
            await stop(scene, "a")
            await until(lambda: handling.stopping)
            await scene.put("b", id="b")
            await scene.acked(1)
            await cancelled(scene, 1)
        assert calls == [["b"]]

    scene.play(story())


def test_a_timeout_does_not_cut_the_time_to_clean_up(scene: Scene) -> None:
    began, cleaned = asyncio.Event(), list[str]()

    @scene.app.handler("q", timeout="10s", lease="60s")
    async def handle(body: str) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await sleep(scene.clock, 4)
            cleaned.append(body)

    async def story() -> None:
        await scene.put("a", id="a")
        async with scene.at_work() as runner:
            await began.wait()
            (handling,) = runner.consumers["q"].running
            await scene.step(8)
            await stop(scene, "a")
            await until(lambda: handling.stopping)
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.cancelled == 1)
        assert cleaned == ["a"]

    scene.play(story())


# Reports.


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_the_last_report_of_each_second_is_stored(scene: Scene, is_async: bool) -> None:
    gate = threading.Event()
    reported = threading.Event()

    def work(delivery: bide.Handling) -> None:
        for done in range(1, 51):
            delivery.report(done, of=100, text="rows")
        reported.set()

    async def handle_async(body: str, delivery: bide.Handling) -> None:
        work(delivery)
        await until(gate.is_set)

    def handle(body: str, delivery: bide.Handling) -> None:
        work(delivery)
        gate.wait()

    scene.app.handler("q")(handle_async if is_async else handle)

    def reports() -> list[Any]:
        return [command for command in scene.sent(Extend) if command.progress]

    async def story() -> None:
        await scene.put("a", id="a")
        async with scene.at_work():
            await until(reported.is_set)

            def stored() -> str | None:
                with closing(sqlite3.connect(scene.path)) as file:
                    (report,) = file.execute("SELECT progress FROM bide_lease").fetchone()
                return None if report is None else str(decode(report, type=Progress))

            await scene.pass_time(lambda: stored() == "50 of 100 rows (50 %)")
            assert len(reports()) <= 2
            assert str((await scene.find("a")).progress) == stored()
            gate.set()
            await scene.acked(1)

    scene.play(story())


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), True, "40", None])
def test_a_report_is_a_number(wrong: Any) -> None:
    with ScratchStore() as store:
        rows = store.queue("rows")
        rows.put("a")
        (delivery,) = rows.claim(1)
        with pytest.raises(bide.InvalidArgument, match="done"):
            delivery.report(wrong)
        with pytest.raises(bide.InvalidArgument, match="text takes a str"):
            delivery.report(1, text=5)  # type: ignore[arg-type]


def test_a_claimed_message_reports_once_a_second() -> None:
    with ScratchStore() as store:
        rows = store.queue("rows")
        rows.put("a", id="a")
        (delivery,) = rows.claim(1)

        def progress() -> Progress | None:
            message = rows.get("a")
            assert message is not None
            return message.progress

        for done in (1, 2, 3):
            delivery.report(done, of=100)
        first = progress()
        assert first is not None
        assert (first.done, first.percent) == (1, 1)
        store.clock.advance(1)
        delivery.report(50, of=100)
        delivery.report(100, of=100, text="x" * 300)
        last = progress()
        assert last is not None
        assert (last.done, len(last.text)) == (100, 200)
        assert rows.cancel("a", running=True).state == "stopping"
        store.clock.advance(1)
        with pytest.raises(bide.StopRequested, match="a was cancelled while it was worked on"):
            delivery.report(60, of=100)
        with pytest.raises(bide.StopRequested):
            delivery.extend("1m")
        delivery.ack()
        assert rows.counts().flow.acked == 1
