"""What has expired in a library stays there; what expires later expires in the store, too."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide.importing.transit import Transit
from tests.contrib.celery.conftest import Broker
from tests.importing.test_libraries import SOON, fill_arq, huey_of

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
