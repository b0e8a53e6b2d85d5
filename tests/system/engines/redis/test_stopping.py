"""Cancelling what runs: who hears of it, and what a lease keeps of it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis as client_library

import bide
from bide.engines.redis import RedisEngine
from bide.engines.redis.constants import CONSTANTS
from bide.engines.redis.layout import shard_of
from bide.model.commands import (
    Ack,
    Cancel,
    Command,
    Configure,
    Explain,
    Extend,
    History,
    Put,
    Where,
)
from bide.model.ended import message_hint
from bide.model.message import Item, Progress
from bide.model.replies import Affected, Claimed, Ends, Explained, Reply
from tests.contract.engines.redis.claims import LEASE, NOW, claim, key, of, put, settle, sound
from tests.system.engines.redis.conftest import Open
from tests.waiting import until

WORKER = """
import asyncio, bide

app = bide.App()

@app.handler("q", lease="1h")
async def handle(body: object) -> None:
    print("began", flush=True)
    try:
        await asyncio.sleep(3600)
    finally:
        print("cleaned up", flush=True)
"""


def hints(engine: RedisEngine, wanted: int) -> list[tuple[str, int]]:
    """Return the next hints, of which several may come at once."""
    notifier = engine.notifier()
    assert notifier is not None
    heard: list[tuple[str, int]] = []
    while len(heard) < wanted:
        heard += notifier.listen()
    return heard


def ask(engine: RedisEngine, command: Command, now: int = NOW) -> Reply:
    (reply,) = engine.execute([command], now)
    return reply


def stop(engine: RedisEngine, *ids: str) -> None:
    outcomes = settle(engine, Cancel("q", list(ids), running=True, actor="ann"))
    assert {outcome.state for outcome in outcomes} == {"stopping"}


def ended(engine: RedisEngine, id: str) -> list[str]:
    reply = ask(engine, History("q", id))
    assert isinstance(reply, Ends)
    return [end.how for end in reply.ends]


@pytest.mark.process
def test_another_process_that_runs_a_handler_hears_of_it(url: str, tmp_path: Path) -> None:
    """Long before it extends the lease."""
    (tmp_path / "jobs.py").write_text(WORKER)
    log = tmp_path / "log"
    queue = bide.Queue("q", url)
    queue.put("x", id="a")
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "bide", "worker", "jobs:app"],
            cwd=tmp_path,
            env={**os.environ, "BIDE_URL": url},
            stdout=output,
            stderr=output,
        )
    try:
        until(lambda: "began" in log.read_text())
        assert queue.cancel("a", running=True, wait="60s")
        until(lambda: "cleaned up" in log.read_text())
    finally:
        process.terminate()
        process.wait()
    assert queue.get("a") is None
    queue.close()


def test_every_lane_hears_which_workers_are_to_stop(open_engine: Open) -> None:
    worker, other, caller = (open_engine() for _ in range(3))
    for engine in (worker, other):
        engine.notifier()
    put(caller, 3)
    claim(worker, 2)
    assert [outcome.done for outcome in settle(caller, Cancel("q", ["m0002"], running=True))] == [
        True
    ]
    stop(caller, "m0001", "m0000")
    for engine in (worker, other):
        assert hints(engine, 2) == [
            (message_hint("q", "m0001"), 0),
            (message_hint("q", "m0000"), 0),
        ]
    stop(caller, "m0001")  # the first hint may have been lost
    assert hints(worker, 1) == [(message_hint("q", "m0001"), 0)]


def test_who_waits_for_the_end_hears_of_it_in_every_queue(open_engine: Open) -> None:
    waiting, worker = open_engine(), open_engine()
    put(worker, 2)
    held = claim(worker)
    stop(worker, "m0000")
    waiting.notifier()
    ask(waiting, History("q", "m0000", watch=True))
    assert all(settle(worker, Ack("q", of(held))))
    assert hints(waiting, 1) == [(message_hint("q", "m0000"), 0)]
    assert [ended(worker, id) for id in ("m0000", "m0001")] == [["acked"], []]


@pytest.mark.parametrize("shards", [1, 4])
def test_a_rule_stops_more_than_one_call_looks_at(open_engine: Open, url: str, shards: int) -> None:
    engine, caller = (open_engine(f"{url}&shards={shards}") for _ in range(2))
    engine.notifier()
    ids = put(caller, 2 * CONSTANTS["GROUP_ENTRIES"] + 20, group="g")
    put(caller, 20, "n")
    claim(caller, 2 * len(ids))
    rule = Cancel("q", where=Where(group="g"), running=True)
    counted = ask(caller, Cancel("q", where=rule.where, running=True, dry_run=True))
    assert counted == Affected(len(ids))
    reply = ask(caller, rule)
    assert isinstance(reply, Affected)
    assert (reply.count, reply.more, sorted(reply.stopping)) == (0, False, ids)
    assert sorted(name for name, _ in hints(engine, len(ids))) == [
        message_hint("q", id) for id in ids
    ]
    assert ask(caller, rule) == Affected(0)


def test_a_rule_passes_over_what_cannot_be_read(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    put(engine, 4)
    claim(engine)
    server.hset(key("records"), "m0000", b"nothing")
    server.hset(key("leases"), "m0001", b"nothing")
    server.hdel(key("records"), "m0002")
    reply = ask(engine, Cancel("q", where=Where(), running=True))
    assert reply == Affected(0, stopping=["m0003"])


def test_what_claims_write_is_what_a_bide_wrote_that_stops_nobody(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    """So its leases are read, and it reads those that nobody has stopped or reported of."""
    put(engine, 2)
    held = claim(engine)
    settle(engine, Extend("q", of(held), LEASE))
    for lease in server.hvals(key("leases")):
        assert lease[:1] == b"\x97"
    stop(engine, "m0000")
    settle(engine, Extend("q", of(held, "m0001"), None, [Progress(1)]))
    assert {lease[:1] for lease in server.hvals(key("leases"))} == {b"\x99"}


def test_a_lease_keeps_its_notes_with_a_successor(engine: RedisEngine) -> None:
    put(engine, 1)
    held = claim(engine)
    settle(engine, Extend("q", of(held), None, [Progress(0.1, 1e300, 'r"ows\n')]))
    stop(engine, "m0000")
    settle(engine, Put("q", [Item("m0000", b"2", latest=5)], "replace"))
    assert [outcome.state for outcome in settle(engine, Extend("q", of(held), LEASE))] == [
        "stopping"
    ]
    told = ask(engine, Explain("q", "m0000"))
    assert isinstance(told, Explained)
    assert told.progress == Progress(0.1, 1e300, 'r"ows\n', NOW)
    assert (told.stopping, told.extended, told.successor) == ("ann", 1, NOW)


@pytest.mark.parametrize("count", [1, 3])
def test_acks_of_many_remember_those_that_were_to_stop(engine: RedisEngine, count: int) -> None:
    put(engine, 3)
    held = claim(engine)
    stop(engine, *(f"m{number:04}" for number in range(count)))
    assert all(settle(engine, Ack("q", of(held))))
    assert sum(len(ended(engine, f"m{number:04}")) for number in range(3)) == count
    sound(engine)


@pytest.mark.parametrize(
    "damage", [lambda lease: lease[:-1], lambda lease: lease.replace(b"\xa3ann", b"\x93123")]
)
def test_a_message_whose_note_cannot_be_read_is_delivered_again(
    engine: RedisEngine, server: "client_library.Redis", damage: Callable[[bytes], bytes]
) -> None:
    put(engine, 2)
    claim(engine)
    stop(engine, "m0000", "m0001")
    lease = server.hget(key("leases"), "m0001")
    assert isinstance(lease, bytes)
    server.hset(key("leases"), "m0001", damage(lease))
    later = claim(engine, now=NOW + LEASE)
    assert [message.id for message in later.messages] == ["m0001"]
    assert ended(engine, "m0000") == ["cancelled"]
    sound(engine, NOW + LEASE)


def test_in_several_shards_each_hint_comes_once(open_engine: Open, url: str) -> None:
    worker, caller = (open_engine(f"{url}&shards=2") for _ in range(2))
    ask(caller, Configure("q"))
    put(caller, 10)
    assert isinstance(claim(worker), Claimed)
    worker.notifier()
    ids = [f"m{number:04}" for number in range(10)]
    assert {shard_of(id, 2) for id in ids} == {0, 1}
    stop(caller, *ids)
    assert sorted(name for name, _ in hints(worker, 10)) == [message_hint("q", id) for id in ids]
