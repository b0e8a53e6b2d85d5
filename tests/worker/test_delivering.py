"""From a claim to what becomes of the message."""

import asyncio
from typing import Any

import pytest

import bide
from bide.consuming.outcomes import ChosenOutcome
from bide.model.commands import Ack, BuryCommand, RetryCommand
from tests.worker.worker_app import FAST, Scene, both, register


@both
def test_what_returns_is_acked(scene: Scene, is_async: bool) -> None:
    seen: list[Any] = []

    async def story() -> None:
        register(scene, is_async, seen.append)
        await scene.put(*range(20))
        async with scene.at_work():
            await scene.acked(20)
        assert sorted(seen) == list(range(20))
        assert (await scene.counts()).sizes.total == 0

    scene.play(story())


@both
def test_failures_are_tried_again_by_the_backoff_and_then_dead(
    scene: Scene, is_async: bool
) -> None:
    def fail(body: Any) -> None:
        raise OSError(f"no {body}")

    async def story() -> None:
        register(scene, is_async, fail, retry=FAST)
        await scene.put("luck")
        async with scene.at_work():
            for pause in (10, 20):
                await scene.delayed(1)
                found = await scene.find("q-0")
                assert found.due == scene.clock.now() + pause * 1000
                scene.clock.advance(pause)
            await scene.dead(1)
        letter = await scene.find("q-0")
        assert [failure.attempt for failure in letter.failures] == [1, 2, 3]
        moments = [failure.moment for failure in letter.failures]
        assert [later - moments[0] for later in moments] == [0, 10_000, 30_000]
        for failure in letter.failures:
            assert failure.reason.startswith("OSError: no luck\nTraceback")
            assert "in fail" in failure.reason
            assert "bide/worker" not in failure.reason
            assert ":" in failure.holder

    scene.play(story())


@both
def test_an_error_that_is_not_worth_it_is_dead_at_once(scene: Scene, is_async: bool) -> None:
    def fail(_: Any) -> None:
        raise KeyError("x")

    async def story() -> None:
        register(scene, is_async, fail, retry=bide.Backoff(on=(OSError,)))
        await scene.put(1)
        async with scene.at_work():
            await scene.dead(1)
        assert (await scene.find("q-0")).attempt == 1

    scene.play(story())


class Unspeakable(BaseException):
    def __repr__(self) -> str:
        raise ValueError("this error cannot be shown")


@both
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, Unspeakable])
def test_what_ends_a_program_does_not_end_the_worker(
    scene: Scene, is_async: bool, kind: type[BaseException]
) -> None:
    seen: list[Any] = []

    def fail(body: Any) -> None:
        seen.append(body)
        if body == "bad":
            raise kind

    async def story() -> None:
        register(scene, is_async, fail, retry=bide.Backoff(attempts=1))
        await scene.put("bad", id="bad")
        async with scene.at_work():
            await scene.dead(1)
            await scene.put("good", id="good")
            await scene.acked(1)
        assert seen == ["bad", "good"]
        assert kind.__name__ in ((await scene.find("bad")).error or "")

    scene.play(story())


@both
def test_a_handler_that_raises_stop_iteration_has_failed(scene: Scene, is_async: bool) -> None:
    def fail(_: Any) -> None:
        next(iter(()))

    async def story() -> None:
        register(scene, is_async, fail, retry=bide.Backoff(attempts=1))
        await scene.put(1)
        async with scene.at_work():
            await scene.dead(1)

    scene.play(story())


def test_a_handler_that_cancels_itself_has_failed(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", retry=FAST)
        async def handle(_: Any) -> None:
            raise asyncio.CancelledError

        await scene.put(1)
        async with scene.at_work():
            await scene.delayed(1)
        assert (await scene.find("q-0")).error is not None

    scene.play(story())


@both
def test_signals_steer(scene: Scene, is_async: bool) -> None:
    signals: dict[str, ChosenOutcome] = {
        "later": bide.Retry(delay="5m", reason="closed"),
        "never": bide.Discard("paid"),
        "aside": bide.Bury("forged"),
    }

    def steer(body: str) -> None:
        raise signals[body]

    async def story() -> None:
        register(scene, is_async, steer, retry=bide.Backoff(on=(OSError,)))
        for name in signals:
            await scene.put(name, id=name)
        async with scene.at_work():
            await scene.dead(1)
            await scene.acked(1)
            await scene.delayed(1)
            later, aside = await scene.find("later"), await scene.find("aside")
            assert (later.due, later.error) == (scene.clock.now() + 300_000, "closed")
        assert (aside.state, aside.error) == ("dead", "forged")

    scene.play(story())


@both
def test_a_body_that_does_not_fit_is_dead_at_once(scene: Scene, is_async: bool) -> None:
    async def on_loop(number: int) -> None:
        raise AssertionError("it must not be called")

    def plain(number: int) -> None:
        raise AssertionError("it must not be called")

    async def story() -> None:
        scene.app.handler("q")(on_loop if is_async else plain)
        await scene.put("x", b"x")
        async with scene.at_work():
            await scene.dead(2)
        assert (
            await scene.find("q-0")
        ).error == "Unfit: the body is no int: Expected `int`, got `str`"
        assert (
            await scene.find("q-1")
        ).error == "Unfit: the body is bytes, and the handler takes a int"
        assert [command.weight for command in scene.sent(BuryCommand)] == [1, 1]
        assert scene.sent(RetryCommand) == []

    scene.play(story())


def test_acks_of_one_turn_are_one_command(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", concurrency=100)
        async def handle(_: Any) -> None:
            await asyncio.sleep(0)

        await scene.put(*range(250))
        async with scene.at_work():
            await scene.acked(250)
        assert sum(command.weight for command in scene.sent(Ack)) == 250
        assert len(scene.sent(Ack)) <= 5

    scene.play(story())


class Jinxed(bide.Bury):
    """An exception whose own code fails where it is judged."""

    def __init__(self) -> None:
        pass

    @property
    def reason(self) -> str:  # type: ignore[override]
        raise RuntimeError("broken")


@both
def test_an_exception_that_cannot_be_judged_keeps_no_place(scene: Scene, is_async: bool) -> None:
    seen: list[Any] = []

    def handle(body: Any) -> None:
        if body == "bad":
            raise Jinxed
        seen.append(body)

    async def story() -> None:
        register(scene, is_async, handle, concurrency=1, retry=FAST)
        await scene.put("bad", attempts=1)
        await scene.put("good", id="good")
        async with scene.at_work():
            await scene.dead(1)
            await scene.acked(1)
        letter = await scene.find("q-0")
        assert letter.failures[-1].reason.startswith(
            "Jinxed was raised, and its own code failed: RuntimeError: broken\n"
        )

    scene.play(story())
    assert seen == ["good"]


def test_a_coroutine_that_a_plain_handler_returns_is_no_success(scene: Scene) -> None:
    ran: list[Any] = []

    async def work(body: Any) -> None:
        ran.append(body)

    def hidden(body: Any) -> Any:  # as a decorator that knows nothing of async functions
        return work(body)

    async def story() -> None:
        scene.app.handler("q", retry=FAST)(hidden)
        await scene.put("a", attempts=1)
        async with scene.at_work():
            await scene.dead(1)
        letter = await scene.find("q-0")
        assert "returned a coroutine, of which nothing has run" in letter.failures[-1].reason

    scene.play(story())
    assert ran == []
