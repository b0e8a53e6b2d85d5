"""What Redis remembers for senders that may send a command again: bounds, shards, lost replies."""

import logging
from collections.abc import Callable

import pytest
import redis as client_library

from bide.engines import constants
from bide.engines.port import Identity
from bide.engines.redis import RedisEngine
from bide.engines.redis.layout import shard_of
from bide.model.commands import Cancel, Claim, Command, Put
from bide.model.errors import OutcomeUnknown
from bide.model.message import Item
from bide.model.replies import Claimed, Outcomes, Reply
from tests.cluster import RedisCluster
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open


def send(engine: RedisEngine, command: Command, identity: Identity) -> Reply:
    (reply,) = engine.execute([command], None, [identity])
    return reply


def done(reply: Reply) -> list[bool]:
    assert isinstance(reply, Outcomes)
    return [outcome.done for outcome in reply.outcomes]


def put(*ids: str) -> Put:
    return Put("q", [Item(id, b"1") for id in ids])


def test_what_is_remembered_of_a_sender_expires(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    send(engine, put("a"), Identity("owner:a", 1, 0))
    for key in ("bide:sent:owner:a", "bide:senders:owner"):
        assert 950 < server.ttl(key) <= 960


def test_a_sender_is_noted_again_after_a_minute_and_keeps_only_its_last_batch(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    now = 1_900_000_000_000
    commands: list[Command] = [put("a"), put("b"), Cancel("q", ["a"]), put("c"), put("c")]
    times = [now, now + 59_999, now + 59_999, now + 60_000, now - 5]
    noted = [now, now, now, now + 60_000, now - 5]
    for number, (command, moment, score) in enumerate(zip(commands, times, noted, strict=True)):
        identity = Identity("owner:a", number + 1, 0)
        engine.execute([command], moment, [identity])
        kept = server.hgetall("bide:sent:owner:a")
        assert len(kept) == 4
        assert int(kept[b"batch"]) == number + 1
        assert server.zscore("bide:senders:owner", "bide:sent:owner:a") == score
        assert 890 < server.ttl("bide:sent:owner:a") <= 960


def test_the_oldest_sender_of_an_owner_is_forgotten_first(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    count = constants.MAX_SENDERS
    senders = [Identity(f"owner:{number}", 1, 0) for number in range(count + 1)]
    send(engine, put("other"), Identity("another:a", 1, 0))
    first = engine.execute([put("a")] * count, None, senders[:count])
    assert done(first[0]) == [True]
    send(engine, put("a"), senders[count])
    assert server.zcard("bide:senders:owner") == count
    assert len(server.keys("bide:sent:owner:*")) == count
    assert server.exists("bide:sent:another:a")
    (gone,) = {f"bide:sent:owner:{number}".encode() for number in range(count + 1)} - set(
        server.keys("bide:sent:owner:*")
    )
    lost = gone.decode().rpartition(":")[2]
    with pytest.raises(OutcomeUnknown, match="does not remember its sender"):
        send(engine, put("a"), Identity(f"owner:{lost}", 1, 0, repeated=True))


def test_a_large_answer_is_not_remembered_and_the_command_not_repeated(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = [f"{number:0500d}" for number in range(140)]
    engine.execute([put(*ids)])
    claim = Claim("q", 140, 60_000, "w")
    first = send(engine, claim, Identity("owner:a", 1, 0))
    assert isinstance(first, Claimed)
    assert len(first.messages) == 140
    engine.execute([put("more")])
    with pytest.raises(OutcomeUnknown, match="too large to be remembered"):
        send(engine, claim, Identity("owner:a", 1, 0, repeated=True))
    assert server.hget("bide:sent:owner:a", "size") == b"0"
    assert done(send(engine, put("next"), Identity("owner:a", 2, 0))) == [True]


def test_a_lost_reply_to_a_command_with_an_identity_is_fetched_again(
    proxy_before: Callable[[str | int], Proxy],
    url: str,
    redis_server: RedisServer,
    open_engine: Open,
) -> None:
    proxy = proxy_before(redis_server.path)
    engine = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}")
    assert done(send(engine, put("a"), Identity("owner:a", 1, 0))) == [True]
    proxy.strike("lose")
    assert done(send(engine, Cancel("q", ["a"]), Identity("owner:a", 2, 0))) == [True]
    assert proxy.struck
    proxy.strike("lose")
    assert done(send(engine, put("b"), Identity("owner:new", 1, 0))) == [True]
    assert proxy.struck


def test_a_repetition_is_not_taken_for_lost_changes(
    engine: RedisEngine, caplog: pytest.LogCaptureFixture
) -> None:
    first = send(engine, put("a"), Identity("owner:a", 1, 0))
    for number in range(5):
        engine.execute([put(f"b{number}")])
    with caplog.at_level(logging.WARNING):
        assert send(engine, put("a"), Identity("owner:a", 1, 0, repeated=True)) == first
    assert not caplog.records


def test_a_claim_of_several_slices_is_repeated_whole(engine: RedisEngine) -> None:
    ids = [f"m{number:04}" for number in range(1_200)]
    engine.execute([put(*ids)])
    claim = Claim("q", 1_100, 60_000, "w")
    first = send(engine, claim, Identity("owner:a", 1, 0))
    again = send(engine, claim, Identity("owner:a", 1, 0, repeated=True))
    assert isinstance(first, Claimed)
    assert isinstance(again, Claimed)
    assert [message.id for message in first.messages] == ids[:1_100]
    assert again.messages == first.messages


def test_in_a_cluster_a_shard_that_does_not_know_the_sender_executes_no_repetition(
    redis_cluster: RedisCluster, open_engine: Open
) -> None:
    redis_cluster.wipe()
    engine = open_engine(f"{redis_cluster.url}?shards=4")
    first, other = "a", next(id for id in "bcdefgh" if shard_of(id, 4) != shard_of("a", 4))
    assert done(send(engine, put(first), Identity("owner:a", 1, 0))) == [True]
    assert done(send(engine, put(first), Identity("owner:a", 1, 0, repeated=True))) == [True]
    with pytest.raises(OutcomeUnknown, match="not in this part of the queue"):
        send(engine, put(other), Identity("owner:a", 2, 0, repeated=True))
    assert done(send(engine, put(other), Identity("owner:a", 3, 0))) == [True]
