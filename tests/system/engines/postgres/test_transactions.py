"""What the queue and the user's own transactions do to each other."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from bide.engines.port import PartlyDone
from bide.engines.postgres import PostgresEngine, from_url
from bide.model import commands as cmd
from bide.model.errors import StoreBusy
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Found, Outcomes
from bide.testing.engine_hooks import postgres_caller
from tests.postgres_server import PostgresServer


def put(user: psycopg.Connection[Any], engine: PostgresEngine, id: str, **named: str) -> Any:
    more = "".join(f", {name} => %({name})s" for name in named)
    query = f"SELECT (s).* FROM {engine.schema}.put('q', '[1]', id => %(id)s{more}) AS s"
    return user.execute(query.encode(), {"id": id, **named}).fetchone()


def counts(engine: PostgresEngine) -> Counts:
    (reply,) = engine.execute([cmd.Count("q", recount=True)])
    assert isinstance(reply, Counts)
    assert (reply.recount, reply.strays) == (reply.sizes, 0)
    return reply


def claimed(engine: PostgresEngine) -> list[str]:
    (reply,) = engine.execute([cmd.Claim("q", 10, 60_000, "w")])
    assert isinstance(reply, Claimed)
    return [message.id for message in reply.messages]


def test_a_put_is_due_after_a_delay_or_at_a_time(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    assert put(user, engine, "a", at="2030-01-01Z")[1:3] == (True, "delayed")
    assert put(user, engine, "b", at="2020-01-01Z")[1:3] == (True, "ready")
    assert put(user, engine, "c", delay="1h")[1:3] == (True, "delayed")
    assert put(user, engine, "d", at="2030-01-01Z", priority="1")[1:3] == (True, "delayed")
    moved = f"SELECT (s).* FROM {engine.schema}.reschedule('q', 'd', at => '2020-01-01Z') AS s"
    assert user.execute(moved.encode()).fetchone()[1:3] == (True, "ready")  # type: ignore[index]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="delay or at, not both"):
        put(user, engine, "e", delay="1h", at="2030-01-01Z")


def got(user: psycopg.Connection[Any], engine: PostgresEngine, columns: str, id: str) -> Any:
    query = f"SELECT {columns} FROM {engine.schema}.get('q', '{id}')"
    return user.execute(query.encode()).fetchone()


def test_puts_of_an_id_delay_it_but_not_past_the_latest_time(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    def again(delay: str, latest: str) -> Any:
        return put(user, engine, "a", delay=delay, latest=latest, on_conflict="replace")

    first = again("1h", "2h")
    assert first[1:3] == (True, "delayed")
    (created,) = got(user, engine, "created", "a")
    user.execute("SELECT pg_sleep(0.01)")
    assert again("9h", "2h")[1:] == (True, "delayed", created + timedelta(hours=2))
    assert again("1h", "2h")[3] > first[3]
    assert got(user, engine, "created, successor", "a") == (created, None)
    assert again("1h", "0")[1:] == (True, "ready", created)
    user.commit()
    assert counts(engine).flow.put == 1


def test_a_put_with_latest_of_a_leased_message_takes_its_place_later(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    engine.execute([cmd.Put("q", [Item("a", b"1")])])
    (reply,) = engine.execute([cmd.Claim("q", 1, 600_000, "w")])
    assert isinstance(reply, Claimed)
    assert put(user, engine, "a", on_conflict="replace")[1:3] == (False, "leased")
    told = put(user, engine, "a", delay="1h", latest="2h", on_conflict="replace")
    assert told[1:3] == (True, "leased")
    assert got(user, engine, "state, holder, successor", "a") == ("leased", "w", told[3])
    user.commit()
    assert counts(engine).sizes.total == 1
    engine.execute([cmd.Ack("q", [cmd.Lease("a", reply.token)])])
    assert got(user, engine, "state, due, successor, body", "a") == ("delayed", told[3], None, [1])
    assert counts(engine).flow.put == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"latest": "1h", "delay": "1m"},
        {"latest": "1h", "on_conflict": "replace"},
        {"latest": "1h", "on_conflict": "replace", "at": "2030-01-01Z"},
        {"latest": "-1s", "delay": "1m", "on_conflict": "replace"},
        {"latest": "1000 years", "delay": "1m", "on_conflict": "replace"},
    ],
)
def test_latest_needs_what_it_bounds(
    engine: PostgresEngine, user: psycopg.Connection[Any], wrong: dict[str, str]
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="latest bounds how long"):
        put(user, engine, "a", **wrong)


@pytest.mark.parametrize("expires", ["-1s", "1000 years"])
def test_a_message_expires_after_a_time_that_can_be(
    engine: PostgresEngine, user: psycopg.Connection[Any], expires: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="expires 0 to 47482 days"):
        put(user, engine, "a", expires=expires)


def test_latest_needs_an_id(engine: PostgresEngine, user: psycopg.Connection[Any]) -> None:
    query = (
        f"SELECT {engine.schema}.put('q', '1', delay => '1m', latest => '1h',"
        " on_conflict => 'replace')"
    )
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="needs id, delay and"):
        user.execute(query.encode())


def test_a_put_is_there_with_the_commit_and_not_before(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    engine.execute([cmd.Put("q", [])])
    assert put(user, engine, "a")[1:3] == (True, "ready")
    assert claimed(engine) == []
    user.commit()
    assert claimed(engine) == ["a"]
    assert counts(engine).flow.put == 1


def test_a_rollback_leaves_nothing(engine: PostgresEngine, user: psycopg.Connection[Any]) -> None:
    engine.execute([cmd.Put("q", [Item("a", b"1", delay=60_000)])])
    before = counts(engine)
    assert put(user, engine, "b")[1]
    cancel = f"SELECT (s).done FROM {engine.schema}.cancel('q', 'a') AS s"
    assert user.execute(cancel.encode()).fetchone() == (True,)
    user.rollback()
    assert counts(engine) == before
    (found,) = engine.execute([cmd.Find("q", ["a", "b"])])
    assert isinstance(found, Found)
    assert [message is not None for message in found.messages] == [True, False]


def test_a_message_that_somebody_is_changing_is_busy_and_others_are_not(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    engine.execute([cmd.Put("q", [Item("a", b"1"), Item("b", b"1"), Item("c", b"1")])])
    user.execute(f"SELECT {engine.schema}.cancel('q', 'a')".encode())
    with pytest.raises(StoreBusy, match="open transaction"):
        engine.execute([cmd.Cancel("q", ["a"])])
    (reply,) = engine.execute([cmd.Cancel("q", ["b"])])
    assert isinstance(reply, Outcomes)
    assert reply.outcomes[0].done
    assert claimed(engine) == ["c"]
    user.rollback()
    assert claimed(engine) == ["a"]


def test_two_who_put_the_same_id_wait_for_the_first_to_commit(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    engine.execute([cmd.Put("q", [])])
    put(user, engine, "a")
    with pytest.raises(StoreBusy):
        engine.execute([cmd.Put("q", [Item("a", b"2")])])
    user.commit()
    (reply,) = engine.execute([cmd.Put("q", [Item("a", b"2")])])
    assert isinstance(reply, Outcomes)
    assert not reply.outcomes[0].done


@pytest.mark.parametrize("there", ["before", "in", "between", "behind"])
def test_ids_that_begin_alike_are_put_beside_what_is_there(
    engine: PostgresEngine, there: str
) -> None:
    alike = "0123456789abcdefghij"
    old = {"before": "0", "in": "3", "between": "4", "behind": "9"}[there]
    engine.execute([cmd.Put("q", [Item(alike + old, b"old")])])
    new = [Item(alike + id, b"new") for id in "357"]
    (reply,) = engine.execute([cmd.Put("q", new)])
    assert isinstance(reply, Outcomes)
    assert [outcome.done for outcome in reply.outcomes] == [there != "in", True, True]
    (found,) = engine.execute([cmd.Find("q", [alike + id for id in [old, *"357"]])])
    assert isinstance(found, Found)
    bodies = [message.data for message in found.messages if message is not None]
    assert bodies == [b"old", b"old" if there == "in" else b"new", b"new", b"new"]
    assert counts(engine).flow.put == (3 if there == "in" else 4)


def test_a_queue_into_which_somebody_puts_is_not_deleted(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    engine.execute([cmd.Put("q", [])])
    put(user, engine, "a")
    with pytest.raises(StoreBusy):
        engine.execute([cmd.Delete("q")])
    user.commit()
    assert claimed(engine) == ["a"]


def test_a_put_forgets_nothing_of_other_queues(
    engine: PostgresEngine, postgres: PostgresServer
) -> None:
    puts = [cmd.Put(queue, [Item("a", b"1")]) for queue in ("kept", "q")]
    engine.execute([cmd.Configure("kept", keep=1), *puts], 1_000)
    (reply,) = engine.execute([cmd.Claim("kept", 1, 60_000, "w")], 1_000)
    assert isinstance(reply, Claimed)
    engine.execute([cmd.Ack("kept", [cmd.Lease("a", reply.token)])], 1_000)
    for id in ("a", "b"):
        engine.execute([cmd.Put("q", [Item(id, b"1")])], 5_000)
    with postgres.client() as client:
        kept = f"SELECT count(*) FROM {engine.schema}.message WHERE state = 4".encode()
        assert client.execute(kept).fetchall() == [(1,)]
        engine.execute([cmd.Put("kept", [Item("b", b"1")])], 5_000)
        assert client.execute(kept).fetchall() == [(0,)]


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel)[1:])
def test_a_put_does_not_fail_because_others_forget_at_the_same_time(
    engine: PostgresEngine, user: psycopg.Connection[Any], level: psycopg.IsolationLevel
) -> None:
    engine.execute([cmd.Configure("q", keep=1, history=1)])
    user.isolation_level = level
    for id in ("a", "b"):
        engine.execute([cmd.Put("q", [Item(id, b"1")])], now=1_000)
        (held,) = engine.execute([cmd.Claim("q", 1, 60_000, "w")], now=1_000)
        assert isinstance(held, Claimed)
        engine.execute([cmd.Ack("q", [cmd.Lease(id, held.token)])], now=1_000)
        user.execute("SELECT count(*) FROM pg_class")  # the transaction's snapshot
        if id == "b":
            engine.execute([cmd.Cancel("q", ["none"])])
        assert put(user, engine, "a")[1] is (id == "a")  # it is remembered no longer
        assert put(user, engine, f"new{id}")[1] is True
        user.commit()
    assert counts(engine).sizes.total == 3


def test_a_put_at_repeatable_read_is_refused_for_as_long_as_its_id_is_remembered(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    engine.execute([cmd.Configure("q", keep=3_600_000), cmd.Put("q", [Item("a", b"1")])])
    (held,) = engine.execute([cmd.Claim("q", 1, 60_000, "w")])
    assert isinstance(held, Claimed)
    engine.execute([cmd.Ack("q", [cmd.Lease("a", held.token)])])
    user.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    assert put(user, engine, "a")[1] is False


def test_numbers_of_many_transactions_add_up(engine: PostgresEngine) -> None:
    for number in range(600):
        engine.execute([cmd.Put("q", [Item(f"m{number}", b"1", delay=number * 60_000)])])
    assert counts(engine).flow.put == 600
    engine.execute([cmd.Cancel("q", where=cmd.Where(after=0))])
    assert counts(engine).flow.cancelled == 600


def test_a_put_that_wakes_somebody_holds_up_nobody_and_the_commit_stays_as_safe(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    engine.execute([cmd.Put("q", [])])
    with user.cursor() as cursor:
        listener = engine.notifier()
        assert listener is not None
        assert claimed(engine) == []  # asleep, until somebody wakes it
        put(user, engine, "a")
        told = cursor.execute("SHOW synchronous_commit").fetchone()
    assert told == ("on",)
    engine.execute([cmd.Put("q", [Item("b", b"1")])])  # of a process that has to be woken, too
    assert claimed(engine) == ["b"]
    user.commit()
    assert claimed(engine) == ["a"]
    engine.close()
    assert listener.listen() == []


def test_ids_that_the_server_makes_differ_in_sessions_with_the_same_seed(
    postgres: PostgresServer, engine: PostgresEngine
) -> None:
    query = f"SELECT (s).id FROM {engine.schema}.put('q', '1'::json) AS s".encode()
    made: list[str] = []
    with (
        psycopg.connect(postgres.url, autocommit=True) as one,
        psycopg.connect(postgres.url, autocommit=True) as other,
    ):
        for session in (one, other, one):
            session.execute("SELECT setseed(0.5)")
            made += [id for _ in range(20) for (id,) in session.execute(query)]

    assert len(set(made)) == 60
    assert counts(engine).sizes.total == 60


def test_a_put_that_does_not_say_what_to_do_with_a_message_of_its_id_keeps_it(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    put(user, engine, "a")
    again = (
        f"SELECT (s).done FROM {engine.schema}.put('q', '[2]', id => 'a', on_conflict => NULL) AS s"
    )
    assert user.execute(again.encode()).fetchone() == (False,)
    assert got(user, engine, "body", "a") == ([1],)


@pytest.mark.parametrize("queue", ["", "two words", "a/b/c", "x" * 129, f"{'x' * 129}/q", None])
def test_no_queue_gets_a_wrong_name(
    engine: PostgresEngine, user: psycopg.Connection[Any], queue: str | None
) -> None:
    query = f"SELECT {engine.schema}.put(%s, '1'::json)".encode()
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="must have 1 to 128"):
        user.execute(query, (queue,))


IDS = [f"m{number}" for number in range(20)]


def several(chance: random.Random) -> list[cmd.Command]:
    """Return commands of several callers in one batch."""
    ids = chance.sample(IDS, 12)
    items = [Item(id, b"1", delay=60_000) for id in ids]
    return [
        *(cmd.Put("q", [item], "replace") for item in items[:2]),
        *(cmd.Put("q", [item]) for item in items[2:4]),
        *(cmd.Reschedule("q", [id], delay=60_000) for id in ids[4:8]),
        *(cmd.Edit("q", [id], priority=1) for id in ids[8:]),
    ]


def one(chance: random.Random) -> list[cmd.Command]:
    """Return a command that names several messages."""
    ids = chance.sample(IDS, 12)
    items = [Item(id, b"1", delay=60_000) for id in ids]
    commands: list[cmd.Command] = [
        cmd.Put("q", items),
        cmd.Put("q", sorted(items, key=lambda item: item.id)),
        cmd.Put("q", items, "replace"),
        cmd.Cancel("q", ids),
        cmd.Reschedule("q", ids, delay=60_000),
        cmd.Edit("q", ids, priority=1),
    ]
    return [chance.choice(commands)]


@pytest.mark.parametrize("batch", [one, several])
def test_changes_of_the_same_messages_wait_in_no_circle(
    engine: PostgresEngine,
    postgres: PostgresServer,
    batch: Callable[[random.Random], list[cmd.Command]],
) -> None:
    url = f"{postgres.url}&schema={engine.schema}"
    engine.execute([cmd.Put("q", [Item(id, b"1", delay=60_000) for id in IDS])])
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"

    def change(seed: int) -> None:
        chance = random.Random(seed)
        with closing(from_url(urlsplit(url))()) as own:
            postgres_caller(own).connection.execute("SET deadlock_timeout = '5 ms'")
            for _ in range(60):
                with suppress(StoreBusy, PartlyDone):  # on a busy machine
                    own.execute(batch(chance))

    with postgres.client() as client:
        before = client.execute(query.encode()).fetchall()
        with ThreadPoolExecutor() as threads:
            assert list(threads.map(change, range(4))) == [None] * 4
        client.execute("SELECT pg_stat_force_next_flush()")
        assert client.execute(query.encode()).fetchall() == before
    counts(engine)
