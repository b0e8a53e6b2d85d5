"""A store that goes away under the worker, and comes back."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.engines import losses
from bide.lane.lane import Lane
from bide.model.commands import Ack, Claim, Delete, Extend, Queues
from bide.testing import FlakyEngine
from bide.worker.process.runner import Runner
from tests.system.worker.processes import log, wait_for, worker
from tests.system.worker.worker_app import Scene, entered, more, until


def away(*kinds: type) -> Any:
    return lambda command: isinstance(command, kinds) and not isinstance(command, Queues)


@pytest.mark.parametrize("error", [bide.StoreUnavailable("gone"), bide.StoreFull("full")])
def test_the_store_is_waited_for_and_that_is_said_once(
    scene: Scene, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[Any] = []

    async def story() -> None:
        @scene.app.handler("q")
        async def handle(body: Any) -> None:
            handled.append(body)

        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)
            fault = scene.engine.fail(error, times=None, when=away(Claim, Ack, Extend))
            scene.clock.advance(1)  # the claim that waits looks again
            for _ in range(8):
                await scene.pass_time(more(lambda: fault.struck))
            scene.engine.heal()
            await scene.put(2, id="second")
            await scene.pass_time(lambda: len(handled) == 2)
            await scene.acked(2)
        assert handled == [1, 2]

    scene.play(story())
    assert caplog.text.count("the store is away; waiting for it") == 1
    assert caplog.text.count("the store is back after") == 1


def test_acks_wait_for_the_store_too(scene: Scene) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            await gate.wait()

        await scene.put(*range(5))
        async with scene.at_work() as runner:
            await until(lambda: len(runner.consumers["q"].running) == 5)
            fault = scene.engine.fail(bide.StoreUnavailable("gone"), times=None, when=away(Ack))
            gate.set()
            await until(lambda: fault.struck)
            scene.engine.heal()
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.acked == 5)

    scene.play(story())


@pytest.mark.parametrize("silent", [False, True])
def test_leases_that_could_not_be_extended_in_time_are_given_up(
    scene: Scene, *, silent: bool
) -> None:
    ends: list[str] = []

    async def story() -> None:
        @scene.app.handler("q", lease="30s")
        async def handle(delivery: bide.Handling) -> None:
            if delivery.attempt > 1:
                return
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("ended")

        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: any(entered(one) for one in runner.consumers["q"].running))
            if silent:  # as a network that swallows what is sent
                with scene.engine.held():
                    scene.clock.advance(10)
                    await asyncio.to_thread(scene.engine.wait_until_held)
                    scene.clock.advance(20)
                    await until(lambda: ends)
            else:
                gone = bide.StoreUnavailable("gone")
                scene.engine.fail(gone, times=None, when=away(Extend, Claim))
                await scene.pass_time(lambda: ends, 1)
                scene.engine.heal()
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.acked == 1, 1)

    scene.play(story())


def test_a_store_that_somebody_has_locked_is_waited_for(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        @scene.app.handler("q")
        async def handle(_: Any) -> None: ...

        await scene.put(1, delay=60_000)
        async with scene.at_work():
            other = sqlite3.connect(scene.path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            await scene.pass_time(lambda: "the store is away" in caplog.text, 30)
            other.execute("ROLLBACK")
            other.close()
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.acked == 1, 1)

    scene.play(story())


def test_a_store_that_was_deleted_is_made_anew(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[Any] = []

    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q")
        async def handle(body: Any) -> None:
            handled.append(body)
            await gate.wait()

        await scene.put("before")
        async with scene.at_work():
            await until(lambda: handled)
            for suffix in ("", "-wal", "-shm"):
                scene.path.with_name(scene.path.name + suffix).unlink(missing_ok=True)
            await asyncio.sleep(0.03)  # for so long the engine believes in its file
            gate.set()
            await scene.put("after", id="after")
            await scene.acked(1)
        assert handled == ["before", "after"]

    scene.play(story())
    assert "its lease was over: q-0 is not in the queue" in caplog.text
    assert caplog.text.count(f"{scene.path} was deleted, moved away or replaced") == 1


JOBS = """
import bide
app = bide.App("sqlite:///data/bide.db")

