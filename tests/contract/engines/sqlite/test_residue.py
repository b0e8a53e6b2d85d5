import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.testing.conformance.drawing import QUEUES, limited_scripts, scripts
from bide.testing.conformance.driver import START
from bide.testing.conformance.scripts import Player, clear


@pytest.mark.parametrize("draw", [scripts, limited_scripts], ids=["plain", "limited"])
@pytest.mark.parametrize("seed", range(15))
def test_after_any_script_an_emptied_queue_leaves_its_row_and_nothing_else(
    draw: Any, seed: int, tmp_path: Path
) -> None:
    # A row a queue, one in all, the last pauses and returns; rows of outboxes are kept as long as
    # the queue.
    own = {"bide_queue", "bide_store", "bide_pause", "bide_return", "bide_forwarded"}
    path = tmp_path / "bide.db"
    engine = SqliteEngine(path)
    run = Player(engine).batch
    now = START
    for step, ops in draw(Random(seed)):
        now += step
        run(ops, now)
    for queue in QUEUES:
        clear(engine, queue, now)
    engine.close()
    tables = (
        "message",
        "pending",
        "lease",
        "aside",
        "hour",
        "ended",
        "limit",
        "group",
        "line",
        "successor",
        "sender",
        "closed",
    )
    assert rows(path, own) == {f"bide_{table}": 0 for table in tables}


def rows(path: Path, but: set[str]) -> dict[str, int]:
    raw = sqlite3.connect(path)
    try:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found = raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        tables = [name for (name,) in found if name not in but and name[:7] != "sqlite_"]
        counts = {t: raw.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables}
    finally:
        raw.close()
    return counts
