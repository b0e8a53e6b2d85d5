"""What a file remembers of commands that may be sent again."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bide.engines.constants import MAX_KEPT, MAX_SENDERS, SENDER_KEEP
from bide.engines.port import Identity, PartlyDone
from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite.senders import RENEWED
from bide.model.commands import Cancel, Claim, Command, Count, Put
from bide.model.errors import OutcomeUnknown, StoreError
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Outcomes, Reply
from tests.start import START


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def engine(path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(path, durability="normal")
    yield engine
    engine.close()


def put(*ids: str) -> Put:
    return Put("q", [Item(id, b"1", delay=1_000) for id in ids])


def done(reply: Reply) -> list[bool]:
    assert isinstance(reply, Outcomes)
    return [bool(outcome) for outcome in reply.outcomes]


def sent(
    engine: SqliteEngine,
    command: Command,
    sender: str,
    number: int = 1,
    *,
    repeated: bool = False,
    now: int = START,
) -> Reply:
    (reply,) = engine.execute([command], now, [Identity(sender, number, 0, repeated)])
    return reply


def senders(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT owner || ':' || name FROM bide_sender ORDER BY seq")
    found = [sender for (sender,) in rows]
    connection.close()
    return found


def test_another_process_remembers_what_the_first_has_executed(
    path: Path, engine: SqliteEngine
) -> None:
    first = sent(engine, put("a"), "o:s")
    engine.close()
    after = SqliteEngine(path)
    assert sent(after, put("a"), "o:s", repeated=True) == first
    assert done(sent(after, Cancel("q", ["a"]), "o:s", 2)) == [True]
    after.close()
    last = SqliteEngine(path)
    assert done(sent(last, Cancel("q", ["a"]), "o:s", 2, repeated=True)) == [True]
    last.close()


def test_what_is_rolled_back_is_not_remembered(path: Path, engine: SqliteEngine) -> None:
    sent(engine, put("a"), "o:s")
    identities = [Identity("o:s", 2, 0), Identity("o:s", 2, 1)]
    with pytest.raises(StoreError):
        engine.execute([put("c"), Put("q", [Item("b", b"\xff")])], START, identities)
    assert done(sent(engine, put("c"), "o:s", 2, repeated=True)) == [True]


def test_an_original_and_its_repetition_in_one_batch_are_executed_once(
    engine: SqliteEngine,
) -> None:
    sent(engine, put("a"), "o:s")
    original, repeated = Identity("o:s", 2, 0), Identity("o:s", 2, 0, repeated=True)
    cancel = Cancel("q", ["a"])
    for pair in ((original, repeated), (repeated, original), (original, original)):
        first, second = engine.execute([cancel, cancel], START, pair)
        assert (done(first), done(second)) == ([True], [True])
    (counts,) = engine.execute([Count("q")], START)
    assert isinstance(counts, Counts)
    assert counts.flow.cancelled == 1


def test_what_its_sender_has_given_up_is_not_executed_behind_what_follows(
    engine: SqliteEngine,
) -> None:
    sent(engine, put("a"), "o:s")
    late = [Identity("o:s", 3, 0), Identity("o:s", 2, 0)]
    with pytest.raises(PartlyDone) as partly:
        engine.execute([put("b"), Cancel("q", ["a"])], START, late)
    first, second = partly.value.outcomes
    assert isinstance(first, Outcomes)
    assert isinstance(second, OutcomeUnknown)
    assert done(sent(engine, Cancel("q", ["a"]), "o:s", 4)) == [True]


def test_a_batch_of_many_messages_is_remembered_as_far_as_there_is_room(
    engine: SqliteEngine,
) -> None:
    sent(engine, put("a"), "o:s")
    many = put(*(f"{number:0>300}" for number in range(MAX_KEPT // 300)))
    identities = [Identity("o:s", 2, place) for place in range(3)]
    replies = engine.execute([put("b"), many, put("c")], START, identities)
    assert sent(engine, put("b"), "o:s", 2, repeated=True) == replies[0]
    with pytest.raises(OutcomeUnknown, match="too large to be remembered"):
        engine.execute([many], START, [Identity("o:s", 2, 1, repeated=True)])


def test_of_one_owner_a_number_of_senders_is_remembered_and_of_others_their_own(
    path: Path, engine: SqliteEngine
) -> None:
    sent(engine, put("a"), "mine:s")
    for number in range(MAX_SENDERS + 5):
        sent(engine, put("b"), f"hostile:{number}", now=START + number)
    assert senders(path) == ["mine:s", *(f"hostile:{n}" for n in range(5, MAX_SENDERS + 5))]
    assert done(sent(engine, put("a"), "mine:s", repeated=True)) == [True]
    with pytest.raises(OutcomeUnknown):
        sent(engine, put("b"), "hostile:4", repeated=True)


def test_idle_senders_are_forgotten_after_a_time(path: Path, engine: SqliteEngine) -> None:
    sent(engine, put("a"), "o:idle")
    sent(engine, put("a"), "o:busy")
    later = START + SENDER_KEEP + 1
    sent(engine, put("b"), "o:busy", 2, now=later - 1)
    sent(engine, put("c"), "o:new", now=later - 1)
    assert senders(path) == ["o:idle", "o:busy", "o:new"]
    sent(engine, put("d"), "o:another", now=later + RENEWED)
    assert senders(path) == ["o:busy", "o:new", "o:another"]


def test_a_claim_without_messages_writes_nothing(path: Path, engine: SqliteEngine) -> None:
    claim = Claim("q", 1, 1_000, "w")
    reply = sent(engine, claim, "o:s")
    assert isinstance(reply, Claimed)
    assert senders(path) == []
