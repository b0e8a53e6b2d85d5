"""Let the tasks of a Celery app wait in bide until they are due, and publish them then."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from typing import Any

from bide.consuming.handling import Handling
from bide.importing.celery import TaskMessage, encoded, id_of
from bide.importing.source import iso_seconds
from bide.lane.shared import present_clock
from bide.logs import logger
from bide.model.errors import InvalidArgument, StopRequested
from bide.model.identity import check_name, check_queue
from bide.model.limits import MAX_BODY
from bide.model.message import JOB
from bide.queue.sync import Queue
from bide.worker.app.app import App

CONCURRENCY = 8
"""How many tasks a process publishes at a time, each over its own connection."""

AGAIN = 1.0
"""Seconds between two tries while the broker cannot be reached."""

CONFIRM = 30.0
"""Seconds that the broker may take to confirm."""

_log = logger("bide.celery")


def install(
    app: Any, store: str | None = None, *, queue: str = "celery", max_body: int = MAX_BODY
) -> None:
    """Let tasks with `countdown=` or `eta=` wait in bide instead of the memory of Celery's workers.

    Call it once where the Celery app is made, so that workers, beat and all programs that send
    tasks have it. `bide worker --celery module:app` publishes the tasks when they are due; at least
    one must run. It applies to `apply_async`, `send_task`, `retry`, canvas and beat: all that
    Celery sends with a due time. `revoke` removes tasks that wait.

    Args:
        app: a `celery.Celery`.
        store: the URL of the store; by default the environment's `BIDE_URL`.
        queue: the queue in the store.
        max_body: how many bytes the message of a task may take.

    Raises:
        InvalidArgument: it is not a Celery app, or bide is installed in it already.
    """
    if not callable(getattr(app, "send_task", None)) or not hasattr(app, "control_cls"):
        raise InvalidArgument(f"install takes a celery.Celery, not {type(app).__name__}")
    if hasattr(app, "__bide_app__"):
        raise InvalidArgument(f"bide is installed in {app!r} already; call install once")
    Installation(store, check_queue(queue), max_body)(app)


class Installation:
    """What `install` was given. A pickled Celery app carries it, and is installed where it arrives.

    Celery pickles an app for processes that are spawned and for beat, and calls the `fixups` of an
    app when it makes the copy.
    """

    def __init__(self, store: str | None, queue: str, max_body: int) -> None:
        self.store = store
        self.queue = queue
        self.max_body = max_body

    def __call__(self, app: Any) -> "Delays":
        """Let the tasks of an app wait in the store."""
        delays = Delays(app, self.store, self.queue, self.max_body)
        app.send_task = partial(_send_task, delays, app.send_task)
        # The arguments with which Celery makes a copy of an app that it pickles.
        app.__reduce_keys__ = partial(self._reduced, app.__reduce_keys__, app.control_cls)
        app.control_cls = _revoking(app.control_cls, delays)
        vars(app).pop("control", None)  # a cached one does not use the store
        app.__bide_app__ = delays.publisher
        return delays

    def _reduced(self, reduce_keys: Callable[[], dict[str, Any]], control: Any) -> dict[str, Any]:
        """Return what Celery pickles of the app: as it was before, and this installation.

        Args:
            reduce_keys: the method of the app that this one replaces.
            control: the class of the app's `control` before this installation.
        """
        arguments = reduce_keys()
        # A copy of an app has the installation that came with it in its list.
        fixups = [fixup for fixup in arguments["fixups"] if not isinstance(fixup, Installation)]
        return {**arguments, "control": control, "fixups": [*fixups, self]}


class Delays:
    """The tasks of one Celery app that wait in a store."""

    def __init__(self, app: Any, store: str | None, queue: str, max_body: int) -> None:
        self.app = app
        self._store = store
        self._queue_name = queue
        self._max_body = max_body

    @cached_property
    def queue(self) -> Queue:
        """The queue; made when it is first used, so that importing an app needs no store."""
        return Queue(self._queue_name, self._store, max_body=self._max_body)

    def publisher(self) -> App:
        """Return the app that publishes what is due, for `bide worker --celery`."""
        publisher = CeleryPublisher(self.app)
        app = App(self._store, lifespan=publisher.lifespan)
        app.handler(self._queue_name, concurrency=CONCURRENCY, lease="1m")(publisher.publish)
        return app

    def put(self, message: TaskMessage, due: dict[str, Any]) -> None:
        """Store a task until it is due. A task whose id waits already is not stored again.

        Args:
            message: the task as it goes to the broker.
            due: its `delay` or `at`, as for `Queue.put`.

        Raises:
            StoreError: the store failed; the task was not sent.
            InvalidArgument: a task of this id is a dead letter, or the task cannot be stored.
        """
        id, group = id_of(message.headers)
        outcome = self.queue.put(
            encoded(message), id=id, group=group, headers={JOB: message.task}, **due
        )
        if not outcome and outcome.state == "dead":
            raise InvalidArgument(
                f"task {id} could not be published before and is a dead letter of "
                f"{self._queue_name}; revive it (bide revive {self._queue_name} {id}), or send the "
                "task with another id"
            )

    def cancel(self, ids: Iterable[str]) -> list[str]:
        """Cancel tasks that wait, and their retries.

        Returns:
            The ids that Celery has to revoke as well: of these, no task waits here, or one is being
            published, so a worker may get it.
        """
        return [id for id in ids if not self._cancel(id)]

    def _cancel(self, id: str) -> bool:
        """Cancel a task and its retry; return whether no worker can get either of them.

        Both may be here: a retry may arrive before the delivery of the first run is acked.
        """
        try:
            check_name(id)
        except InvalidArgument:  # Celery takes any text, and no task of this id waits here
            return False
        first_run = self.queue.get(id)
        retries = self.queue.scan(group=id)  # which have ids of their own
        waiting = [*retries] if first_run is None else [first_run, *retries]
        cancelled = [message for message in waiting if self.queue.cancel(message.id)]
        if cancelled:
            self._mark_revoked(cancelled[-1].body)
        return bool(cancelled) and len(cancelled) == len(waiting)

    def _mark_revoked(self, body: dict[str, Any]) -> None:
        """Store the state REVOKED as a worker would, so that no caller waits for the result.

        A chord that the task is part of fails.
        """
        from celery.app.task import Context

        headers, embedded = body["headers"], {}
        is_json = body.get("content_type", "application/json") == "application/json"
        if is_json and "text" in body:  # which says what chord it is part of
            _, _, embedded = json.loads(body["text"])
        request = Context({**headers, **embedded})
        keeps_result = not headers.get("ignore_result")
        self.app.backend.mark_as_revoked(
            headers["id"], reason="revoked", request=request, store_result=keeps_result
        )


def _send_task(
    delays: Delays,
    send: Any,
    name: str,
    args: Any = None,
    kwargs: Any = None,
    countdown: float | None = None,
    eta: Any = None,
    task_id: str | None = None,
    producer: Any = None,
    connection: Any = None,
    **options: Any,
) -> Any:
    """Send a task as Celery does, except that one with a due time goes to the store.

    The parameters after `send` are those of `Celery.send_task`.

    Args:
        delays: what has the store.
        send: the method of the app that this one replaces.
    """
    if not countdown and not eta:
        return send(
            name, args, kwargs, task_id=task_id, producer=producer, connection=connection, **options
        )
    due: dict[str, Any] = (
        {"delay": max(0, countdown)} if countdown else {"at": _aware(delays.app, eta)}
    )
    # Celery makes the message, without a due time, and gives it to a producer that stores it.
    with delays.app.producer_or_acquire(producer) as broker_producer:
        storing: Any = _Storing(broker_producer, delays, due)
        return send(name, args, kwargs, task_id=task_id, producer=storing, **options)


def _aware(app: Any, eta: Any) -> datetime:
    """Return an `eta` as Celery understands it: without a time zone it is UTC."""
    from celery.utils.time import maybe_make_aware

    when = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
    aware: datetime = maybe_make_aware(when, app.timezone)
    return aware


class _Storing:
    """A producer whose first message, the task, goes to the store; events go to the broker.

    Celery calls it with everything settled: route, serializer, headers, signals.
    """

    def __init__(self, producer: Any, delays: Delays, due: dict[str, Any]) -> None:
        self._producer = producer
        self._delays = delays
        self._due: dict[str, Any] | None = due
        """The `delay` or `at` of the task; `None`: it is stored, and what comes is an event."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(
        self,
        body: Any,
        *args: Any,
        exchange: Any = "",
        routing_key: str | None = None,
        serializer: str | None = None,
        compression: str | None = None,
        declare: Any = None,
        headers: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Store the task, or publish an event about it."""
        if self._due is None:
            return self._producer.publish(
                body,
                *args,
                exchange=exchange,
                routing_key=routing_key,
                serializer=serializer,
                compression=compression,
                declare=declare,
                headers=headers,
                **options,
            )
        from kombu import serialization

        kombu: Any = serialization  # it has no annotations
        due, self._due = self._due, None
        if not headers or "id" not in headers:
            raise InvalidArgument(
                "tasks of Celery's protocol 1 cannot wait in bide; set task_protocol = 2"
            )
        content_type, encoding, payload = kombu.dumps(body, serializer=serializer)
        for of_connection in ("retry", "retry_policy", "timeout", "confirm_timeout"):
            options.pop(of_connection, None)  # the task is published over another connection
        is_text = isinstance(payload, str)
        message = TaskMessage(
            task=headers["task"],
            text=payload if is_text else None,
            data=None if is_text else payload,
            content_type=content_type,
            content_encoding=encoding,
            compression=compression,
            headers=headers,
            properties={name: option for name, option in options.items() if option is not None},
            exchange=getattr(exchange, "name", exchange) or "",
            routing_key=routing_key or "",
            declare=[queue.name for queue in declare or () if hasattr(queue, "routing_key")],
        )
        return self._delays.put(message, due)


def _revoking(base: Any, delays: Delays) -> Any:
    """Return the class of an app's `control` that removes revoked tasks from the store."""
    from kombu.utils import imports

    kombu: Any = imports  # it has no annotations
    base_class: Any = kombu.symbol_by_name(base)

    class Control(base_class):  # type: ignore[misc]
        """Celery's control, for tasks that wait in bide, too."""

        def revoke(self, task_id: Any, *args: Any, **options: Any) -> Any:
            """Cancel tasks that wait in bide; let Celery revoke the others, which its workers have.

            The arguments are those of Celery's `revoke`; a single id stays a single id.
            """
            is_single = isinstance(task_id, str)
            ids = [task_id] if is_single else [str(id) for id in task_id]
            left_to_celery = delays.cancel(ids)
            if not left_to_celery:
                return [] if options.get("reply") else None  # as if no worker had answered
            revoked = left_to_celery[0] if is_single else left_to_celery
            return super().revoke(revoked, *args, **options)

    return Control


