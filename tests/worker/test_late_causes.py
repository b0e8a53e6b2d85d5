"""Why deliveries begin late: the worker finds it out from the store and its own claims."""

import asyncio

import bide
from bide.consuming.delivery_log import SUMMARY
from bide.model.commands import Configure, Explain, Put, Scan
from bide.model.message import Item
from bide.observing.heartbeat import REGISTER, Report
from bide.observing.workers import Seen, gaps_before, seen_of
from bide.worker.process.runner import Runner
from tests.worker.worker_app import Scene, until


def causes(runner: Runner) -> dict[str, float]:
    found = runner.tallies()["q"].causes
    return {cause: round(histogram.sum, 1) for cause, histogram in found.items()}


def handle(scene: Scene) -> None:
    @scene.app.handler("q", concurrency=1)
    async def handle(body: int) -> None: ...


def handle_until(scene: Scene) -> asyncio.Event:
    """Add a handler of one message at a time; return the event that it waits for."""
    over = asyncio.Event()

    @scene.app.handler("q", concurrency=1, lease="10m")
    async def handle(body: int) -> None:
        await over.wait()

    return over


def test_a_delivery_on_time_asks_the_store_nothing(scene: Scene) -> None:
    handle(scene)

    async def story() -> None:
        async with scene.at_work() as runner:
            await scene.put(1)
            await scene.acked(1)
            await scene.pass_time(lambda: causes(runner) == {"timer": 0.0}, SUMMARY)
            assert runner.tallies()["q"].causes["timer"].count == 1
            assert not scene.sent(Explain)

    scene.play(story())


def test_a_pause_and_what_follows_it(scene: Scene) -> None:
    handle(scene)

    async def story() -> None:
        await scene.lane.acall(Configure("q", paused=True))
        await scene.put(1)
        async with scene.at_work() as runner:
            scene.clock.advance(30)
            await scene.lane.acall(Configure("q", paused=False))
            await scene.acked(1)
            await scene.pass_time(lambda: causes(runner).get("paused", 0) >= 30, 1)

    scene.play(story())


def test_a_retry_counts_from_the_time_that_was_planned(scene: Scene) -> None:
    @scene.app.handler("q", retry=bide.Backoff(first="40s", jitter=0))
    async def handle(body: int, delivery: bide.Delivery) -> None:
        if delivery.attempt == 1:
            raise OSError("no")

    async def story() -> None:
        async with scene.at_work() as runner:
            await scene.put(1)
            await scene.delayed(1)
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.acked == 1, 1)
            await scene.pass_time(lambda: causes(runner).get("retry", 0) >= 39, 1)

    scene.play(story())


def test_who_waits_for_a_place_waits_for_the_backlog(scene: Scene) -> None:
    over = handle_until(scene)

    async def story() -> None:
        async with scene.at_work() as runner:
            await scene.put(1, 2)
            await until(lambda: runner.tallies()["q"].running == 1)
            scene.clock.advance(20)
            over.set()
            await scene.acked(2)
            await scene.pass_time(lambda: causes(runner).get("backlog", 0) >= 19, 1)

    scene.play(story())


def test_who_waits_for_a_place_counts_the_claim_that_brought_it(scene: Scene) -> None:
    over = handle_until(scene)

    async def story() -> None:
        async with scene.at_work() as runner:
            consumer = runner.consumers["q"]
            consumer._prefetch._pace = 0.0001  # as after many quick deliveries
            over.set()
            await scene.put(0)  # the claim after this one is for several
            await scene.acked(1)
            await until(lambda: consumer._claim and not consumer._claim.done())
            over.clear()
            claims, asked = consumer.tally.claims, consumer._asked
            scene.clock.advance(10)
            await scene.put(1, 2, at=scene.clock.now() - 5_000)
            await until(lambda: consumer._asked > asked)
            assert consumer.tally.claims == claims + 1
            over.set()
            await scene.acked(3)
            await scene.pass_time(lambda: causes(runner).get("timer", 0) >= 5, 1)
            assert causes(runner) == {"timer": 10}

    scene.play(story())


def test_before_the_first_worker_there_was_none(scene: Scene) -> None:
    handle(scene)

    async def story() -> None:
        await scene.put(1)
        scene.clock.advance(60)
        async with scene.at_work() as runner:
            await scene.acked(1)
            await scene.pass_time(lambda: causes(runner).get("no-worker", 0) == 60, 1)
        reply = await scene.lane.acall(Scan(REGISTER, "next"))
        assert reply.messages == []  # type: ignore[union-attr]

    scene.play(story())


def test_the_gaps_are_those_that_other_processes_leave() -> None:
    def seen(began: int, until: float, *gaps: tuple[float, float]) -> Seen:
        return Seen(Report({"w": ["q"]}, began=began, gaps={"q": list(gaps)}), until)

    alive = float("inf")
    assert gaps_before(["q"], [], 900)["q"] == [(0, 900)]
    assert gaps_before(["q"], [seen(300, alive, (0, 100), (200, 300))], 900)["q"] == [
        (0, 100),
        (200, 300),
    ]
    dead = seen(300, 500, (0, 300))
    assert gaps_before(["q"], [dead], 900)["q"] == [(0, 300), (500, 900)]
    assert gaps_before(["q"], [dead, seen(400, 700, (0, 300))], 900)["q"] == [(0, 300), (700, 900)]
    assert gaps_before(["q"], [dead, seen(600, alive, (0, 300), (500, 600))], 900)["q"] == [
        (0, 300),
        (500, 600),
    ]
    assert gaps_before(["other"], [dead], 900)["other"] == [(0, 900)]
    assert seen_of(dead.report, 50_000, 20_000).until == alive
    assert seen_of(dead.report, 50_000, 60_000).until == 30_000


def test_a_backlog_after_a_pause_is_all_looked_at_with_its_pause(scene: Scene) -> None:
    count = 3_000

    @scene.app.handler("q", concurrency=100)
    async def handle(body: int) -> None: ...

    async def story() -> None:
        await scene.lane.acall(Configure("q", paused=True))
        items = [Item(str(number), b"1") for number in range(count)]
        await scene.lane.acall(Put("q", items))
        async with scene.at_work() as runner:
            scene.clock.advance(30)
            await scene.lane.acall(Configure("q", paused=False))
            await scene.acked(count)
            await scene.pass_time(lambda: causes(runner).get("paused", 0) >= count * 30, 1)

    scene.play(story())
