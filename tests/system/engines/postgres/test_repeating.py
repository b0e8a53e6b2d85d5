"""Messages that repeat: in older stores, for people, and beside what others write."""

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from msgspec.structs import replace

from bide.engines.port import Identity
from bide.engines.postgres import PostgresEngine, from_url
from bide.engines.postgres.guest import from_url as guest_of
from bide.engines.postgres.schema import MIGRATIONS
from bide.model import commands as cmd
from bide.model.ended import End
from bide.model.message import EXPIRED_KEEP, Item, Message
from bide.model.replies import Claimed, Counts, Ends, Found, Outcome, Outcomes
from bide.within import carry_out
from tests.postgres_server import PostgresServer

NOW = 1_700_000_000_000
LEASE = 60_000
SERIES: dict[str, Any] = {"rule": '{"every":5}', "run": "1"}
NEXT = cmd.NextRun(NOW + LEASE, "2")


def claim(engine: PostgresEngine, now: int = NOW) -> Claimed:
    (reply,) = engine.execute([cmd.Claim("q", 9, LEASE, "w")], now)
    assert isinstance(reply, Claimed)
    return reply


def get(engine: PostgresEngine, id: str, now: int = NOW) -> Message:
    (reply,) = engine.execute([cmd.Find("q", [id])], now)
    assert isinstance(reply, Found)
    (message,) = reply.messages
    assert message is not None
    return message


def outcomes(engine: PostgresEngine, command: cmd.Command, now: int = NOW) -> list[Outcome]:
    (reply,) = engine.execute([command], now)
    assert isinstance(reply, Outcomes)
    return reply.outcomes


def last_end(engine: PostgresEngine, id: str) -> End:
    (reply,) = engine.execute([cmd.History("q", id)], NOW)
    assert isinstance(reply, Ends)
    return reply.ends[0]


OLDER = """
INSERT INTO store VALUES (7);
INSERT INTO queue (name) VALUES ('q');
INSERT INTO message (seq, id, due, rank, state, token, holder, since, successor, queue, created,
                     attempts, attempt, size, priority, is_json, data)
SELECT n, m.id, :now, CASE state WHEN 0 THEN :now * 256 + 255 ELSE :now + 60000 END, state,
       CASE state WHEN 2 THEN 5 END, CASE state WHEN 2 THEN 'w' END, NULL, successor, q.id, :now,
       9, 0, 2, 0, true, '1'
FROM queue AS q, (VALUES
  (1, 'waits', 0, NULL), (2, 'held', 2, NULL),
  (3, 'follows', 2, '{"due": 1700000000000, "created": 1700000000000, "priority": 0, "attempts": 4,'
   '"expires": null, "group": null, "headers": null, "is_json": true, "data": "\\\\x32"}')
) AS m(n, id, state, successor);
INSERT INTO tally SELECT id, what, hour, by FROM queue, (VALUES
  ('leased', -1, 2), ('pending', (:now + 3599999) / 3600000, 1), ('put', -1, 3)
) AS t(what, hour, by);
"""
"""What a version 7 has of messages: one that waits, and two leased ones, one with a successor."""


