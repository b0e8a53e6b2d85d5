"""Limits on Redis: what is stored for them, by many messages at once, and in queues of shards."""

import pytest
import redis as client_library

from bide.engines.memory import MemoryEngine
from bide.engines.port import PartlyDone
from bide.engines.redis import RedisEngine
from bide.model.commands import Ack, Claim, Command, Configure, Count, Put, Release, RetryCommand
from bide.model.errors import Unsupported
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Outcomes, QueueSettings
from bide.model.times import interval
from tests.contract.engines.redis.claims import LEASE, NOW, claim, key, of, put, sound
from tests.system.engines.redis.conftest import Open

Server = client_library.Redis

MANY = 2_600
"""More than one call lines up."""


def configure(engine: RedisEngine, now: int = NOW, **limits: int) -> QueueSettings:
    (settings,) = engine.execute([Configure("q", **limits)], now)  # type: ignore[arg-type]
    assert isinstance(settings, QueueSettings)
    return settings


def put_at_once(engine: RedisEngine, total: int) -> None:
    items = [Item(f"m{number:06}", b"1", group="g") for number in range(total)]
    for first in range(0, total, 500):
        engine.execute([Put("q", items[first : first + 500])], NOW)


def test_many_leases_are_counted_before_a_claim_gives_more(engine: RedisEngine) -> None:
    put_at_once(engine, MANY + 5)
    claimed = claim(engine, MANY)
    configure(engine, group_limit=MANY + 2)
    assert len(claim(engine, 10).messages) == 2
    assert sound(engine).sizes.leased == MANY + 2
    (acked,) = engine.execute([Ack("q", of(claimed)[:1])], NOW)
    assert isinstance(acked, Outcomes)
    assert acked.wake == NOW
    assert len(claim(engine, 10).messages) == 1
    sound(engine)


def test_a_limit_is_raised_where_very_many_groups_run(engine: RedisEngine) -> None:
    configure(engine, group_limit=1)
    for second in (0, 1):
        items = [
            Item(f"{second}{number:04}", b"1", group=f"g{number:04}") for number in range(1_200)
        ]
        for first in range(0, 1_200, 400):
            engine.execute([Put("q", items[first : first + 400])], NOW)
    assert len(claim(engine, 2_400).messages) == 1_200
    configure(engine, group_limit=2)
    assert len(claim(engine, 2_400).messages) == 1_200
    sound(engine)


def test_lines_are_made_anew_a_step_at_a_time(engine: RedisEngine, server: Server) -> None:
    configure(engine, limit=MANY)
    put_at_once(engine, MANY)
    ids = [message.id for message in claim(engine, 700).messages]
    claim(engine, 0)  # lines up the rest
    server.hset(key("meta"), "unsettled", "1")  # half a change, left by a server that died
    server.config_resetstat()
    ids += [message.id for message in claim(engine, 700).messages]
    told = server.info("commandstats")
    assert "cmdstat_zremrangebylex" not in told  # which may remove a million
    assert "cmdstat_del" not in told
    assert told["cmdstat_fcall"]["calls"] > 1
    ids += [message.id for message in claim(engine, MANY).messages]
    assert ids == sorted(ids)
    assert len(ids) == sound(engine).sizes.leased == MANY


def test_a_lease_that_lapses_beside_one_that_ends_is_hinted_at(engine: RedisEngine) -> None:
    """As in memory: once all that the command names is where it is now."""
    for subject in (engine, MemoryEngine()):
        items = [Item("a", b"1", attempts=1), Item("b", b"1")]
        subject.execute([Configure("q", limit=5), Put("q", items)], NOW)
        held = [subject.execute([Claim("q", 1, lease, "w")], NOW)[0] for lease in (9, 5)]
        leases = [
            lease for claimed in held if isinstance(claimed, Claimed) for lease in of(claimed)
        ]
        (retried,) = subject.execute([RetryCommand("q", leases)], NOW + 5)
        assert isinstance(retried, Outcomes)
        assert [outcome.state for outcome in retried.outcomes] == ["dead", "ready"]
        assert retried.wake == NOW + 5


def test_nothing_of_lines_stays_behind(engine: RedisEngine, server: Server) -> None:
    configure(engine, limit=50, group_limit=5, group_rate=interval(100))
    for group in ("g", "h", "i"):
        put(engine, 4, group, group)
    put(engine, 4)
    now = NOW
    while (claimed := claim(engine, now=now)).messages or claimed.next is not None:
        engine.execute([Ack("q", of(claimed))], now)
        now += 10
    sound(engine, now)
    claim(engine, now=now + 100)  # what the rate of a group needed is forgotten
    assert server.exists(*map(key, ("lines", "heads", "tags"))) == 0


def test_without_limits_nothing_is_stored_for_them(engine: RedisEngine, server: Server) -> None:
    put(engine, 40, group="g")
    claim(engine, 3)
    before = server.hgetall(key("meta"))
    configure(engine, limit=9)
    claim(engine, 3)
    assert server.exists(*map(key, ("lines", "heads", "tags"))) == 3
    configure(engine, limit=0)
    assert server.exists(*map(key, ("lines", "heads", "tags"))) == 0
    assert server.hgetall(key("meta")).keys() == before.keys()


