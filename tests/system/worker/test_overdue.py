"""The plan of a queue for what is overdue, applied by workers before their first claim."""

from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

import bide
from bide.consuming.overdue import GAP
from bide.consuming.store_lock import LOCKED
from bide.model.commands import Cancel, Claim, Configure, Count, Explain, Find, Postpone, Put, Scan
from bide.model.internal_queues import InternalQueue
from bide.model.message import Item, Message
from bide.model.replies import Found, Page, expect
from bide.observing.heartbeat import Report, put_report
from tests.system.worker.worker_app import Scene, until

MINUTE = 60_000
LATE = 5 * MINUTE
COUNT = 10
LOCK = InternalQueue.RECOVERY.value


def handler(scene: Scene, **options: Any) -> list[Any]:
    """Register a handler; return what it has got so far."""
    handled: list[Any] = []

    @scene.app.handler("q", **options)
    async def handle(body: Any) -> None:
        handled.append(body)

    return handled


async def put_late(scene: Scene, ms: int = LATE) -> None:
    """Put messages that have been due for so long."""
    await scene.put(*range(COUNT), at=scene.clock.now() - ms)


async def set_plan(scene: Scene, plan: str = "spread 10m") -> None:
    await scene.lane.acall(Configure("q", overdue=plan))


async def messages(scene: Scene) -> list[Message]:
    page = expect(Page, await scene.lane.acall(Scan("q", "next")))
    return page.messages


async def report(scene: Scene, holder: str, began: int) -> None:
    """Report that another worker is alive, and serves the queue."""
    await scene.lane.acall(put_report(holder, Report({holder: ["q"]}, began=began)))


async def lock(scene: Scene) -> Message | None:
    found = expect(Found, await scene.lane.acall(Find(LOCK, ["q"])))
    return found.messages[0]


async def spread_out(scene: Scene) -> None:
    """Wait until all messages but the first, which is due at once, have places in the plan."""

    async def is_done() -> bool:
        waiting = await messages(scene)
        return len(waiting) == COUNT - 1 and all(message.planned for message in waiting)

    while not await is_done():
        await scene.step(0.1)


