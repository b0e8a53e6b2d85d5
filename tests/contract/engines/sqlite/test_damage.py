"""What something else has written to bide's tables: it holds nothing up, and is not lost."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bide.engines.findings import examine
from bide.engines.sqlite import SqliteEngine
from bide.model import commands as cmd
from bide.model.ended import Ended
from bide.model.errors import StoreCorrupt
from bide.model.message import UNREADABLE, Item, Message
from bide.model.rank import PROMOTE
from bide.model.replies import Affected, Claimed, Counts, EndedPage, Explained, Found, Outcomes
from tests.contract.engines.test_damage import OF_ROWS_SQLITE

NOW = 1_700_000_000_000
LEASE = 60_000
IDS = [f"m{number}" for number in range(5)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bide.db"


@pytest.fixture
def engine(path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(path)
    items = [Item(id, b'"whole"', headers={"a": "b"}, priority=3, group="g") for id in IDS]
    engine.execute([cmd.Put("q", items)], NOW)
    yield engine
    engine.close()


@pytest.fixture(params=["unlimited", "limited"])
def limits(request: pytest.FixtureRequest, engine: SqliteEngine) -> None:
    """Runs a test with a queue that has no limits, and with one whose groups take turns."""
    if request.param == "limited":
        engine.execute([cmd.Configure("q", limit=9, group_limit=9)], NOW)


@pytest.fixture
def spoil(path: Path) -> Callable[[str, str], None]:
    """Changes a row by another program."""

    def spoil(id: str, damage: str) -> None:
        other = sqlite3.connect(path)
        other.execute(f"UPDATE bide_message SET {OF_ROWS_SQLITE[damage]} WHERE id = ?", (id,))
        other.commit()
        other.close()

    return spoil


Spoil = Callable[[str, str], None]


def claim(engine: SqliteEngine, now: int = NOW, count: int = 9) -> Claimed:
    (reply,) = engine.execute([cmd.Claim("q", count, LEASE, "w")], now)
    assert isinstance(reply, Claimed)
    return reply


def get(engine: SqliteEngine, id: str) -> Message:
    (reply,) = engine.execute([cmd.Find("q", [id])], NOW)
    assert isinstance(reply, Found)
    (message,) = reply.messages
    assert message is not None
    return message


def sound(engine: SqliteEngine, now: int = NOW) -> Counts:
    (counts,) = engine.execute([cmd.Count("q", recount=True)], now)
    assert isinstance(counts, Counts)
    assert (counts.strays, counts.recount) == (0, counts.sizes)
    assert counts.flow.put == counts.flow.gone + counts.sizes.total
    return counts


def ack(engine: SqliteEngine, claimed: Claimed, now: int = NOW) -> Outcomes:
    leases = [cmd.Lease(message.id, claimed.token) for message in claimed.messages]
    (reply,) = engine.execute([cmd.Ack("q", leases)], now)
    assert isinstance(reply, Outcomes)
    return reply


@pytest.mark.parametrize(
    "damage",
    [
        "message SET attempt = -3",
        "lease SET until = -1",
        "lease SET until = 1.5",
        "lease SET since = -1",
    ],
)
@pytest.mark.usefixtures("limits")
def test_a_lease_that_cannot_become_a_failure_holds_up_none(
    engine: SqliteEngine, path: Path, damage: str
) -> None:
    assert len(claim(engine).messages) == 5
    other = sqlite3.connect(path)
    (seq,) = other.execute("SELECT seq FROM bide_message WHERE id = 'm2'").fetchone()
    other.execute(f"UPDATE bide_{damage} WHERE seq = ?", (seq,))
    other.commit()
    other.close()
    claimed = claim(engine, NOW + LEASE)
    assert [message.id for message in claimed.messages] == ["m0", "m1", "m3", "m4"]
    assert get(engine, "m2").state == "dead"
    sound(engine, NOW + LEASE)


def test_a_damaged_message_behind_many_of_another_group_holds_up_none(
    engine: SqliteEngine, spoil: Spoil
) -> None:
    engine.execute([cmd.Configure("q", group_limit=9)], NOW)
    many = [Item(f"g{n}", b"1", priority=3, group="many", at=NOW - 1) for n in range(PROMOTE)]
    engine.execute([cmd.Put("q", many)], NOW)
    assert claim(engine, count=0).messages == []
    assert claim(engine, count=0).messages == []  # all stand in line
    spoil("m0", "headers that are no JSON")
    assert [m.id for m in claim(engine, count=4).messages] == ["g0", "m1", "g1", "m2"]
    assert get(engine, "m0").state == "dead"
    sound(engine)


def test_a_change_of_a_damaged_message_says_so_and_changes_nothing(
    engine: SqliteEngine, spoil: Spoil
) -> None:
    spoil("m2", "a due moment that is no number")
    with pytest.raises(StoreCorrupt, match="the row of a message cannot be read"):
        engine.execute([cmd.Cancel("q", ["m1", "m2"])], NOW)
    with pytest.raises(StoreCorrupt, match="the row of a message cannot be read"):
        engine.execute([cmd.Explain("q", "m2")], NOW)
    (told,) = engine.execute([cmd.Explain("q", "m1")], NOW)
    assert isinstance(told, Explained)
    assert told.state == "ready"
    assert len(claim(engine).messages) == 4


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("damage", ["headers that are no JSON", "failures that are no JSON"])
def test_commands_that_need_no_headers_or_failures_change_a_message_whose_cannot_be_read(
    engine: SqliteEngine, spoil: Spoil, damage: str
) -> None:
    spoil("m2", damage)
    engine.execute([cmd.Explain("q", "m2"), cmd.Put("q", [Item("m2", b"1")])], NOW)
    engine.execute([cmd.Reschedule("q", ["m2"], delay=9)], NOW)
    seen = get(engine, "m2")
    assert (seen.error, seen.state) == (UNREADABLE, "dead")  # the row still has what it had
    (affected,) = engine.execute([cmd.Purge("q", "ready")], NOW)
    assert affected == Affected(4)
    (cancelled,) = engine.execute([cmd.Cancel("q", ["m2"])], NOW)
    assert isinstance(cancelled, Outcomes)
    assert cancelled.outcomes[0].done
    sound(engine)


def test_a_failure_does_not_overwrite_failures_that_cannot_be_read(
    engine: SqliteEngine, spoil: Spoil
) -> None:
    lease = cmd.Lease("m0", claim(engine, count=1).token)
    spoil("m0", "failures that are no JSON")
    for verb in (cmd.RetryCommand, cmd.BuryCommand):
        with pytest.raises(StoreCorrupt, match="Nothing was changed"):
            engine.execute([verb("q", [lease])], NOW)
    claim(engine, NOW + LEASE, count=0)
    assert b"'failures': '[['" in get(engine, "m0").data


def test_an_id_that_is_no_text_is_replaced(engine: SqliteEngine, path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("UPDATE bide_message SET id = CAST(x'6dff' AS TEXT) WHERE id = 'm2'")
    other.commit()
    other.close()
    assert len(claim(engine).messages) == 4
    assert get(engine, "m\\udcff").state == "dead"
    sound(engine)


@pytest.mark.parametrize(
    "damage",
    [
        "failures = '['",
        "failures = '[[1]]'",
        "how = 99",
        "how = -1",
        "how = 'so'",
        "due = 'abc'",
        "attempt = 'x'",
        "since = 'x'",
        "\"by\" = x'00'",
    ],
)
def test_an_end_that_cannot_be_read_is_listed_as_that(
    engine: SqliteEngine, path: Path, damage: str
) -> None:
    cancels = [cmd.Cancel("q", [id]) for id in IDS[:2]]
    engine.execute([cmd.Configure("q", history=LEASE), *cancels], NOW)
    other = sqlite3.connect(path)
    other.execute(f"UPDATE bide_ended SET {damage} WHERE id = ?", (IDS[0],))
    other.commit()
    other.close()
    found = [ended for ended in examine(f"sqlite:///{path}") if "ended messages" in ended.what]
    assert [finding.what.rpartition(": ")[2] for finding in found] == [f"{IDS[0]!r}"]
    whole, dead, cancelled = engine.execute(
        [cmd.ListEnded("q", how=how) for how in (None, "dead", "cancelled")], NOW
    )
    assert isinstance(whole, EndedPage)
    assert isinstance(dead, EndedPage)
    assert isinstance(cancelled, EndedPage)
    assert dead.messages == [Ended.unreadable(IDS[0], NOW)]
    assert [ended.id for ended in cancelled.messages] == [IDS[1]]
    assert whole.messages == [*dead.messages, *cancelled.messages]
    with pytest.raises(StoreCorrupt):
        engine.execute([cmd.History("q", IDS[0])], NOW)
