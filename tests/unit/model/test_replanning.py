"""Runs that greater data of time zones plan for another time: random rules and windows."""

from pathlib import Path
from random import Random

import bide
from bide.model.message import Message
from bide.model.repeat import MISSED, Repeat
from bide.model.replanning import replanned
from bide.model.runs import Run, first_run_at, following
from bide.model.time_rule import repeat_of, window_of
from bide.model.times import DAY_MS
from bide.model.zones import own_zones
from tests.effort import effort
from tests.start import START
from tests.zone_data import BEFORE, EARLIER, LATER, TOWN, WITH_SUMMER, machine_with, write_zones

UPDATES = {"2099b": LATER, "2099c": EARLIER, "2099d": WITH_SUMMER, "2099e": "TST-2:30"}
"""Zones of the town, by the versions of the data that have them; before, it is `BEFORE`."""


def random_repeat(chance: Random) -> Repeat:
    missed = chance.choice(MISSED)
    days = chance.choice(["*", "MON", "SAT", "MON-FRI"])
    rules: list[Repeat] = [
        bide.Cron(f"{chance.randrange(60)} {chance.randrange(24)} * * {days}", TOWN, missed=missed),
        bide.Cron("*/30 * * * *", TOWN, missed=missed),
        bide.Every("7h", missed=missed),
    ]
    return chance.choice(rules)


def random_window(chance: Random) -> bide.Window | None:
    windows = [
        None,
        bide.Window("Mon-Fri 09:00-18:00", TOWN),
        bide.Window("22:00-06:00", TOWN, holidays=["2023-12-25"]),
        bide.Window("Sat-Sun", TOWN),
        bide.Window("08:00-09:00"),
    ]
    return chance.choice(windows)


def waiting(rule: str, run: Run) -> Message:
    return Message("a", "q", b"1", True, run.due, 0, 0, 1, "delayed", rule=rule, run=run.text)


def test_a_run_is_due_when_greater_data_say(tmp_path: Path) -> None:
    chance = Random(43)
    old = write_zones(tmp_path / "2099a", "2099a", {TOWN: BEFORE})
    folders = [write_zones(tmp_path / name, name, {TOWN: zone}) for name, zone in UPDATES.items()]
    moved = 0
    for _ in range(effort(100, 5_000)):
        with machine_with(old):
            repeat, window = random_repeat(chance), random_window(chance)
            first = first_run_at(repeat, None, START + chance.randrange(365 * DAY_MS), window)
            run = Run.of(first.run)
            if chance.random() < 0.5:
                next_run = following(repeat, run, run.due, run.due, window=window)
                assert next_run is not None
                run = next_run
        message = waiting(first.rule, run)
        with machine_with(chance.choice(folders)):
            new_plan = replanned(message, own_zones())
            new_run = run if new_plan is None else Run.of(new_plan.run or "")
            if run.zones:  # else its time depends on none
                new_window = window_of(first.rule)
                opening = new_run.at if new_window is None else new_window.opening(new_run.at)
                assert repeat_of(first.rule).after(new_run.at - 1) == new_run.at
                assert new_run.due == opening
            assert (new_run.previous or 0) < new_run.at
            assert replanned(waiting(first.rule, new_run), own_zones()) is None
        moved += new_run != run
        with machine_with(old):  # it does not move back
            assert replanned(waiting(first.rule, new_run), own_zones()) is None
    assert moved > 0
