"""The audit on PostgreSQL: what contradicts the counters, or the lines of limits, is found."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from bide.engines.postgres import PostgresEngine
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed, Counts
from bide.queue.results import Audit

NOW = 1_700_000_000_000
HOUR = 3_600_000
LIMITS = cmd.Configure("q", limit=6, group_limit=1)

OF_MESSAGES = {
    "a counter of a state": "INSERT INTO tally SELECT id, 'dead', -1, 1 FROM queue",
    "a counter of ends": "INSERT INTO tally SELECT id, 'acked', -1, 1 FROM queue",
    "the counter of what is kept": "INSERT INTO tally SELECT id, 'kept', -1, -1 FROM queue",
    "the counter of an hour": "UPDATE tally SET hour = hour + 1 WHERE hour > 0",
    "a message that is gone": "DELETE FROM message WHERE id = 'a2'",
    "a message of another queue": "UPDATE message SET queue = queue + 9 WHERE id = 'a2'",
    "a message in another state": "UPDATE message SET state = 3 WHERE id = 'a2'",
    "a message in no state": "UPDATE message SET state = 9 WHERE id = 'a2'",
    "a kept message in no state": "UPDATE message SET state = 9 WHERE id = 'k1'",
    "a due time without its rank": "UPDATE message SET due = due + 1 WHERE id = 'a2'",
    "a rank without its due time": "UPDATE message SET rank = rank + 9 WHERE id = 'later'",
    "a priority without its rank": "UPDATE message SET priority = 9 WHERE id = 'later'",
    "a successor that follows none": "UPDATE message SET successor = '{}' WHERE id = 'a2'",
}

OF_LIMITS = {
    "a ready message in no line": "UPDATE message SET limited = NULL WHERE id = 'a2'",
    "a leased message that no limit counts": """
        UPDATE message SET limited = NULL WHERE id = 'b1';
        UPDATE limited_group SET running = 0 WHERE name = 'b';
        UPDATE limited SET running = running - 1""",
    "a leased message of another group": """UPDATE message SET "group" = 'c' WHERE id = 'a1'""",
    "the leases of a group": "UPDATE limited_group SET running = running + 1 WHERE name = 'b'",
    "the leases of a group that has none": (
        "INSERT INTO limited_group SELECT limited, 'x', 1, 1, 0, 0 FROM queue"
    ),
    "a line of no group": (
        "DELETE FROM limited_group WHERE name = 'c' AND limited = (SELECT min(id) FROM limited)"
    ),
    "a line without a head": "UPDATE limited_group SET place = 0 WHERE name = 'c'",
    "the leases of the queue": "UPDATE limited SET running = running + 1",
    "a lease that has ended": "INSERT INTO reopened SELECT limited, 'b', 1 FROM queue",
    "limits that are gone": "DELETE FROM limited",
}

Alter = Callable[[str], object]


@pytest.fixture
def alter(engine: PostgresEngine, user: psycopg.Connection[Any]) -> Alter:
    """Changes the tables by another program."""
    user.execute(f"SET search_path = {engine.schema}".encode())
    user.commit()

    def alter(statements: str) -> None:
        user.execute(statements.encode())
        user.commit()

    return alter


def _fill(engine: PostgresEngine, *settings: cmd.Configure) -> None:
    """Put messages that are then in each state; `a` has as many leases as it may have."""
    engine.execute([*settings, cmd.Configure("q", keep=HOUR)], NOW)
    named = [Item(id, b"1", group=id[0]) for id in ("k1", "b1", "a1", "a2", "c1")]
    items = [Item("n1", b"1"), *named, Item("later", b"1", delay=HOUR, priority=5)]
    engine.execute([cmd.Put("q", items)], NOW)
    (claimed,) = engine.execute([cmd.Claim("q", 4, HOUR, "w")], NOW)
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["n1", "k1", "b1", "a1"]
    engine.execute([cmd.Ack("q", [cmd.Lease("k1", claimed.token)])], NOW)
    engine.execute([cmd.Configure("other", limit=9), cmd.Put("other", items)], NOW)
    engine.execute([cmd.Claim("other", 3, HOUR, "w"), cmd.Release("other", ["k1"])], NOW)


def _audit(engine: PostgresEngine) -> Audit:
    (counts,) = engine.execute([cmd.Count("q", recount=True)], NOW)
    assert isinstance(counts, Counts)
    return Audit.of("q", counts)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("damage", OF_MESSAGES)
def test_messages_that_contradict_the_counters_are_found(
    engine: PostgresEngine, alter: Alter, damage: str, limited: bool
) -> None:
    _fill(engine, *[LIMITS] * limited)
    assert _audit(engine)
    alter(OF_MESSAGES[damage])
    assert not _audit(engine)


@pytest.mark.parametrize("damage", OF_LIMITS)
def test_lines_that_contradict_the_messages_are_found(
    engine: PostgresEngine, alter: Alter, damage: str
) -> None:
    _fill(engine, LIMITS)
    assert _audit(engine)
    alter(OF_LIMITS[damage])
    assert (_audit(engine).counts.strays or 0) > 0


def test_lines_that_do_not_have_all_messages_yet_contradict_nothing(
    engine: PostgresEngine,
) -> None:
    items = [Item(f"a{n}", b"1", group=f"g{n}", priority=1) for n in range(PROMOTE + 10)]
    claim = cmd.Claim("q", 1, HOUR, "w")
    engine.execute([cmd.Put("q", items), claim, claim, LIMITS], NOW)  # all are ready
    assert _audit(engine)


def test_an_audit_reads_each_row_a_few_times_however_many_groups_there_are(
    engine: PostgresEngine, alter: Alter, user: psycopg.Connection[Any]
) -> None:
    engine.execute([LIMITS, cmd.Put("q", [Item("a1", b"1", group="a")])], NOW)
    engine.execute([cmd.Claim("q", 1, HOUR, "w")], NOW)
    alter("""
        INSERT INTO message SELECT (m).* FROM message AS o, generate_series(1, 20000) AS n,
          json_populate_record(o, json_build_object('seq', n, 'id', n, 'group', n)) AS m;
        INSERT INTO limited_group
        SELECT limited, n, 1, 1, 0, 0 FROM queue, generate_series(1, 20000) AS n;
        UPDATE limited SET running = running + 20000;
        INSERT INTO tally SELECT id, unnest('{leased,put}'::text[]), -1, 20000 FROM queue;
    """)
    assert _audit(engine)
    with user.transaction():
        user.execute("SELECT _recount(id) FROM queue")
        rows = user.execute(
            "SELECT sum(seq_tup_read) + sum(idx_tup_fetch) FROM pg_stat_xact_user_tables"
            " WHERE schemaname = current_schema()"
        ).fetchone()
    assert rows is not None
    assert 40_000 < rows[0] < 10 * 40_000
