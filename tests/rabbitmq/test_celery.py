"""Celery on RabbitMQ with its delays in bide."""

import secrets
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from celery import Celery

from bide.contrib.celery import install
from bide.testing import ScratchStore, WorkerFactory
from tests.rabbitmq.broker import Broker

library: Any = kombu  # it has no annotations


@pytest.fixture
def app(broker: Broker) -> Iterator[Any]:
    name = f"shop-{secrets.token_hex(4)}"
    app = Celery("shop", broker=broker.url, set_as_current=False)
    # A quorum queue on a topic exchange: Celery itself would send a countdown through 28 queues.
    arguments = {"x-queue-type": "quorum"}
    exchange = library.Exchange(name, type="topic")
    app.conf.task_queues = [
        library.Queue(name, exchange, routing_key=name, queue_arguments=arguments)
    ]
    app.conf.task_default_queue = app.conf.task_default_exchange = name
    app.conf.task_default_routing_key = name
    install(app, "memory://celery-on-rabbitmq")
    yield app
    app.close()


def test_a_task_waits_in_bide_and_is_published_with_a_confirm(
    app: Any, bide_store: ScratchStore, bide_worker: WorkerFactory
) -> None:
    worker = bide_worker(app.__bide_app__())
    app.send_task("shop.expire", (42,), countdown=60, expires=3600, task_id="expire-42")
    waiting = bide_store.assert_put("celery", delay="1m", id="expire-42").body
    name = app.conf.task_default_queue
    assert (waiting["exchange"], waiting["routing_key"]) == (name, name)
    worker.advance("1m")
    with app.connection_for_read() as connection:
        queue = app.amqp.queues[name].bind(connection.default_channel)
        message = queue.get(no_ack=True)
        assert queue.get() is None
        queue.delete()
    assert message.headers["id"] == "expire-42"
    assert message.headers["eta"] is None
    assert message.payload[0] == [42]
    assert 0 < int(message.properties["expiration"]) <= 3_600_000


def test_an_exchange_that_is_missing_is_a_failed_attempt_and_no_outage(
    app: Any, bide_store: ScratchStore, bide_worker: WorkerFactory
) -> None:
    worker = bide_worker(app.__bide_app__())
    app.send_task("shop.expire", countdown=60, exchange="nowhere", routing_key="k", task_id="a")
    with pytest.raises(Exception, match="nowhere"):
        worker.advance("1m")
    [message] = bide_store.pending("celery")
    assert message.attempt == 1
    assert "no exchange 'nowhere'" in (message.error or "")
