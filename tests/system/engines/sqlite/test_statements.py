"""How much SQLite does: statements, what is due together, what is held in memory."""

import re
import sqlite3
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite import engine as engine_module
from bide.engines.sqlite.limits import SQL as LIMITS_SQL
from bide.engines.sqlite.tables import SQL
from bide.model import commands as cmd
from bide.model.commands import Ack, Cancel, Claim, Lease, Put, Scan, Where
from bide.model.message import Item
from bide.model.replies import Affected, Claimed, Outcome, Outcomes, Page
from bide.testing.engine_hooks import sqlite_connection
from tests.system.engines.sqlite.steps import steps_of

STATEMENTS: dict[str, str] = {**vars(SQL), **vars(LIMITS_SQL)}
NAMES = sorted(STATEMENTS)

# Those that walk through what they find in another order than that of an index, and why they may.
SORTING = {
    "of_group": "a group is small, and its messages are sorted by their age",
    "scan_group": "a group is small, and its messages are sorted by their age",
    "scan_returned": "no more than the last 10,000 returns are sorted",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    SqliteEngine(tmp_path / "bide.db").close()
    connection = sqlite3.connect(tmp_path / "bide.db", isolation_level=None)
    connection.execute(SQL.put_one_view)
    connection.execute(SQL.put_one_trigger)
    yield connection
    connection.close()


def parameters(statement: str) -> Any:
    """Return parameters that any statement compiles with."""
    named = dict.fromkeys(re.findall(r":(\w+)", statement), 0)
    return named or [0] * len(set(re.findall(r"\?\d+", statement)) or statement.split("?")[1:])


def plan(store: sqlite3.Connection, name: str) -> list[str]:
    statement = STATEMENTS[name]
    rows = store.execute(f"EXPLAIN QUERY PLAN {statement}", parameters(statement))
    return [row[3] for row in rows]


def creates(name: str) -> bool:
    return STATEMENTS[name].startswith("CREATE")


def test_every_statement_compiles(store: sqlite3.Connection) -> None:
    for name in NAMES:
        statement = STATEMENTS[name]
        if creates(name):  # the fixture has carried it out
            assert sqlite3.complete_statement(statement + ";"), name
        else:
            assert store.execute(f"EXPLAIN {statement}", parameters(statement)).fetchall(), name


def test_no_statement_needs_a_newer_sqlite_than_old_systems_bring() -> None:
    # Python 3.11 and 3.12 of Red Hat Enterprise Linux 9 have SQLite 3.34.
    newer = r"RETURNING|->|IIF|STRICT|MATERIALIZED"
    assert [name for name in NAMES if re.search(newer, STATEMENTS[name])] == []


def test_no_statement_walks_through_a_table_of_messages(store: sqlite3.Connection) -> None:
    small = (
        r"\w+ VIRTUAL TABLE.*|bide_(queue|store)\b.*|(\d+ )?CONSTANT ROWS?|SUBQUERY \d+"
        r"|\(subquery-1\)"  # what `count_delayed` counts
        r"|\(subquery-3\)|l LEFT-JOIN"  # the lines of a queue; the first message in one
        r"|r"  # the last returns
    )
    walks = [
        (name, step)
        for name in NAMES
        if not creates(name)
        for step in plan(store, name)
        if step.startswith("SCAN") and not re.fullmatch(f"SCAN ({small})", step)
    ]
    assert walks == []


def test_what_is_asked_in_order_stands_in_order(store: sqlite3.Connection) -> None:
    sorting = {
        name
        for name in NAMES
        if not creates(name)
        if any("TEMP B-TREE FOR ORDER BY" in step for step in plan(store, name))
    }
    assert sorting <= set(SORTING)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("load_queue", "SEARCH bide_queue USING INDEX sqlite_autoindex_bide_queue_1 (name=?)"),
        ("records", "SEARCH m USING INDEX bide_message_id (queue=? AND id=?)"),
        ("pick", "SEARCH p USING PRIMARY KEY (queue=? AND state=? AND rank<?)"),
        ("nth_due", "SEARCH bide_pending USING PRIMARY KEY (queue=? AND state=? AND rank<?)"),
        ("next_due", "SEARCH bide_pending USING PRIMARY KEY (queue=? AND state=?)"),
        ("lapsed", "SEARCH l USING COVERING INDEX bide_lease_until (queue=? AND until<?)"),
        ("next_lapse", "SEARCH bide_lease USING COVERING INDEX bide_lease_until (queue=?)"),
        ("count_delayed", "PRIMARY KEY (queue=? AND state=? AND rank>? AND rank<?)"),
        ("of_group", "SEARCH m USING INDEX bide_message_group (queue=? AND group=?)"),
        ("drop_pending", "USING PRIMARY KEY (queue=? AND state=? AND rank=? AND seq=?)"),
        ("forgettable", "bide_aside_ended (queue=? AND state=? AND ended<?)"),
        ("uncounted", "SEARCH bide_message USING INTEGER PRIMARY KEY (rowid>?)"),
        ("head", "SEARCH g USING INDEX bide_group_head (queue=?)"),
        ("first_head", "SEARCH bide_group USING INDEX bide_group_head (queue=?)"),
        ("first_resting", "INDEX bide_group_last (queue=? AND place=?)"),
        ("groups_at", "INDEX bide_group_last (queue=? AND place=? AND last<?)"),
        ("load_group", "SEARCH bide_group USING PRIMARY KEY (queue=? AND key=?)"),
        ("scan_all", "SEARCH m USING INDEX bide_message_id (queue=? AND id>? AND id<?)"),
    ],
)
def test_hot_statements_go_by_their_index(store: sqlite3.Connection, name: str, step: str) -> None:
    assert any(step in found for found in plan(store, name)), plan(store, name)


