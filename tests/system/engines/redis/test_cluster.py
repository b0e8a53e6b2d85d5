"""A cluster: slots that move, nodes that die, and what is told of it."""

import itertools
import logging
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import bide
from bide.engines.port import PartlyDone
from bide.engines.redis import RedisEngine, from_url, transport
from bide.engines.redis.layout import (
    LAYOUTS,
    NUMBERS,
    QUEUES,
    RULED_LAYOUT,
    VERSION,
    copies,
    meta_key,
    shard_of,
    slot_of,
)
from bide.engines.registry import opener
from bide.lane.lane import Lane
from bide.model.commands import (
    Ack,
    Cancel,
    Claim,
    Command,
    Configure,
    Count,
    Delete,
    Find,
    Lease,
    Put,
    Queues,
)
from bide.model.ended import message_hint
from bide.model.errors import (
    InvalidArgument,
    SchemaTooNew,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Names, Outcomes
from tests.cluster import RedisCluster, ask, eventually
from tests.contract.conformance.shards import conforms
from tests.counting import count_calls
from tests.servers import RedisServer, free_port
from tests.system.engines.redis.spread import HOUR, SHARDS, ids, is_waited_for, one, put, slot

DOCS = Path(__file__).parents[4] / "docs" / "redis.md"
_numbers = itertools.count()


@pytest.fixture
def queue() -> str:
    """Name a queue that nobody has used."""
    return f"c{next(_numbers)}"


@pytest.fixture
def open_engine(redis_cluster: RedisCluster) -> Iterator[Callable[..., RedisEngine]]:
    opened: list[RedisEngine] = []

    def open_engine(at: str = redis_cluster.url) -> RedisEngine:
        opened.append(from_url(urlsplit(at))())
        return opened[-1]

    yield open_engine
    for engine in opened:
        engine.close()


def is_carried_out(engine: RedisEngine, command: Command) -> bool:
    try:
        engine.execute([command])
    except StoreError:
        return False
    return True


def sound(engine: RedisEngine, queue: str) -> Counts:
    counts = one(engine, Count(queue, recount=True))
    assert isinstance(counts, Counts)
    assert counts.strays == 0
    assert counts.flow.put == counts.flow.gone + counts.sizes.total
    return counts


def test_a_queue_is_spread_over_the_nodes(
    open_engine: Callable[..., RedisEngine], redis_cluster: RedisCluster, queue: str
) -> None:
    engine = open_engine()
    one(engine, put(queue, *ids(200)))
    owners = {redis_cluster.owner(slot(queue, shard)).port for shard in range(SHARDS)}
    assert len(owners) > 1
    assert sound(engine, queue).sizes.ready == 200
    claimed = one(engine, Claim(queue, 200, HOUR, "w"))
    assert sorted(message.id for message in claimed.messages) == ids(200)
    acked = one(engine, Ack(queue, [Lease(id, claimed.token) for id in ids(200)]))
    assert all(acked.outcomes)
    assert sound(engine, queue).flow.acked == 200


def test_which_queues_there_are_every_part_of_the_cluster_knows(
    open_engine: Callable[..., RedisEngine], redis_cluster: RedisCluster
) -> None:
    one(open_engine(), Configure("named/a"))
    one(open_engine(), Configure("named/b"))
    assert one(open_engine(), Queues("named/")) == Names(["named/a", "named/b"])
    assert one(open_engine(), Queues("named/b")) == Names(["named/b"])
    for key in copies(QUEUES):
        names = ask(redis_cluster.owner(slot_of(key)), "ZRANGE", key, 0, -1)
        assert {b"named/a", b"named/b"} <= set(names)
    assert len({redis_cluster.owner(slot_of(key)).port for key in copies(QUEUES)}) == 3


def test_a_queue_whose_first_shard_was_lost_is_named(
    open_engine: Callable[..., RedisEngine], redis_cluster: RedisCluster
) -> None:
    engine = open_engine()
    for queue in ("lost/first", "lost/deleted"):
        one(engine, put(queue, *ids(50)))
    one(engine, Cancel("lost/deleted", ids(50)))
    assert one(engine, Delete("lost/deleted")).done
    assert ask(redis_cluster.owner(slot("lost/first", 0)), "DEL", meta_key("lost/first")) == 1
    assert one(open_engine(), Queues("lost/")) == Names(["lost/first"])
    one(engine, put("lost/first", "another"))


def test_copies_that_were_lost_are_made_again_by_the_next_process_that_puts(
    open_engine: Callable[..., RedisEngine], redis_cluster: RedisCluster, queue: str
) -> None:
    one(open_engine(), put(queue, "a"))
    for key in (*copies(QUEUES)[:5], *copies(NUMBERS)[:5]):
        assert ask(redis_cluster.owner(slot_of(key)), "ZREM", key, queue) == 1
    one(open_engine(f"{redis_cluster.url}?shards=3"), put(queue, "b"))
    for key in copies(NUMBERS):
        assert ask(redis_cluster.owner(slot_of(key)), "ZSCORE", key, queue) == 8
    for key in copies(QUEUES):
        assert ask(redis_cluster.owner(slot_of(key)), "ZSCORE", key, queue) == 0


def test_a_put_elsewhere_wakes_who_waits(
    redis_cluster: RedisCluster, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.lane.waiting_claims.LOOK_AGAIN", 600.0)
    lane = Lane(opener(redis_cluster.url))
    got: list[str] = []

    def wait() -> None:
        reply = lane.call(Claim(queue, 1, HOUR, "w"), wait=60)
        assert isinstance(reply, Claimed)
        got.extend(message.id for message in reply.messages)

    with bide.Queue(queue, f"{redis_cluster.url}?timeout=6s") as elsewhere:
        for id in ("a", "b", "c", "d"):  # of several shards
            thread = threading.Thread(target=wait)
            thread.start()
            eventually(partial(is_waited_for, redis_cluster, queue))
            elsewhere.put(1, id=id, delay=0.1)
            thread.join()
    lane.close()
    assert got == ["a", "b", "c", "d"]


def test_which_workers_are_to_stop_is_heard_from_each_node(
    open_engine: Callable[..., RedisEngine], queue: str
) -> None:
    worker, caller = open_engine(), open_engine()
    notifier = worker.notifier()
    assert notifier is not None
    one(caller, put(queue, *ids(30)))
    assert len(one(worker, Claim(queue, 30, HOUR, "w")).messages) == 30
    outcomes = one(caller, Cancel(queue, ids(30), running=True)).outcomes
    assert {outcome.state for outcome in outcomes} == {"stopping"}
    heard: set[str] = set()
    while len(heard) < 30:
        heard |= {name for name, _ in notifier.listen()}
    assert heard == {message_hint(queue, id) for id in ids(30)}


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Provide what servers refuse, at once: the log has it when the call has ended."""
    lines: list[str] = []
    monkeypatch.setattr(transport._log, "debug", lambda text, *args: lines.append(text % args))
    return lines


def has_heard(refusals: list[str], begin: str, end: str) -> bool:
    return any(line.startswith(begin) and line.endswith(end) for line in refusals)


def test_slots_that_move_while_they_are_used(
    open_engine: Callable[..., RedisEngine],
    redis_cluster: RedisCluster,
    queue: str,
    refusals: list[str],
) -> None:
    """Nothing is lost or done twice, and every redirection was met."""
    late = open_engine()
    one(late, Configure(queue))
    stop = threading.Event()
    done: list[str] = []
    errors: list[Exception] = []

    def work(name: str) -> None:
        try:
            with bide.Queue(queue, f"{redis_cluster.url}?reconnect=20s&timeout={name}") as orders:
                number = 0
                while not stop.is_set():
                    names = [f"{name}-{number}-{n}" for n in range(10)]
                    number += 1
                    orders.put_many([bide.NewMessage(body=1, id=id) for id in names])
                    done.extend(names)
                    orders.ack(orders.claim(10))
        except bide.BideError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"{n}s",)) for n in (11, 12)]
    for thread in threads:
        thread.start()
    try:
        for shard in range(SHARDS):
            number = slot(queue, shard)
            owner = redis_cluster.owner(number)
            to = next(server for server in redis_cluster.masters if server is not owner)
            refusals.clear()
            carry, end = redis_cluster.move(number, to)
            eventually(partial(has_heard, refusals, f"slot {number}: TRYAGAIN", ""))
            carry()  # now the old node sends everybody on to the new one
            eventually(partial(has_heard, refusals, f"slot {number}: ASK", f"{to.port}"))
            end()
        refusals.clear()
        one(late, Count(queue))  # its map is that from before
        for shard in range(SHARDS):
            assert has_heard(refusals, f"slot {slot(queue, shard)}: MOVED", "")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
    with bide.Queue(queue, redis_cluster.url) as orders:
        while orders.counts().sizes.total:
            orders.ack(orders.claim(100))
        audit = orders.audit()
    assert audit, audit.problems
    assert audit.counts.flow.acked == audit.counts.flow.put == len(done)
    conforms(redis_cluster.url)


def test_a_shard_that_is_gone_does_not_stop_the_others(
    own_cluster: Callable[..., RedisCluster], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = own_cluster()
    engine = from_url(urlsplit(f"{cluster.url}?reconnect=300ms"))()
    one(engine, put("q", *ids(100), delay=1))
    dead = cluster.owner(slot("q", 0))
    gone = {shard for shard in range(SHARDS) if cluster.owner(slot("q", shard)) is dead}
    there = [id for id in ids(100) if shard_of(id, SHARDS) not in gone]
    assert 0 < len(there) < 100
    dead.stop()
    with caplog.at_level(logging.WARNING, "bide.redis"):
        claimed = one(engine, Claim("q", 100, HOUR, "w"))
    assert sorted(message.id for message in claimed.messages) == there
    told = [r.getMessage() for r in caplog.records if "left out by claims" in r.getMessage()]
    assert len(told) == len(gone)
    assert str(dead.port) in told[0]
    # What lives on it cannot be put, and the error says where that is; all else can.
    outcomes: list[Any] = []
    with pytest.raises(PartlyDone) as partly:
        engine.execute([put("q", f"n{number}") for number in range(50)])
    outcomes = list(partly.value.outcomes)
    for number, outcome in enumerate(outcomes):
        if shard_of(f"n{number}", SHARDS) in gone:
            assert isinstance(outcome, StoreError)
            assert f"127.0.0.1:{dead.port}" in str(outcome)
        else:
            assert isinstance(outcome, Outcomes)

    def put_one_by_one() -> None:
        for number in range(50):
            id = f"o{number}"
            if shard_of(id, SHARDS) in gone:
                with pytest.raises(StoreError):
                    one(engine, put("q", id))
            else:
                assert one(engine, put("q", id)).outcomes[0]

    assert count_calls(put_one_by_one)["sleep"] <= 50  # nobody waits for it again and again
    with pytest.raises(StoreError):
        one(engine, Count("q"))
    with pytest.raises(StoreError, match="carried out for its other messages"):
        one(engine, put("q", *[f"p{number}" for number in range(50)]))
    assert one(engine, Find("q", [there[0]])).messages[0]
    # An engine that comes later can work there as well.
    late = from_url(urlsplit(f"{cluster.url}?reconnect=300ms"))()
    assert one(late, Queues("")) == Names(["q"])
    assert one(late, Claim("q", 100, HOUR, "w")).messages
    late.close()
    # The node comes back without its data, as it was not to keep them, and is used again.
    dead.start()
    eventually(partial(is_carried_out, engine, put("q", *[f"r{number}" for number in range(50)])))
    assert one(engine, Count("q"))
    engine.close()


def test_a_slot_that_is_halfway_between_two_nodes_does_not_stop_the_others(
    open_engine: Callable[..., RedisEngine], redis_cluster: RedisCluster, queue: str
) -> None:
    engine = open_engine(f"{redis_cluster.url}?reconnect=60s")
    one(engine, put(queue, *ids(100)))
    number = slot(queue, 0)
    owner = redis_cluster.owner(number)
    to = next(server for server in redis_cluster.masters if server is not owner)
    carry, end = redis_cluster.move(number, to)
    first, *_ = ask(owner, "CLUSTER", "GETKEYSINSLOT", number, 1)
    ask(owner, "MIGRATE", "127.0.0.1", to.port, first, 0, 5000)
    claimed: list[Claimed] = []
    calls = count_calls(lambda: claimed.append(one(engine, Claim(queue, 100, HOUR, "w"))))
    others = [id for id in ids(100) if shard_of(id, SHARDS) != 0]
    assert sorted(message.id for message in claimed[0].messages) == others
    assert calls["sleep"] < 5  # it does not wait for the minute of `reconnect`
    carry()
    end()
    assert one(engine, Claim(queue, 100, HOUR, "w")).messages


def test_a_node_that_refuses_changes_for_a_while_does_not_stop_the_others(
    open_engine: Callable[..., RedisEngine], redis_cluster: RedisCluster, queue: str
) -> None:
    refusing = redis_cluster.owner(slot(queue, 0))
    gone = {n for n in range(SHARDS) if redis_cluster.owner(slot(queue, n)) is refusing}
    there = [id for id in ids(100) if shard_of(id, SHARDS) not in gone]
    here = next(id for id in ids(100) if shard_of(id, SHARDS) in gone)
    one(open_engine(), put(queue, *ids(100)))
    patient = open_engine(f"{redis_cluster.url}?reconnect=60s")
    ask(refusing, "CONFIG", "SET", "min-replicas-to-write", 1)
    try:

        def work() -> None:
            assert one(patient, put(queue, there[0])).outcomes
            claimed = one(patient, Claim(queue, 100, HOUR, "w"))
            assert {message.id for message in claimed.messages} >= set(there)
            assert queue in one(patient, Queues("")).names

        assert count_calls(work)["sleep"] < 15  # it does not wait for the minute of `reconnect`
        hasty = open_engine(f"{redis_cluster.url}?reconnect=50ms")
        with pytest.raises(StoreReadOnly, match="fewer replicas than its min-replicas-to-write"):
            one(hasty, put(queue, here))
    finally:
        ask(refusing, "CONFIG", "SET", "min-replicas-to-write", 0)


@pytest.mark.full
def test_a_cluster_that_serves_nothing_says_why(own_cluster: Callable[..., RedisCluster]) -> None:
    cluster = own_cluster(**{"cluster-require-full-coverage": "yes"})
    engine = from_url(urlsplit(f"{cluster.url}?reconnect=300ms"))()
    one(engine, put("q", *ids(20)))
    cluster.masters[2].stop()
    living = cluster.masters[0]
    eventually(lambda: b"cluster_state:fail" in ask(living, "CLUSTER", "INFO"))
    there = next(id for id in ids(20) if cluster.owner(slot("q", shard_of(id, SHARDS))) is living)
    with pytest.raises(StoreUnavailable, match="cluster-require-full-coverage no"):
        one(engine, put("q", there))
    engine.close()


def test_a_store_of_a_newer_bide_is_refused(own_cluster: Callable[..., RedisCluster]) -> None:
    cluster = own_cluster()
    from_url(urlsplit(cluster.url))().close()
    for key in copies(VERSION):
        owner = cluster.owner(slot_of(key))
        if ask(owner, "GET", key):
            ask(owner, "SET", key, max(LAYOUTS) + 1)
    with pytest.raises(SchemaTooNew, match="upgrade bide"):
        from_url(urlsplit(cluster.url))()


def test_each_copy_of_the_layout_says_that_there_are_messages_that_repeat(
    own_cluster: Callable[..., RedisCluster],
) -> None:
    cluster = own_cluster()
    engine = from_url(urlsplit(f"{cluster.url}?shards={SHARDS}"))()
    items = [Item(id, b"1", rule="r", run="1") for id in ids(20)]
    assert all(one(engine, Put("q", items)).outcomes)
    versions = {ask(cluster.owner(slot_of(key)), "GET", key) for key in copies(VERSION)}
    assert versions == {b"%d" % RULED_LAYOUT}
    engine.close()
    from_url(urlsplit(cluster.url))().close()


def test_a_cluster_and_a_server_are_not_taken_for_each_other(
    redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    node = redis_cluster.servers[0]
    with pytest.raises(StoreUnavailable, match=r"is a node of a cluster.*redis\+cluster://"):
        from_url(urlsplit(f"redis://127.0.0.1:{node.port}"))()
    alone = RedisServer(tmp_path, port=free_port())
    try:
        with pytest.raises(StoreUnavailable, match=r"change the URL.*cluster support disabled"):
            from_url(urlsplit(f"redis+cluster://127.0.0.1:{alone.port}"))()
    finally:
        alone.stop()


def test_the_acl_of_the_documentation_is_enough(redis_cluster: RedisCluster, queue: str) -> None:
    told = re.search(r"^user bide on >password (.*)$", DOCS.read_text(), re.MULTILINE)
    assert told is not None
    for server in redis_cluster.servers:
        ask(server, "ACL", "SETUSER", "bide", "on", ">s3cret", *told[1].split())
    hosts = redis_cluster.url.partition("://")[2]
    engine = from_url(urlsplit(f"redis+cluster://bide:s3cret@{hosts}"))()
    notifier = engine.notifier()
    assert notifier is not None
    one(engine, put(queue, *ids(30)))
    assert len(one(engine, Claim(queue, 30, HOUR, "w")).messages) == 30
    assert queue in one(engine, Queues("")).names
    engine.close()


def test_one_node_that_answers_is_enough(redis_cluster: RedisCluster, queue: str) -> None:
    port = redis_cluster.servers[2].port
    url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{port}"
    engine = from_url(urlsplit(url))()
    assert all(one(engine, put(queue, *ids(20))).outcomes)
    engine.close()


def test_no_node_that_answers_is_said() -> None:
    with pytest.raises(StoreUnavailable, match=r"redis\+cluster://:\*\*\*@127.0.0.1:1"):
        from_url(urlsplit("redis+cluster://:s3cret@127.0.0.1:1,127.0.0.1:2?reconnect=50ms"))()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+cluster://a,b:x", "'b:x' is not host:port"),
        ("redis+cluster://a:1/3", "one database"),
        ("redis+cluster://a:1?db=2", "one database"),
        ("redis+cluster://a:1?shards=100", "shards"),
    ],
)
def test_a_url_that_cannot_be(url: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        from_url(urlsplit(url))
