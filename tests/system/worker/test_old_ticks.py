"""Stores of older checkouts: a schedule was a chain of ticks of which each put the next."""

import msgspec

import bide
from bide.model.recurrence import recurrence
from bide.model.times import iso
from bide.worker.periodic.old_ticks import OldTick
from bide.worker.periodic.ticks import SCHEDULE_ID
from tests.system.worker.schedule_log import START, Diary
from tests.system.worker.worker_app import Scene, until

QUARTER = 900_000
SPEC = recurrence(None, "15m", "Europe/Berlin").spec


async def put_old(
    scene: Scene, number: int, previous: int | None = None, spec: str = SPEC, **options: object
) -> str:
    """Put the tick of so many quarters of an hour after nine, as a chain had it."""
    due = START + number * QUARTER
    before = None if previous is None else START + previous * QUARTER
    tick = OldTick(due, before, spec, START - 86_400_000)
    ids = await scene.put(
        msgspec.to_builtins(tick), queue="reports", id=iso(due), at=due, attempts=10, **options
    )
    return ids[0]


def queue_of(scene: Scene) -> bide.AsyncQueue:
    return bide.AsyncQueue("reports", f"sqlite:///{scene.path}", clock=scene.clock)


async def counts_of(scene: Scene) -> tuple[int, int]:
    """How many messages wait, and how many were cancelled."""
    counts = await scene.counts("reports")
    return counts.sizes.delayed + counts.sizes.ready, counts.flow.cancelled


def test_the_schedule_goes_on_with_the_first_that_waits(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m", timezone="Europe/Berlin")
        await put_old(scene, 2, previous=1)
        await put_old(scene, 1, previous=-4)
        async with scene.at_work(), scene.at_work():
            await until(lambda: scene.counts_in_file("reports").flow.cancelled == 2)
            await diary.reach(2, 5)
            await scene.acked(2, "reports")
        assert diary.told == [("10:15", "09:00", True), ("10:30", "10:15", False)]
        assert await counts_of(scene) == (1, 2)

    scene.play(story())


def test_one_that_was_missed_is_run_as_a_missed_one(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m", timezone="Europe/Berlin")
        await put_old(scene, 1, previous=0)
        scene.clock.advance(65 * 60)
        async with scene.at_work():
            await diary.reach(2, 5)
        # It is claimed before the worker has looked, or the schedule has taken its place.
        is_claimed = diary.told[0] == ("10:15", "10:00", True)
        if is_claimed:
            assert diary.told[1] == ("11:15", "10:15", True)
        else:
            assert diary.told == [("11:00", "10:00", True), ("11:15", "11:00", False)]

    scene.play(story())


def test_of_another_schedule_they_are_replaced(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(cron="40 * * * *", timezone="Europe/Berlin")
        await put_old(scene, 1, previous=0)
        scene.clock.advance(16 * 60)  # it fell due
        async with scene.at_work():
            await diary.reach(1, 5)
        ((due, previous, _),) = diary.told
        assert (due, previous) == ("10:40", "10:00")

    scene.play(story())


def test_one_that_a_worker_holds_is_left_alone(scene: Scene, diary: Diary) -> None:
    """If it is delivered again, it is run as before, and puts nothing."""

    async def story() -> None:
        diary.add(every="15m", timezone="Europe/Berlin")
        held = await put_old(scene, 1, previous=0)
        async with queue_of(scene) as ticks:
            scene.clock.advance(15 * 60)
            (delivery,) = await ticks.claim(lease="10m")
            await put_old(scene, 2, previous=1)  # it has put the next one
            async with scene.at_work():
                await until(lambda: scene.counts_in_file("reports").flow.cancelled == 1)
                assert diary.count == 0
                await delivery.retry(delay="1m", reason="no printer")
            async with scene.at_work():  # a start looks for them again
                await scene.pass_time(lambda: diary.count == 1, 5)
                await scene.acked(1, "reports")
            assert diary.told == [("10:15", "10:00", False)]
            assert await counts_of(scene) == (1, 1)
            assert await ticks.get(held) is None

    scene.play(story())


def test_a_process_that_dies_before_it_has_cancelled_them(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m", timezone="Europe/Berlin")
        async with scene.at_work():
            await diary.put()
        await put_old(scene, 1, previous=0)
        await put_old(scene, 2, previous=1)
        async with scene.at_work():
            await diary.reach(3, 5)
        assert diary.times == ["10:15", "10:30", "10:45"]
        assert (await counts_of(scene))[1] == 2

    scene.play(story())


def test_a_dead_one_can_be_revived(scene: Scene, diary: Diary) -> None:
    async def story() -> None:
        diary.add(every="15m", timezone="Europe/Berlin")
        dead = await put_old(scene, -4, previous=-5, died=START)
        async with scene.at_work(), queue_of(scene) as ticks:
            await until(lambda: scene.counts_in_file("reports").sizes.delayed == 1)
            assert (await ticks.revive([dead]))[0]
            await until(lambda: diary.count == 1)
            await scene.acked(1, "reports")
            message = await ticks.get(SCHEDULE_ID)
            assert message is not None
            assert (message.state, message.due) == ("delayed", START + QUARTER)
        assert diary.told == [("09:00", "08:45", True)]

    scene.play(story())
