"""What is due at one instant costs a claim no more than what is due over time."""

from pathlib import Path

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Claimed, Page
from tests.engines.sqlite.steps import steps_of

START = 1_700_000_000_000


def cost(engine: SqliteEngine, command: cmd.Command, now: int) -> int:
    """Return how much SQLite has to do for a command, in hundreds of its own steps."""

    def execute() -> None:
        (reply,) = engine.execute([command], now)
        assert isinstance(reply, (Claimed, Page))
        assert len(reply.messages) == 100

    return steps_of(engine, execute, 100)


@pytest.mark.parametrize("heavy", [0, 1])
def test_a_burst_is_claimed_and_scanned_at_the_cost_of_a_stream(tmp_path: Path, heavy: int) -> None:
    claims, scans = [], []
    for spread in (1, 10_000):
        engine = SqliteEngine(tmp_path / f"{spread}.db")
        for first in range(0, 10_000, 1_000):
            items = [
                Item(f"m{number}", b"1", at=START + number % spread, priority=heavy)
                for number in range(first, first + 1_000)
            ]
            engine.execute([cmd.Put("q", items)], START - 1)
        (page,) = engine.execute([cmd.Scan("q", "delayed", limit=9_000)], START - 1)
        assert isinstance(page, Page)
        scan = cmd.Scan("q", "delayed", cursor=page.cursor, limit=100)
        scans.append(cost(engine, scan, START - 1))
        claims.append(cost(engine, cmd.Claim("q", 100, 1_000, "w"), START + 10_000))
        engine.close()
    assert claims[0] <= claims[1] * 1.2
    assert scans[0] <= scans[1] * 1.2
