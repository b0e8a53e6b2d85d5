"""Schedules: each tick once among all processes, by a clock of their own; what is refused."""

import asyncio
import itertools
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide.consuming.store_client import StoreClient
from bide.engines import losses
from bide.model.commands import Configure, Find, Purge
from bide.worker.periodic.schedule import ScheduleTicks
from bide.worker.periodic.ticks import SCHEDULE_ID
from bide.worker.process.runner import Runner
from tests.system.worker.schedule_log import START, Diary
from tests.system.worker.worker_app import Scene, until


def test_ticks_come_at_their_moments(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.reach(4, 5)
        assert diary.told == [
            ("09:15", None, False),
            ("09:30", "09:15", False),
            ("09:45", "09:30", False),
            ("10:00", "09:45", False),
        ]
        assert all(late < 30 for late in diary.late)
        assert {tick.schedule for tick in diary.ticks} == {"reports"}

    scene.play(story())


def test_cron_goes_by_the_clocks_of_its_zone(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(cron="0 9 * * MON-FRI", timezone="Asia/Shanghai")
        async with scene.at_work():
            await diary.reach(5, 3600)
        assert [f"{tick.due:%a %H:%M %z}" for tick in diary.ticks] == [
            "Tue 09:00 +0800",
            "Wed 09:00 +0800",
            "Thu 09:00 +0800",
            "Fri 09:00 +0800",
            "Mon 09:00 +0800",
        ]

    scene.play(story())


@pytest.mark.parametrize(
    ("day", "expected"),
    [
        ("2026-03-28", ["28 02:30 +0100", "29 03:00 +0200", "30 02:30 +0200"]),
        ("2026-10-24", ["24 02:30 +0200", "25 02:30 +0200", "26 02:30 +0100"]),
    ],
)
def test_daylight_saving_begins_and_ends(
    scene: Scene, diary: Diary, day: str, expected: list[str]
) -> None:
    async def story() -> None:
        diary.add(cron="30 2 * * *", timezone="Europe/Berlin", grace="2h")
        midnight = datetime.fromisoformat(day).replace(tzinfo=UTC)
        scene.clock.set_wall(int(midnight.timestamp() * 1000) - 3_600_000)
        async with scene.at_work():
            await diary.reach(3, 600)
        assert [f"{tick.due:%d %H:%M %z}" for tick in diary.ticks] == expected

    scene.play(story())


def test_each_tick_is_run_once_by_many_processes(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="1m")
        diary.add("other", cron="*/2 * * * *")
        async with scene.at_work(), scene.at_work(), scene.at_work(), scene.at_work():
            await diary.reach(45, 7)
        ran = [(tick.schedule, tick.due) for tick in diary.ticks]
        assert len(set(ran)) == len(ran)
        minutes = sorted(due for queue, due in ran if queue == "reports")
        gaps = {later - earlier for earlier, later in itertools.pairwise(minutes)}
        assert gaps == {timedelta(minutes=1)}

    scene.play(story())


@pytest.mark.parametrize("order", ["b", "bd", "db", "d", ""])
@pytest.mark.parametrize("is_async", [False, True])
def test_the_function_takes_what_it_wants(scene: Scene, order: str, is_async: bool) -> None:
    async def story() -> None:
        seen: list[Any] = []

        def tick_only(tick: bide.Tick) -> None:
            seen.append(tick.schedule)

        def both(tick: bide.Tick, delivery: bide.Handling) -> None:
            seen.append((tick.schedule, delivery.attempt))

        def swapped(delivery: bide.Delivery, tick: bide.Tick) -> None:
            seen.append((tick.schedule, delivery.attempt))

        def delivery_only(delivery: bide.Handling) -> None:
            seen.append(delivery.message.queue)

        def bare() -> None:
            seen.append("reports")

        plain: Any = {"b": tick_only, "bd": both, "db": swapped, "d": delivery_only, "": bare}[
            order
        ]

        async def async_b(tick: bide.Tick) -> None:
            plain(tick)

        async def async_bd(tick: bide.Tick, delivery: bide.Handling) -> None:
            plain(tick, delivery)

        async def async_db(delivery: bide.Delivery, tick: bide.Tick) -> None:
            plain(delivery, tick)

        async def async_d(delivery: bide.Handling) -> None:
            plain(delivery)

        async def async_bare() -> None:
            plain()

        forms: Any = {"b": async_b, "bd": async_bd, "db": async_db, "d": async_d, "": async_bare}
        scene.app.schedule("reports", every="1m")(forms[order] if is_async else plain)
        async with scene.at_work():
            await scene.pass_calmly(lambda: seen, 5)
        assert seen[0] == (("reports", 1) if len(order) == 2 else "reports")

    scene.play(story())


def test_middleware_is_around_a_tick(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        seen: list[str] = []

        @scene.app.middleware
        async def tell(delivery: bide.Handling, go_on: Any) -> None:
            seen.append(delivery.extra_argument.schedule)
            await go_on()

        diary.add(every="1m")
        async with scene.at_work():
            await diary.reach(1, 5)
        assert seen == ["reports"]

    scene.play(story())


def test_a_failure_does_not_stop_the_schedule(scene: Scene) -> None:
    """A tick has all its attempts; then it is a dead letter, and the next one comes."""

    async def story() -> None:
        seen: list[tuple[str, str, int, bool]] = []

        @scene.app.schedule(
            "reports",
            every="15m",
            lease="12h",
            retry=bide.Backoff(attempts=3, first="20m", factor=1, jitter=0),
        )
        async def report(tick: bide.Tick, delivery: bide.Handling) -> None:
            previous = "-" if tick.previous is None else f"{tick.previous:%H:%M}"
            seen.append((previous, f"{tick.due:%H:%M}", delivery.attempt, tick.missed))
            if f"{tick.due:%H:%M}" == "09:15":
                raise OSError("no printer")

        scene.clock.set_wall(START)
        async with scene.at_work():
            await scene.pass_calmly(lambda: len(seen) == 5, 30)
            await scene.acked(2, "reports")
        assert seen == [
            ("-", "09:15", 1, False),
            ("-", "09:15", 2, False),
            ("-", "09:15", 3, False),
            ("09:15", "10:00", 1, True),  # it stands for those of 09:30 and 09:45
            ("10:00", "10:15", 1, False),
        ]
        letter = await scene.find("schedule@2026-03-02T09:15:00.000Z", "reports")
        assert (letter.state, letter.attempts, letter.rule) == ("dead", 3, None)
        assert "OSError: no printer" in (letter.error or "")

    scene.play(story())


def test_a_tick_that_takes_long_lets_the_next_be_missed(scene: Scene) -> None:
    """Ticks do not overlap, however many processes there are; what is missed is run once."""

    async def story() -> None:
        seen: list[tuple[str, bool]] = []
        go = asyncio.Event()

        @scene.app.schedule("reports", every="15m", lease="12h")
        async def report(tick: bide.Tick) -> None:
            seen.append((f"{tick.due:%H:%M}", tick.missed))
            if len(seen) == 1:
                await go.wait()

        scene.clock.set_wall(START)
        async with scene.at_work(), scene.at_work():
            await scene.pass_calmly(lambda: seen, 10)
            for _ in range(120):  # an hour
                await scene.step(30)
            go.set()
            await scene.pass_calmly(lambda: len(seen) == 3, 10)
        assert seen == [("09:15", False), ("10:15", True), ("10:30", False)]

    scene.play(story())


@pytest.mark.parametrize("missed", ["all", "skip"])
def test_what_follows_a_tick_that_takes_longer_than_the_period(scene: Scene, missed: Any) -> None:
    async def story() -> None:
        seen: list[str] = []
        go = asyncio.Event()

        @scene.app.schedule("reports", every="15m", lease="12h", missed=missed)
        async def report(tick: bide.Tick) -> None:
            seen.append(f"{tick.due:%H:%M}{'!' * tick.missed}")
            if len(seen) == 1:
                await go.wait()

        scene.clock.set_wall(START)
        async with scene.at_work():
            await scene.pass_calmly(lambda: seen, 10)
            for _ in range(80):  # forty minutes
                await scene.step(30)
            go.set()
            await scene.pass_calmly(lambda: "10:00" in seen, 10)
        between = ["09:30!", "09:45!"] if missed == "all" else []
        assert seen == ["09:15", *between, "10:00"]

    scene.play(story())


def test_a_schedule_is_one_message(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m", missed="all", grace="5m")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
        (message,) = await diary.pending()
        assert message.id == SCHEDULE_ID
        assert message.repeat == bide.Every("15m", missed="all", grace="5m")
        counts = await scene.counts("reports")
        assert (counts.keep, counts.flow.put, counts.sizes.delayed) == (0, 2, 1)

    scene.play(story())


def test_a_queue_that_remembers_is_left_so(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        await scene.lane.acall(Configure("reports", keep=86_400_000))
        async with scene.at_work():
            await diary.reach(3, 5)
            await scene.acked(3, "reports")
        counts = await scene.counts("reports")
        assert (counts.keep, counts.kept, counts.sizes.delayed) == (86_400_000, 0, 1)

    scene.play(story())


def test_what_is_no_tick_becomes_a_dead_letter(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        await scene.put({"by": "hand"}, b"\x00", queue="reports")
        async with scene.at_work():
            await scene.dead(2, "reports")
        error = (await scene.find("reports-0", "reports")).error or ""
        assert "this is not a tick, and reports is the queue of a schedule" in error
        assert diary.count == 0

    scene.play(story())


def test_a_dead_tick_that_is_revived_runs_and_changes_nothing(scene: Scene) -> None:
    async def story() -> None:
        seen: list[tuple[str, str | None]] = []

        @scene.app.schedule("reports", every="15m", missed="all", lease="12h")
        def report(tick: bide.Tick) -> None:
            previous = None if tick.previous is None else f"{tick.previous:%H:%M}"
            seen.append((f"{tick.due:%H:%M}", previous))
            if len(seen) == 2:
                raise bide.Bury("by hand")

        scene.clock.set_wall(START)
        async with scene.at_work():
            await scene.pass_calmly(lambda: len(seen) >= 5, 60)
            async with bide.AsyncQueue(
                "reports", f"sqlite:///{scene.path}", clock=scene.clock
            ) as ticks:
                assert (await ticks.revive(["schedule@2026-03-02T09:30:00.000Z"]))[0]
            await scene.pass_calmly(lambda: len(seen) >= 8, 60)
        assert seen.count(("09:30", "09:15")) == 2
        others = [one for one in seen if one[0] != "09:30"]
        assert len(set(others)) == len(others)

    scene.play(story())


def test_past_ticks_are_put_by_backfill(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(cron="0 9 * * MON", timezone="Europe/Berlin")
        async with scene.at_work():
            await diary.put()
            async with bide.AsyncQueue(
                "reports", f"sqlite:///{scene.path}", clock=scene.clock
            ) as ticks:
                after = datetime(2026, 2, 10, tzinfo=UTC)
                await ticks.backfill(SCHEDULE_ID, after=after, before=after + timedelta(days=14))
            await until(lambda: diary.count == 2)
        assert sorted(
            (tick.due.day, tick.previous.day) for tick in diary.ticks if tick.previous
        ) == [
            (16, 9),
            (23, 16),
        ]
        assert {f"{tick.due:%H:%M %z}" for tick in diary.ticks} == {"09:00 +0100"}

    scene.play(story())


def test_held_resumed_and_run_now(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="1h")
        url = f"sqlite:///{scene.path}"
        async with scene.at_work(), bide.AsyncQueue("reports", url, clock=scene.clock) as ticks:
            await diary.put()
            scene.clock.advance(7 * 60)
            assert await ticks.run_now(SCHEDULE_ID)
            await until(lambda: diary.count == 1)
            await scene.acked(1, "reports")
            assert await ticks.hold(SCHEDULE_ID)
            for _ in range(50):  # checks leave it held
                await scene.step(120)
            assert diary.times == ["09:07"]
            assert await ticks.resume(SCHEDULE_ID)
            await diary.reach(2, 5)
        assert diary.told == [("09:07", None, False), ("11:00", "09:07", True)]

    scene.play(story())


@pytest.mark.parametrize("missed", ["once", "skip"])
def test_a_tick_that_a_stop_interrupts_is_not_missed(scene: Scene, missed: Any) -> None:
    async def story() -> None:
        seen: list[tuple[str, bool]] = []

        @scene.app.schedule("reports", every="1h", lease="12h", missed=missed)
        async def report(tick: bide.Tick) -> None:
            seen.append((f"{tick.due:%H:%M}", tick.missed))
            if len(seen) == 1:
                await asyncio.Event().wait()

        scene.clock.set_wall(START)
        async with scene.at_work():
            await scene.pass_calmly(lambda: seen, 30)
        scene.clock.advance(600)  # a deployment that takes longer than the grace of the schedule
        async with scene.at_work():
            await scene.pass_calmly(lambda: len(seen) == 3, 30)
        assert seen == [("10:00", False), ("10:00", False), ("11:00", False)]

    scene.play(story())


def test_a_tick_that_begins_while_a_newer_process_looks(scene: Scene, diary: Diary) -> None:
    """The newer process has seen the tick wait: it changes neither that one nor the one after."""

    async def story() -> None:
        go, over = asyncio.Event(), asyncio.Event()

        class Slow(StoreClient):
            async def patiently(self, kind: type[Any], command: Any, *options: Any) -> Any:
                reply = await super().patiently(kind, command, *options)
                if isinstance(command, Find) and not go.is_set():
                    await diary.reach(1, 5)  # by the worker
                    go.set()
                return reply

        async def write(tick: bide.Tick) -> None:
            diary.write(tick)
            await over.wait()

        scene.app.schedule("reports", every="15m", lease="12h")(write)
        newer = bide.App("memory://")
        newer.schedule("reports", cron="40 * * * *")(diary.write)
        async with scene.at_work():
            await diary.put()
            scene.clock.advance(1)
            upkeep = ScheduleTicks(newer.schedules["reports"], Slow(scene.lane, scene.clock))
            await upkeep.ensure()
            over.set()
            await scene.acked(1, "reports")
            assert await diary.next_times() == ["09:30"]
            await upkeep.ensure()
            assert await diary.next_times() == ["09:40"]
        (message,) = await diary.pending()
        assert message.run == "2026-03-02T09:40:00.000Z after=2026-03-02T09:15:00.000Z"

    scene.play(story())


def test_a_tick_that_the_store_has_lost_is_put_again_at_once(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.put()
            await scene.lane.acall(Purge("reports", "delayed"))
            losses.report("a store", "reports", 1)
            await diary.put(2)
        assert await diary.next_times() == ["09:15"]

    scene.play(story())


@pytest.mark.parametrize("times", [{"cron": "* * * * *"}, {"every": "1m"}])
def test_the_grace_is_at_most_the_period(times: dict[str, Any]) -> None:
    app = bide.App("memory://")
    app.schedule("reports", grace="1h", **times)(report)
    assert app.schedules["reports"].rule.grace_of(START) == 59_999


def test_it_works_in_memory(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        app = bide.App("memory://schedules", clock=scene.clock)
        app.schedule("reports", cron="*/5 * * * *", lease="12h")(diary.write)
        runners = [Runner(app) for _ in range(3)]
        work = [asyncio.create_task(runner.run()) for runner in runners]
        await diary.reach(12, 10)
        for runner in runners:
            runner.stop()
        await asyncio.gather(*work)
        assert diary.times[:4] == ["09:05", "09:10", "09:15", "09:20"]
        assert len(set(diary.times)) == diary.count

    scene.play(story())


def report(tick: bide.Tick) -> None: ...


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "a schedule needs cron= or every=, and not both"),
        ({"cron": "0 9 * * *", "every": "1h"}, "a schedule needs cron= or every=, and not both"),
        ({"cron": "0 25 * * *"}, "cron='0 25 [*] [*] [*]' is not valid: bad hour"),
        ({"cron": "0 9 * * *", "timezone": "Asia/Nowhere"}, "timezone='Asia/Nowhere' is not known"),
        ({"every": 0}, "every=0 must be 100 ms or longer"),
        ({"every": "1h", "missed": "never"}, 'missed=\'never\' must be "once", "all" or "skip"'),
        ({"every": "1h", "grace": "later"}, "grace='later' is not a valid duration"),
        ({"every": "1h", "lease": 0}, "lease=0s must be between"),
        ({"every": "1h", "timeout": 0}, "timeout must be longer than 0"),
        ({"every": "1h", "retry": 3}, "retry=3 must be a bide.Backoff"),
        ({"every": "1h", "queue": "?"}, "is not a valid name of a queue"),
    ],
)
def test_what_cannot_be_is_refused_when_the_app_is_made(options: dict[str, Any], said: str) -> None:
    app = bide.App("memory://")
    given: dict[str, Any] = {"queue": "reports", **options}
    with pytest.raises(bide.InvalidArgument, match=said):
        app.schedule(given.pop("queue"), **given)(report)
    assert not app.queue_handlers


def test_a_function_that_takes_more_than_a_tick_is_refused() -> None:
    app = bide.App("memory://")
    more: Any = lambda tick, more: None  # noqa: E731
    with pytest.raises(bide.InvalidArgument, match=r"too many arguments; a schedule takes \(tick"):
        app.schedule("reports", every="1h")(more)


def test_a_queue_is_taken_once() -> None:
    app = bide.App("memory://")
    app.schedule("reports", every="1h")(report)
    assert list(app.schedules) == list(app.queue_handlers) == ["reports"]
    with pytest.raises(bide.InvalidArgument, match="a schedule needs its own queue"):
        app.schedule("reports", every="2h")(report)
    with pytest.raises(bide.InvalidArgument, match=r"handled by .*report already"):
        app.handler("reports")(report)
    with pytest.raises(bide.InvalidArgument, match="has a plain handler already"):

        @app.job("reports")
        class Report(bide.Job):
            def run(self) -> None: ...


def test_without_the_library_the_app_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    app = bide.App("memory://")
    with pytest.raises(bide.InvalidArgument, match=r"pip install 'bide\[schedules\]'"):
        app.schedule("reports", cron="0 9 * * *")
    app.schedule("reports", every="1h")(report)
