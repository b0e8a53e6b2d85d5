"""Ticks that nobody was there for, deaths at the wrong moment, deploys, clocks that jump."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bide
from bide.consuming.store_client import StoreClient
from bide.model.commands import BuryCommand, Cancel, Configure, Edit, Purge, Put, Reschedule
from bide.model.message import Message, withheld
from bide.model.repeat import Missed, Repeat
from bide.model.replies import Found, Outcomes
from bide.model.runs import Run, after_ack, delivered_run, first_run, renewal
from bide.model.times import unix
from bide.worker.periodic.schedule import ScheduleTicks
from bide.worker.periodic.ticks import SCHEDULE_ID, ScheduleBody, tick_of
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
            await diary.put()
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


RULES: list[Callable[..., Repeat]] = [
    partial(bide.Every, "15m"),
    partial(bide.Every, "20s"),
    partial(bide.Cron, "0 * * * *", "Europe/Berlin"),
]


@given(
    st.sampled_from(["once", "all", "skip"]),
    st.sampled_from(RULES),
    st.lists(st.tuples(st.integers(0, 7_200_000), st.integers(0, 3_600_000)), max_size=5),
)
@settings(deadline=None)
def test_whatever_the_outages_a_tick_is_run_as_its_policy_says(
    missed: Missed, make_rule: Callable[..., Repeat], outages: list[tuple[int, int]]
) -> None:
    """Follow the runs through outages (when each begins, how long it is), by the plans alone."""
    start, end, grace = 1_772_442_000_000, 1_772_442_000_000 + 4 * 3_600_000, 900
    rule = make_rule(missed=missed, grace=grace / 1000)
    body = msgspec.json.encode(ScheduleBody(rule.text, "UTC", 10, start))
    spans = sorted((start + begin, start + begin + length) for begin, length in outages)

    def claimed(due: int) -> int:
        now = due
        for begin, over in spans:
            if begin <= now < over:
                now = over
        return now

    planned = first_run(rule, start).next_run
    ticks: list[tuple[bide.Tick, int]] = []
    now = start
    for _ in range(20_000):
        now = claimed(max(planned.due, now))
        if now >= end:
            break
        message = Message(
            SCHEDULE_ID,
            "q",
            body,
            True,
            planned.due,
            0,
            1,
            10,
            "leased",
            created=start,
            rule=rule.text,
            run=planned.run,
        )
        left_out = renewal(message, now)
        if left_out is None:
            message = delivered_run(message, now)
            tick = tick_of(message, now)
            assert tick is not None
            ticks.append((tick, now))
        next_run = after_ack(message, now, now) if left_out is None else left_out.next
        assert next_run is not None
        assert next_run.due > Run.of(message.run or "").at
        planned = next_run
    dues = [unix(tick.due) for tick, _ in ticks]
    assert dues == sorted(set(dues))  # none twice, none out of order
    every_time, time = [], rule.after(start)
    while time is not None and time <= now and time < planned.due:
        every_time.append(time)
        time = rule.after(time)
    on_time = [due for due in every_time if claimed(due) - due <= grace]
    if missed == "all":
        assert dues == every_time
    if missed == "skip":
        assert set(dues) == set(on_time)
    if missed == "once":
        assert set(on_time) <= set(dues)
        late = {due for due in dues if due not in on_time}
        moments = {at for tick, at in ticks if unix(tick.due) in late}
        assert len(late) == len(moments)  # one for each time that somebody came back
    for (tick, at), before in zip(ticks, [None, *dues], strict=False):
        assert (None if tick.previous is None else unix(tick.previous)) == before
        stands_for_others = (
            missed == "once" and before is not None and unix(tick.due) != rule.after(before)
        )
        assert tick.missed == (at - unix(tick.due) > grace or stands_for_others)


def test_a_process_dies_in_the_middle_of_a_tick(scene: Scene, diary: Diary) -> None:
    """The tick is run again, which is what at least once means. It had begun in time."""

    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.put()
        scene.clock.advance(15 * 60)
        async with queue_of(scene) as ticks:
            assert len(await ticks.claim(lease=120)) == 1  # and it is never heard of again
        scene.clock.advance(120)
        async with scene.at_work():
            await diary.reach(2, 5)
        assert diary.told == [("09:15", None, False), ("09:30", "09:15", False)]

    scene.play(story())


def test_a_tick_that_kills_its_process_each_time(scene: Scene, diary: Diary) -> None:
    """After its last attempt it is a dead letter, and the schedule goes on."""

    async def story() -> None:
        diary.add(every="15m", retry=bide.Backoff(attempts=2))
        async with scene.at_work():
            await diary.put()
        async with queue_of(scene) as ticks:
            scene.clock.advance(15 * 60)
            for _ in range(2):
                assert len(await ticks.claim(lease=10)) == 1
                scene.clock.advance(10)
        async with scene.at_work():
            await scene.dead(1, "reports")
            await diary.reach(1, 5)
        assert diary.told == [("09:30", "09:15", False)]
        letter = await scene.find("schedule@2026-03-02T09:15:00.000Z", "reports")
        assert letter.state == "dead"

    scene.play(story())


def test_a_schedule_that_somebody_has_buried(scene: Scene, diary: Diary) -> None:
    """What was buried is a dead letter, as a run that has failed; the schedule goes on."""

    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
            await scene.lane.acall(BuryCommand("reports", ids=[SCHEDULE_ID], reason="no"))
            scene.clock.advance(61)
            await diary.reach(2, 5)
            await scene.acked(2, "reports")
        assert diary.told[1] == ("09:30", "09:15", False)
        letter = await scene.find("schedule@2026-03-02T09:30:00.000Z", "reports")
        assert (letter.state, letter.error) == ("dead", "no")
        assert (await scene.counts("reports")).sizes.dead == 1

    scene.play(story())


def test_a_token_that_may_not_see_bodies_changes_nothing(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.put()

        class Withheld(StoreClient):
            async def patiently(self, kind: type[Any], command: Any, *options: Any) -> Any:
                reply = await super().patiently(kind, command, *options)
                if isinstance(reply, Found) and reply.messages[0] is not None:
                    return Found([withheld(reply.messages[0])])
                return reply

        scene.clock.advance(1)
        newer = bide.App("memory://")
        newer.schedule("reports", cron="40 * * * *")(diary.write)
        await ScheduleTicks(newer.schedules["reports"], Withheld(scene.lane, scene.clock)).ensure()
        assert await diary.next_times() == ["09:15"]

    scene.play(story())


def test_a_token_that_may_not_revive_says_so(
    scene: Scene, diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.put()
        await scene.lane.acall(BuryCommand("reports", ids=[SCHEDULE_ID], reason="no"))

        class Refusing(StoreClient):
            async def patiently(self, kind: type[Any], command: Any, *options: Any) -> Any:
                if isinstance(command, Put):
                    raise bide.AccessDenied("the token has no right 'admin'")
                return await super().patiently(kind, command, *options)

        client = Refusing(scene.lane, scene.clock)
        await ScheduleTicks(scene.app.schedules["reports"], client).ensure()
        assert (await scene.find(SCHEDULE_ID, "reports")).state == "dead"
        assert (
            "the schedule does not go on until it is revived: the token has no right" in caplog.text
        )

    scene.play(story())


def test_a_schedule_that_was_cancelled_comes_back(scene: Scene, diary: Diary) -> None:
    """In the app it is still declared. To stop it, people hold it or pause its queue."""

    async def story() -> None:
        go = asyncio.Event()

        @scene.app.schedule("reports", every="15m", lease="12h")
        async def report(tick: bide.Tick) -> None:
            diary.write(tick)
            await go.wait()

        async with scene.at_work():
            await diary.reach(1, 5)
            outcomes = await scene.lane.acall(Cancel("reports", [SCHEDULE_ID]))
            assert isinstance(outcomes, Outcomes)
            assert outcomes.outcomes[0].state == "ending"
            go.set()
            await scene.acked(1, "reports")
            assert await diary.pending() == []
            scene.clock.advance(61)
            await diary.reach(2, 5)
        assert diary.told == [("09:15", None, False), ("09:30", None, False)]

    scene.play(story())


def test_a_queue_that_was_purged_goes_on(scene: Scene, diary: Diary) -> None:
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
    """The run that waits is of tomorrow: the first one of today takes its place."""

    async def story() -> None:
        day = 24 * 3_600_000
        diary.add(every="15m")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
            scene.clock.set_wall(scene.clock.now() + day)
            scene.clock.advance(5)  # who waits looks again every second
            await scene.acked(2, "reports")  # 09:30 was missed, 09:15 of tomorrow stands for it
            scene.clock.set_wall(scene.clock.now() - day)
            if not restarts:
                await scene.step(61)
                assert await diary.next_times() == ["09:30"]
        async with scene.at_work():
            await diary.reach(4, 5)
        assert diary.told[1:] == [
            ("09:15", "09:15", True),
            ("09:30", None, False),
            ("09:45", "09:30", False),
        ]

    scene.play(story())


def queue_of(scene: Scene) -> bide.AsyncQueue:
    return bide.AsyncQueue("reports", f"sqlite:///{scene.path}", clock=scene.clock)


async def until_next(diary: Diary, time: str) -> None:
    """Wait until the next run is at a time, and no worker holds it.

    A process that began to wait after the clock was last moved looks again when it goes on.
    """
    for turn in range(1, 10_000):
        if await diary.next_times() == [time]:
            return
        if turn % 1_000 == 0:
            diary.scene.clock.advance(61)
        await asyncio.sleep(0.001)
    raise AssertionError(f"the next run is not at {time}: {await diary.next_times()}")


def a_new_app(scene: Scene, diary: Diary, **options: Any) -> None:
    """Let the next worker be of new code, which starts a little later than the old one."""
    scene.clock.advance(0.001)
    scene.app = bide.App("memory://", clock=scene.clock)
    diary.add(**options)


def test_a_deploy_changes_the_schedule(scene: Scene, diary: Diary) -> None:
    """The run that waits is of the old one: it is moved, and nothing is run at its time."""

    async def story() -> None:
        diary.add(cron="15 * * * *")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
            assert await diary.next_times() == ["10:15"]
        a_new_app(scene, diary, cron="40 * * * *", missed="all", retry=bide.Backoff(attempts=3))
        async with scene.at_work():
            await until_next(diary, "09:40")
            (message,) = await diary.pending()
            rule = bide.Cron("40 * * * *", missed="all", grace="1m")
            assert (message.attempts, message.repeat) == (3, rule)
            await diary.reach(3, 20)
        assert diary.told == [
            ("09:15", None, False),
            ("09:40", "09:15", False),
            ("10:40", "09:40", False),
        ]

    scene.play(story())


def test_a_more_frequent_schedule_has_missed_nothing_before(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="1h", missed="once")
        async with scene.at_work():
            await diary.reach(1, 5)
            await scene.acked(1, "reports")
        scene.clock.advance(17 * 60)
        a_new_app(scene, diary, every="5m")
        async with scene.at_work():
            await diary.reach(3, 5)
        assert diary.told == [
            ("10:00", None, False),
            ("10:20", "10:00", False),
            ("10:25", "10:20", False),
        ]

    scene.play(story())


def test_a_tick_of_the_old_schedule_that_fell_due_meanwhile(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(cron="15 * * * *", grace="1h")
        async with scene.at_work():
            await diary.put()
        scene.clock.advance(16 * 60)
        a_new_app(scene, diary, cron="40 * * * *", grace="1h")
        async with scene.at_work():
            await diary.reach(2, 20)
        assert diary.times == ["09:40", "10:40"]

    scene.play(story())


def test_a_retry_of_the_old_schedule_stays(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        failing = bide.Backoff(attempts=3, first="10m", jitter=0)

        @scene.app.schedule("reports", cron="15 * * * *", lease="12h", retry=failing)
        async def report(tick: bide.Tick) -> None:
            raise OSError("no printer")

        async with scene.at_work():
            await scene.pass_calmly(lambda: scene.counts_in_file("reports").flow.retried == 1, 5)
        a_new_app(scene, diary, cron="40 * * * *")
        async with scene.at_work():
            await diary.reach(2, 5)
        assert diary.told == [("09:15", None, False), ("09:40", "09:15", False)]

    scene.play(story())


def test_the_old_and_the_new_work_side_by_side(scene: Scene, diary: Diary) -> None:
    """A rolling deploy: whoever runs a tick of the newer schedule goes on by that one."""

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
                await until_next(diary, "09:40")
            # Only the old one is there now.
            assert "reports" in veteran.consumers
            await diary.reach(3, 20)
        assert diary.times == ["09:15", "09:40", "10:40"]

    scene.play(story())


def test_the_new_one_is_there_before_the_old_one_looks(scene: Scene, diary: Diary) -> None:
    """A rolling deploy in the other order: the checks of old processes change nothing back."""

    async def story() -> None:
        old_app, new_app = scene.app, bide.App("memory://", clock=scene.clock)
        old_app.schedule("reports", cron="15 * * * *", lease="12h")(diary.write)
        new_app.schedule("reports", cron="40 * * * *", lease="12h")(diary.write)
        async with scene.at_work():
            await diary.put()
            scene.clock.advance(1)
            scene.app = new_app
            async with scene.at_work():
                await until_next(diary, "09:40")
                for _ in range(5):
                    await scene.step(61)
                assert await diary.next_times() == ["09:40"]
                await diary.reach(2, 20)
        assert diary.times == ["09:40", "10:40"]

    scene.play(story())


def test_a_deploy_while_a_tick_runs(scene: Scene, diary: Diary) -> None:
    """The new process waits for its end, in the old one, and changes what follows."""

    async def story() -> None:
        go = asyncio.Event()

        @scene.app.schedule("reports", every="15m", lease="12h")
        async def report(tick: bide.Tick) -> None:
            diary.write(tick)
            await go.wait()

        async with scene.at_work():
            await diary.reach(1, 5)
            a_new_app(scene, diary, cron="40 * * * *")
            async with scene.at_work():
                await scene.step(61)
                go.set()
                await scene.acked(1, "reports")
                assert await diary.next_times() == ["09:30"]  # the old process has planned it
                await scene.step(61)
                await until_next(diary, "09:40")
        assert diary.times == ["09:15"]

    scene.play(story())


def test_a_new_process_that_runs_a_tick_of_the_old_schedule(scene: Scene, diary: Diary) -> None:
    """It may always be held when a check comes: then its holder changes it, with the ack."""

    async def story() -> None:
        diary.add(cron="0,30 * * * *")
        async with scene.at_work():
            await diary.put()
        scene.clock.advance(30 * 60)

        class Held(StoreClient):
            async def patiently(self, kind: type[Any], command: Any, *options: Any) -> Any:
                if isinstance(command, Reschedule | Edit):
                    raise AssertionError("a check has found it waiting")
                return await super().patiently(kind, command, *options)

        newer = bide.App("memory://")
        newer.schedule("reports", every="10m", lease="12h")(diary.write)
        async with queue_of(scene) as ticks:
            (delivery,) = await ticks.claim(lease="1h")
            upkeep = ScheduleTicks(newer.schedules["reports"], Held(scene.lane, scene.clock))
            handler = newer.queue_handlers["reports"].any
            message, token, claimed = delivery.message, delivery.token, delivery.claimed
            handling = bide.Handling(message, token, claimed, handler, newer.state)
            ran: list[bide.Tick] = []

            async def go_on() -> None:
                ran.append(handling.extra_argument)

            await upkeep.attend(handling, go_on)
            await delivery.ack()
        assert [f"{tick.due:%H:%M}" for tick in ran] == ["09:30"]
        (message,) = await diary.pending()
        assert (message.repeat, message.run) == (
            bide.Every("10m", grace="1m"),
            "2026-03-02T09:40:00.000Z after=2026-03-02T09:30:00.000Z",
        )

    scene.play(story())


def test_what_somebody_has_edited_stays_until_a_deploy(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        async with scene.at_work():
            await diary.put()
        async with queue_of(scene) as ticks:
            assert await ticks.edit(SCHEDULE_ID, repeat=bide.Every("1h"))
        async with scene.at_work():
            await diary.reach(2, 20)
            await scene.acked(2, "reports")
        assert diary.times == ["10:00", "11:00"]
        a_new_app(scene, diary, every="20m")
        async with scene.at_work():
            await diary.reach(3, 20)
        assert diary.times[2:] == ["11:20"]

    scene.play(story())


def test_a_schedule_that_stays_the_same_is_left_alone(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m")
        for _ in range(3):
            async with scene.at_work():
                await diary.put()
                await scene.step(61)
        assert not scene.sent(Edit)
        assert scene.counts_in_file("reports").flow.put == 1

    scene.play(story())


@pytest.mark.full
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
