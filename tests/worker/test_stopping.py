"""Leaving: what runs finishes within the grace, or is handed back."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import bide
from bide.consuming.consumer import Consumer
from bide.consuming.store_client import StoreClient
from bide.model.commands import Claim, RetryCommand
from bide.model.replies import Claimed
from bide.testing.hooks import count_waiting
from bide.worker.process.runner import Runner
from tests.worker.worker_app import PATIENCE, Scene, entered, until


async def start(scene: Scene, **options: Any) -> tuple[Runner, "asyncio.Task[None]"]:
    ready = asyncio.Event()
    runner = Runner(scene.app, lane=scene.lane, ready=ready.set, **options)
    task = asyncio.create_task(runner.run())
    await ready.wait()
    return runner, task


def any_entered(runner: Runner) -> Callable[[], bool]:
    return lambda: any(entered(one) for one in runner.consumers["q"].running)


def test_an_idle_worker_leaves_at_once(scene: Scene) -> None:
    async def story() -> None:
        scene.app.handler("q")(lambda body: None)
        runner, task = await start(scene)
        runner.stop()
        await task
        await scene.put(1)
        assert (await scene.counts()).sizes.ready + (await scene.counts()).sizes.delayed == 1

    scene.play(story())


def test_what_runs_may_finish_and_nothing_new_is_claimed(scene: Scene) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            await gate.wait()

        await scene.put(1, id="first")
        runner, task = await start(scene)
        await until(any_entered(runner))
        runner.stop()
        await asyncio.sleep(0.02)
        await scene.put(2, id="second")
        scene.clock.advance(29)
        assert not task.done()
        gate.set()
        await task
        counts = await scene.counts()
        assert (counts.flow.acked, counts.sizes.leased, counts.sizes.total) == (1, 0, 1)

    scene.play(story())


def test_what_a_claim_brings_in_the_moment_of_leaving_goes_back(scene: Scene) -> None:
    class Leaving(StoreClient):
        async def patiently(self, *arguments: Any) -> Any:
            reply = await super().patiently(*arguments)
            if isinstance(reply, Claimed):  # done, but its consumer does not know yet
                asyncio.get_running_loop().call_soon(tasks[0].cancel)
            return reply

    tasks: list[asyncio.Task[None]] = []

    async def story() -> None:
        scene.app.handler("q")(lambda body: None)
        store_client, queue_handlers = (
            Leaving(scene.lane, scene.clock),
            scene.app.queue_handlers["q"],
        )
        consumer = Consumer(queue_handlers, (), scene.app.state, store_client, "worker")
        await scene.put(1, 2)
        tasks[:] = [asyncio.create_task(work()) for work in (consumer.claim, consumer.settle)]
        await asyncio.wait(tasks[:1])
        assert tasks[0].cancelled()
        consumer.leave()
        await consumer.until_quiet()
        tasks[1].cancel()
        counts = await scene.counts()
        assert (counts.sizes.ready, counts.sizes.leased) == (2, 0)
        assert (await scene.find("q-0")).attempt == 0
        await consumer.close()

    scene.play(story())


def test_leases_are_extended_during_the_grace(scene: Scene) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q", lease="6s")
        async def handle(_: Any) -> None:
            await gate.wait()

        await scene.put(1)
        runner, task = await start(scene)
        await until(any_entered(runner))
        runner.stop()
        for _ in range(20):
            await scene.step(1)
        gate.set()
        await task
        assert (await scene.counts()).flow.lapsed == 0
        assert (await scene.counts()).flow.acked == 1

    scene.play(story())


def test_what_has_not_finished_within_the_grace_is_handed_back_untouched(scene: Scene) -> None:
    over = threading.Event()

    async def story() -> None:
        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            await asyncio.Event().wait()

        def plain(delivery: bide.Handling) -> None:
            delivery.lost.wait(PATIENCE)
            over.set()

        scene.app.handler("plain")(plain)
        await scene.put(1)
        await scene.put(2, queue="plain")
        runner, task = await start(scene, grace=10)
        await until(any_entered(runner))
        await until(lambda: runner.consumers["plain"].running)
        runner.stop()
        await scene.pass_time(task.done)
        await task
        for queue in ("q", "plain"):
            found = await scene.find(f"{queue}-0", queue)
            assert (found.state, found.attempt, found.failures) == ("ready", 0, ())
        assert all(command.release for command in scene.sent(RetryCommand))
        assert over.wait(PATIENCE)

    scene.play(story())


def test_a_second_stop_hands_back_at_once(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            await asyncio.Event().wait()

        await scene.put(1)
        runner, task = await start(scene)
        await until(any_entered(runner))
        runner.stop()
        await asyncio.sleep(0.02)
        runner.stop(hurry=True)
        await task  # the clock stands still
        assert (await scene.find("q-0")).state == "ready"

    scene.play(story())


def test_a_handler_that_refuses_to_end_is_left_behind(scene: Scene) -> None:
    async def story() -> None:
        over = asyncio.Event()

        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue

        await scene.put(1)
        runner, task = await start(scene)
        await until(any_entered(runner))
        runner.stop(hurry=True)
        await asyncio.sleep(0.02)
        assert not task.done()
        await scene.pass_time(task.done)
        await task
        assert (await scene.find("q-0")).state == "ready"
        over.set()
        await asyncio.sleep(0)

    scene.play(story())


def test_what_was_started_in_the_last_moment_is_handed_back(scene: Scene) -> None:
    """A task that is cancelled before its first step never runs a line of itself."""

    async def story() -> None:
        began: list[Any] = []

        @scene.app.handler("q")
        async def handle(body: Any) -> None:
            began.append(body)
            await asyncio.Event().wait()

        await scene.put(*range(3))
        runner, task = await start(scene)
        consumer = runner.consumers["q"]
        while not consumer.running:  # noqa: ASYNC110  (the very turn of the loop counts)
            await asyncio.sleep(0)
        assert not began
        consumer.release_running()
        runner.stop()
        await task
        assert not began
        assert (await scene.counts()).flow.retried == 0

    scene.play(story())


def test_a_store_that_is_away_keeps_nobody_from_leaving(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            await gate.wait()

        await scene.put(1)
        runner, task = await start(scene, grace=3)
        await until(any_entered(runner))
        scene.engine.fail(bide.StoreUnavailable("gone"), times=None)
        gate.set()
        runner.stop()
        while not task.done():
            scene.clock.advance(1)
            await asyncio.sleep(0.01)
        await task

    scene.play(story())
    assert "their leases expire" in caplog.text


def test_no_claim_is_left_behind(scene: Scene) -> None:
    async def story() -> None:
        scene.app.handler("q")(lambda body: None)
        for _ in range(3):
            runner, task = await start(scene)
            await until(lambda: count_waiting(scene.lane) == 1)
            runner.stop()
            await task
            assert count_waiting(scene.lane) == 0
        assert len(scene.sent(Claim)) == 3

    scene.play(story())


def test_an_app_without_handlers_is_refused() -> None:
    app = bide.App("memory://")

    async def story() -> None:
        with pytest.raises(bide.InvalidArgument, match="the app has no handlers"):
            Runner(app)
        app.handler("q")(lambda body: None)
        with pytest.raises(bide.InvalidArgument, match=r"queue 'r' has no handler in the app.*: q"):
            Runner(app, ["q", "r"])

    asyncio.run(story())


def test_only_the_queues_that_were_asked_for(scene: Scene) -> None:
    async def story() -> None:
        scene.app.handler("q")(lambda body: None)
        scene.app.handler("other")(lambda body: None)
        await scene.put(1)
        await scene.put(1, queue="other")
        async with scene.at_work(queues=["q"]):
            await scene.acked(1)
        assert (await scene.counts("other")).flow.acked == 0

    scene.play(story())


def test_a_runner_opens_and_closes_the_store_of_its_app(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    app = bide.App(url)
    handled = asyncio.Event()

    @app.handler("q")
    async def handle(_: Any) -> None:
        handled.set()

    async def story() -> None:
        async with bide.AsyncQueue("q", url) as queue:
            runner = Runner(app)
            task = asyncio.create_task(runner.run())
            await queue.put(1)
            await asyncio.wait_for(handled.wait(), PATIENCE)
            runner.stop()
            await task
            assert (await queue.counts()).flow.acked == 1

    asyncio.run(story())
