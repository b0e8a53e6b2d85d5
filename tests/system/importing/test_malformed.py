"""Messages that are not as their library writes them stay; pickles of strangers run no code."""

import json
import os
import pickle
import struct
import tracemalloc
import uuid
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.importing.pickles import inflated, plain
from bide.importing.source import NotTakenOver
from bide.importing.takeover import Library
from tests.system.contrib.celery.conftest import Broker

DEEP = "[" * 100_000 + "]" * 100_000
HALF = "\ud800"


def bullmq(broker: Broker, id: str, **odd: Any) -> None:
    broker.client.hset("bull:q:meta", "opts.maxLenEvents", "10000")
    job: Any = {"name": "welcome", "data": "1", "timestamp": 1_700_000_000_000} | odd
    score = job.pop("score", None)
    broker.client.hset(f"bull:q:{id}", mapping=job)
    if score is None:
        broker.client.lpush("bull:q:wait", id)
    else:
        broker.client.zadd("bull:q:delayed", {id: score})


def arq(broker: Broker, id: str, **odd: Any) -> None:
    call: Any = {"t": 1, "f": "expire", "a": (1,), "k": {}, "et": 1_700_000_000_000} | odd
    data = call.pop("json", None) or pickle.dumps(call)
    broker.client.set(f"arq:job:{id}", data)
    broker.client.zadd("q", {id: 1_700_000_000_000})


def rq(broker: Broker, id: str, **odd: Any) -> None:
    call = {"data": json.dumps(["shop.expire", None, [1], {}])} | odd
    job: Any = {"status": "queued", "created_at": "2026-01-01T00:00:00Z"}
    broker.client.hset(f"rq:job:{id}", mapping=job | call)
    broker.client.rpush("rq:queue:q", id)


def celery(broker: Broker, id: str, **odd: Any) -> None:
    message = {
        "body": "[[1], {}, {}]",
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"id": id, "task": "shop.expire"},
        "properties": {},
    } | odd
    broker.client.lpush("q", message.get("json") or json.dumps(message))


def huey(broker: Broker, name: str, **odd: Any) -> None:
    from huey.registry import Message

    message = Message(name, "expire", None, 0, 0, None, (1,), {})
    broker.client.lpush("huey.redis.q", pickle.dumps(message._replace(**odd)))


Put = Callable[..., None]


@pytest.mark.parametrize(
    ("put", "odd"),
    [
        (bullmq, {"data": DEEP}),
        (bullmq, {"timestamp": "9" * 400}),
        (bullmq, {"priority": -5}),
        (bullmq, {"score": float("inf")}),
        (bullmq, {"score": float("-inf")}),
        (arq, {"json": f'{{"f": {DEEP}}}'}),
        (arq, {"a": 5}),
        (arq, {"k": [1]}),
        (arq, {"et": float("inf")}),
        (arq, {"f": 5}),
        (arq, {"f": HALF}),
        (rq, {"data": DEEP}),
        (rq, {"data": '["f", null, 5, {}]'}),
        (rq, {"data": "[null, null, [], {}]"}),
        (celery, {"json": DEEP}),
        (celery, {"properties": {"priority": float("inf")}}),
        (celery, {"headers": {"id": "odd", "task": 5}}),
        (huey, {"eta": "soon"}),
        (huey, {"priority": float("inf")}),
        (huey, {"args": None}),
        (huey, {"id": HALF}),
    ],
)
def test_an_odd_message_stays_and_the_others_move(
    broker: Broker, orders: bide.Queue, put: Put, odd: dict[str, Any]
) -> None:
    library: Library = put.__name__  # type: ignore[assignment]
    put(broker, "first")
    put(broker, "odd", **odd)
    put(broker, "last")
    for dry_run in (True, False):
        done = bide.take_over(
            orders, library, broker.store_url, source_queue="q", allow_pickle=True, dry_run=dry_run
        )
        assert (done.stored, done.refused, bool(done)) == (2, 1, False)
    (reason,) = done.reasons.values()
    assert len(reason) < 1_000
    assert sorted(message.id for message in orders.scan()) == ["first", "last"]


