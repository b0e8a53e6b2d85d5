"""Queues that are not there yet: who makes them, and what is asked meanwhile."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.engines.redis.layout import NUMBERS
from bide.model.commands import Claim, Command, Configure, Count, Delete, Find, Put, Queues
from bide.model.errors import StoreUnavailable
from bide.model.message import Item
from bide.model.replies import Deleted, Names
from bide.testing.engine_hooks import redis_sender, redis_shards
from tests.cluster import RedisCluster
from tests.system.engines.redis.conftest import Open

IDS = [f"m{number:04}" for number in range(600)]


def put(*ids: str, queue: str = "q") -> Put:
    return Put(queue, [Item(id, b"1") for id in ids])


def ask(engine: RedisEngine, command: Command) -> Any:
    (reply,) = engine.execute([command])
    return reply


def test_a_batch_tells_of_a_queue_only_after_the_put_that_creates_it(open_engine: Open) -> None:
    names, deleted, stored, after = open_engine().execute(
        [Queues(""), Delete("q"), put("a"), Queues("")]
    )
    assert (names, deleted, after) == (Names([]), Deleted(False), Names(["q"]))
    assert ask(open_engine(), Find("q", ["a"])).messages[0] is not None
    assert stored.outcomes[0].done  # type: ignore[union-attr]


@pytest.mark.parametrize("deleted", [False, True])
def test_a_large_put_is_told_truly_while_another_process_makes_its_queue(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch, *, deleted: bool
) -> None:
    first, second = open_engine(), open_engine()
    if deleted:
        ask(first, Configure("q"))
        ask(second, Delete("q"))
    nodes = redis_sender(first).nodes
    connection = nodes.connection(nodes.owner(0) or ("", 0))
    send = connection.begin

    def begin(packed: bytes, labels: Sequence[bytes]) -> Any:
        if packed.count(b"FCALL") < 2:
            return send(packed, labels)
        monkeypatch.undo()
        behind = packed.rindex(b"*", 0, packed.rindex(b"FCALL"))
        answers = send(packed[:behind], labels[:-1]).answers()
        ask(second, put("other"))
        rest = send(packed[behind:], labels[-1:]).answers()
        return SimpleNamespace(answers=lambda: answers + rest)

    monkeypatch.setattr(connection, "begin", begin)
    assert all(outcome.done for outcome in ask(first, put(*IDS)).outcomes)
    claimed = ask(first, Claim("q", 700, 60_000, "w"))
    ids = [message.id for message in claimed.messages if message.id != "other"]
    assert (ids if not deleted else sorted(ids)) == IDS


@pytest.mark.parametrize("shards", [1, 4])
def test_a_queue_that_is_deleted_while_it_is_made_is_made_once_more(
    open_engine: Open, url: str, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    first, second = (open_engine(f"{url}&shards={shards}") for _ in range(2))
    ask(first, Configure("q"))
    ask(second, Delete("q"))
    make = redis_shards(first).make

    def interrupted(*args: Any) -> None:
        monkeypatch.undo()
        make(*args)
        ask(second, Delete("q"))

    monkeypatch.setattr(redis_shards(first), "make", interrupted)
    assert all(outcome.done for outcome in ask(first, put(*IDS)).outcomes)


def test_two_that_make_a_queue_at_once_agree_though_one_does_not_reach_the_first_copy(
    open_engine: Open, redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (open_engine(f"{redis_cluster.url}?shards={count}") for count in (8, 3))
    plain, cut_off = redis_sender(first).plain, redis_sender(second).plain

    def unreachable(commands: Sequence[Any], *, hurried: bool = False) -> Any:
        error = StoreUnavailable("its node is cut off")
        reached = iter(cut_off([each for each in commands if each[1] != NUMBERS], hurried=hurried))
        return [error if each[1] == NUMBERS else next(reached) for each in commands]

    def overtaken(commands: Sequence[Any], *, hurried: bool = False) -> Any:
        if ("ZADD", NUMBERS) in [each[:2] for each in commands]:
            monkeypatch.setattr(redis_sender(first), "plain", plain)
            ask(second, put("b", "c", queue="once"))
        return plain(commands, hurried=hurried)

    monkeypatch.setattr(redis_sender(second), "plain", unreachable)
    monkeypatch.setattr(redis_sender(first), "plain", overtaken)
    ask(first, put(*IDS, queue="once"))
    ask(second, put("d", "e", queue="once"))
    assert ask(open_engine(redis_cluster.url), Count("once", recount=True)).sizes.ready == 604


def test_reads_of_a_queue_that_is_not_there_ask_once_for_its_shards(
    engine: RedisEngine, server: client_library.Redis
) -> None:
    before = server.info("commandstats").get("cmdstat_zscore", {"calls": 0})["calls"]
    engine.execute([Find("q", [id]) for id in IDS])
    assert server.info("commandstats")["cmdstat_zscore"]["calls"] == before + 1
