"""Messages that the real libraries have put are taken over as they are."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide.importing.takeover import Library
from bide.importing.transit import Transit
from bide.testing import ScratchStore, WorkerFactory
from tests.system.contrib.celery.conftest import Broker

MILLISECOND = timedelta(milliseconds=1)
SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)


def fill_celery(broker: Broker, **options: Any) -> list[str]:
    from celery import Celery

    app = Celery("shop", broker=broker.url, set_as_current=False)
    sent = [
        app.send_task("shop.expire", (42,), {"force": True}, eta=SOON, **options),
        app.send_task("shop.expire", (43,), priority=6, **options),
    ]
    app.close()
    return [one.id for one in sent]


def fill_rq(broker: Broker, serializer: str = "json", **options: Any) -> list[str]:
    import rq

    queue = rq.Queue("default", connection=broker.client, serializer=serializer)
    jobs = [
        queue.enqueue_at(SOON, "shop.expire", 42, force=True, job_id="expire-42", **options),
        queue.enqueue("shop.expire", 43, job_id="expire-43", **options),
    ]
    return [job.id for job in jobs]


def fill_arq(broker: Broker, **options: Any) -> list[str]:
    from arq.connections import ArqRedis

    async def fill() -> None:
        path = broker.client.connection_pool.connection_kwargs["path"]
        db = broker.client.connection_pool.connection_kwargs["db"]
        redis = ArqRedis(unix_socket_path=path, db=db, **options)
        await redis.enqueue_job(
            "shop.expire", 42, force=True, _job_id="expire-42", _defer_until=SOON
        )
        await redis.enqueue_job("shop.expire", 43, _job_id="expire-43")
        await redis.aclose()

    asyncio.run(fill())
    return ["expire-42", "expire-43"]


def huey_of(broker: Broker, kind: str = "RedisHuey", **options: Any) -> Any:
    import huey

    return getattr(huey, kind)("huey", connection_pool=broker.client.connection_pool, **options)


def fill_huey(broker: Broker, **options: Any) -> list[str]:
    huey = huey_of(broker, **options)

    def expire(order: int, force: bool = False) -> None: ...

    task = huey.task(name="shop.expire")(expire)
    later = task.schedule((42,), {"force": True}, eta=SOON)
    huey.add_schedule(huey.dequeue())  # as its scheduler does
    return [later.id, task(43).id]


FILLS: dict[Library, Callable[..., list[str]]] = {
    "celery": fill_celery,
    "rq": fill_rq,
    "arq": fill_arq,
    "huey": fill_huey,
}


def taken(orders: bide.Queue, id: str) -> bide.Message:
    message = orders.get(id)
    assert message is not None
    assert message.attempt == 0
    assert message.failures == ()
    return message


@pytest.mark.parametrize("library", ["rq", "arq", "huey"])
def test_calls_come_with_id_due_time_and_arguments(
    library: Library, broker: Broker, orders: bide.Queue
) -> None:
    begun = datetime.now(UTC) - MILLISECOND
    later, now = FILLS[library](broker)
    filled = datetime.now(UTC) + MILLISECOND
    done = bide.take_over(orders, library, broker.store_url, allow_pickle=True)
    assert (done.stored, bool(done)) == (2, True), done
    delayed, ready = taken(orders, later), taken(orders, now)
    assert delayed.due_at == SOON
    if library != "huey":  # it notes no creation time
        for one in (delayed, ready):
            assert one.created_at is not None
            assert begun <= one.created_at <= filled
    assert delayed.body == {"args": [42], "kwargs": {"force": True}}
    name = f"{__name__}.shop.expire" if library == "huey" else "shop.expire"
    assert delayed.headers == ready.headers == {"bide-job": name}
    assert ready.body == {"args": [43], "kwargs": {}}
    assert [delivery.id for delivery in orders.claim(9)] == [now]
    rest = [key for key in broker.client.scan_iter() if not key.startswith((b"rq:queues", b"rq:"))]
    assert rest == []


def test_tasks_of_celery_come_as_celery_made_them(broker: Broker, orders: bide.Queue) -> None:
    later, now = fill_celery(broker)
    done = bide.take_over(orders, "celery", broker.store_url)
    assert (done.stored, bool(done)) == (2, True), done
    delayed, ready = taken(orders, later), taken(orders, now)
    assert delayed.due_at == SOON
    assert delayed.headers == {"bide-job": delayed.body["task"]} == {"bide-job": "shop.expire"}
    assert json.loads(delayed.body["text"])[:2] == [[42], {"force": True}]
    assert delayed.body["headers"]["eta"] is None
    assert delayed.body["routing_key"] == "celery"
    assert json.loads(ready.body["text"])[0] == [43]
    assert (delayed.priority, ready.priority) == (9, 3)


@pytest.mark.parametrize("library", ["celery", "rq", "huey"])
def test_messages_without_a_due_time_may_stay(
    library: Library, broker: Broker, orders: bide.Queue
) -> None:
    later, _ = FILLS[library](broker)
    for dry_run in (True, False):
        done = bide.take_over(
            orders, library, broker.store_url, allow_pickle=True, delayed_only=True, dry_run=dry_run
        )
        assert (done.stored, done.waiting, bool(done)) == (1, 1, True)
    assert [message.id for message in orders.scan()] == [later]


@pytest.mark.parametrize("library", ["celery", "rq", "arq", "huey"])
def test_a_second_run_finds_nothing(library: Library, broker: Broker, orders: bide.Queue) -> None:
    FILLS[library](broker)
    bide.take_over(orders, library, broker.store_url, allow_pickle=True)
    done = bide.take_over(orders, library, broker.store_url, allow_pickle=True)
    assert (done.stored, done.finished, bool(done)) == (0, 0, True)
    assert orders.counts().sizes.total == 2
    assert orders.audit()


@pytest.mark.parametrize("library", ["celery", "rq", "arq", "huey"])
def test_pickled_messages_are_counted_and_left(
    library: Library, broker: Broker, orders: bide.Queue
) -> None:
    pickling: dict[str, Any] = {"serializer": "pickle"} if library in ("celery", "rq") else {}
    FILLS[library](broker, **pickling)
    before = {key: broker.client.dump(key) for key in broker.client.scan_iter()}
    done = bide.take_over(orders, library, broker.store_url)
    assert (done.stored, done.pickled, bool(done)) == (0, 2, False)
    assert {key: broker.client.dump(key) for key in broker.client.scan_iter()} == before
    if library in ("celery", "rq"):
        assert bide.take_over(orders, library, broker.store_url, allow_pickle=True).stored == 2


@pytest.mark.parametrize("library", ["celery", "rq", "arq", "huey"])
def test_a_dry_run_counts_and_changes_nothing(
    library: Library, broker: Broker, orders: bide.Queue
) -> None:
    FILLS[library](broker)
    before = {key: broker.client.dump(key) for key in broker.client.scan_iter()}
    done = bide.take_over(orders, library, broker.store_url, allow_pickle=True, dry_run=True)
    assert done.stored == 2
    assert {key: broker.client.dump(key) for key in broker.client.scan_iter()} == before
    assert orders.counts().sizes.total == 0


def test_a_pickled_object_of_the_program_is_refused(broker: Broker, orders: bide.Queue) -> None:
    import rq

    rq.Queue("default", connection=broker.client).enqueue("shop.expire", bide.Backoff())
    done = bide.take_over(orders, "rq", broker.store_url, allow_pickle=True)
    assert "bide.model.backoff.Backoff, which is not a plain value" in str(done.reasons)
    assert (done.refused, broker.client.llen("rq:queue:default")) == (1, 1)


def test_jobs_of_rq_that_others_need_stay(broker: Broker, orders: bide.Queue) -> None:
    import rq

    queue = rq.Queue("default", connection=broker.client, serializer="json")
    first = queue.enqueue("shop.expire", 1)
    queue.enqueue("shop.tell", 1, depends_on=first)
    queue.enqueue("shop.poll", repeat=rq.Repeat(times=3))
    done = bide.take_over(orders, "rq", broker.store_url)
    assert sorted(done.reasons.values()) == [
        "it repeats; make it a schedule of bide",
        "it waits for another job",
        "other jobs depend on it",
    ]
    assert broker.client.llen("rq:queue:default") == 2


def test_the_last_run_of_a_job_of_rq_comes_too(broker: Broker, orders: bide.Queue) -> None:
    import rq

    queue = rq.Queue("default", connection=broker.client, serializer="json")
    job = queue.enqueue("shop.poll", repeat=rq.Repeat(times=3))
    broker.client.hset(f"rq:job:{job.id}", "repeats_left", 0)  # as RQ leaves it for the last run
    assert bide.take_over(orders, "rq", broker.store_url).stored == 1


def test_jobs_that_a_worker_of_rq_has_taken_are_named(broker: Broker, orders: bide.Queue) -> None:
    import rq

    queue = rq.Queue("default", connection=broker.client, serializer="json")
    id = queue.enqueue("shop.expire", 42).id
    rq.Queue.lmove(broker.client, queue.key, None)  # what a worker does first
    done = bide.take_over(orders, "rq", broker.store_url)
    assert (done.stored, done.held, bool(done)) == (0, 1, False)
    assert done.held_examples == {id: "taken out of the queue"}


def test_jobs_that_a_rate_limit_of_rq_holds_back_come_too(
    broker: Broker, orders: bide.Queue
) -> None:
    import rq

    limit = rq.RateLimit(key="carrier", concurrency=1)
    queue = rq.Queue("default", connection=broker.client, serializer="json")
    others = rq.Queue("others", connection=broker.client, serializer="json")
    ids = {queue.enqueue("shop.expire", n, rate_limit=limit).id for n in range(3)}
    foreign = others.enqueue("shop.expire", 4, rate_limit=limit).id
    for dry_run in (True, False):
        done = bide.take_over(orders, "rq", broker.store_url, dry_run=dry_run)
        assert (done.stored, bool(done)) == (3, True), done
    assert {one.id for one in orders.claim(9)} == ids  # RQ orders those of a second by their id
    left = broker.client.zrange("rq:rl:carrier:rate_limited", 0, -1)
    assert left == [foreign.encode()]


def test_tasks_that_a_worker_of_celery_has_are_named(broker: Broker, orders: bide.Queue) -> None:
    from celery import Celery

    app = Celery("shop", broker=broker.url, set_as_current=False)
    id = app.send_task("shop.expire", (42,), eta=SOON).id
    with app.connection_for_read() as connection:
        app.amqp.queues["celery"].bind(connection.default_channel).get()  # not acked
        done = bide.take_over(orders, "celery", broker.store_url, dry_run=True)
        connection.default_channel.qos.restore_at_shutdown = False
    app.close()
    assert (done.stored, done.held, bool(done)) == (0, 1, False)
    assert done.held_examples == {id: f"shop.expire, due {SOON.isoformat()}"}


def test_a_worker_of_arq_must_stop_first(broker: Broker, orders: bide.Queue) -> None:
    fill_arq(broker)
    broker.client.set("arq:queue:health-check", "on")
    with pytest.raises(bide.InvalidArgument, match="a worker of arq works on arq:queue; stop it"):
        bide.take_over(orders, "arq", broker.store_url, allow_pickle=True)


@pytest.mark.parametrize("kind", ["RedisHuey", "RedisExpireHuey"])
def test_revoked_tasks_of_huey_stay(kind: str, broker: Broker, orders: bide.Queue) -> None:
    ids = fill_huey(broker)
    huey = huey_of(broker, kind)

    def tell(order: int) -> None: ...

    told = huey.task(name="shop.tell")(tell)
    told.revoke()  # all of this function
    huey.revoke_by_id(ids[0])
    revoked = {ids[0], told(44).id}
    done = bide.take_over(orders, "huey", broker.store_url, allow_pickle=True)
    assert (done.stored, done.reasons) == (1, dict.fromkeys(revoked, "it was revoked"))


@pytest.mark.parametrize("options", [{}, {"clean_name": False}])
def test_a_queue_of_huey_is_named_as_in_the_program(
    options: dict[str, Any], broker: Broker, orders: bide.Queue
) -> None:
    import huey

    app = huey.RedisHuey("my-app", connection_pool=broker.client.connection_pool, **options)

    def expire(order: int) -> None: ...

    app.task()(expire)(42)
    done = bide.take_over(
        orders, "huey", broker.store_url, source_queue="my-app", allow_pickle=True
    )
    assert done.stored == 1


def test_priorities_of_huey_are_kept(broker: Broker, orders: bide.Queue) -> None:
    huey = huey_of(broker, "PriorityRedisHuey")

    def expire(order: int) -> None: ...

    task = huey.task(name="shop.expire")(expire)
    begun = datetime.now(UTC) - MILLISECOND
    task(1)
    task(2, priority=50)
    filled = datetime.now(UTC) + MILLISECOND
    done = bide.take_over(orders, "huey", broker.store_url, allow_pickle=True)
    assert done.stored == 2, done
    for one in orders.scan():  # such a queue has it, others of Huey have not
        assert one.created_at is not None
        assert begun <= one.created_at <= filled
    assert [one.body["args"] for one in orders.claim(9)] == [[2], [1]]


def test_foreign_elements_are_refused_and_left(broker: Broker, orders: bide.Queue) -> None:
    broker.client.lpush("celery", "no JSON", "{}", '{"body": 1}')
    broker.client.rpush("rq:queue:default", "gone")
    broker.client.lpush("huey.redis.huey", b"no pickle")
    assert bide.take_over(orders, "celery", broker.store_url).refused == 3
    done = bide.take_over(orders, "rq", broker.store_url)
    assert (done.expired, done.refused) == (1, 0)
    assert bide.take_over(orders, "huey", broker.store_url, allow_pickle=True).refused == 1
    assert broker.client.llen("celery") == 3


@pytest.mark.parametrize(
    ("library", "url", "options", "reason"),
    [
        ("sidekiq", "redis://x", {}, "must be one of celery, rq"),
        ("rq", "redis+cluster://x", {}, "names a cluster"),
        ("rq", "sqlite:///x", {}, "is no Redis"),
        ("bullmq", "redis://x", {}, "bullmq has no default queue"),
        ("rq", "redis://x", {"batch": 0}, "batch=0"),
        ("rq", None, {}, "url=None must be a str"),
    ],
)
def test_wrong_arguments_are_refused(
    library: Any, url: Any, options: dict[str, Any], reason: str, orders: bide.Queue
) -> None:
    with pytest.raises(bide.InvalidArgument, match=reason):
        bide.take_over(orders, library, url, **options)


def test_a_queue_of_another_form_is_refused_before_anything_is_taken() -> None:
    queue: Any = bide.AsyncQueue("orders", "memory://another-form")
    with pytest.raises(bide.InvalidArgument, match=r"takes a bide\.Queue, not AsyncQueue"):
        bide.take_over(queue, "rq", "redis://x")


def test_what_came_from_celery_is_published_as_it_was(
    broker: Broker, bide_store: ScratchStore, bide_worker: WorkerFactory
) -> None:
    from celery import Celery

    from bide.contrib.celery import install

    fill_celery(broker, serializer="pickle", compression="gzip")
    sent = {one["headers"]["id"]: one for one in waiting(broker)}
    with bide_store.queue("celery") as queue:
        bide.take_over(queue, "celery", broker.store_url, allow_pickle=True)
    assert waiting(broker) == []
    app = Celery("shop", broker=broker.url, set_as_current=False)
    install(app, "memory://back-again")
    bide_worker(app.__bide_app__()).advance("4d")
    app.close()
    for one in waiting(broker):
        before = sent.pop(one["headers"]["id"])
        assert one["headers"] == before["headers"] | {"eta": None}
        assert (one["body"], one["content-type"]) == (before["body"], before["content-type"])
        ids = ("correlation_id", "reply_to", "priority", "delivery_mode")
        assert [one["properties"][id] for id in ids] == [before["properties"][id] for id in ids]
    assert sent == {}


def waiting(broker: Broker) -> list[dict[str, Any]]:
    """Return what waits on the broker, in all priorities."""
    keys = [key for key in broker.client.scan_iter() if key.startswith(b"celery")]
    return [json.loads(one) for key in keys for one in broker.client.lrange(key, 0, -1)]


def test_bide_is_imported_without_the_client_of_redis() -> None:
    code = "import sys; sys.modules['redis'] = None; import bide; bide.take_over"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


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


HOUR = timedelta(hours=1)
LONG_AGO = datetime.now(UTC) - HOUR


def rq_of(broker: Broker) -> Any:
    import rq

    return rq.Queue("default", connection=broker.client, serializer="json")


def run_out(broker: Broker, id: str) -> None:
    """Let Redis delete a job, as it does when its ttl has passed."""
    assert broker.client.expireat(f"rq:job:{id}", 1)


def lasts(orders: bide.Queue, id: str) -> timedelta | None:
    """Return how long after its due time a message expires."""
    message = orders.get(id)
    assert message is not None
    return None if message.expires is None else timedelta(milliseconds=message.expires)


def nearly_an_hour(length: timedelta | None) -> bool:
    """Tell whether a length is what the time since the put has left of an hour."""
    return length is not None and HOUR - timedelta(minutes=9) < length <= HOUR


def test_the_ttl_of_a_job_of_rq_is_its_expiry(broker: Broker, orders: bide.Queue) -> None:
    queue = rq_of(broker)
    queue.enqueue("shop.expire", 1, job_id="waits", ttl="1h")
    queue.enqueue_at(SOON, "shop.expire", 2, job_id="comes", ttl="100h")
    queue.enqueue("shop.expire", 3, job_id="stays")
    queue.enqueue_at(SOON, "shop.expire", 4, job_id="for-ever")
    broker.client.hset("rq:job:for-ever", "ttl", -1)  # as Job.create lets one set it
    done = bide.take_over(orders, "rq", broker.store_url)
    assert (done.stored, done.expired, bool(done)) == (4, 0, True)
    assert nearly_an_hour(lasts(orders, "waits"))
    assert lasts(orders, "comes") == 100 * HOUR
    assert lasts(orders, "stays") is lasts(orders, "for-ever") is None


@pytest.mark.parametrize("dry_run", [True, False])
def test_jobs_that_rq_would_not_run_are_counted_and_left(
    dry_run: bool, broker: Broker, orders: bide.Queue
) -> None:
    import rq

    queue = rq_of(broker)
    for id in ("late", "in-time"):
        queue.enqueue("json.dumps", 1, job_id=id, ttl="1h")
    queue.enqueue_at(SOON, "json.dumps", 2, job_id="never", ttl="1h")
    run_out(broker, "late")
    done = bide.take_over(orders, "rq", broker.store_url, dry_run=dry_run)
    assert (done.stored, done.expired, done.refused, bool(done)) == (1, 2, 0, True)
    if not dry_run:
        assert [message.id for message in orders.scan()] == ["in-time"]
        rq.SimpleWorker([queue], connection=broker.client, serializer="json").work(burst=True)
        assert queue.finished_job_registry.get_job_ids() == []
        assert queue.is_empty()


def test_jobs_that_arq_has_deleted_are_counted_and_left(broker: Broker, orders: bide.Queue) -> None:
    ids = fill_arq(broker)
    assert broker.client.expireat(f"arq:job:{ids[0]}", 1)
    done = bide.take_over(orders, "arq", broker.store_url, allow_pickle=True)
    assert (done.stored, done.expired, bool(done)) == (1, 1, True)
    assert broker.client.zrange("arq:queue", 0, -1) == [ids[0].encode()]


def test_the_expiry_of_a_task_of_huey_comes_along(broker: Broker, orders: bide.Queue) -> None:
    huey = huey_of(broker)

    def expire(order: int) -> None: ...

    task = huey.task(expires=HOUR)(expire)
    later = task.schedule((1,), eta=SOON)
    huey.add_schedule(huey.dequeue())  # as its scheduler does
    soon = task.schedule((2,), eta=SOON, expires=60)  # no scheduler has seen it
    exact = task.schedule((3,), eta=SOON, expires=SOON + 2 * HOUR)
    waits = task(4)
    stays = huey.task(name="others")(expire)(5)
    done = bide.take_over(orders, "huey", broker.store_url, allow_pickle=True)
    assert (done.stored, done.expired, bool(done)) == (5, 0, True)
    assert lasts(orders, later.id) == HOUR
    assert lasts(orders, soon.id) == timedelta(seconds=60)
    assert lasts(orders, exact.id) == 2 * HOUR
    assert nearly_an_hour(lasts(orders, waits.id))
    assert lasts(orders, stays.id) is None


def test_an_expiry_of_huey_counts_from_the_next_start_of_its_consumer(
    broker: Broker, orders: bide.Queue
) -> None:
    huey = huey_of(broker)

    def expire(order: int) -> None: ...

    past = datetime.now(UTC) - HOUR  # the moment of the import may be long ago
    missed = huey.task(expires=HOUR)(expire).schedule((1,), eta=past)
    huey.add_schedule(huey.dequeue())
    bide.take_over(orders, "huey", broker.store_url, allow_pickle=True)
    length = lasts(orders, missed.id)
    assert length is not None
    assert 2 * HOUR <= length < 2 * HOUR + timedelta(minutes=9)


@pytest.mark.parametrize("dry_run", [True, False])
def test_tasks_that_huey_would_not_run_are_counted_and_left(
    dry_run: bool, broker: Broker, orders: bide.Queue
) -> None:
    huey = huey_of(broker)
    ran: list[int] = []
    task = huey.task(name="shop.expire")(ran.append)
    task.schedule((1,), eta=SOON, expires=SOON - HOUR)
    huey.add_schedule(huey.dequeue())
    huey.enqueue(task.s(2, expires=LONG_AGO))
    alive = task(3)
    done = bide.take_over(orders, "huey", broker.store_url, allow_pickle=True, dry_run=dry_run)
    assert (done.stored, done.expired, done.refused, bool(done)) == (1, 2, 0, True)
    if not dry_run:
        assert [message.id for message in orders.scan()] == [alive.id]
        [scheduled] = huey.read_schedule(SOON.replace(tzinfo=None))
        for left in (huey.dequeue(), scheduled):
            huey.execute(left, SOON.replace(tzinfo=None))
        assert ran == []


def test_an_expiry_of_huey_that_is_none_is_refused(broker: Broker, orders: bide.Queue) -> None:
    huey = huey_of(broker)

    def expire(order: int) -> None: ...

    task = huey.task()(expire)
    instance = task.s(1, expires=HOUR)
    instance.eta, instance.expires = SOON.replace(tzinfo=None), "soon"
    huey.add_schedule(instance)
    done = bide.take_over(orders, "huey", broker.store_url, allow_pickle=True)
    assert (done.stored, list(done.reasons)) == (0, [instance.id])
    assert "unsupported type for timedelta" in done.reasons[instance.id]


@pytest.mark.parametrize("is_put", [False, True])
def test_what_expires_while_a_run_is_dead_is_not_delivered(
    is_put: bool, broker: Broker, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    rq_of(broker).enqueue("shop.expire", 1, job_id="waits", ttl="1h")

    def die(*args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Transit, "drop" if is_put else "carry", die)
        with pytest.raises(KeyboardInterrupt):
            bide.take_over(orders, "rq", broker.store_url)
    run_out(broker, "waits")
    assert bide.take_over(orders, "rq", broker.store_url)
    assert broker.client.keys("bide:*") == []
    there = list(orders.scan())
    assert [message.state for message in there] == ["ready"] * is_put
    assert all(nearly_an_hour(lasts(orders, message.id)) for message in there)
