"""Publishes tasks to the broker of Celery when they are due."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import OperationalError

from bide.consuming.handling import Handling
from bide.queue.takeover.source import iso_seconds
from bide.queue.takeover.tasks import TaskMessage
from bide.worker.app.app import App

__all__ = ["CONCURRENCY", "Publisher"]

CONCURRENCY = 8
"""How many tasks a process publishes at a time, each over a connection of its own."""

AGAIN = 1.0
"""Seconds between two tries while the broker cannot be reached."""

CONFIRM = 30.0
"""Seconds that the broker may take to confirm."""

_log = logging.getLogger("bide.celery")


class Publisher:
    """Publishes to the broker of a Celery app, and returns once the broker has it.

    RabbitMQ confirms each message; Redis answers each command.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._local = threading.local()
        self._connections: set[Any] = set()
        self._down = False

    def publish(self, message: TaskMessage, delivery: Handling) -> None:
        """Publish one task. While the broker cannot be reached, wait: that costs no attempt."""
        while not delivery.lost.is_set():
            connection = self._connection()
            try:
                connection.ensure_connection(max_retries=1, interval_start=0)
                self._publish(connection, message)
            except (OperationalError, *connection.recoverable_connection_errors) as error:
                self._close(connection)
                self._tell(connection, error)
                delivery.lost.wait(AGAIN)
            except Exception:
                self._close(connection)  # its channel may be closed
                raise
            else:
                if self._down:
                    self._down = False
                    _log.warning("the broker of Celery is back")
                return

    @contextmanager
    def lifespan(self, _: App) -> Iterator[None]:
        """Close the connections of all threads at the end."""
        try:
            yield
        finally:
            for connection in list(self._connections):
                self._close(connection)

    def _publish(self, connection: Any, message: TaskMessage) -> None:
        headers = message.headers
        properties = {**message.properties, **_expiration(headers)}
        if _confirms(connection):
            properties["confirm_timeout"] = CONFIRM
        producer = self._app.amqp.Producer(connection.default_channel, auto_declare=False)
        producer.publish(
            message.data if message.text is None else message.text,
            content_type=message.content_type, content_encoding=message.content_encoding,
            compression=message.compression, headers=dict(headers), exchange=message.exchange,
            routing_key=message.routing_key, retry=False,
            declare=[self._app.amqp.queues[name] for name in message.declare], **properties,
        )  # fmt: skip

    def _connection(self) -> Any:
        """Return the connection of this thread; it may not be open."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._app.connection_for_write()
            self._connections.add(connection)
            if _confirms(connection):
                connection.transport_options |= {"confirm_publish": True}
            else:  # without a limit a server that hangs would keep this thread for ever
                limits = {"socket_timeout": CONFIRM, "socket_connect_timeout": CONFIRM}
                connection.transport_options = limits | connection.transport_options
        return connection

    def _close(self, connection: Any) -> None:
        self._local.connection = None
        self._connections.discard(connection)
        connection.collect()

    def _tell(self, connection: Any, error: BaseException) -> None:
        """Log once that the broker cannot be reached."""
        if not self._down:
            self._down = True
            where = connection.as_uri()
            _log.warning("the broker of Celery, %s, cannot be reached; waiting: %s", where, error)


def _confirms(connection: Any) -> bool:
    """Tell whether it is a broker that confirms messages: RabbitMQ."""
    return bool(connection.transport.driver_type == "amqp")


def _expiration(headers: dict[str, Any]) -> dict[str, float | None]:
    """Return the seconds that a task may stay on the broker, counted from now.

    A task that has expired already is published without: Celery's worker discards it, stores its
    state and sends its signal, which a broker that drops a message does not.
    """
    if not headers.get("expires"):
        return {}
    left = iso_seconds(headers["expires"]) - time.time()
    return {"expiration": left if left > 0 else None}
