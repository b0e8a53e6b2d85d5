"""How much is claimed and prefetched, of limited queues too, and when it is started."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bide.consuming.claiming import CLAIM_MOST, HOLD, MOST, Claimer, Prefetch
from bide.consuming.handling import Handling
from bide.model.commands import Claim, Configure, Put
from bide.model.message import Item, Message
from bide.model.rank import PROMOTE
from tests.system.worker.test_metrics import causes
from tests.system.worker.worker_app import PATIENCE, Scene, until


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


LEARN = 400
"""After so many handlers that end at once the worker knows that they do."""


def handling(arrived: float) -> Handling:
    handler: Any = None
    message = Message("m", "q", b"1", True, 0, 0, 1, 10, "leased")
    one = Handling(message, 7, 0, handler, SimpleNamespace())
    one.arrived = arrived
    return one


def paced(took: float, concurrency: int = 16, lease: float = 60.0) -> Prefetch:
    ahead = Prefetch(concurrency, lease)
    for _ in range(LEARN):
        ahead.ended(took)
    return ahead


def test_nothing_is_claimed_ahead_before_the_pace_is_known() -> None:
    assert Prefetch(16, 60.0).most == 0


@pytest.mark.parametrize(
    ("took", "most"), [(0.0, MOST), (0.0001, MOST), (0.0025, 127), (0.05, 6), (0.4, 0), (30.0, 0)]
)
def test_the_faster_handlers_are_the_more_waits(took: float, most: int) -> None:
    assert paced(took).most == most


def test_a_short_lease_leaves_little_time_to_wait() -> None:
    ahead = paced(0.0025, lease=0.1)
    assert ahead.most == paced(0.0025).most // 2
    assert ahead.hold == 0.025


def test_what_waits_too_long_is_taken_out_and_the_pace_is_learnt_anew() -> None:
    ahead = paced(0.0)
    ahead.waiting.extend([handling(1.0), handling(1.0), handling(1.0 + HOLD / 2)])
    assert ahead.overdue(1.0 + HOLD / 2) == []
    assert ahead.most == MOST
    assert len(ahead.overdue(1.0 + HOLD)) == 2
    assert len(ahead.waiting) == 1
    assert ahead.most == 0


@pytest.mark.parametrize(
    ("running", "waiting", "ahead", "room"),
    [
        (0, 0, 100, 110),
        (10, 0, 100, 100),
        (10, 50, 100, 50),
        (10, 51, 100, 0),
        (10, 5, 0, 0),
        (3, 0, 0, 7),
        (10, 0, 1, 1),
        (10, 1, 1, 0),
        (0, 0, 0, 10),
        (12, 0, 0, 0),
        (0, 0, 10_000, CLAIM_MOST),
    ],
)
def test_half_of_what_waits_is_gone_before_more_is_claimed(
    running: int, waiting: int, ahead: int, room: int
) -> None:
    consumer: Any = SimpleNamespace(
        queue_handlers=SimpleNamespace(concurrency=10),
        running=range(running),
        _limited=False,
        prefetch=SimpleNamespace(waiting=range(waiting), most=ahead),
    )
    assert Claimer.room(consumer) == (room, None)


class Stuck:
    """A handler that ends at once, until it is told to stick."""

    def __init__(self, scene: Scene) -> None:
        self.sticks = False
        self.gate = asyncio.Event()
        self.started = 0
        self.lateness: list[float] = []

        @scene.app.handler("q", concurrency=4)
        async def handle(delivery: Handling) -> None:
            self.started += 1
            self.lateness.append(delivery.lateness)
            if self.sticks:
                await self.gate.wait()


async def learn(scene: Scene, stuck: Stuck, then: int) -> None:
    """Let the worker learn that handlers end at once; then let them stick, with more to do."""
    await scene.put(*range(LEARN))
    await scene.acked(LEARN)
    stuck.sticks, stuck.started = True, 0
    stuck.lateness.clear()
    await scene.put(*range(then))
    await until(lambda: stuck.started == 4)


def test_more_is_claimed_than_places_when_handlers_end_at_once(scene: Scene) -> None:
    async def story() -> None:
        Stuck(scene)
        await scene.put(*range(2_000))
        async with scene.at_work():
            await scene.acked(2_000)
        counts = [command.count for command in scene.sent(Claim)]
        assert counts[0] == 4
        assert 4 < max(counts) <= 4 + MOST

    scene.play(story())


def test_what_waits_for_a_place_goes_back_untouched_when_none_comes_free(scene: Scene) -> None:
    async def story() -> None:
        stuck = Stuck(scene)
        async with scene.at_work() as runner:
            await learn(scene, stuck, then=40)
            assert (await scene.counts()).sizes.leased == 40
            scene.clock.advance(HOLD)
            await until(lambda: scene.counts_in_file("q").sizes.leased == 4)
            sizes = (await scene.counts()).sizes
            assert (sizes.ready, sizes.leased) == (36, 4)
            assert len(runner.consumers["q"].running) == 4
            stuck.gate.set()
            await scene.acked(LEARN + 40)
            flow = (await scene.counts()).flow
            assert (flow.retried, flow.lapsed) == (0, 0)

    scene.play(story())


def test_the_wait_for_a_place_counts_as_lateness(scene: Scene) -> None:
    async def story() -> None:
        stuck = Stuck(scene)
        async with scene.at_work():
            await learn(scene, stuck, then=8)
            scene.clock.advance(HOLD / 2)
            stuck.gate.set()
            await scene.acked(LEARN + 8)
        assert [round(late, 3) for late in stuck.lateness] == [0.0] * 4 + [HOLD / 2] * 4

    scene.play(story())


def test_what_waits_for_a_place_goes_back_at_once_when_the_worker_stops(scene: Scene) -> None:
    async def story() -> None:
        stuck = Stuck(scene)
        async with scene.at_work() as runner:
            await learn(scene, stuck, then=40)
            runner.stop()
            await until(lambda: scene.counts_in_file("q").sizes.leased == 4)
            stuck.gate.set()
        counts = await scene.counts()
        assert counts.flow.acked == LEARN + 4
        assert (counts.sizes.ready, counts.flow.retried) == (36, 0)

    scene.play(story())


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


def test_a_worker_that_is_busy_sorts_a_backlog(scene: Scene) -> None:
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
            await until(lambda: len(order) >= 3)
        assert order[:3] == ["a0", "a1", "b0"]  # b is new, and joins the next round
        assert [command.count for command in scene.sent(Claim)][1:3] == [0, 0]

    scene.play(story())


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