@app.handler("q")
async def handle(body):
    with open("handled", "a") as file:
        file.write(f"{body}\\n")
"""


@pytest.mark.process
def test_a_worker_goes_on_by_itself_when_its_directory_is_back(tmp_path: Path) -> None:
    data, handled = tmp_path / "data", tmp_path / "handled"

    def put(body: str) -> None:
        with bide.Queue("q", f"sqlite:///{data / 'bide.db'}") as queue:
            queue.put(body)

    def seen(*bodies: str) -> Callable[[], bool]:
        return lambda: handled.exists() and handled.read_text().split() == list(bodies)

    data.mkdir()
    with worker(tmp_path, JOBS):
        put("before")
        wait_for(seen("before"), tmp_path)
        data.rename(tmp_path / "elsewhere")
        wait_for(lambda: "the store is away; waiting for it" in log(tmp_path), tmp_path)
        (tmp_path / "elsewhere").rename(data)
        put("after")
        wait_for(seen("before", "after"), tmp_path)
        wait_for(lambda: "the store is back after" in log(tmp_path), tmp_path)
    told = log(tmp_path)
    assert "there is no directory" in told
    assert "closed" not in told
    assert "Traceback" not in told


def test_a_store_that_cannot_be_opened_is_said_at_the_start(tmp_path: Any) -> None:
    app = bide.App(f"sqlite:///{tmp_path}/nowhere/bide.db")
    app.handler("q")(lambda body: None)

    async def story() -> None:
        with pytest.raises(bide.StoreUnavailable, match="there is no directory"):
            await Runner(app).run()

    asyncio.run(story())


def test_a_store_that_is_busy_at_the_start_is_waited_for(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        scene.app.handler("q")(lambda body: None)
        await scene.put(1)
        scene.engine.fail(bide.StoreBusy("locked"), when=lambda command: True)
        scene.lane._reads = scene.lane  # so that the first look meets the fault, too
        async with scene.at_work():
            await scene.acked(1)

    scene.play(story())
    assert "locked" in caplog.text


def test_a_store_that_is_away_at_the_start_is_waited_for(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        handled: list[Any] = []

        @scene.app.handler("q")
        async def handle(body: Any) -> None:
            handled.append(body)

        tries = 0

        def opened() -> FlakyEngine:
            nonlocal tries
            tries += 1
            if tries <= 3:
                raise bide.StoreUnavailable("refused")
            return scene.engine

        scene.lane = Lane(opened, scene.clock)
        runner = Runner(scene.app, lane=scene.lane)
        task = asyncio.create_task(runner.run())
        await scene.pass_time(lambda: task.done() or runner.consumers)
        assert tries == 4
        await scene.put(1)
        await scene.acked(1)
        runner.stop()
        await task
        assert handled == [1]

    scene.play(story())
    assert "the store is away; waiting for it: refused" in caplog.text
    assert "the store is back after" in caplog.text


def test_the_log_names_the_file_and_that_it_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that was started in another folder waits in an empty store of its own."""

    async def work() -> None:
        app = bide.App("sqlite:///bide.db?durability=normal")
        app.handler("q")(lambda body: None)
        runner = Runner(app, ready=lambda: runner.stop())
        await runner.run()

    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO", "bide.worker")
    where = f"at work on q, at sqlite:///{tmp_path}/bide.db?durability=normal"
    asyncio.run(work())
    assert f"{where} (a new store)" in caplog.text
    caplog.clear()
    asyncio.run(work())
    assert where in caplog.text
    assert "new store" not in caplog.text


def test_declared_settings_that_the_store_has_lost_are_applied_again(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", limit=1)
        async def handle(body: int) -> None: ...

        async with scene.at_work():
            assert (await scene.counts()).limit == 1
            await scene.lane.acall(Delete("q"))
            assert (await scene.counts()).limit == 0
            losses.report("a store", "q", 1)
            await until(lambda: scene.counts_in_file("q").limit == 1)

    scene.play(story())