def test_a_lease_that_something_else_has_deleted_does_not_block_a_group(
    engine: RedisEngine, server: Server
) -> None:
    """The next claim that finds nothing lines up everything anew."""
    configure(engine, group_limit=2)
    put(engine, 6, group="g")
    claim(engine)
    server.hdel(key("leases"), "m0000")
    server.hdel(key("records"), "m0000")
    server.zrem(key("leased"), "000000000000m0000")
    server.hincrby(key("meta"), "acked", 1)
    assert [message.id for message in claim(engine).messages] == ["m0002"]
    sound(engine)


BROKEN = {
    "a ready message in no line": lambda server: server.zrem(
        key("lines"), *server.zrangebylex(key("lines"), "[w", "(x", start=0, num=1)
    ),
    "a lease that does not run": lambda server: server.zrem(
        key("lines"), *server.zrangebylex(key("lines"), "[r", "(s", start=0, num=1)
    ),
    "a group that has no head": lambda server: server.delete(key("heads")),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_audit_finds_lines_that_are_wrong(
    engine: RedisEngine, server: Server, broken: str
) -> None:
    configure(engine, group_limit=5)
    put(engine, 4, group="g")
    claim(engine, 2)
    sound(engine)
    BROKEN[broken](server)
    (counts,) = engine.execute([Count("q", recount=True)], NOW)
    assert isinstance(counts, Counts)
    assert counts.strays == 2


def test_a_queue_of_several_shards_refuses_limits(open_engine: Open, url: str) -> None:
    """Only their caller meets the refusal; what else is in the batch is carried out."""
    engine = open_engine(f"{url}&shards=4")
    engine.execute([Put("q", [Item("a", b"1")])], NOW)
    with pytest.raises(Unsupported, match=r"queue 'q' is made of 4 shards, .* `bide move`"):
        configure(engine, limit=1)
    commands: list[Command] = [Configure("q", limit=1), Claim("q", 1, LEASE, "w")]
    for each in (engine, open_engine()):  # the second one does not know of the shards yet
        with pytest.raises(PartlyDone) as caught:
            each.execute(commands, NOW)
        refused, claimed = caught.value.outcomes
        assert isinstance(refused, Unsupported)
        assert isinstance(claimed, Claimed)
        for message in claimed.messages:
            each.execute([Release("q", [message.id])], NOW)
    assert configure(engine, limit=0, keep=5).keep == 5


def test_limits_make_a_queue_of_one_shard(open_engine: Open, url: str) -> None:
    engine = open_engine(f"{url}&shards=4")
    configure(engine, group_limit=1)
    put(engine, 10, group="g")
    other = open_engine(f"{url}&shards=4")
    assert [message.id for message in claim(other).messages] == ["m0000"]
    assert claim(engine).messages == []
    sound(engine)


def older(server: Server) -> None:
    """Turn heads and tags into what a bide before them has: turns, and groups that are idle."""
    tags: dict[bytes, bytes] = server.hgetall(key("tags"))  # type: ignore[assignment]
    server.delete(key("heads"), key("tags"))
    server.hdel(key("meta"), "served")
    server.hset(key("meta"), "service", "8192 0 0")
    for turn, (group, text) in enumerate(sorted(tags.items()), 1):
        _, last, *entry = text.decode().split(" ")
        idle = entry[0].startswith("z")
        server.hset(key("shares"), group, f"{-1 if idle else turn} {last} 0")
        if idle:
            server.zadd(key("lines"), {b"z%014x" % int(last) + group: 0})
        elif entry[0]:
            server.zadd(key("turns"), {group: -int(last) if entry[0][0] == "s" else turn})


def test_a_limited_queue_of_an_older_layout_goes_on(engine: RedisEngine, server: Server) -> None:
    configure(engine, limit=7, group_limit=2, group_rate=interval(1))
    items = [Item(f"{group}{n}", b"1", group=group) for n in (1, 2) for group in ("a", "b", "idle")]
    engine.execute([Put("q", [items[2]])], NOW)
    first = claim(engine)
    engine.execute([Ack("q", of(first)), Put("q", [items[n] for n in (0, 1, 3, 4)])], NOW)
    held = claim(engine, 1)
    assert [message.id for message in held.messages] == ["a1"]
    older(server)
    sound(engine)
    engine.execute([Put("q", [items[5]])], NOW)
    assert [message.id for message in claim(engine).messages] == ["b1"]
    assert claim(engine, now=NOW + 989).messages == []  # the rates of groups
    engine.execute([Ack("q", of(held))], NOW + 989)
    late = [message.id for message in claim(engine, now=NOW + 990).messages]
    assert sorted(late) == ["a2", "b2", "idle2"]
    sound(engine, NOW + 990)
    server.zadd(key("turns"), {"c": 9})  # a process of the older bide has settled this group
    engine.execute([Put("q", [Item("c1", b"1", group="c")])], NOW + 990)
    assert [message.id for message in claim(engine, now=NOW + 990).messages] == ["c1"]
    assert server.exists(key("turns")) == 0
    sound(engine, NOW + 990)
