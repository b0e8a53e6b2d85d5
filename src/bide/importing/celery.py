"""Tasks of Celery 4 and 5, as kombu's transport keeps them on Redis."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bide.importing.pickles import Pickled
from bide.importing.source import (
    MALFORMED,
    NOW,
    HeldMessage,
    NotTakenOver,
    Place,
    SourceEntry,
    SourceQueue,
    due_at,
    iso_seconds,
)
from bide.model.errors import InvalidArgument
from bide.model.message import Item


class TaskMessage(msgspec.Struct, omit_defaults=True):
    """A message of Celery's protocol 2, with its place on the broker.

    Example:
        >>> TaskMessage("shop.expire", '[[42], {}, {}]', headers={"id": "a"}).content_type
        'application/json'
    """

    task: str
    """The name of the task."""
    text: str | None = None
    """The serialized arguments, exactly as Celery has made them, if they are text."""
    data: bytes | None = None
    """The same if they are not, as pickle's; in base64 in JSON."""
    content_type: str = "application/json"
    content_encoding: str = "utf-8"
    compression: str | None = None
    headers: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    """`correlation_id`, `reply_to`, `priority`, `delivery_mode` and others."""
    exchange: str = ""
    routing_key: str = ""
    declare: list[str] = []
    """The queues of the Celery app that are declared before it is published."""


def id_of(headers: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the id of a task's message, and its group.

    A retry has the id of its task, and so has a task that replaces another one. Their message may
    be put before that of the first run is acked, so it has an id of its own. Its group is the task.

    Example:
        >>> id_of({"id": "a", "retries": 0}), id_of({"id": "a", "retries": 2})
        (('a', None), ('a.retry-2', 'a'))
    """
    task_id = str(headers["id"])
    retries, replacements = headers.get("retries") or 0, headers.get("replaced_task_nesting") or 0
    if not retries and not replacements:
        return task_id, None
    id = f"{task_id}.retry-{retries}"
    if replacements:
        id += f".replaced-{replacements}"
    return id, task_id


def encoded(message: TaskMessage) -> Any:
    """Return the body of a message in the store.

    Raises:
        InvalidArgument: an option of the task is no JSON.
    """
    readable = msgspec.structs.replace(
        message, headers=_readable(message.headers), properties=_readable(message.properties)
    )
    try:
        return msgspec.to_builtins(readable)
    except TypeError as error:
        raise InvalidArgument(
            f"task {message.task} has a header or an option that is not JSON ({error}), so it "
            "cannot wait in bide; leave the option out, or convert it"
        ) from error


_SHOWN = ("argsrepr", "kwargsrepr", "shadow", "origin")
"""What only describes a task to people; nothing reads the arguments from it."""


def _readable(headers: dict[str, Any]) -> dict[str, Any]:
    """Return headers or properties whose descriptions are valid Unicode.

    Where a file name is not UTF-8, Python has half of a surrogate pair, which no store can hold; it
    is written as an escape.
    """
    texts = {name: headers[name] for name in _SHOWN if isinstance(headers.get(name), str)}
    escaped = {name: text.encode(errors="backslashreplace") for name, text in texts.items()}
    return headers | {name: text.decode() for name, text in escaped.items()}


_STEP = "\x06\x16"
"""Between the name of a queue and a priority, in the key of the list."""

_KEPT = ("correlation_id", "reply_to", "priority", "delivery_mode")
"""The properties that say how a task is published; the others are of this one delivery."""

_LOWEST = 9
"""The last priority of Celery on Redis, where 0 goes first."""


class CelerySource(SourceQueue):
    """A queue of Celery: a list for each priority. Bodies are read by `bide worker --celery`."""

    default = "celery"

    def places(self) -> list[Place]:
        """Return the lists of the queue, one per priority."""
        # The list of priority 0 has the name of the queue.
        lower = [f"{self.queue}{_STEP}{priority}" for priority in range(1, _LOWEST + 1)]
        names = [self.queue, *lower]
        return [Place(name.encode(), "list", oldest_last=True) for name in names]

    def item(self, entry: SourceEntry, content: Sequence[Any], now: int) -> Item:
        """Return the task, as `bide.contrib.celery.install` would have stored it."""
        envelope = json.loads(entry.member)
        headers, content_type = envelope["headers"], envelope["content-type"]
        if "task" not in headers or "id" not in headers:
            raise NotTakenOver("it uses Celery's protocol 1; bide takes over protocol 2")
        if "python-serialize" in content_type and not self.pickles:
            raise Pickled
        # Without its time: a worker of Celery that gets the task when it is due must not wait.
        eta = headers.pop("eta", None)
        due = NOW if eta is None else due_at(iso_seconds(eta))
        body, properties = envelope["body"], envelope["properties"]
        is_base64 = properties.get("body_encoding") == "base64"
        data = base64.b64decode(body) if is_base64 else body.encode()
        encoding = envelope["content-encoding"]
        is_text = encoding == "utf-8" and "compression" not in headers
        message = TaskMessage(
            task=headers["task"],
            text=data.decode() if is_text else None,
            data=None if is_text else data,
            content_type=content_type,
            content_encoding=encoding,
            headers={**headers, "eta": None},
            properties={
                name: properties[name] for name in _KEPT if properties.get(name) is not None
            },
            routing_key=self.queue,
            declare=[self.queue],
        )
        id, group = id_of(headers)
        return self._job(
            id=id,
            name=headers["task"],
            body=msgspec.to_builtins(message),
            due=due,
            priority=min(max(_LOWEST - int(properties.get("priority") or 0), 0), _LOWEST),
            group=group,
        )

    def held(self) -> Iterator[HeldMessage]:
        """Yield the tasks that workers have received and not acked, those with an ETA among them.

        They return to their queue when the workers stop, or after the visibility timeout.
        """
        cursor = 0
        while True:
            cursor, unacked = self.redis.ask("HSCAN", "unacked", cursor, "COUNT", 500)
            for delivery in unacked.values():
                try:
                    envelope, _, queue = json.loads(delivery)
                    headers = envelope["headers"]
                    eta = f", due {headers['eta']}" if headers.get("eta") else ""
                    held = HeldMessage(str(headers.get("id")), f"{headers.get('task')}{eta}")
                except MALFORMED:
                    continue  # not written by Celery
                if queue == self.queue:  # the hash is that of all queues
                    yield held
            if not cursor:
                return
