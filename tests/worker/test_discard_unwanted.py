"""What is asked before a delivery: whether it is still wanted."""

from typing import Any

import bide
from tests.worker.worker_app import FAST, Scene, both, register


@both
def test_what_is_no_longer_wanted_is_discarded(scene: Scene, is_async: bool) -> None:
    seen: list[int] = []

    async def async_wanted(body: int) -> bool:
        return body % 2 == 1

    async def story() -> None:
        wanted = async_wanted if is_async else (lambda body: body % 2 == 1)
        register(scene, is_async, seen.append, still_wanted=wanted)
        await scene.put(1, 2, 3)
        async with scene.at_work():
            await scene.acked(3)
        assert sorted(seen) == [1, 3]

    scene.play(story())


def test_still_wanted_goes_with_every_order_of_arguments(scene: Scene) -> None:
    seen: list[Any] = []

    async def wanted(body: int) -> bool:
        return True

    async def story() -> None:
        @scene.app.handler("q", still_wanted=wanted)
        async def handle(delivery: bide.Delivery, body: int) -> None:
            seen.append((delivery.id, body))

        await scene.put(5)
        async with scene.at_work():
            await scene.acked(1)
        assert seen == [("q-0", 5)]

    scene.play(story())


@both
def test_still_wanted_may_look_at_the_delivery(scene: Scene, is_async: bool) -> None:
    seen: list[int] = []
    asked: list[tuple[int, str, object]] = []

    def check(body: int, delivery: bide.Handling) -> bool:
        asked.append((body, delivery.id, delivery.state.table))
        return delivery.attempt > 1

    async def async_check(body: int, delivery: bide.Handling) -> bool:
        return check(body, delivery)

    async def story() -> None:
        scene.app.state.table = {}
        wanted = async_check if is_async else check
        register(scene, is_async, seen.append, still_wanted=wanted)
        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)
        assert asked == [(1, "q-0", {})]
        assert seen == []

    scene.play(story())


def test_a_check_that_fails_has_the_message_tried_again(scene: Scene) -> None:
    """The database that it asks is away: nobody knows whether the order still exists."""
    seen: list[int] = []
    down = [OSError("the database is down")]

    def wanted(body: int, extra: str = "") -> bool:
        assert extra == ""  # a default stays one
        if down:
            raise down.pop()
        return True

    async def story() -> None:
        register(scene, False, seen.append, still_wanted=wanted)
        await scene.put(1)
        async with scene.at_work():
            await scene.delayed(1)
            assert "the database is down" in ((await scene.find("q-0")).error or "")
            await scene.pass_time(lambda: seen == [1], 1)

    scene.play(story())


def test_what_is_written_in_c_may_be_asked_as_well(scene: Scene) -> None:
    seen: list[int] = []

    async def story() -> None:
        register(scene, False, seen.append, still_wanted={2}.__contains__)
        scene.app.handler("p", still_wanted=bool)(lambda body: seen.append(body))
        await scene.put(1, 2)
        await scene.put(0, 3, queue="p")
        async with scene.at_work():
            await scene.acked(2)
            await scene.acked(2, "p")
        assert sorted(seen) == [2, 3]

    scene.play(story())


def test_a_check_that_returns_a_coroutine_is_no_yes(scene: Scene) -> None:
    ran: list[Any] = []

    async def ask(body: Any) -> bool:
        return False

    async def story() -> None:
        handler = scene.app.handler("q", retry=FAST, still_wanted=lambda body: ask(body))
        handler(ran.append)
        await scene.put("a", attempts=1)
        async with scene.at_work():
            await scene.dead(1)
        letter = await scene.find("q-0")
        assert "still_wanted of " in letter.failures[-1].reason

    scene.play(story())
    assert ran == []
