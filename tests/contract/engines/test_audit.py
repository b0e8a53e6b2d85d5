"""The audit finds what contradicts the counters, the places of messages or the lines of limits."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed, Counts
from bide.queue.results import Audit
from tests.contract.engines.redis.claims import key
from tests.contract.engines.torn_store import Server, Tear, TornStore, cases

NOW = 1_700_000_000_000
HOUR = 3_600_000
DUE = (NOW + HOUR).to_bytes(8)
LIMITS = cmd.Configure("q", limit=6, group_limit=1)

PENDING = "WHERE seq = (SELECT seq FROM bide_message WHERE id = 'a2')"
LEASED = "WHERE seq = (SELECT seq FROM bide_message WHERE id = 'a1')"
KEPT = "WHERE seq = (SELECT seq FROM bide_message WHERE id = 'k1')"

SQLITE_MESSAGES = {
    "a counter of a state": "UPDATE bide_queue SET dead = dead + 1",
    "a counter of ends": "UPDATE bide_queue SET acked = acked + 1",
    "the counter of what is kept": "UPDATE bide_queue SET kept = kept + 1",
    "the counter of successors": "UPDATE bide_queue SET successors = successors + 1",
    "the counter of an hour": "UPDATE bide_hour SET count = count + 1",
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

SQLITE_LIMITS = {
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

POSTGRES_MESSAGES = {
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

POSTGRES_LIMITS = {
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


def _member(server: Server, part: str, ends: str) -> bytes:
    """Return the member of a set that ends so: of a set of messages, with their id."""
    members: list[bytes] = server.zrange(key(part), 0, -1)  # type: ignore[assignment]
    (found,) = (member for member in members if member.endswith(ends.encode()))
    return found


def _remove(part: str, id: str) -> Tear:
    return lambda server: server.zrem(key(part), _member(server, part, id))


def _rank(part: str, id: str) -> Tear:
    return lambda server: server.zincrby(key(part), 1, _member(server, part, id))


def _record(id: str, text: bytes, other: bytes) -> Tear:
    def write(server: Server) -> None:
        record = server.hget(key("records"), id)
        assert isinstance(record, bytes)
        assert text in record
        server.hset(key("records"), id, record.replace(text, other, 1))

    return write


def _lease(id: str, *, write: Callable[[bytes], bytes]) -> Tear:
    def spoil(server: Server) -> None:
        lease = server.hget(key("leases"), id)
        assert isinstance(lease, bytes)
        server.hset(key("leases"), id, write(lease))

    return spoil


REDIS_MESSAGES: dict[str, Tear] = {
    "the counter of puts": lambda s: s.hincrby(key("meta"), "put", 1),
    "a counter of ends": lambda s: s.hincrby(key("meta"), "acked", 1),
    "a message that is gone": lambda s: s.hdel(key("records"), "a2"),
    "a leased message that is gone": lambda s: s.hdel(key("records"), "a1"),
    "a message in no state": _remove("ready", "a2"),
    "a delayed message in no state": _remove("delayed", "later"),
    "a kept message in no state": _remove("kept", "k1"),
    "a leased message in two states": lambda s: s.zadd(
        key("ready"), {_member(s, "leased", "a1"): NOW}
    ),
    "a rank of a delayed message": _rank("delayed", "later"),
    "a rank of a ready message": _rank("ready", "a2"),
    "a rank of a leased message": _rank("leased", "a1"),
    "a rank of a kept message": _rank("kept", "k1"),
    "a rank of a dead letter": _rank("kept", "d1"),
    "a due time without its rank": _record("later", DUE, (NOW + HOUR + 1).to_bytes(8)),
    "another order of putting": _record("later", b"0000", b"000f"),
    "a dead letter that has not ended": _record("d1", b"dead\xcf" + NOW.to_bytes(8), b"dead\xc0"),
    "a group that does not name its message": _remove("groups", "later"),
    "a message of another group": _record("later", b"\xa1l", b"\xa1m"),
    "a message that cannot be read": lambda s: s.hset(key("records"), "a2", "x"),
    "a lease that is gone": lambda s: s.hdel(key("leases"), "a1"),
    "a lease that does not end": _remove("leased", "a1"),
    "a lease that cannot be read": _lease("a1", write=lambda lease: b"nobody"),
    "a lease of another message": _lease(
        "a1", write=lambda lease: lease[:2] + b"0" * 12 + lease[14:]
    ),
    "a lease of no message": lambda s: s.hset(key("leases"), "z", "x"),
}

REDIS_LIMITS: dict[str, Tear] = {
    "a ready message in no line": _remove("lines", "a2"),
    "a leased message that no limit counts": _remove("lines", "a1"),
    "a place in line of no message": lambda s: s.zadd(key("lines"), {"wz\1" + "0" * 26: 0}),
    "a lease of no message in a group": lambda s: s.zadd(key("lines"), {"rz\1" + "0" * 12: 0}),
    "a line without a head": _remove("heads", "c"),
    "heads that are gone": lambda s: s.delete(key("heads")),
}

OF_MESSAGES: dict[str, Mapping[str, Any]] = {
    "sqlite": SQLITE_MESSAGES,
    "postgres": POSTGRES_MESSAGES,
    "redis": REDIS_MESSAGES,
}
OF_LIMITS: dict[str, Mapping[str, Any]] = {
    "sqlite": SQLITE_LIMITS,
    "postgres": POSTGRES_LIMITS,
    "redis": REDIS_LIMITS,
}


def fill(store: TornStore, *settings: cmd.Configure) -> None:
    """Put messages that are then in each state; `a` has as many leases as it may have."""
    execute = store.engine.execute
    execute([*settings, cmd.Configure("q", keep=HOUR)], NOW)
    named = [Item(id, b"1", group=id[0]) for id in ("k1", "b1", "a1", "a2", "c1")]
    later = Item("later", b"1", delay=HOUR, priority=5, group="l")
    execute([cmd.Put("q", [Item("n1", b"1"), *named, Item("d1", b"1", died=NOW), later])], NOW)
    (claimed,) = execute([cmd.Claim("q", 4, HOUR, "w")], NOW)
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["n1", "k1", "b1", "a1"]
    execute([cmd.Ack("q", [cmd.Lease("k1", claimed.token)])], NOW)
    others = [Item(f"other-{item.id}", b"1", group=item.group) for item in named]
    execute([cmd.Configure("other", limit=9), cmd.Put("other", others)], NOW)
    execute([cmd.Claim("other", 3, HOUR, "w"), cmd.Release("other", ["other-k1"])], NOW)


def audit(store: TornStore) -> Audit:
    (counts,) = store.engine.execute([cmd.Count("q", recount=True)], NOW)
    assert isinstance(counts, Counts)
    return Audit.of("q", counts)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize(("store", "damage"), cases(OF_MESSAGES), indirect=["store"])
def test_messages_that_contradict_their_places_or_the_counters_are_found(
    store: TornStore, damage: str | Tear, limited: bool
) -> None:
    fill(store, *[LIMITS] * limited)
    assert audit(store)
    store.tear(damage)
    assert not audit(store)


@pytest.mark.parametrize(("store", "damage"), cases(OF_LIMITS), indirect=["store"])
def test_lines_that_contradict_the_messages_are_found(store: TornStore, damage: str | Tear) -> None:
    fill(store, LIMITS)
    assert audit(store)
    store.tear(damage)
    assert (audit(store).counts.strays or 0) > 0


@pytest.mark.parametrize("store", OF_LIMITS, indirect=True)
def test_lines_that_do_not_have_all_messages_yet_contradict_nothing(store: TornStore) -> None:
    items = [Item(f"a{n}", b"1", group=f"g{n}", priority=1) for n in range(PROMOTE + 10)]
    claim = cmd.Claim("q", 1, HOUR, "w")
    store.engine.execute([cmd.Put("q", items), claim, claim, LIMITS], NOW)  # all are ready
    assert audit(store)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_an_audit_reads_each_row_a_few_times_however_many_groups_there_are(
    store: TornStore,
) -> None:
    items = [Item("a1", b"1", group="a")]
    store.engine.execute([LIMITS, cmd.Put("q", items), cmd.Claim("q", 1, HOUR, "w")], NOW)
    store.tear("""
        INSERT INTO message SELECT (m).* FROM message AS o, generate_series(1, 20000) AS n,
          json_populate_record(o, json_build_object('seq', n, 'id', n, 'group', n)) AS m;
        INSERT INTO limited_group
        SELECT limited, n, 1, 1, 0, 0 FROM queue, generate_series(1, 20000) AS n;
        UPDATE limited SET running = running + 20000;
        INSERT INTO tally SELECT id, unnest('{leased,put}'::text[]), -1, 20000 FROM queue;
    """)
    assert audit(store)
    with store.connected() as user:
        user.execute("SELECT _recount(id) FROM queue")
        rows = user.execute(
            "SELECT sum(seq_tup_read) + sum(idx_tup_fetch) FROM pg_stat_xact_user_tables"
            " WHERE schemaname = current_schema()"
        ).fetchone()
    assert rows is not None
    assert 40_000 < rows[0] < 10 * 40_000
