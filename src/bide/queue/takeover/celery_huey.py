"""Tasks of Celery (kombu's Redis transport of Celery 4 and 5) and of Huey 2 and 3."""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Self

import msgspec

from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.queue.takeover.source import (
    MALFORMED,
    NOW,
    Entry,
    Held,
    Pickled,
    Place,
    Refused,
    Source,
    created_at,
    due_at,
    inflated,
    is_pickle,
    iso_seconds,
    lasting,
    plain,
)


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
    id = str(headers["id"])
    retries, replaced = headers.get("retries") or 0, headers.get("replaced_task_nesting") or 0
    if not retries and not replaced:
        return id, None
    return f"{id}.retry-{retries}" + (f".replaced-{replaced}" if replaced else ""), id


def encoded(message: TaskMessage) -> Any:
    """Return the body of a message in the store.

    Raises:
        InvalidArgument: an option of the task is no JSON.
    """
    try:
        return msgspec.to_builtins(message)
    except TypeError as error:
        raise InvalidArgument(
            f"task {message.task} has a header or an option that is not JSON ({error}), so it "
            "cannot wait in bide; leave the option away, or convert it"
        ) from error


_STEP = "\x06\x16"
"""Between the name of a queue and a priority, in the key of the list."""

_KEPT = ("correlation_id", "reply_to", "priority", "delivery_mode")

_LOWEST = 9
"""The last priority of Celery on Redis, where 0 goes first."""


class CelerySource(Source):
    """A queue of Celery: a list for each priority. Bodies are read by `bide worker --celery`."""

    default = "celery"

    def places(self) -> list[Place]:
        """Return the lists of the queue, one per priority."""
        names = [self.queue, *(f"{self.queue}{_STEP}{step}" for step in range(1, _LOWEST + 1))]
        return [Place(name.encode(), "list", oldest_last=True) for name in names]

    def item(self, entry: Entry, content: Sequence[Any], now: int) -> Item:
        """Return the task, as `bide.contrib.celery.install` would have stored it."""
        found = json.loads(entry.member)
        headers, kind = found["headers"], found["content-type"]
        if "task" not in headers or "id" not in headers:
            raise Refused("it is of Celery's protocol 1; bide takes over protocol 2")
        if "python-serialize" in kind and not self.pickles:
            raise Pickled
        eta = headers.pop("eta", None)
        due = NOW if eta is None else due_at(iso_seconds(eta))
        body, given = found["body"], found["properties"]
        raw = base64.b64decode(body) if given.get("body_encoding") == "base64" else body.encode()
        encoding = found["content-encoding"]
        is_text = encoding == "utf-8" and "compression" not in headers
        message = TaskMessage(
            headers["task"], raw.decode() if is_text else None, None if is_text else raw, kind,
            encoding, None, {**headers, "eta": None},
            {name: given[name] for name in _KEPT if given.get(name) is not None},
            "", self.queue, [self.queue],
        )  # fmt: skip
        id, group = id_of(headers)
        priority = min(max(_LOWEST - int(given.get("priority") or 0), 0), _LOWEST)
        body = msgspec.to_builtins(message)
        return self._job(id, headers["task"], body, due, priority, group=group)

    def held(self) -> Iterator[Held]:
        """Yield the tasks that workers have received and not acked, those with an ETA among them.

        They return to their queue when the workers stop, or after the visibility timeout.
        """
        cursor = 0
        while True:
            cursor, values = self.redis.ask("HSCAN", "unacked", cursor, "COUNT", 500)
            for value in values.values():
                try:
                    found, _, key = json.loads(value)
                    headers = found["headers"]
                    eta = f", due {headers['eta']}" if headers.get("eta") else ""
                    held = Held(str(headers.get("id")), f"{headers.get('task')}{eta}")
                except MALFORMED:
                    continue  # not written by Celery
                if key == self.queue:
                    yield held
            if not cursor:
                return


_FIELDS = (
    "id", "name", "eta", "retries", "retry_delay", "priority", "args", "kwargs", "on_complete",
    "on_error", "expires", "expires_resolved", "timeout", "chord_config",
)  # fmt: skip
"""The fields of Huey's messages, in their order; older versions have fewer."""

_FEWEST = 8

_QUEUE = "huey.redis."
_SCHEDULE = "huey.schedule."

_STAMP = 8
"""Bytes before a message in a queue with priorities: when it was put, in microseconds."""


