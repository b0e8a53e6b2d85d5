"""Messages that kill their process, and those that were only beside them."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bide
from bide.consuming.handling import Handling
from bide.consuming.isolation import PAUSE, SPACING, CrashIsolation, is_suspect
from bide.model.commands import Claim, RetryCommand
from bide.model.message import LAPSED, Failure, Message
from tests.effort import one_in
from tests.system.worker.processes import log, wait_for, worker
from tests.system.worker.worker_app import Scene, both, until


def failures(*reasons: str) -> tuple[Failure, ...]:
    return tuple(Failure(number + 1, 0, "w", reason) for number, reason in enumerate(reasons))


def suspect() -> Handling:
    past = failures(LAPSED, LAPSED)
    message = Message("m", "q", b"1", True, 0, 0, 3, 10, "leased", failures=past)
    app = bide.App("memory://")
    app.handler("q")(lambda body: None)
    return Handling(message, 1, 0, app.queue_handlers["q"].any, SimpleNamespace())


@pytest.mark.parametrize(
    ("reasons", "attempt", "attempts", "suspected"),
    [
        ((), 1, 10, False),
        ((LAPSED,), 2, 10, False),
        ((LAPSED,), 2, 2, True),
        ((LAPSED, LAPSED), 3, 10, True),
        ((LAPSED, LAPSED), 3, 3, True),
        (("OSError", LAPSED), 3, 10, False),
        (("OSError", LAPSED), 3, 3, True),
        ((LAPSED, "OSError"), 3, 3, False),
        ((LAPSED, LAPSED), 1, 10, False),  # revived
        ((LAPSED, LAPSED), 1, 1, False),
        ((LAPSED, LAPSED, LAPSED), 2, 10, False),
    ],
)
def test_two_lapses_or_one_before_the_last_attempt_make_a_suspect(
    reasons: tuple[str, ...], attempt: int, attempts: int, suspected: bool
) -> None:
    past = failures(*reasons)
    message = Message("m", "q", b"1", True, 0, 0, attempt, attempts, "leased", failures=past)
    assert is_suspect(message) == suspected


def test_who_may_not_begin_comes_back_spread_over_time() -> None:
    crash_isolation, one = CrashIsolation(), suspect()
    delays = [crash_isolation.release(one, 100.0, 0.0) for _ in range(100)]
    assert delays[0] == round((PAUSE + SPACING) * 1000)
    assert delays[-1] == round((PAUSE + 100 * SPACING) * 1000)
    assert crash_isolation.release(one, 200.0, 1.0) == round((2 * PAUSE + SPACING) * 1000)


def test_suspects_run_one_at_a_time_over_all_queues_and_others_go_on(scene: Scene) -> None:
    most = 0
    now: list[str] = []
    going = asyncio.Event()

    async def story() -> None:
        async def handle(_: Any, delivery: bide.Handling) -> None:
            nonlocal most
            if not delivery.message.failures:
                return
            now.append(delivery.id)
            most = max(most, len(now))
            await going.wait()
            now.remove(delivery.id)

        scene.app.handler("q", lease="10m")(handle)
        scene.app.handler("r", lease="10m")(handle)
        past = failures(LAPSED, LAPSED)
        await scene.put(*range(20), queue="q", attempts=3, attempt=2, failures=past)
        await scene.put(*range(20), queue="r", attempts=10, attempt=2, failures=past)
        async with scene.at_work() as runner:
            await until(lambda: _delayed(scene) == 39 and len(now) == 1)
            await scene.put(1, id="fresh")
            await until(lambda: runner.consumers["q"].tally.outcomes.get("acked") == 1)
            claims = len(scene.sent(Claim))
            for _ in range(20):
                await scene.step(PAUSE / 5)
            assert len(scene.sent(Claim)) - claims < 400
            going.set()
            await scene.pass_time(
                lambda: (
                    scene.counts_in_file("q").flow.acked == 21
                    and scene.counts_in_file("r").flow.acked == 20
                )
            )
        assert most == 1
        assert (await scene.counts()).flow.lapsed == 0
        assert all(command.delay >= PAUSE * 1000 for command in scene.sent(RetryCommand))

    scene.play(story())


def _delayed(scene: Scene) -> int:
    return sum(scene.counts_in_file(queue).sizes.delayed for queue in "qr")


@both
def test_a_suspect_starts_when_the_store_has_taken_the_others_back(
    scene: Scene, is_async: bool
) -> None:
    """So a message that kills its process at once does so alone."""

    async def story() -> None:
        held_beside: list[int] = []

        def plain(_: Any) -> None:
            held_beside.append(scene.counts_in_file("q").sizes.leased - 1)

        async def handle(_: Any) -> None:
            plain(_)

        scene.app.handler("q", lease="10m")(handle if is_async else plain)
        past = failures(LAPSED, LAPSED)
        await scene.put(*range(20), queue="q", attempts=3, attempt=2, failures=past)
        async with scene.at_work():
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.acked == 20)
        assert len(held_beside) == 20
        assert held_beside[0] == 0

    scene.play(story())


POISON = """
import asyncio, os, time, bide
app = bide.App()

async def handle(body: str, delivery: bide.Handling) -> None:
    if body == "poison":
        await asyncio.sleep(0.1)
        await asyncio.to_thread(die, delivery.message.attempt)
    await asyncio.sleep(0.2)

def die(attempt: int) -> None:
    with bide.Queue("q") as q, bide.Queue("r") as r:
        while attempt == 3 and not alone(q, r):
            time.sleep(0.01)
        os._exit(1)

def alone(*queues: bide.Queue) -> bool:
    # A suspect comes back now and then, and is held until it is released again. The due times are
    # read first: what they show as delayed for long enough is still there when the counts are read.
    dues = [message.due for queue in queues for message in queue.scan("delayed")]
    total = sum(queue.counts().sizes.total for queue in queues)
    return len(dues) + 1 == total and all(due > time.time() * 1000 + 200 for due in dues)

app.handler("q", lease="LEASE")(handle)
app.handler("r", lease="LEASE")(handle)
"""


@pytest.mark.process
@pytest.mark.parametrize("lease", one_in(2, ["1500ms", "10m"]))
def test_a_poison_message_takes_nobody_with_it(tmp_path: Path, lease: str) -> None:
    """Whether the leases of the dead lapse, or the next process ends them."""
    url = f"sqlite:///{tmp_path / 'bide.db'}"
    with bide.Queue("q", url) as queue, bide.Queue("r", url) as other:
        for number in range(3):
            queue.put("innocent", id=f"q-{number}", attempts=3)
            other.put("innocent", id=f"r-{number}", attempts=3)
        queue.put("poison", id="poison", attempts=3)
        with worker(tmp_path, POISON.replace("LEASE", lease)):
            wait_for(lambda: other.counts().flow.acked == 3, tmp_path)
            wait_for(lambda: queue.counts().flow.acked == 3, tmp_path)
            wait_for(lambda: queue.counts().sizes.dead == 1, tmp_path)
        (letter,) = queue.dead()
        assert letter.id == "poison"
        assert [failure.lapsed for failure in letter.failures] == [True] * 3
        assert (queue.counts().sizes.total, other.counts().sizes.total) == (1, 0)
    assert log(tmp_path).count("has died (") == 3
