"""What a call has claimed and not returned is released by the next one, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bide.engines.port import Identity, PartlyDone
from bide.engines.sqlite import SqliteEngine
from bide.engines.sqlite import engine as sqlite
from bide.model.commands import Claim, Count, Put, RetryCommand
from bide.model.message import Item
from bide.model.replies import Counts, Sizes, expect
from bide.testing.engine_hooks import sqlite_connection
from tests.start import START

CLAIM = Claim("q", 1, 60_000, "w")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "bide.db", durability="normal")
    engine.execute([Put("q", [Item("a", b"1"), Item("b", b"2")])], START)
    yield engine
    engine.close()


def sizes(engine: SqliteEngine) -> Sizes:
    (counts,) = engine.execute([Count("q")], START)
    return expect(Counts, counts).sizes


def test_a_call_that_was_interrupted(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "replies_of", strike)
        with pytest.raises(KeyboardInterrupt):
            engine.execute([CLAIM, CLAIM], START)
    assert sizes(engine) == Sizes(ready=2)


def test_a_call_that_was_interrupted_before_its_commit(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leases are of nobody: the next claim of any process gets the same token."""

    class Interrupted:
        """A connection that a signal strikes at the commit."""

        def __init__(self, connection: object) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> object:
            return getattr(self._connection, name)

        def execute(self, statement: str, *parameters: object) -> object:
            if statement == "COMMIT":
                raise KeyboardInterrupt
            return self._connection.execute(statement, *parameters)  # type: ignore[attr-defined]

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_connection", Interrupted(sqlite_connection(engine)))
        with pytest.raises(KeyboardInterrupt):
            engine.execute([CLAIM], START)
    assert engine.unreturned == ((), ())
    assert sizes(engine) == Sizes(ready=2)


def test_claims_that_an_error_brings(engine: SqliteEngine) -> None:
    """Some commands of a batch were done, others not: the error has the messages."""
    sent, late = Identity("sender", 2, 0), Identity("sender", 1, 0)
    engine.execute([RetryCommand("q", [], release=True)], START, [sent])
    with pytest.raises(PartlyDone):
        engine.execute([CLAIM, RetryCommand("q", [], release=True)], START, [None, late])
    assert sizes(engine) == Sizes(ready=1, leased=1)
