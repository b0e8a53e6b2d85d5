"""Celery on RabbitMQ, with tasks that can be cancelled until they are due.

Celery's own `countdown` has a worker hold the task in memory until it is due; to revoke it, every
worker has to remember its id. Here the message waits in bide, and reaches a worker when it is due.

    celery -A examples.rabbitmq.celery_later worker
    bide rabbitmq 'amqp://guest:guest@localhost/?exchange=celery'
    python -m examples.rabbitmq.celery_later 42     # in ten seconds
    bide cancel celery unpaid-42
"""

import os
import sys
from typing import Any

from celery import Celery, Task

BROKER = os.environ.get("BROKER", "amqp://guest:guest@localhost//")

app = Celery("shop", broker=BROKER)
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True


@app.task  # type: ignore[untyped-decorator]
def cancel_order(number: int) -> None:
    """Cancel an order that stayed unpaid."""
    print(f"order {number} is cancelled", flush=True)


def later(task: "Task[Any, Any]", seconds: float, *args: object, id: str) -> None:
    """Have a task run after a delay, unless it is cancelled by its id.

    "celery" is the exchange, and the routing key, of Celery's default queue.
    """
    task.apply_async(
        args, task_id=id, message_id=id, exchange="celery.delayed", routing_key="celery",
        headers={"x-delay": round(seconds * 1000)},
    )  # fmt: skip


if __name__ == "__main__":
    later(cancel_order, 10, int(sys.argv[1]), id=f"unpaid-{sys.argv[1]}")