def test_an_id_that_is_no_text_stays(broker: Broker, orders: bide.Queue) -> None:
    bullmq(broker, "first")
    broker.client.lpush("bull:q:wait", b"\xff")
    broker.client.hset(b"bull:q:\xff", mapping={"name": "n", "data": "1", "timestamp": 1})
    done = bide.take_over(orders, "bullmq", broker.store_url, source_queue="q")
    assert (done.stored, list(done.reasons)) == (1, ["\\xff"])


def test_what_workers_of_celery_hold_is_told_whatever_else_is_there(
    broker: Broker, orders: bide.Queue
) -> None:
    held = json.dumps([{"headers": {"id": "a", "task": "shop.expire"}}, "", "q"])
    odd = json.dumps([{"headers": ["id"]}, "", "q"])
    broker.client.hset("unacked", mapping={"1": odd, "2": held, "3": DEEP})
    done = bide.take_over(orders, "celery", broker.store_url, source_queue="q")
    assert done.held_examples == {"a": "shop.expire"}


class Calls:
    """Is pickled as the call of a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_read(protocol: int) -> None:
    value = {
        "args": (1, 2.5, "text", b"bytes", None, True, 10**30),
        "times": [datetime(2030, 1, 1, tzinfo=UTC), timedelta(hours=1)],
        "others": {Decimal("1.50"), uuid.UUID(int=7)},
    }
    assert plain(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize(
    "call",
    [
        Calls(os.system, "touch ran"),
        Calls(eval, "open('ran', 'w')"),
        Calls(Path, "ran"),
        Calls(getattr, "", "join"),
        Calls(bytearray, 10**12),
        Calls(range, 10**12),
    ],
    ids=["system", "eval", "class", "getattr", "bytearray", "range"],
)
def test_nothing_else_is_called(
    call: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotTakenOver, match="which is not a plain value"):
        plain(pickle.dumps({"args": [call]}))
    assert list(tmp_path.iterdir()) == []


def test_lists_that_multiply_or_contain_themselves_are_refused() -> None:
    many: list[Any] = ["x"] * 10
    for _ in range(9):
        many = [many] * 10
    endless: list[Any] = []
    endless.append(endless)
    for value in (many, endless, {"kwargs": {"a": many}}):
        with pytest.raises(NotTakenOver, match="more than 100,000 values, or contains itself"):
            plain(pickle.dumps(value))


@pytest.mark.parametrize("data", [b"", b"\x80\x05.", b"\x80\x05K\x01", b"no pickle", b"\x80\xff."])
def test_what_is_broken_is_refused(data: bytes) -> None:
    with pytest.raises(NotTakenOver, match="its pickle cannot be read"):
        plain(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r" + struct.pack("<I", 100_000_000) + b".",
        b"\x80\x02]p100000000\n.",
        b"\x80\x02" + b"N0" * 600_000 + b"N.",
    ],
    ids=["a place far out", "the same as text", "many steps"],
)
def test_a_few_bytes_do_not_ask_for_much_memory(data: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(NotTakenOver, match="more than 1,000,000 steps"):
        plain(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_a_length_beyond_the_end_is_refused_before_memory_is_asked_for() -> None:
    with pytest.raises(NotTakenOver, match="cannot be read"):
        plain(b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".")


def test_what_inflates_without_end_is_refused() -> None:
    bomb = zlib.compress(bytes(10_000_000))
    with pytest.raises(NotTakenOver, match="more than 1,000,000 bytes"):
        inflated(bomb, 1_000_000)
    with pytest.raises(NotTakenOver, match="cannot be decompressed"):
        inflated(b"\x78nonsense", 1_000)
    assert inflated(zlib.compress(b"text"), 1_000) == b"text"