class _Message(tuple[Any, ...]):
    """Replaces Huey's own class when a pickle is read."""

    def __new__(cls, *values: Any) -> Self:
        return super().__new__(cls, values)


class HueySource(Source):
    """A queue of Huey: a list, or a sorted set by priority, and a set of the scheduled ones."""

    default = "huey"

    @cached_property
    def _name(self) -> str:
        """The name in keys: Huey leaves out other characters, unless it has `clean_name=False`."""
        as_it_is = (f"{_QUEUE}{self.queue}", f"{_SCHEDULE}{self.queue}")
        if self.redis.ask("EXISTS", *as_it_is):
            return self.queue
        return re.sub("[^A-Za-z0-9_]", "", self.queue)

    def places(self) -> list[Place]:
        """Return the set of scheduled tasks, and the queue."""
        key = f"{_QUEUE}{self._name}".encode()
        by_priority = self.redis.ask("TYPE", key) == b"zset"
        return [
            Place(f"{_SCHEDULE}{self._name}".encode(), "zset"),
            Place(key, "zset" if by_priority else "list", not by_priority),
        ]

    def content(self, entry: Entry) -> list[Sequence[Any]]:
        """Read whether the task was revoked, alone or with all of its function."""
        try:
            message = self._message(entry)
        except (Refused, Pickled):
            return []
        found = (f"r:{message['id']}", f"rt:{message['name']}")
        marks = [mark.encode(errors="replace") for mark in found]  # half a character is no mark
        return [
            *(("HEXISTS", f"huey.results.{self._name}", mark) for mark in marks),
            (
                "EXISTS",
                *(f"huey.r.{self._name}.".encode() + mark for mark in marks),
            ),  # RedisExpireHuey
        ]

    def name(self, entry: Entry) -> str:
        """Return the id of the task, if its message can be read."""
        try:
            return str(self._message(entry)["id"])
        except (Refused, Pickled):
            return super().name(entry)

    def item(self, entry: Entry, content: Sequence[Any], now: int) -> Item:
        """Return the call of the task's function."""
        message = self._message(entry)
        if any(content):
            raise Refused("it was revoked")
        if any(message.get(name) for name in ("on_complete", "on_error", "chord_config")):
            raise Refused("it is part of a pipeline or a chord")
        eta = message["eta"]
        due = due_at(_seconds(eta)) if eta else NOW
        end = _end(message, due, now, scheduled=entry.place.key.startswith(_SCHEDULE.encode()))
        return self._call(
            str(message["id"]), message["name"], message["args"], message["kwargs"], due,
            self._created(entry), min(max(int(message["priority"] or 0), 0), 255),
            None if end is None else lasting(due, end, now),
        )  # fmt: skip

    def _has_stamp(self, entry: Entry) -> bool:
        return entry.place.kind == "zset" and entry.place.key.startswith(_QUEUE.encode())

    def _created(self, entry: Entry) -> int | None:
        if not self._has_stamp(entry):
            return None
        return created_at(int.from_bytes(entry.member[:_STAMP]) / 1_000_000)

    def _message(self, entry: Entry) -> dict[str, Any]:
        data = inflated(entry.member[_STAMP * self._has_stamp(entry) :], 2 * self.max_body)
        if not is_pickle(data):
            raise Refused("it is not as Huey's own serializer writes it")
        if not self.pickles:
            raise Pickled
        found = plain(data, {"huey.registry.Message": _Message})
        if not isinstance(found, _Message) or len(found) < _FEWEST:
            raise Refused("it is no message of Huey 2 or 3")
        return dict(zip(_FIELDS, found, strict=False))


def _seconds(when: datetime) -> float:
    """Return a time of Huey, of UTC if it names no zone, in Unix seconds."""
    return when.replace(tzinfo=when.tzinfo or UTC).timestamp()


def _end(message: dict[str, Any], due: int, now: int, *, scheduled: bool) -> int | None:
    """Return when a task expires in Unix milliseconds, if it does.

    Huey counts a length of time from each time at which it puts the task into its queue. For a
    scheduled task the last one is its due time, or the start of the consumer if that is later.
    """
    expires, resolved = message.get("expires"), message.get("expires_resolved")
    if expires and not isinstance(expires, datetime) and (scheduled or due > now):
        length = expires if isinstance(expires, timedelta) else timedelta(seconds=expires)
        return max(due, now) + length // timedelta(milliseconds=1)
    return round(_seconds(resolved) * 1000) if resolved else None
