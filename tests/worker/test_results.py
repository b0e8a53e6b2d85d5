"""What handlers return, in a queue that remembers results."""

import asyncio
import logging
from typing import Any, TypeVar

import pytest

from bide.model.commands import Claim, Command, Configure, History
from bide.model.replies import Claimed, Ends, QueueSettings, Reply
from tests.worker.worker_app import Scene, both, register

R = TypeVar("R", bound=Reply)


async def asked(scene: Scene, kind: type[R], command: Command) -> R:
    reply = await scene.lane.acall(command)
    assert isinstance(reply, kind)
    return reply


@both
def test_what_a_handler_returns_is_its_result(scene: Scene, is_async: bool) -> None:
    def double(body: Any) -> Any:
        return None if body == 3 else {"twice": 2 * body}

    async def story() -> None:
        register(scene, is_async, double)
        await asked(scene, QueueSettings, Configure("q", result_ttl=3_600_000))
        await scene.put(*range(4))
        async with scene.at_work():
            await scene.acked(4)
        results = [
            (await asked(scene, Ends, History("q", f"q-{n}"))).ends[0].result for n in range(4)
        ]
        assert results == [b'{"twice":0}', b'{"twice":2}', b'{"twice":4}', None]

    scene.play(story())


class Unreadable:
    """A model of pydantic with a computed field whose code fails."""

    def model_dump(self, **_: object) -> dict[str, Any]:
        raise KeyError("total")


@both
@pytest.mark.parametrize("returned", [object(), Unreadable()])
def test_what_cannot_be_a_result_is_logged_and_acked(
    scene: Scene, caplog: pytest.LogCaptureFixture, is_async: bool, returned: object
) -> None:
    async def story() -> None:
        register(scene, is_async, lambda body: returned)
        await asked(scene, QueueSettings, Configure("q", result_ttl=3_600_000))
        await scene.put(1)
        with caplog.at_level(logging.ERROR):
            async with scene.at_work():
                await scene.acked(1)
        (end,) = (await asked(scene, Ends, History("q", "q-0"))).ends
        assert (end.how, end.result) == ("acked", None)

    scene.play(story())
    assert "returned what cannot be kept as its result" in caplog.text


def test_a_queue_without_results_takes_what_handlers_return(scene: Scene) -> None:
    async def story() -> None:
        register(scene, False, lambda body: object())
        await scene.put(1)
        async with scene.at_work():
            await scene.acked(1)

    scene.play(story())


def test_a_claim_that_brings_no_message_leaves_the_results_of_running_handlers(
    scene: Scene,
) -> None:
    async def story() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        @scene.app.handler("q", concurrency=2)
        async def handle(body: Any) -> Any:
            begun.set()
            await go_on.wait()
            return body

        await asked(scene, QueueSettings, Configure("q", result_ttl=3_600_000))
        await scene.put("lost", attempts=1)
        await asked(scene, Claimed, Claim("q", 1, 1_000, "another worker"))
        await scene.put("kept", id="kept")
        async with scene.at_work():
            await begun.wait()
            await scene.pass_time(lambda: scene.counts_in_file("q").sizes.dead)
            go_on.set()
            await scene.acked(1)
        (end,) = (await asked(scene, Ends, History("q", "kept"))).ends
        assert end.result == b'"kept"'

    scene.play(story())