def test_a_statement_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="no statement of the name 'no_such'"):
        SQL.no_such  # noqa: B018


def test_changes_of_a_queue_that_is_not_there_look_for_no_message(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "bide.db")
    ids = [f"m{number}" for number in range(5_000)]
    engine.execute([Put("other", [Item("m1", b"1")])], 0)
    steps: list[int] = []
    sqlite_connection(engine).set_progress_handler(lambda: steps.append(1), 100)
    (reply,) = engine.execute([Cancel("q", ids)], 0)
    assert isinstance(reply, Outcomes)
    assert reply.outcomes == [Outcome(id, False) for id in ids]
    assert len(steps) < 20
    engine.close()


def test_a_scan_of_a_span_reads_nothing_outside_of_it(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "bide.db")
    engine.execute([Put("q", [Item(f"m{n:04}", b"1", at=n * 1_000) for n in range(3_000)])], 0)
    steps: list[int] = []
    sqlite_connection(engine).set_progress_handler(lambda: steps.append(1), 100)
    where = Where(after=1_000_000, before=1_010_000)
    (page,) = engine.execute([Scan("q", where=where)], 0)
    assert isinstance(page, Page)
    assert [message.id for message in page.messages] == [f"m{n}" for n in range(1_000, 1_010)]
    assert len(steps) < 30
    (found,) = engine.execute([Cancel("q", where=where, dry_run=True)], 0)
    assert found == Affected(10)
    assert len(steps) < 40
    engine.close()


@pytest.mark.parametrize("running", [True, False])
def test_statistics_of_a_store_with_few_messages_mislead_nobody_later(
    tmp_path: Path, running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an application that runs ANALYZE, or PRAGMA optimize, in the file that it shares."""
    monkeypatch.setattr(engine_module, "CHECK_EVERY", -1.0)
    path = tmp_path / "shop.db"
    engine = SqliteEngine(path)
    items = [Item(f"m{n}", b"1", group="g") for n in range(20_000)]
    engine.execute([Put("q", items[:1])], 0)
    if not running:
        engine.close()
    with closing(sqlite3.connect(path)) as shop:
        shop.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT UNIQUE)")
        shop.execute("INSERT INTO customer (name) VALUES ('Ada')")
        shop.execute("ANALYZE")
        shop.commit()
        if not running:
            engine = SqliteEngine(path)
        engine.execute([Put("q", items[1:])], 0)
        steps: list[int] = []
        sqlite_connection(engine).set_progress_handler(lambda: steps.append(1), 1_000)
        (claimed,) = engine.execute([Claim("q", 9, 1_000, "w")], 0)
        assert isinstance(claimed, Claimed)
        engine.execute([Ack("q", [Lease(m.id, claimed.token) for m in claimed.messages])], 0)
        engine.execute([Cancel("q", ["m5000"])], 0)
        assert len(steps) < 10
        assert shop.execute("SELECT DISTINCT tbl FROM sqlite_stat1").fetchall() == [("customer",)]
    engine.close()


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
