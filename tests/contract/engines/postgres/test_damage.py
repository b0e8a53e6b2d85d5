"""What something else has written to bide's tables: it holds nothing up, and is not lost."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from bide.engines.postgres import PostgresEngine, from_url
from bide.model import commands as cmd
from bide.model.ended import Ended
from bide.model.errors import NotAStore, StoreCorrupt
from bide.model.message import UNREADABLE, Item, Message
from bide.model.replies import Claimed, Counts, EndedPage, Found, Outcomes, Page
from tests.postgres_server import PostgresServer

NOW = 1_700_000_000_000
LEASE = 60_000
IDS = [f"m{number}" for number in range(5)]


@pytest.fixture
def url(postgres_url: Callable[[], str]) -> str:
    return postgres_url()


@pytest.fixture
def engine(url: str) -> Iterator[PostgresEngine]:
    engine = from_url(urlsplit(url))()
    engine.execute([cmd.Put("q", [Item(id, b"1", headers={"a": "b"}) for id in IDS])], NOW)
    yield engine
    engine.close()


@pytest.fixture
def alter(engine: PostgresEngine, postgres: PostgresServer) -> Iterator[Callable[[str], object]]:
    """Changes the tables by another program."""
    with psycopg.connect(postgres.url, autocommit=True) as user:
        yield lambda text: user.execute(text.replace("bide.", f'"{engine.schema}".').encode())


def claim(engine: PostgresEngine, now: int = NOW, count: int = 9) -> Claimed:
    (reply,) = engine.execute([cmd.Claim("q", count, LEASE, "w")], now)
    assert isinstance(reply, Claimed)
    return reply


def get(engine: PostgresEngine, id: str) -> Message:
    (reply,) = engine.execute([cmd.Find("q", [id])], NOW)
    assert isinstance(reply, Found)
    (message,) = reply.messages
    assert message is not None
    return message


def test_a_message_whose_failures_are_an_object_is_a_dead_letter(
    engine: PostgresEngine, alter: Callable[[str], object]
) -> None:
    alter("UPDATE bide.message SET failures = '{}' WHERE id = 'm2'")
    (page,) = engine.execute([cmd.Scan("q")], NOW)
    assert isinstance(page, Page)
    assert sorted(message.id for message in page.messages) == IDS
    claimed = claim(engine)
    assert [message.id for message in claimed.messages] == [id for id in IDS if id != "m2"]
    dead = get(engine, "m2")
    assert dead.state == "dead"
    assert dead.error == UNREADABLE
    leases = [cmd.Lease(message.id, claimed.token) for message in claimed.messages]
    (acked,) = engine.execute([cmd.Ack("q", leases)], NOW)
    assert isinstance(acked, Outcomes)
    assert all(acked.outcomes)
    (counts,) = engine.execute([cmd.Count("q", recount=True)], NOW)
    assert isinstance(counts, Counts)
    assert (counts.strays, counts.flow.died, counts.sizes.dead) == (0, 1, 1)
    (purged,) = engine.execute([cmd.Purge("q", "dead", ids=["m2"])], NOW)
    assert isinstance(purged, Outcomes)
    assert all(purged.outcomes)


def test_a_claim_of_one_goes_on_to_the_next(
    engine: PostgresEngine, alter: Callable[[str], object]
) -> None:
    alter("UPDATE bide.message SET headers = '[1]' WHERE id = 'm0'")
    first = claim(engine, count=1)
    assert (first.messages, first.next) == ([], 0)
    assert [message.id for message in claim(engine, count=1).messages] == ["m1"]


def test_a_message_that_repeats_is_a_dead_letter_too_and_keeps_its_rule(
    engine: PostgresEngine, alter: Callable[[str], object]
) -> None:
    item = Item("hourly", b"1", headers={"a": "b"}, attempts=1, rule="hourly", run="1")
    engine.execute([cmd.Put("q", [item])], NOW)
    alter("UPDATE bide.message SET headers = '[1]' WHERE id = 'hourly'")
    assert sorted(message.id for message in claim(engine).messages) == IDS
    assert claim(engine).messages == []
    dead = get(engine, "hourly")
    assert (dead.state, dead.error) == ("dead", UNREADABLE)
    assert b"'rule': 'hourly', 'run': '1'" in dead.data
    alter("UPDATE bide.message SET headers = NULL WHERE id = 'hourly'")
    engine.execute([cmd.Revive("q", ["hourly"])], NOW)
    (repaired,) = claim(engine).messages
    assert (repaired.attempt, repaired.rule, repaired.run) == (1, "hourly", "1")


def test_what_cannot_be_read_otherwise_is_an_error_with_the_cause(
    engine: PostgresEngine, alter: Callable[[str], object]
) -> None:
    alter("UPDATE bide.message SET failures = '[[7]]' WHERE id = 'm2'")
    with pytest.raises(StoreCorrupt, match="the row of a message cannot be read"):
        engine.execute([cmd.Explain("q", "m2")], NOW)


def test_a_column_that_is_missing(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as user:
        engine = from_url(urlsplit(f"{postgres.url}&schema=altered"))()
        engine.execute([cmd.Put("q", [Item("a", b"1")])], NOW)
        user.execute("ALTER TABLE altered.message RENAME COLUMN headers TO heads")
        with pytest.raises(NotAStore, match="changed by hand"):
            claim(engine)
        engine.close()
        user.execute("DROP SCHEMA altered CASCADE")


def test_an_end_that_cannot_be_read_is_listed_as_that(
    engine: PostgresEngine, alter: Callable[[str], object]
) -> None:
    engine.execute([cmd.Configure("q", history=LEASE), cmd.Cancel("q", IDS[:2])], NOW)
    alter("UPDATE bide.ended SET failures = '[[7]]' WHERE id = 'm0'")
    (page,) = engine.execute([cmd.ListEnded("q")], NOW)
    assert isinstance(page, EndedPage)
    unreadable, cancelled = page.messages
    assert unreadable == Ended.unreadable("m0", NOW)
    assert (cancelled.id, cancelled.how) == ("m1", "cancelled")
