"""Jobs that BullMQ has put are taken over: it runs on Node, so its keys are written as it does."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

import bide
from tests.contrib.celery.conftest import Broker

SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)


def fill_bullmq(broker: Broker, version: str | None = "bullmq:6.7.0") -> int:
    """Write what BullMQ 5.81.5 and 6.7.0 write for three jobs: one delayed, one with a priority.

    BullMQ for Python 3.4.4 writes the same, without a version.

    Returns when they were created.
    """
    redis, prefix = broker.client, "bull:mails:"
    now = int(time.time() * 1000) - 60_000
    redis.hset(f"{prefix}meta", "opts.maxLenEvents", "10000")
    if version is not None:
        redis.hset(f"{prefix}meta", "version", version)
    redis.set(f"{prefix}id", 3)
    due = int(SOON.timestamp() * 1000)
    for id, delay, priority in ((1, due - now, 0), (2, 0, 0), (3, 0, 7)):
        redis.hset(
            f"{prefix}{id}",
            mapping={
                "name": "welcome",
                "data": json.dumps({"user": id}),
                "opts": '{"attempts":0}',
                "timestamp": now,
                "delay": delay,
                "priority": priority,
            },
        )
    redis.zadd(f"{prefix}delayed", {"1": due * 0x1000 + 1})
    redis.lpush(f"{prefix}wait", "2")
    redis.zadd(f"{prefix}prioritized", {"3": 7 * 0x100000000 + 1})
    redis.zadd(f"{prefix}marker", {"0": 0})
    return now


def test_jobs_of_bullmq_that_repeat_or_have_a_parent_stay(
    broker: Broker, orders: bide.Queue
) -> None:
    fill_bullmq(broker)
    broker.client.hset("bull:mails:2", "rjk", "every")
    broker.client.hset("bull:mails:3", "parentKey", "bull:others:1")
    broker.client.zadd("bull:mails:waiting-children", {"4": 1})
    done = bide.take_over(orders, "bullmq", broker.store_url, source_queue="mails")
    assert done.reasons == {
        "2": "it repeats; make it a schedule of bide",
        "3": "another job waits for it (a flow)",
        "4": "it waits for other jobs (a flow)",
    }
    assert done.stored == 1


@pytest.mark.parametrize("version", ["bullmq:5.81.5", "bullmq:6.7.0", None])
def test_jobs_of_bullmq_come_with_their_data(
    version: str | None, broker: Broker, orders: bide.Queue
) -> None:
    created = fill_bullmq(broker, version)
    done = bide.take_over(orders, "bullmq", broker.store_url, source_queue="mails")
    assert (done.stored, bool(done)) == (3, True), done
    assert {one.created for one in orders.scan()} == {created}
    delayed = orders.get("1")
    assert delayed is not None
    assert (delayed.attempt, delayed.failures) == (0, ())
    assert (delayed.due_at, delayed.body) == (SOON, {"user": 1})
    assert delayed.headers == {"bide-job": "welcome"}
    assert [one.id for one in orders.claim(9)] == ["2", "3"]
    assert sorted(broker.client.keys()) == [
        b"bull:mails:id",
        b"bull:mails:marker",
        b"bull:mails:meta",
    ]


@pytest.mark.parametrize("version", ["bullmq:7.0.0", "bullmq-pro:5.1"])
def test_another_layout_of_bullmq_is_refused(
    version: str, broker: Broker, orders: bide.Queue
) -> None:
    fill_bullmq(broker, version)
    with pytest.raises(bide.InvalidArgument, match="bide takes over queues of BullMQ 5 and 6"):
        bide.take_over(orders, "bullmq", broker.store_url, source_queue="mails")


def test_a_queue_that_bullmq_has_not_made_is_refused(broker: Broker, orders: bide.Queue) -> None:
    with pytest.raises(bide.InvalidArgument, match="bull:mails:meta names no version of BullMQ"):
        bide.take_over(orders, "bullmq", broker.store_url, source_queue="mails")
