"""Handlers with a window: a worker takes nothing while it is closed."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

import bide
from bide.consuming import late_causes
from bide.consuming.late_causes import blocks_of
from bide.lane.steps import arun_steps
from bide.model.commands import Claim, RetryCommand
from bide.model.replies import Claimed
from bide.model.time_rule import TimeRule
from bide.observing.circumstances import explaining
from bide.observing.explanation import Explanation
from bide.testing import FakeClock, ManualWorker, ScratchStore
from bide.worker.app.listing import facts_of
from tests.system.worker.test_metrics import causes
from tests.system.worker.worker_app import FAST, Scene, until

OFFICE = bide.Window("Mon-Fri 09:00-18:00", "Europe/Berlin")
FRIDAY = datetime(2026, 12, 11, 16, tzinfo=UTC)
"""17:00 in Berlin: it is open for an hour more."""
MONDAY = datetime(2026, 12, 14, 8, tzinfo=UTC)
HOUR, DAY = 3_600, 86_400


@pytest.fixture
def scene(scene: Scene) -> Scene:
    scene.close()
    scene.clock = FakeClock(FRIDAY)
    scene.app.clock = scene.clock
    scene.open()
    return scene


def shown(clock: FakeClock) -> str:
    return f"{clock.datetime():%a %H:%M}"


def claims(scene: Scene) -> list[int]:
    """Return for how many messages the worker has asked, each time."""
    return [command.count for command in scene.sent(Claim)]


async def explained(scene: Scene, id: str) -> Explanation:
    return await arun_steps(explaining("q", id, scene.lane), scene.lane.acall)


def test_a_worker_takes_nothing_while_it_is_closed(scene: Scene) -> None:
    seen: list[Any] = []

    async def story() -> None:
        @scene.app.handler("q", window=OFFICE, retry=FAST)
        async def call(body: Any) -> None:
            seen.append((body, shown(scene.clock)))

        async with scene.at_work() as runner:
            await scene.put("now")
            await scene.acked(1)
            await scene.pass_time(lambda: runner.consumers["q"].opens, 300)
            await scene.put("later", id="later")
            assert claims(scene)[-1] == 0
            busy = runner.consumers["q"].busy()
            assert busy.opens == round(MONDAY.timestamp() * 1000)
            explanation = await explained(scene, "later")
            assert explanation.reasons == ("handler-window",)
            assert "its workers wait for Monday 09:00: their window is Mon-Fri" in str(explanation)
            assert "等到周一 09:00" in explanation.in_language("zh")
            asked = [count for count in claims(scene) if count]
            for _ in range(5):
                await scene.step(DAY / 5)
            assert [count for count in claims(scene) if count] == asked
            await scene.pass_time(lambda: seen[1:], HOUR / 2)
            assert runner.consumers["q"].busy().opens is None

    scene.play(story())
    assert seen[0] == ("now", "Fri 16:00")
    assert seen[1][0] == "later"
    assert "Mon 08:00" <= seen[1][1] <= "Mon 08:30"


@pytest.mark.full
def test_what_is_held_at_the_end_goes_on(scene: Scene) -> None:
    async def story() -> None:
        gate = asyncio.Event()
        began = asyncio.Event()

        @scene.app.handler("q", window=OFFICE)
        async def call(_: Any) -> None:
            began.set()
            await gate.wait()

        async with scene.at_work() as runner:
            await scene.put(1)
            await began.wait()
            await scene.pass_time(lambda: runner.consumers["q"].opens, 5, 0.001)
            gate.set()
            await scene.acked(1)

    scene.play(story())


def test_what_a_claim_brings_too_late_is_returned(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the store counts, and not that of the worker."""

    async def story() -> None:
        @scene.app.handler("q", window=OFFICE)
        async def call(_: Any) -> None:
            raise AssertionError("it is closed")

        async with scene.at_work() as runner:
            consumer = runner.consumers["q"]
            await until(lambda: any(claims(scene)))
            scene.clock.set_wall(round(FRIDAY.replace(hour=18).timestamp() * 1000))
            await scene.put(1)
            await scene.pass_time(lambda: scene.sent(RetryCommand), 0.5)
            await until(lambda: scene.counts_in_file("q").sizes.ready == 1)
            (returned,) = scene.sent(RetryCommand)
            assert (returned.release, returned.delay) == (True, 0)
            assert (await scene.find("q-0")).attempt == 0
            assert consumer.opens is not None

    scene.play(story())


