"""A worker says in the store that it is there, with or without work."""

import asyncio
import os
import socket

import bide
from bide.engines.sqlite import SqliteEngine
from bide.model.commands import Put, Scan
from bide.model.replies import Page
from bide.observing.heartbeat import REGISTER, Report, read
from tests.worker.worker_app import Scene, more, until

ME = f"{socket.gethostname()}:{os.getpid()}"


def reports(scene: Scene) -> list[Report]:
    """Return what living processes have said, as another process reads it."""
    reader = SqliteEngine(scene.path, read_only=True)
    (page,) = reader.execute([Scan(REGISTER, "delayed")], scene.clock.now())
    reader.close()
    assert isinstance(page, Page)
    return [report for message in page.messages if (report := read(message)) is not None]


def test_one_without_work_says_so_for_hours_and_takes_its_leave(scene: Scene) -> None:
    @scene.app.handler("q")
    async def handle(body: int) -> None: ...

    async def story() -> None:
        async with scene.at_work():
            await until(lambda: reports(scene))
            for _ in range(3):
                await scene.pass_time(more(lambda: len(scene.sent(Put))), 5)
                await scene.pass_time(lambda: reports(scene))
                assert [report.workers for report in reports(scene)] == [{ME: ["q"]}]
        assert reports(scene) == []

    scene.play(story())


def test_it_tells_how_late_deliveries_began(scene: Scene) -> None:
    @scene.app.handler("q")
    async def handle(body: int) -> None: ...

    async def story() -> None:
        await scene.put(*range(20))
        scene.clock.advance(3)
        async with scene.at_work():
            await scene.acked(20)
            await scene.pass_time(lambda: any(report.lateness for report in reports(scene)), 1)
            (report,) = reports(scene)
            assert report.lateness["q"].count == 20
            assert report.lateness["q"].quantile(0.5) == 5.0

    scene.play(story())


def test_it_tells_what_it_handles_and_for_how_long(scene: Scene) -> None:
    over = asyncio.Event()

    @scene.app.handler("q", concurrency=2)
    async def handle(body: int) -> None:
        await over.wait()

    async def story() -> None:
        began = scene.clock.now()
        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: runner.consumers["q"].busy().running)
            await scene.pass_time(
                lambda: any(report.busy["q"].running for report in reports(scene)), 1
            )
            (report,) = reports(scene)
            assert report.busy["q"].places == 2
            assert (report.busy["q"].running, report.busy["q"].longest) == (1, "q-0")
            assert began <= (report.busy["q"].since or 0) <= scene.clock.now()
            over.set()
            await scene.acked(1)

    scene.play(story())


def test_a_store_that_is_away_does_not_stop_it(scene: Scene) -> None:
    @scene.app.handler("q")
    async def handle(body: int) -> None: ...

    async def story() -> None:
        async with scene.at_work():
            await until(lambda: reports(scene))
            away = bide.StoreUnavailable("away")
            scene.engine.fail(away, when=lambda command: command.queue == REGISTER, times=None)
            await scene.pass_time(lambda: not reports(scene), 5)
            while True:
                try:
                    await scene.put(1)
                    break
                except bide.StoreUnavailable:  # it went in one batch with a command that fails
                    pass
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.acked == 1)
            scene.engine.heal()
            await scene.pass_time(lambda: reports(scene), 1)

    scene.play(story())


def test_who_is_not_asked_to_says_nothing(scene: Scene) -> None:
    @scene.app.handler("q")
    async def handle(body: int) -> None: ...

    async def story() -> None:
        async with scene.at_work():
            await scene.put(1)
            await scene.acked(1)
        assert reports(scene) == []

    scene.play(story())