def test_a_worker_applies_the_plan_before_its_first_claim(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    handled = handler(scene, overdue="spread 10m")

    async def story() -> None:
        await put_late(scene)
        async with scene.at_work():
            await spread_out(scene)
            waiting = await messages(scene)
            dues = [message.due for message in waiting]
            assert {later - due for due, later in pairwise(dues)} == {MINUTE}
            assert {message.planned for message in waiting} == {waiting[0].planned}
            await scene.pass_time(lambda: len(handled) == 1)
            await scene.pass_time(lambda: len(handled) == 3, step=10)
            assert await lock(scene) is None

    scene.play(story())
    assert f"{COUNT} messages were overdue; by its setting 'spread 10m'" in caplog.text
    assert "to take it back: bide undo q " in caplog.text


@pytest.mark.parametrize(("plan", "late"), [("", LATE), ("spread 10m", GAP - 5_000)])
def test_without_a_plan_or_a_gap_messages_are_delivered_as_they_are(
    scene: Scene, plan: str, late: int
) -> None:
    handled = handler(scene)

    async def story() -> None:
        await put_late(scene, late)
        await set_plan(scene, plan)
        async with scene.at_work():
            await scene.pass_time(lambda: len(handled) == COUNT)

    scene.play(story())


@pytest.mark.parametrize(
    ("began", "silent", "applied"),
    [(2 * GAP, False, False), (GAP // 2, False, True), (2 * GAP, True, True)],
    ids=["attends", "has just begun", "has died"],
)
def test_another_worker_that_attends_the_queue_says_that_there_was_no_gap(
    scene: Scene, *, began: int, silent: bool, applied: bool
) -> None:
    handled = handler(scene)

    async def story() -> None:
        await set_plan(scene)
        await report(scene, "other", scene.clock.now() - began)
        if silent:
            scene.clock.advance(30)
        await put_late(scene)
        async with scene.at_work():
            if applied:
                await spread_out(scene)
            else:
                await scene.pass_time(lambda: len(handled) == COUNT)

    scene.play(story())


def test_of_two_workers_that_start_together_one_applies_the_plan(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    handled = handler(scene, overdue="spread 10m")

    async def story() -> None:
        await put_late(scene)
        async with scene.at_work(holder="one"), scene.at_work(holder="two"):
            await spread_out(scene)
            await scene.pass_time(lambda: len(handled) == 2, step=1)

    scene.play(story())
    assert caplog.text.count("messages were overdue") == 1


def test_a_worker_waits_for_the_one_that_is_at_it(scene: Scene) -> None:
    handled = handler(scene)

    async def story() -> None:
        await set_plan(scene)
        await put_late(scene)
        item = Item("q", b"other", json=False, delay=LOCKED)
        await scene.lane.acall(Put(LOCK, [item]))
        async with scene.at_work():
            for _ in range(50):
                await scene.step(0.1)
            assert handled == []
            assert all(message.planned is None for message in await messages(scene))
            await spread_out(scene)  # the other one has died: this one goes on after a while
            assert await lock(scene) is None

    scene.play(story())


def test_a_worker_that_is_killed_amid_the_plan_leaves_the_rest_to_the_next(scene: Scene) -> None:
    handler(scene, overdue="drop 1h, spread 10m")

    async def story() -> None:
        await scene.put("too late", at=scene.clock.now() - 2 * 60 * MINUTE, id="too late")
        await put_late(scene)
        # What it sends now reaches the store no more, as if it had been killed.
        fault = scene.engine.fail(
            bide.Closed("killed"),
            times=None,
            when=lambda command: (
                command.queue in ("q", LOCK) and isinstance(command, (Postpone, Claim, Cancel))
            ),
        )
        with suppress(bide.Closed):
            async with scene.at_work():
                await until(lambda: fault.struck)
        assert await lock(scene) is not None
        scene.engine.heal()
        async with scene.at_work():
            await spread_out(scene)

    scene.play(story())


def test_after_an_outage_of_the_store_the_plan_is_applied(scene: Scene) -> None:
    handled = handler(scene, overdue="spread 10m")

    async def story() -> None:
        async with scene.at_work():
            await scene.put("before", id="before")
            await scene.pass_time(lambda: handled == ["before"])
            await scene.put(*range(COUNT), delay=10_000)
            fault = scene.engine.fail(
                bide.StoreUnavailable("gone"),
                times=None,
                when=lambda command: isinstance(command, (Claim, Count, Explain)),
            )
            scene.clock.advance(1)
            await until(lambda: fault.struck)
            for _ in range(90):
                await scene.step(2)
            scene.engine.heal()
            await spread_out(scene)
            await scene.pass_time(lambda: len(handled) == 2)

    scene.play(story())


def test_a_short_outage_is_no_gap(scene: Scene) -> None:
    handled = handler(scene, overdue="spread 10m")

    async def story() -> None:
        async with scene.at_work():
            await scene.put("before", id="before")
            await scene.pass_time(lambda: handled == ["before"])
            await scene.put(*range(COUNT), delay=2_000)
            fault = scene.engine.fail(
                bide.StoreUnavailable("gone"),
                times=None,
                when=lambda command: isinstance(command, Claim),
            )
            scene.clock.advance(1)
            await until(lambda: fault.struck)
            for _ in range(10):
                await scene.step(1)
            scene.engine.heal()
            await scene.pass_time(lambda: len(handled) == COUNT + 1)

    scene.play(story())


def test_a_worker_works_with_a_plan_that_it_cannot_read(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    handled = handler(scene)

    async def story() -> None:
        await set_plan(scene, "as the next version says")
        await put_late(scene)
        async with scene.at_work():
            await scene.pass_time(lambda: len(handled) == COUNT)

    scene.play(story())
    assert "overdue messages are delivered without a plan" in caplog.text


def test_lateness_counts_from_the_planned_time(scene: Scene) -> None:
    lateness: list[float] = []

    @scene.app.handler("q", overdue="spread 10m")
    async def handle(body: Any, delivery: bide.Delivery) -> None:
        lateness.append(delivery.lateness)

    async def story() -> None:
        await put_late(scene)
        async with scene.at_work():
            await spread_out(scene)
            await scene.pass_time(lambda: len(lateness) == 2, step=1)

    scene.play(story())
    assert all(seconds >= LATE / 1000 for seconds in lateness)