def test_messages_that_die_during_a_claim_are_counted(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", window=OFFICE)
        async def call(_: Any) -> None:
            raise AssertionError("it is dead")

        await scene.put(1, attempts=1)
        await scene.lane.acall(Claim("q", 1, 60_000, "one that dies"))
        async with scene.at_work() as runner:
            await until(lambda: any(claims(scene)))
            await scene.pass_time(lambda: scene.counts_in_file("q").sizes.dead, 5)
            await scene.pass_time(lambda: runner.tallies()["q"].outcomes.get("dead"), 0.5)

    scene.play(story())


def test_lateness_in_a_closed_window_is_told_apart(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q", window=OFFICE)
        async def call(_: Any) -> None: ...

        async with scene.at_work() as runner:
            await scene.pass_time(lambda: runner.consumers["q"].opens, 300)
            await scene.put(1)
            put_at = scene.clock.now()
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.acked, HOUR / 2)
            await scene.pass_time(lambda: causes(runner).get("window"), 10)
            expected = MONDAY.timestamp() - put_at / 1000
            assert causes(runner)["window"] == pytest.approx(expected, abs=1)

    scene.play(story())


@pytest.mark.parametrize(("windows", "known"), [(1, True), (0, False)])
def test_windows_that_close_often_cost_little(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, windows: int, *, known: bool
) -> None:
    monkeypatch.setattr(late_causes, "MOST_WINDOWS", windows)
    half_hours = bide.Window(", ".join(f"{hour}:00-{hour}:30" for hour in range(5, 24)))

    async def story() -> None:
        @scene.app.handler("q")
        async def call(_: Any) -> None: ...

        await scene.put(1, rule=TimeRule(window=half_hours).text)
        put_at = scene.clock.now()
        scene.clock.advance(5 * DAY + 14 * HOUR)
        async with scene.at_work() as runner:
            await scene.acked(1)
            await scene.pass_time(lambda: causes(runner), 10)
            spans = [*half_hours.closed_between(put_at, scene.clock.now())]
            closed = [(end - start) / 1000 for start, end in spans][-late_causes.MOST_CLOSINGS :]
            assert len(spans) > len(closed)
            assert causes(runner).get("window") == (sum(closed) if known else None)

    scene.play(story())


def test_a_closed_window_counts_before_all_other_causes() -> None:
    assert blocks_of([(0, 30)], [(10, 50)], [(20, 40)]) == [
        ("paused", 0, 10),
        ("paused", 10, 20),
        ("window", 20, 30),
        ("window", 30, 40),
        ("no-worker", 40, 50),
    ]


def test_tasks_and_jobs_of_a_queue_share_a_window() -> None:
    app = bide.App("memory://")

    @app.task(queue="calls", window=OFFICE)
    def call(number: str) -> None: ...

    with pytest.raises(bide.InvalidArgument, match="is worked on Mon-Fri 09:00-18:00 in Europe"):

        @app.task(queue="calls")
        def text(number: str) -> None: ...

    @app.job("mails", window=OFFICE)
    class Mail(bide.Job):
        def run(self) -> None: ...

    def handle(body: str) -> None: ...

    with pytest.raises(bide.InvalidArgument, match="window='Mon' is not a window"):
        app.handler("wrong", window="Mon")(handle)  # type: ignore[arg-type]
    assert [facts.get("window") for facts in facts_of(app)] == [str(OFFICE)] * 2


def test_a_worker_of_a_test_knows_the_window() -> None:
    app = bide.App("memory://")
    calls: list[str] = []

    @app.task(queue="calls", window=OFFICE)
    def call(number: str) -> None:
        calls.append(f"{number} {shown(clock)}")

    clock = FakeClock(FRIDAY)
    with ScratchStore(clock=clock) as store, ManualWorker(app, store) as worker:
        call.put("now")
        call.later("2h").put("late")
        worker.advance("3d")
        night = bide.Window("Mon-Sun 20:00-22:00", "Europe/Berlin")
        call.later("1m", window=night).put("never in both")
        worker.advance("2d")
        assert call.queue.counts().sizes.ready == 0
    assert calls == ["now Fri 16:00", "late Mon 08:00"]


def test_an_empty_claim_tells_the_time(scene: Scene) -> None:
    async def ask() -> None:
        reply = await scene.lane.acall(Claim("q", 0, 1_000, "w"))
        assert isinstance(reply, Claimed)
        assert reply.now == scene.clock.now()

    scene.play(ask())