@pytest.fixture
def older(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """Provide a client of a database with a store of version 7, in the schema `unruled`."""
    with postgres.client() as client:
        client.execute("CREATE SCHEMA unruled")
        client.execute("SET search_path = unruled, pg_temp")
        for number in range(1, 8):
            text = MIGRATIONS[number].read_text()
            client.execute(re.sub(r"\bbide\.", "unruled.", text).encode())
        client.execute(OLDER.replace(":now", f"{NOW}::bigint").encode())
        yield client
        client.execute("DROP SCHEMA unruled CASCADE")


def test_messages_of_a_store_without_rules_go_on_and_are_not_written_again(
    postgres: PostgresServer, older: psycopg.Connection[Any]
) -> None:
    file = "SELECT pg_relation_filenode('unruled.message'), array_agg(xmin::text) FROM message"
    before = older.execute(file.encode()).fetchall()
    with closing(from_url(urlsplit(f"{postgres.url}&schema=unruled"))()) as engine:
        assert older.execute(file.encode()).fetchall() == before
        assert [(m.id, m.rule, m.run) for m in claim(engine).messages] == [("waits", None, None)]
        leases = [cmd.Lease("held", 5), cmd.Lease("follows", 5)]
        assert [outcome.done for outcome in outcomes(engine, cmd.Ack("q", leases))] == [True] * 2
        followed = get(engine, "follows")
        assert (followed.data, followed.attempts, followed.rule) == (b"2", 4, None)
        edit = cmd.Edit("q", ["follows"], rule="hourly", run="1")
        assert outcomes(engine, edit)[0].done
        (claimed,) = claim(engine).messages
        assert (claimed.id, claimed.rule, claimed.run) == ("follows", "hourly", "1")
        (counts,) = engine.execute([cmd.Count("q", recount=True)], NOW)
        assert isinstance(counts, Counts)
        assert (counts.strays, counts.recount) == (0, counts.sizes)


@pytest.fixture
def ask(postgres: PostgresServer, engine: PostgresEngine) -> Iterator[Callable[[str], Any]]:
    """Provide a call of a function by its text, which answers the first row."""
    with postgres.client() as client:
        yield lambda call: client.execute(
            f"SELECT * FROM {engine.schema}.{call}".encode()
        ).fetchone()


def test_people_see_by_which_rule_a_message_repeats(
    engine: PostgresEngine, ask: Callable[[str], Any]
) -> None:
    engine.execute([cmd.Put("q", [Item("a", b"1", **SERIES), Item("b", b"1")])])
    assert ask("rule('q', 'a')") == ('{"every":5}',)
    assert ask("rule('q', 'b')") == (None,)
    assert ask("rule('q', 'none')") == (None,)


def test_people_are_told_that_a_message_ends_with_its_run(
    engine: PostgresEngine, ask: Callable[[str], Any]
) -> None:
    engine.execute([cmd.Put("q", [Item("a", b"1", **SERIES)])])
    (claimed,) = engine.execute([cmd.Claim("q", 1, LEASE, "w")])
    assert isinstance(claimed, Claimed)
    assert ask("cancel('q', 'a')")[:3] == ("a", False, "ending")
    assert ask("cancel('q', 'a')")[:3] == ("a", False, "leased")
    assert ask("rule('q', 'a')") == ('{"every":5}',)  # that of its last run
    engine.execute([cmd.Renew("q", claimed.leases, [NEXT])])
    assert ask("get('q', 'a')") is None


def test_a_reschedule_by_people_leaves_the_rule_and_a_put_removes_it(
    engine: PostgresEngine, ask: Callable[[str], Any]
) -> None:
    engine.execute([cmd.Put("q", [Item("a", b"1", **SERIES)])])
    assert ask("reschedule('q', 'a', delay => '1h')")[1]
    assert ask("rule('q', 'a')") == ('{"every":5}',)
    assert ask("put('q', '2', id => 'a', on_conflict => 'replace')")[1]
    assert ask("rule('q', 'a')") == (None,)


@pytest.mark.parametrize(
    ("failures", "by"),
    [
        (None, "w"),
        ('[[1,1,"a\\u00fc","a\\u0000b"]]', "a\u00fc"),
        ("[]", None),
        ("[[7]]", None),
        ("{}", None),
        ("nonsense", None),
    ],
)
def test_whoever_failed_is_named_whatever_others_have_written(
    engine: PostgresEngine, user: psycopg.Connection[Any], failures: str | None, by: str | None
) -> None:
    engine.execute([cmd.Configure("q", history=LEASE)], NOW)
    engine.execute([cmd.Put("q", [Item("a", b"1", at=NOW, attempts=1, **SERIES)])], NOW)
    engine.execute([cmd.RetryCommand("q", claim(engine).leases, reason="a\0b")], NOW)
    held = claim(engine).leases
    if failures is not None:
        table = f'"{engine.schema}"'
        user.execute(f"UPDATE {table}.message SET failures = %s".encode(), (failures,))
        user.commit()
    assert outcomes(engine, cmd.Renew("q", held, [NEXT], "dead"))[0].state == "delayed"
    user.execute(f'UPDATE "{engine.schema}".ended SET failures = NULL'.encode())
    user.commit()
    end = last_end(engine, "a")
    assert (end.how, end.by, end.attempt) == ("dead", by, 1)


def test_a_renewal_whose_reply_is_lost_is_executed_once(engine: PostgresEngine) -> None:
    engine.execute([cmd.Put("q", [Item("a", b"1", at=NOW, **SERIES)])], NOW)
    renew = cmd.Renew("q", claim(engine).leases, [NEXT])
    first = engine.execute([renew], NOW, [Identity("s", 1, 0)])
    again = engine.execute([renew], NOW, [Identity("s", 1, 0, repeated=True)])
    assert first == again
    (counts,) = engine.execute([cmd.Count("q")], NOW)
    assert isinstance(counts, Counts)
    assert (counts.flow.put, counts.flow.acked) == (2, 1)


def test_a_last_run_that_has_expired_is_forgotten_in_time(engine: PostgresEngine) -> None:
    engine.execute([cmd.Put("q", [Item("a", b"1", at=NOW, expires=0, **SERIES)])], NOW)
    held = claim(engine, NOW + 1).leases
    assert outcomes(engine, cmd.Renew("q", held, [None], "expired"))[0].state == "expired"
    for moment, kept in ((NOW + EXPIRED_KEEP - 1, 1), (NOW + EXPIRED_KEEP, 0)):
        claim(engine, moment)
        (counts,) = engine.execute([cmd.Count("q", recount=True)], moment)
        assert isinstance(counts, Counts)
        assert (counts.kept, counts.strays) == (kept, 0)


@pytest.mark.parametrize("limit", [0, 5])
def test_a_claim_expires_no_run(engine: PostgresEngine, limit: int) -> None:
    items = [Item("a", b"1", at=NOW, expires=0, **SERIES), Item("b", b"1", at=NOW, expires=0)]
    engine.execute([cmd.Configure("q", limit=limit), cmd.Put("q", items)], NOW)
    assert [(m.id, m.run) for m in claim(engine, NOW + 1).messages] == [("a", "1")]
    assert get(engine, "b").state == "expired"


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("command", [cmd.Ack("q", []), cmd.Renew("q", [], [NEXT])])
def test_a_run_that_is_settled_in_a_transaction_of_a_user(
    postgres: PostgresServer,
    engine: PostgresEngine,
    user: psycopg.Connection[Any],
    command: cmd.Ack | cmd.Renew,
    ending: str,
) -> None:
    engine.execute([cmd.Put("q", [Item("a", b"1", at=NOW, **SERIES)])], NOW)
    guest = guest_of(urlsplit(f"{postgres.url}&schema={engine.schema}"))
    settle = replace(command, leases=claim(engine).leases)
    (reply,) = carry_out(user, guest, [settle], NOW)
    assert isinstance(reply, Outcomes)
    assert reply.outcomes[0].done
    (cancelled,) = outcomes(engine, cmd.Cancel("q", ["a"]))
    assert (cancelled.done, cancelled.state) == (False, "settling")
    user.execute(ending.encode())
    run = {"COMMIT": "2" if isinstance(command, cmd.Renew) else "ended 1", "ROLLBACK": "1"}[ending]
    message = get(engine, "a")
    assert (message.rule, message.run) == (SERIES["rule"], run)
    assert message.state == ("leased" if run == "1" else "delayed" if run == "2" else "ready")
