"""A worker and a limited queue: it takes its share, and nothing that others could start."""

import asyncio
from typing import Any

import msgspec

from bide.model.commands import Claim, Configure, Put
from bide.model.message import Item
from bide.model.rank import PROMOTE
from tests.worker.test_late_causes import causes
from tests.worker.worker_app import Scene, until


async def put(scene: Scene, group: str, count: int) -> None:
    """Put messages of a group, whose bodies and ids are "a0", "a1", and so on."""
    names = [f"{group}{number}" for number in range(count)]
    items = [Item(name, msgspec.json.encode(name), group=group) for name in names]
    await scene.lane.acall(Put("q", items))


def test_no_more_handlers_run_than_the_limit_allows(scene: Scene) -> None:
    running: set[int] = set()
    most = 0

    async def story() -> None:
        @scene.app.handler("q", concurrency=8)
        async def handle(number: int) -> None:
            nonlocal most
            running.add(number)
            most = max(most, len(running))
            await asyncio.sleep(0)
            running.remove(number)

        await scene.lane.acall(Configure("q", limit=3))
        await scene.put(*range(60))
        async with scene.at_work():
            await scene.acked(60)
        assert 1 <= most <= 3
        assert all(command.slots for command in scene.sent(Claim) if command.count)

    scene.play(story())


def test_a_limited_queue_is_not_prefetched(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", concurrency=2)
        async def handle(_: Any) -> None:
            return

        await scene.lane.acall(Configure("q", group_limit=1_000))
        await scene.put(*range(400))
        async with scene.at_work():
            await scene.acked(400)
        later = [command.count for command in scene.sent(Claim)][2:]
        assert max(later) <= 2

    scene.play(story())


def test_the_end_of_a_message_starts_the_next_of_its_group(scene: Scene) -> None:
    order: list[str] = []

    async def story() -> None:
        @scene.app.handler("q", concurrency=5)
        async def handle(name: str) -> None:
            order.append(name)
            await asyncio.sleep(0)

        await scene.lane.acall(Configure("q", group_limit=1))
        async with scene.at_work():
            for group in ("a", "b"):
                await put(scene, group, 20)
            await scene.acked(40)
        for group in ("a", "b"):
            mine = [name for name in order if name.startswith(group)]
            assert mine == [f"{group}{n}" for n in range(20)]

    scene.play(story())


def test_a_worker_that_is_busy_lines_up_a_backlog(scene: Scene) -> None:
    order: list[str] = []

    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q", concurrency=1)
        async def handle(name: str) -> None:
            order.append(name)
            await gate.wait()

        await scene.lane.acall(Configure("q", limit=1))
        await put(scene, "a", 2 * PROMOTE + 1)
        await put(scene, "b", 1)
        async with scene.at_work():
            await until(lambda: len(scene.sent(Claim)) == 3 and order)
            gate.set()
            await until(lambda: len(order) >= 2)
        assert order[:2] == ["a0", "b0"]
        assert [command.count for command in scene.sent(Claim)][1:3] == [0, 0]

    scene.play(story())


def test_a_burst_of_one_group_delays_no_other(scene: Scene) -> None:
    order: list[str] = []
    claims_before: list[int] = []

    async def story() -> None:
        @scene.app.handler("q", concurrency=1)
        async def handle(name: str) -> None:
            order.append(name)
            if name == "b0":
                claims_before.append(len(scene.sent(Claim)))

        await scene.lane.acall(Configure("q", group_limit=100))
        await put(scene, "a", 20 * PROMOTE)
        await put(scene, "b", 1)
        async with scene.at_work():
            await until(lambda: "b0" in order)

    scene.play(story())
    assert order.index("b0") == 1
    assert claims_before[0] <= 5  # of 20 that put all messages into lines


def test_lateness_names_the_limit(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", concurrency=4)
        async def handle(_: Any) -> None:
            return

        await scene.lane.acall(Configure("q", rate=10_000_000))
        async with scene.at_work() as runner:
            await scene.put(1, 2)
            await scene.pass_time(lambda: causes(runner).get("limit", 0) >= 9, 1)

    scene.play(story())
