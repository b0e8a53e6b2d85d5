"""How much is claimed, and when it is started."""

import asyncio
import threading
from typing import Any

from bide.model.commands import Claim
from tests.worker.worker_app import PATIENCE, Scene, until


def test_claims_never_bring_more_than_can_be_started(scene: Scene) -> None:
    most = running = 0

    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q", concurrency=5)
        async def handle(_: Any) -> None:
            nonlocal most, running
            running += 1
            most = max(most, running)
            await gate.wait()
            await asyncio.sleep(0)
            running -= 1

        await scene.put(*range(40))
        async with scene.at_work() as runner:
            await until(lambda: running == 5)
            assert len(runner.consumers["q"].running) == 5
            assert (await scene.counts()).sizes.leased == 5
            gate.set()
            await scene.acked(40)
        assert most == 5
        assert max(command.count for command in scene.sent(Claim)) == 5

    scene.play(story())


def test_no_more_threads_run_than_places(scene: Scene) -> None:
    seen: set[str] = set()
    lock = threading.Lock()
    running = most = 0

    def handle(_: Any) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            seen.add(threading.current_thread().name)
        with lock:
            running -= 1

    async def story() -> None:
        scene.app.handler("q", concurrency=3)(handle)
        await scene.put(*range(60))
        async with scene.at_work():
            await scene.acked(60)
        assert most <= 3
        assert len(seen) <= 3
        assert all(name.startswith("bide-handler") for name in seen)

    scene.play(story())


def test_plain_handlers_run_side_by_side(scene: Scene) -> None:
    together = threading.Barrier(4, timeout=PATIENCE)

    def handle(_: Any) -> None:
        together.wait()

    async def story() -> None:
        scene.app.handler("q", concurrency=4)(handle)
        await scene.put(*range(8))
        async with scene.at_work():
            await scene.acked(8)

    scene.play(story())


def test_a_queue_that_is_busy_holds_up_no_other(scene: Scene) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("slow", concurrency=1)
        async def slow(_: Any) -> None:
            await gate.wait()

        @scene.app.handler("quick")
        async def quick(_: Any) -> None: ...

        await scene.put(1, 2, queue="slow")
        await scene.put(1, 2, queue="quick")
        async with scene.at_work():
            await scene.acked(2, "quick")
            assert (await scene.counts("slow")).sizes.leased == 1
            gate.set()
            await scene.acked(2, "slow")

    scene.play(story())


def test_what_is_due_later_is_started_when_it_is_due(scene: Scene) -> None:
    seen: list[Any] = []

    async def story() -> None:
        @scene.app.handler("q")
        async def handle(body: Any) -> None:
            seen.append(body)

        async with scene.at_work():
            await scene.put("later", delay=90_000)
            for _ in range(89):
                await scene.step(1)
            assert seen == []
            scene.clock.advance(1)
            await scene.acked(1)
        assert seen == ["later"]

    scene.play(story())
