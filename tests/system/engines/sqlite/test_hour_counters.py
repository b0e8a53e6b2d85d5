"""The counters of hours, by which forecasts go."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Counts, Forecasted
from tests.system.engines.sqlite.steps import steps_of

START = 1_700_000_000_000
HOUR = 3_600_000


def forecast(engine: SqliteEngine, now: int = START) -> Forecasted:
    (told,) = engine.execute([cmd.ForecastCommand("q", HOUR, 4)], now)
    assert isinstance(told, Forecasted)
    return told


def counts(engine: SqliteEngine, *, recount: bool = False) -> Counts:
    (told,) = engine.execute([cmd.Count("q", recount=recount)], START)
    assert isinstance(told, Counts)
    return told


def strays(engine: SqliteEngine) -> int | None:
    return counts(engine, recount=True).strays


def fill(path: Path) -> None:
    """Make a store with messages in several hours, some put alone and not counted yet."""
    engine = SqliteEngine(path)
    items = [Item(f"m{n}", b"1", delay=n * HOUR // 2, priority=n % 2) for n in range(8)]
    items.append(Item("sharp", b"1", at=(START // HOUR + 2) * HOUR))
    engine.execute([cmd.Put("q", items)], START)
    engine.execute([cmd.Claim("q", 1, 1_000, "w")], START + HOUR)
    for number in range(3):
        engine.execute([cmd.Put("q", [Item(f"lone{number}", b"1", delay=2 * HOUR)])], START)
    engine.close()


def test_an_audit_finds_hours_that_are_counted_wrongly(tmp_path: Path) -> None:
    path = tmp_path / "bide.db"
    fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE bide_hour SET count = count + 2 WHERE hour = (SELECT max(hour) FROM bide_hour)"
        )
    connection.close()
    engine = SqliteEngine(path)
    assert strays(engine) == 2
    engine.close()


def test_hours_without_messages_take_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "bide.db"
    fill(path)
    engine = SqliteEngine(path)
    engine.execute([cmd.Cancel("q", where=cmd.Where(after=0))], START)
    engine.execute([cmd.Claim("q", 0, 1, "w")], START + 9 * HOUR)
    engine.execute([cmd.Cancel("q", where=cmd.Where(after=0))], START + 9 * HOUR)
    assert forecast(engine).buckets == [0] * 4
    engine.close()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM bide_hour").fetchone() == (0,)
    connection.close()


def fewest_steps(path: Path, total: int, due: int, look: Callable[[SqliteEngine], int]) -> int:
    """Return SQLite's own steps, by ten, of a look at a store of so many messages."""
    engine = SqliteEngine(path / f"{total}.db")
    for first in range(0, total, 500):
        items = [Item(f"m{first + n}", b"1", at=due + n) for n in range(500)]
        engine.execute([cmd.Put("q", items)], START)

    def once() -> None:
        assert look(engine) == total

    # Now and then the engine looks at its files as well.
    fewest = min(steps_of(engine, once, 10) for _ in range(5))
    engine.close()
    return fewest


@pytest.mark.parametrize(
    ("due", "look"),
    [
        pytest.param(START + 2 * HOUR, lambda engine: sum(forecast(engine).buckets), id="forecast"),
        pytest.param(START - 2 * HOUR, lambda engine: counts(engine).sizes.ready, id="overdue"),
        pytest.param(START + 1_000, lambda engine: counts(engine).sizes.delayed, id="soon"),
    ],
)
def test_who_looks_reads_hours_and_not_messages(
    tmp_path: Path, due: int, look: Callable[[SqliteEngine], int]
) -> None:
    few, many = (fewest_steps(tmp_path, total, due, look) for total in (5_000, 20_000))
    assert many <= few + 3
