"""The counters of hours, by which forecasts go."""

import sqlite3
from pathlib import Path

from bide.engines.sqlite import SqliteEngine
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Counts, Forecasted

START = 1_700_000_000_000
HOUR = 3_600_000


def forecast(engine: SqliteEngine, now: int = START) -> Forecasted:
    (told,) = engine.execute([cmd.Forecast("q", HOUR, 4)], now)
    assert isinstance(told, Forecasted)
    return told


def strays(engine: SqliteEngine) -> int | None:
    (counts,) = engine.execute([cmd.Count("q", recount=True)], START)
    assert isinstance(counts, Counts)
    return counts.strays


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
            "UPDATE bide_due_hour SET count = count + 2"
            " WHERE hour = (SELECT max(hour) FROM bide_due_hour)"
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
    assert connection.execute("SELECT count(*) FROM bide_due_hour").fetchone() == (0,)
    connection.close()


def test_a_forecast_reads_hours_and_not_messages(tmp_path: Path) -> None:
    """The work of a forecast, in SQLite's own steps, does not grow with what is pending."""
    steps = []
    for total in (500, 20_000):
        engine = SqliteEngine(tmp_path / f"{total}.db")
        for first in range(0, total, 500):
            items = [Item(f"m{first + n}", b"1", delay=2 * HOUR + n) for n in range(500)]
            engine.execute([cmd.Put("q", items)], START)
        connection = engine._connection
        assert connection is not None
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        connection.set_progress_handler(count, 10)
        counts = []
        for _ in range(5):  # now and then the engine looks at its files as well
            counted = 0
            assert sum(forecast(engine).buckets[2:]) == total
            counts.append(counted)
        connection.set_progress_handler(None, 0)
        steps.append(min(counts))
        engine.close()
    assert steps[1] <= steps[0] + 3
