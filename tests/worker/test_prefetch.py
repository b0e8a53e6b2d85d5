"""What is claimed ahead of free places: how much, for how long, and who gets it instead."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bide.consuming.claiming import CLAIM_MOST, HOLD, MOST, Claimer, Prefetch
from bide.consuming.handling import Handling
from bide.model.commands import Claim
from bide.model.message import Message
from tests.worker.worker_app import Scene, until

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
        _prefetch=SimpleNamespace(waiting=range(waiting), most=ahead),
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
