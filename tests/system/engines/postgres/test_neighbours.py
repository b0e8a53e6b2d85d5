"""A message that is locked in an open transaction is busy for who names it, and for nobody else."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import bide
from bide.engines.port import PartlyDone
from bide.engines.postgres import PostgresEngine, from_url
from bide.engines.postgres.engine import LOCK_TRIES
from bide.engines.postgres.transactions import ReplyOrError, transact
from bide.model import commands as cmd
from bide.model.errors import StoreBusy
from bide.model.message import Item
from bide.model.replies import Claimed, Outcomes
from tests.postgres_server import PostgresServer


@pytest.fixture
def engine(postgres_url: Callable[[], str]) -> Iterator[PostgresEngine]:
    with closing(from_url(urlsplit(postgres_url()))()) as engine:
        engine.execute([cmd.Put("q", [Item(id, b"1") for id in "abcdefgh"])])
        yield engine


@pytest.fixture
def user(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url) as user:
        yield user
        user.rollback()


def lock(user: psycopg.Connection[Any], engine: PostgresEngine, ids: str) -> None:
    for id in ids:
        user.execute(f"SELECT {engine.schema}.cancel('q', '{id}')".encode())


def parts(engine: PostgresEngine, commands: list[cmd.Command]) -> list[object]:
    """Return what became of each command: whether it was done, or the kind of its error."""
    with pytest.raises(PartlyDone) as told:
        engine.execute(commands)
    return [
        all(outcome.done for outcome in one.outcomes) if isinstance(one, Outcomes) else type(one)
        for one in told.value.outcomes
    ]


def test_other_commands_of_the_batch_are_carried_out(
    engine: PostgresEngine, user: psycopg.Connection[Any]
) -> None:
    lock(user, engine, "a")
    puts: list[cmd.Command] = [
        cmd.Put("q", [Item("new", b"1")]),
        cmd.Put("q", [Item("a", b"1")]),
        cmd.Put("q", [Item("later", b"1", delay=60_000)]),
    ]
    assert parts(engine, puts) == [True, StoreBusy, True]
    mixed: list[cmd.Command] = [
        cmd.Cancel("q", ["b"]),
        cmd.Cancel("q", ["a", "c"]),
        cmd.Claim("q", 9, 60_000, "w"),
    ]
    with pytest.raises(PartlyDone) as told:
        engine.execute(mixed)
    first, second, third = told.value.outcomes
    assert isinstance(first, Outcomes)
    assert first.outcomes[0].done
    assert isinstance(second, StoreBusy)
    assert isinstance(third, Claimed)
    assert [message.id for message in third.messages] == [*"cdefgh", "new"]


def test_commands_that_wait_for_locks_one_after_the_other_do_not_hold_up_all_for_long(
    engine: PostgresEngine, user: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock(user, engine, "a")
    monkeypatch.setattr(
        "bide.engines.postgres.engine.PATIENCE", 0.2
    )  # less than a command waits for a lock
    cancels: list[cmd.Command] = [cmd.Cancel("q", [id]) for id in "ab"]
    assert parts(engine, cancels) == [StoreBusy, StoreBusy]
    user.rollback()
    for reply in engine.execute(cancels):
        assert isinstance(reply, Outcomes)
        assert reply.outcomes[0].done


def test_a_task_is_not_told_of_what_another_has_met(
    engine: PostgresEngine, postgres: PostgresServer, user: psycopg.Connection[Any]
) -> None:
    lock(user, engine, "a")

    async def change() -> tuple[object, ...]:
        async with bide.AsyncQueue("q", f"{postgres.url}&schema={engine.schema}") as queue:
            return await asyncio.gather(
                queue.cancel("a"),
                queue.put(1),
                queue.cancel("b"),
                queue.put(2, id="new"),
                return_exceptions=True,
            )

    busy, *others = asyncio.run(change())
    assert isinstance(busy, StoreBusy)
    assert [other for other in others if isinstance(other, BaseException)] == []


@pytest.fixture
def when_refused(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[str]]:
    """Do something after each try of a batch that the server refuses; returns their errors."""

    def watch(react: Callable[[], object]) -> list[str]:
        refusals: list[str] = []

        def attempt(*arguments: Any) -> Sequence[ReplyOrError]:
            try:
                return transact(*arguments)
            except psycopg.Error as error:
                refusals.append(type(error).__name__)
                react()
                raise

        monkeypatch.setattr("bide.engines.postgres.engine.transact", attempt)
        return refusals

    return watch


@pytest.mark.parametrize(
    "command",
    [
        cmd.Put("q", [Item("a", b"2")], "replace"),
        cmd.Put("q", [Item("a", b"2"), Item("new", b"2")]),
        cmd.Cancel("q", ["b", "a"]),
        cmd.Cancel("q", where=cmd.Where()),
        cmd.Reschedule("q", ["a"], delay=60_000),
    ],
)
def test_a_command_that_has_waited_for_too_long_is_tried_again(
    engine: PostgresEngine,
    user: psycopg.Connection[Any],
    when_refused: Callable[[Callable[[], object]], list[str]],
    command: cmd.Command,
) -> None:
    lock(user, engine, "a")
    refusals = when_refused(user.rollback)
    engine.execute([command])
    assert refusals == ["LockNotAvailable"]


def test_a_command_is_not_tried_without_end(
    engine: PostgresEngine,
    user: psycopg.Connection[Any],
    when_refused: Callable[[Callable[[], object]], list[str]],
) -> None:
    lock(user, engine, "a")
    refusals = when_refused(lambda: None)
    with pytest.raises(StoreBusy):
        engine.execute([cmd.Cancel("q", ["a"])])
    assert refusals == ["LockNotAvailable"] * LOCK_TRIES


@pytest.mark.parametrize("command", [cmd.Claim("q", 1, 1_000, "w"), cmd.Delete("q")])
def test_a_command_that_holds_up_others_is_tried_once(
    engine: PostgresEngine,
    user: psycopg.Connection[Any],
    when_refused: Callable[[Callable[[], object]], list[str]],
    command: cmd.Command,
) -> None:
    lock(user, engine, "a")
    user.execute(f"UPDATE {engine.schema}.queue SET weighted = true".encode())
    refusals = when_refused(lambda: None)
    with pytest.raises(StoreBusy):
        engine.execute([command])
    assert refusals == ["LockNotAvailable"]