class CeleryPublisher:
    """Publishes to the broker of a Celery app, and returns once the broker has it.

    RabbitMQ confirms each message; Redis answers each command.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._local = threading.local()
        """Has the connection of each thread."""
        self._connections: set[Any] = set()
        """The connections of all threads, to close them."""
        self._broker_is_down = False
        """Whether the log says that the broker cannot be reached."""

    def publish(self, message: TaskMessage, delivery: Handling) -> None:
        """Publish one task. While the broker cannot be reached, wait: that costs no attempt.

        Raises:
            StopRequested: the task was cancelled while it waited for the broker, or its lease was
                lost; it was not published.
        """
        from kombu.exceptions import OperationalError  # the kit is also there without Celery

        while not delivery.lost.is_set():
            connection = self._connection()
            try:
                connection.ensure_connection(max_retries=1, interval_start=0)
                self._publish(connection, message)
            except (OperationalError, *connection.recoverable_connection_errors) as error:
                self._close(connection)
                self._log_once(connection, error)
                delivery.lost.wait(AGAIN)
            except Exception:
                self._close(connection)  # its channel may be closed
                raise
            else:
                if self._broker_is_down:
                    self._broker_is_down = False
                    _log.warning("the broker of Celery is back")
                return
        # To return would be an ack, which says that the task was published.
        raise StopRequested(f"task {message.headers['id']} was not published: it had to end first")

    @contextmanager
    def lifespan(self, _: App) -> Iterator[None]:
        """Close the connections of all threads at the end."""
        try:
            yield
        finally:
            for connection in list(self._connections):
                self._close(connection)

    def _publish(self, connection: Any, message: TaskMessage) -> None:
        """Publish a task over a connection, as Celery would have done when it was sent."""
        headers = message.headers
        properties = {**message.properties, **_expiration(headers)}
        if _confirms(connection):
            properties["confirm_timeout"] = CONFIRM
        producer = self._app.amqp.Producer(connection.default_channel, auto_declare=False)
        producer.publish(
            message.data if message.text is None else message.text,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            compression=message.compression,
            headers=dict(headers),
            exchange=message.exchange,
            routing_key=message.routing_key,
            retry=False,
            declare=[self._app.amqp.queues[name] for name in message.declare],
            **properties,
        )

    def _connection(self) -> Any:
        """Return the connection of this thread; it may not be open."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._app.connection_for_write()
            self._connections.add(connection)
            if _confirms(connection):
                connection.transport_options |= {"confirm_publish": True}
            elif connection.transport.driver_type == "redis":
                # Without a limit a server that hangs would keep this thread for ever.
                limits = {"socket_timeout": CONFIRM, "socket_connect_timeout": CONFIRM}
                connection.transport_options = limits | connection.transport_options
        return connection

    def _close(self, connection: Any) -> None:
        """Close a connection; the next task of this thread opens another one."""
        self._local.connection = None
        self._connections.discard(connection)
        connection.collect()

    def _log_once(self, connection: Any, error: BaseException) -> None:
        """Log once that the broker cannot be reached."""
        if not self._broker_is_down:
            self._broker_is_down = True
            where = connection.as_uri()
            _log.warning("the broker of Celery, %s, cannot be reached; waiting: %s", where, error)


def _confirms(connection: Any) -> bool:
    """Tell whether it is a broker that confirms messages: RabbitMQ."""
    return bool(connection.transport.driver_type == "amqp")


def _expiration(headers: dict[str, Any]) -> dict[str, float | None]:
    """Return the property `expiration`: how many seconds a task may stay on the broker from now.

    Returns no property if the task does not expire. If it has expired already, the property is
    `None`, so the broker does not drop it: then Celery's worker discards it, stores its state and
    sends its signal.
    """
    if not headers.get("expires"):
        return {}
    seconds = iso_seconds(headers["expires"]) - present_clock().now() / 1000
    return {"expiration": seconds if seconds > 0 else None}
