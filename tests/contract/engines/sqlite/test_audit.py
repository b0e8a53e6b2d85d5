"""The audit on SQLite: what contradicts the counters, or the lines of limits, is found."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Claimed, Counts
from bide.queue.results import Audit

NOW = 1_700_000_000_000
HOUR = 3_600_000
LIMITS = cmd.Configure("q", limit=6, group_limit=1)

PENDING = "WHERE seq = (SELECT seq FROM bide_message WHERE id = 'a2')"
LEASED = "WHERE seq = (SELECT seq FROM bide_message WHERE id = 'a1')"
KEPT = "WHERE seq = (SELECT seq FROM bide_message WHERE id = 'k1')"

OF_MESSAGES = {
    "a counter of a state": "UPDATE bide_queue SET dead = dead + 1",
    "a counter of ends": "UPDATE bide_queue SET acked = acked + 1",
    "the counter of what is kept": "UPDATE bide_queue SET kept = kept + 1",
    "the counter of successors": "UPDATE bide_queue SET successors = successors + 1",
    "the counter of an hour": "UPDATE bide_due_hour SET count = count + 1",
    "a message that is gone": "DELETE FROM bide_message WHERE id = 'a2'",
    "a leased message that is gone": "DELETE FROM bide_message WHERE id = 'a1'",
    "a message of another queue": "UPDATE bide_message SET queue = queue + 1 WHERE id = 'a2'",
    "a message in no state": f"DELETE FROM bide_pending {PENDING}",
    "a kept message in no state": f"UPDATE bide_aside SET state = 9 {KEPT}",
    "a kept message in another state": f"UPDATE bide_aside SET state = 3 {KEPT}",
    "a message in two states": (
        f"INSERT INTO bide_aside SELECT seq, queue, 3, 0 FROM bide_message {PENDING}"
    ),
    "a leased message in two states": (
        f"INSERT INTO bide_aside SELECT seq, queue, 3, 0 FROM bide_message {LEASED}"
    ),
    "a place in another queue": f"UPDATE bide_pending SET queue = queue + 1 {PENDING}",
    "a lease in another queue": f"UPDATE bide_lease SET queue = queue + 1 {LEASED}",
    "a due time without its rank": "UPDATE bide_message SET due = due + 1 WHERE id = 'a2'",
    "a rank without its due time": f"UPDATE bide_pending SET rank = rank + 1 {PENDING}",
    "a priority without its rank": "UPDATE bide_message SET priority = 9 WHERE id = 'later'",
    "a successor that follows none": """
        INSERT INTO bide_successor SELECT id, 'a2', '[]' FROM bide_queue;
        UPDATE bide_queue SET successors = successors + 1""",
}

OF_LIMITS = {
    "a ready message in no line": f"DELETE FROM bide_line {PENDING}",
    "a ready message in two lines": (
        f"INSERT INTO bide_line SELECT queue, '=c', rank, seq FROM bide_line {PENDING}"
    ),
    "a ready message in the line of another group": f"UPDATE bide_line SET key = '=c' {PENDING}",
    "a message of another group": """UPDATE bide_message SET "group" = 'c' WHERE id = 'a2'""",
    "a leased message of another group": (
        """UPDATE bide_message SET "group" = 'c' WHERE id = 'a1'"""
    ),
    "a place in line without its rank": f"UPDATE bide_line SET rank = rank + 1 {PENDING}",
    "the leases of a group": "UPDATE bide_group SET running = running + 1 WHERE key = '=b'",
    "the leases of a group that has none": (
        "INSERT INTO bide_group SELECT queue, '=x', 1, 0, 0, 0, NULL, NULL FROM bide_limit"
    ),
    "a head that is not the first in its line": (
        "UPDATE bide_group SET seq = seq + 1 WHERE key = '=c'"
    ),
    "a line of no group": "DELETE FROM bide_group WHERE key = '=c'",
    "a line without a head": "UPDATE bide_group SET place = 0 WHERE key = '=c'",
}

Alter = Callable[[str], None]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "bide.db")
    yield engine
    engine.close()


@pytest.fixture
def alter(tmp_path: Path) -> Alter:
    """Changes the tables by another program."""

    def alter(statements: str) -> None:
        other = sqlite3.connect(tmp_path / "bide.db")
        other.executescript(statements)
        changed = other.total_changes
        other.close()
        assert changed > 0

    return alter


def _fill(engine: SqliteEngine) -> None:
    """Put messages that are then in each state; `a` has as many leases as it may have."""
    items = [Item(id, b"1", group=id[0]) for id in ("k1", "b1", "a1", "a2", "c1")]
    items.append(Item("later", b"1", delay=HOUR, priority=5))
    engine.execute([cmd.Configure("q", keep=HOUR), cmd.Put("q", items)], NOW)
    (claimed,) = engine.execute([cmd.Claim("q", 3, HOUR, "w")], NOW)
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["k1", "b1", "a1"]
    engine.execute([cmd.Ack("q", [cmd.Lease("k1", claimed.token)])], NOW)


def _audit(engine: SqliteEngine) -> Audit:
    (counts,) = engine.execute([cmd.Count("q", recount=True)], NOW)
    assert isinstance(counts, Counts)
    return Audit.of("q", counts)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("damage", OF_MESSAGES)
def test_messages_that_contradict_the_counters_are_found(
    engine: SqliteEngine, alter: Alter, damage: str, limited: bool
) -> None:
    engine.execute([LIMITS] if limited else [], NOW)
    _fill(engine)
    assert _audit(engine)
    alter(OF_MESSAGES[damage])
    assert not _audit(engine)


@pytest.mark.parametrize("damage", OF_LIMITS)
def test_lines_that_contradict_the_messages_are_found(
    engine: SqliteEngine, alter: Alter, damage: str
) -> None:
    engine.execute([LIMITS], NOW)
    _fill(engine)
    assert _audit(engine)
    alter(OF_LIMITS[damage])
    assert (_audit(engine).counts.strays or 0) > 0
