"""Ticks that nobody was there for, deaths at the wrong moment, deploys, clocks that jump."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bide
from bide.model.commands import Configure, Purge
from bide.model.recurrence import parse
from bide.worker.periodic.schedule import TickBody, plan
from bide.worker.periodic.tick import Missed
from tests.system.worker.schedule_log import Diary
from tests.system.worker.worker_app import Scene, until


async def one_hour_off(scene: Scene, diary: Diary, **options: Any) -> None:
    """Work until 09:15, be away from then to 10:20, and work until 10:30."""
    diary.add(**options)
    async with scene.at_work():
        await diary.reach(1, 5)
        await scene.acked(1, "reports")
    scene.clock.advance(65 * 60)
    async with scene.at_work():
        await scene.pass_calmly(lambda: "10:30" in diary.times, 5)


def test_missed_ticks_are_run_once(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        await one_hour_off(scene, diary, every="15m")
        assert diary.told == [
            ("09:15", None, False),
            ("10:15", "09:15", True),
            ("10:30", "10:15", False),
        ]

    scene.play(story())


def test_missed_ticks_are_all_run(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        await one_hour_off(scene, diary, cron="*/15 * * * *", missed="all")
        assert diary.told == [
            ("09:15", None, False),
            ("09:30", "09:15", True),
            ("09:45", "09:30", True),
            ("10:00", "09:45", True),
            ("10:15", "10:00", True),
            ("10:30", "10:15", False),
        ]

    scene.play(story())


def test_missed_ticks_are_skipped(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        await one_hour_off(scene, diary, every="15m", missed="skip")
        assert diary.told == [("09:15", None, False), ("10:30", "09:15", False)]

    scene.play(story())


@pytest.mark.parametrize(
    ("grace", "expected"),
    [("10m", [("10:15", "09:15", False)]), ("1m", [("10:15", "09:15", True)])],
)
def test_what_is_late_within_the_grace_was_not_missed(
    scene: Scene, diary: Diary, grace: str, expected: list[Any]
) -> None:
    """But it stands for those that were: the report of 10:15 is of everything since 09:15."""

    async def story() -> None:
        diary.add(cron="15 * * * *", grace=grace, missed="once")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
        scene.clock.advance(65 * 60)
        async with scene.at_work():
            await until(lambda: diary.count == 2)
        assert diary.told[1:] == expected

    scene.play(story())


def test_a_schedule_that_begins_does_not_make_up_for_the_past(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="1h", missed="all")
        async with scene.at_work():
            await until(lambda: scene.counts_in_file("reports").flow.put == 1)
            assert await diary.next_times() == ["10:00"]

    scene.play(story())


def test_a_queue_that_was_paused_has_missed_ticks(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.lane.acall(Configure("reports", paused=True))
            for _ in range(60):
                await scene.step(60)
            await scene.lane.acall(Configure("reports", paused=False))
            await diary.reach(2, 1)
        assert diary.count == 2
        assert diary.ticks[1].missed

    scene.play(story())


@given(
    st.sampled_from(["once", "all", "skip"]),
    st.sampled_from(["every 900000 UTC", "every 20000 UTC", "cron 0 * * * * Europe/Berlin"]),
    st.lists(st.tuples(st.integers(0, 7_200_000), st.integers(0, 3_600_000)), max_size=5),
)
@settings(deadline=None)
def test_whatever_the_outages_a_tick_is_run_as_its_policy_says(
    missed: Missed, spec: str, outages: list[tuple[int, int]]
) -> None:
    """Follow a chain through outages (when each begins, how long it is), by the plan alone."""
    rule = parse(spec)
    start, end, grace = 1_772_442_000_000, 1_772_442_000_000 + 4 * 3_600_000, 900
    spans = sorted((start + begin, start + begin + length) for begin, length in outages)

    def claimed(due: int) -> int:
        now = due
        for begin, over in spans:
            if begin <= now < over:
                now = over
        return now

    tick = TickBody(rule.after(start), None, spec, 0)
    run: list[tuple[int, int | None, bool, int]] = []
    passed: list[int] = []
    now = start
    for _ in range(20_000):
        now = max(now, claimed(max(tick.due, now)))
        if now >= end:
            break
        decided = plan(rule, tick, now, missed, grace, first=True)
        if not decided.why:
            run.append((tick.due, tick.previous, decided.missed, now))
        else:
            passed.append(tick.due)
        assert decided.following > tick.due
        tick = TickBody(
            decided.following,
            decided.previous,
            spec,
            0,
            decided.missed and bool(decided.why),
        )
    dues = [due for due, *_ in run]
    assert dues == sorted(set(dues))  # none twice, none out of order
    every_moment, moment = [], rule.after(start)
    while moment <= now and (moment < tick.due):
        every_moment.append(moment)
        moment = rule.after(moment)
    on_time = [due for due in every_moment if claimed(due) - due <= grace]
    if missed == "all":
        assert dues == every_moment
    if missed == "skip":
        assert set(dues) == set(on_time)
    if missed == "once":
        assert set(on_time) <= set(dues)
        late = [due for due in dues if due not in on_time]
        moments = {at for due, _, _, at in run if due in late}
        assert len(late) == len(moments)  # one for each time that somebody came back
    for (due, previous, was_missed, at), before in zip(run, [None, *dues], strict=False):
        assert previous == before
        assert was_missed or at - due <= grace


def test_a_process_dies_before_it_has_put_the_next(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await until(lambda: scene.counts_in_file("reports").flow.put == 1)
        scene.clock.advance(15 * 60)
        async with bide.AsyncQueue(
            "reports", f"sqlite:///{scene.path}", clock=scene.clock
        ) as ticks:
            assert len(await ticks.claim(lease=60)) == 1  # and it is never heard of again
        scene.clock.advance(60)
        async with scene.at_work():
            await diary.reach(2, 5)
        assert diary.told == [("09:15", None, False), ("09:30", "09:15", False)]

    scene.play(story())


def test_a_process_dies_after_it_has_run_its_tick(scene: Scene, diary: Diary) -> None:
    """The tick is run again, which is what at least once means. The schedule goes on as before."""

    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
            ((message, _),) = await diary.pending()
        tick = message.body
        first = {**tick, "due": tick["due"] - 900_000, "previous": None}
        await scene.lane.acall(Purge("reports", "acked"))
        await scene.put(first, queue="reports", id="2026-03-02T09:15:00.000Z")  # as it would be
        async with scene.at_work():
            await diary.reach(4, 5)
        assert diary.times == ["09:15", "09:15", "09:30", "09:45"]

    scene.play(story())


def test_two_that_start_at_once_make_one_chain(scene: Scene, diary: Diary) -> None:
    """Even where a moment lies between their looks at the clock, and each puts another first."""

    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await until(lambda: scene.counts_in_file("reports").flow.put == 1)
            ((message, _),) = await diary.pending()
        other = {**message.body, "due": message.body["due"] + 900_000}
        await scene.put(other, queue="reports", id="2026-03-02T09:30:00.000Z", at=other["due"])
        async with scene.at_work(), scene.at_work():
            await diary.reach(6, 5)
            assert len(await diary.pending()) == 1
        assert diary.times == ["09:15", "09:30", "09:45", "10:00", "10:15", "10:30"]

    scene.play(story())


def test_a_chain_that_was_emptied_goes_on(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
            await scene.lane.acall(Purge("reports", "delayed"))
            scene.clock.advance(61)
            await diary.reach(2, 5)
        assert diary.times == ["09:15", "09:30"]

    scene.play(story())


@pytest.mark.parametrize("missed", ["once", "all", "skip"])
def test_a_clock_that_is_set_back_runs_no_tick_twice(
    scene: Scene, diary: Diary, missed: str
) -> None:
    async def story() -> None:
        diary.add(every="15m", missed=missed)
        async with scene.at_work():
            await diary.reach(4, 5)
            await scene.acked(4, "reports")
            scene.clock.set_wall(scene.clock.now() - 3_600_000)
        async with scene.at_work():  # a start looks at the clock anew
            await diary.reach(6, 10)
        assert diary.times == ["09:15", "09:30", "09:45", "10:00", "10:15", "10:30"]

    scene.play(story())


def test_a_chain_that_was_emptied_before_the_clock_is_set_back(scene: Scene, diary: Diary) -> None:
    """What has been run is remembered: its id is refused, and the first that is new is taken."""

    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.reach(4, 5)
            await scene.acked(4, "reports")
        await scene.lane.acall(Purge("reports", "delayed"))
        scene.clock.set_wall(scene.clock.now() - 3_600_000)
        async with scene.at_work():
            await until(lambda: scene.counts_in_file("reports").flow.put == 6)
            assert await diary.next_times() == ["10:15"]

    scene.play(story())


def test_a_clock_that_is_set_forward_misses_ticks(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
            scene.clock.set_wall(scene.clock.now() + 3_600_000 + 120_000)
            scene.clock.advance(5)  # who waits looks again every second
            await diary.reach(3, 5)
        assert diary.told[1:] == [("10:15", "09:15", True), ("10:30", "10:15", False)]

    scene.play(story())


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_was_ahead_for_a_moment(scene: Scene, diary: Diary, restarts: bool) -> None:
    """The tick that waits is of tomorrow: the first of today that was not done takes its place."""

    async def story() -> None:
        day = 24 * 3_600_000
        diary.add(every="15m")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
            scene.clock.set_wall(scene.clock.now() + day)
            scene.clock.advance(5)  # who waits looks again every second
            await scene.acked(3, "reports")  # 09:30 was missed, 09:15 of tomorrow stands for it
            scene.clock.set_wall(scene.clock.now() - day)
            if not restarts:
                await scene.pass_time(
                    lambda: scene.counts_in_file("reports").flow.cancelled == 1, 5
                )
        async with scene.at_work():
            await diary.reach(4, 5)
        assert diary.told[2:] == [("09:45", None, False), ("10:00", "09:45", False)]

    scene.play(story())


def a_new_app(scene: Scene, diary: Diary, **options: Any) -> None:
    scene.app = bide.App("memory://", clock=scene.clock)
    diary.add(**options)


def test_a_deploy_changes_the_schedule(scene: Scene, diary: Diary) -> None:
    """The tick that waits is of the old one: it is replaced, and nothing is run at its moment."""

    async def story() -> None:
        diary.add(cron="15 * * * *")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
            assert await diary.next_times() == ["10:15"]
        a_new_app(scene, diary, cron="40 * * * *")
        async with scene.at_work():
            await until(lambda: scene.counts_in_file("reports").flow.cancelled == 1)
            assert await diary.next_times() == ["09:40"]
            await diary.reach(3, 20)
        assert diary.times == ["09:15", "09:40", "10:40"]

    scene.play(story())


def test_a_tick_of_the_old_schedule_that_fell_due_meanwhile(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(cron="15 * * * *", grace="1h")
        async with scene.at_work():
            await until(lambda: scene.counts_in_file("reports").flow.put == 1)
        scene.clock.advance(16 * 60)
        a_new_app(scene, diary, cron="40 * * * *", grace="1h")
        async with scene.at_work():
            await diary.reach(2, 20)
        assert diary.times == ["09:40", "10:40"]

    scene.play(story())


def test_the_old_and_the_new_work_side_by_side(scene: Scene, diary: Diary) -> None:
    """A rolling deploy: whoever claims a tick of the newer schedule goes on by that one."""

    async def story() -> None:
        diary.add(cron="15 * * * *")
        old = Diary(scene)
        scene.app.schedule("others", every="1m")(old.write)
        async with scene.at_work() as veteran:
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
            new = Diary(scene)
            scene.clock.set_wall(1_772_442_000_000 + 16 * 60_000)
            a_new_app(scene, new, cron="40 * * * *")
            async with scene.at_work():
                await until(lambda: scene.counts_in_file("reports").flow.cancelled == 1)
            # Only the old one is there now.
            assert "reports" in veteran.consumers
            await diary.reach(3, 20)
        assert diary.times == ["09:15", "09:40", "10:40"]

    scene.play(story())


def test_a_schedule_that_stays_the_same_is_left_alone(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        for _ in range(3):
            async with scene.at_work():
                await until(lambda: scene.counts_in_file("reports").flow.put == 1)
        assert scene.counts_in_file("reports").flow.cancelled == 0

    scene.play(story())


def test_a_schedule_that_was_removed_harms_nobody(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
        scene.app = bide.App("memory://", clock=scene.clock)
        scene.app.handler("orders")(lambda body: None)
        await scene.put(1, queue="orders", delay=86_400_000)
        async with scene.at_work():
            await scene.pass_time(
                lambda: scene.counts_in_file("orders").flow.acked, 600, pause=0.02
            )
        assert diary.count == 1
        a_new_app(scene, diary, every="15m")  # and it comes back
        async with scene.at_work():
            await diary.reach(3, 5)
        assert [tick.missed for tick in diary.ticks] == [False, True, False]

    scene.play(story())
