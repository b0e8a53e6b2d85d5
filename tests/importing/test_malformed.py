"""A message that is not as its library writes it stays, and keeps no other one back."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import bide
from bide.importing.takeover import Library
from tests.contrib.celery.conftest import Broker

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
