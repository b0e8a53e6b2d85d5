"""How much of a file is in memory at a time: little, whatever a command names."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Claimed

NOW = 1_700_000_000_000
IDS = [f"m{number}" for number in range(1_000)]
SIZE = 20_000
MOST = 10_000_000
"""Of the 20 MB that the messages take."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "bide.db", durability="normal")
    yield engine
    engine.close()


@pytest.mark.parametrize(
    "command",
    [
        cmd.Cancel("q", IDS),
        cmd.Cancel("q", IDS, versions=["0" * 16] * len(IDS)),
        cmd.Cancel("q", [], where=cmd.Where(after=NOW)),
        cmd.Purge("q", "ready"),
        cmd.Put("q", [Item(id, b"2") for id in IDS]),
    ],
)
@pytest.mark.parametrize("kind", ["body", "headers"])
def test_a_change_of_many_large_messages_has_few_in_memory(
    engine: SqliteEngine, command: cmd.Command, kind: str
) -> None:
    text = "x" * SIZE
    data = f'"{text}"'.encode() if kind == "body" else b"1"
    headers = {"a": text} if kind == "headers" else None
    engine.execute([cmd.Put("q", [Item(id, data, headers=headers) for id in IDS])], NOW)
    assert _peak(engine, command, NOW) < MOST


def test_a_claim_of_many_lapsed_messages_has_few_in_memory(engine: SqliteEngine) -> None:
    items = [Item(id, b"1", headers={"a": "x" * SIZE}) for id in IDS]
    engine.execute([cmd.Put("q", items)], NOW)
    (claimed,) = engine.execute([cmd.Claim("q", len(IDS), 10, "w", max_bytes=1 << 30)], NOW)
    assert isinstance(claimed, Claimed)
    assert len(claimed.messages) == len(IDS)
    del claimed
    assert _peak(engine, cmd.Claim("q", 1, 10, "w"), NOW + 20) < MOST


def _peak(engine: SqliteEngine, command: cmd.Command, now: int) -> int:
    """Return how many bytes Python has at most while a command is executed."""
    tracemalloc.start()
    try:
        engine.execute([command], now)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
