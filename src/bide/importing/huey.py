"""Tasks of Huey 2 and 3."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Self

from bide.importing.pickles import Pickled, inflated, is_pickle, plain
from bide.importing.source import (
    NOW,
    NotTakenOver,
    Place,
    SourceEntry,
    SourceQueue,
    created_at,
    due_at,
    lasting,
)
from bide.model.message import Item

_FIELDS = (
    "id",
    "name",
    "eta",
    "retries",
    "retry_delay",
    "priority",
    "args",
    "kwargs",
    "on_complete",
    "on_error",
    "expires",
    "expires_resolved",
    "timeout",
    "chord_config",
)
"""The fields of Huey's messages, in their order; older versions have fewer."""

_FEWEST = 8
"""How many fields the oldest version has that is read."""

_QUEUE = "huey.redis."
_SCHEDULE = "huey.schedule."
"""How the keys begin of waiting tasks, and of scheduled ones."""

_STAMP = 8
"""Bytes before a message in a queue with priorities: when it was put, in microseconds."""


class _Message(tuple[Any, ...]):
    """Replaces Huey's own class when a pickle is read."""

    def __new__(cls, *values: Any) -> Self:
        return super().__new__(cls, values)


class HueySource(SourceQueue):
    """A queue of Huey: a list, or a sorted set by priority, and a set of the scheduled ones."""

    default = "huey"

    @cached_property
    def _name(self) -> str:
        """The name in keys: Huey leaves out other characters, unless it has `clean_name=False`."""
        uncleaned_keys = (f"{_QUEUE}{self.queue}", f"{_SCHEDULE}{self.queue}")
        if self.redis.ask("EXISTS", *uncleaned_keys):
            return self.queue
        return re.sub("[^A-Za-z0-9_]", "", self.queue)

    def places(self) -> list[Place]:
        """Return the set of scheduled tasks, and the queue."""
        key = f"{_QUEUE}{self._name}".encode()
        has_priorities = self.redis.ask("TYPE", key) == b"zset"
        waiting = Place(key, "zset") if has_priorities else Place(key, "list", oldest_last=True)
        return [Place(f"{_SCHEDULE}{self._name}".encode(), "zset"), waiting]

    def content(self, entry: SourceEntry) -> list[Sequence[Any]]:
        """Return the commands that tell if the task was revoked, alone or with its function."""
        try:
            message = self._message(entry)
        except (NotTakenOver, Pickled):
            return []  # `item` raises the same, and needs no content
        marks = [
            # Half a surrogate pair, which Redis cannot have, becomes "?": then no mark is found.
            mark.encode(errors="replace")
            for mark in (f"r:{message['id']}", f"rt:{message['name']}")
        ]
        # Huey keeps marks in a hash, RedisExpireHuey in keys of their own.
        keys = [f"huey.r.{self._name}.".encode() + mark for mark in marks]
        return [
            *(("HEXISTS", f"huey.results.{self._name}", mark) for mark in marks),
            ("EXISTS", *keys),
        ]

    def name(self, entry: SourceEntry) -> str:
        """Return the id of the task, if its message can be read."""
        try:
            return str(self._message(entry)["id"])
        except (NotTakenOver, Pickled):
            return super().name(entry)

    def item(self, entry: SourceEntry, content: Sequence[Any], now: int) -> Item:
        """Return the call of the task's function."""
        message = self._message(entry)
        if any(content):
            raise NotTakenOver("it was revoked")
        if any(message.get(name) for name in ("on_complete", "on_error", "chord_config")):
            raise NotTakenOver("it is part of a pipeline or a chord")
        eta = message["eta"]
        due = due_at(_seconds(eta)) if eta else NOW
        is_scheduled = entry.place.key.startswith(_SCHEDULE.encode())
        end = _end(message, due, now, scheduled=is_scheduled)
        return self._call(
            id=str(message["id"]),
            name=message["name"],
            args=message["args"],
            kwargs=message["kwargs"],
            due=due,
            created=self._created(entry),
            priority=min(max(int(message["priority"] or 0), 0), 255),
            expires=None if end is None else lasting(due, end, now),
        )

    def _has_stamp(self, entry: SourceEntry) -> bool:
        """Tell whether an element begins with the time when it was put: in a queue by priority."""
        return entry.place.kind == "zset" and entry.place.key.startswith(_QUEUE.encode())

    def _created(self, entry: SourceEntry) -> int | None:
        """Return when a task was put, in Unix milliseconds; `None` if nothing says so."""
        if not self._has_stamp(entry):
            return None
        return created_at(int.from_bytes(entry.member[:_STAMP]) / 1_000_000)

    def _message(self, entry: SourceEntry) -> dict[str, Any]:
        """Return the fields of a message, by name.

        Raises:
            NotTakenOver: it is not a message of Huey that can be read.
            Pickled: pickles are not to be read.
        """
        stored = entry.member[_STAMP:] if self._has_stamp(entry) else entry.member
        # Larger than a body: a pickle has more around the values than JSON.
        data = inflated(stored, 2 * self.max_body)
        if not is_pickle(data):
            raise NotTakenOver("it is not as Huey's own serializer writes it")
        if not self.pickles:
            raise Pickled
        fields = plain(data, {"huey.registry.Message": _Message})
        if not isinstance(fields, _Message) or len(fields) < _FEWEST:
            raise NotTakenOver("it is not a message of Huey 2 or 3")
        return dict(zip(_FIELDS, fields, strict=False))


def _seconds(when: datetime) -> float:
    """Return a time of Huey, of UTC if it names no zone, in Unix seconds."""
    return when.replace(tzinfo=when.tzinfo or UTC).timestamp()


def _end(message: dict[str, Any], due: int, now: int, *, scheduled: bool) -> int | None:
    """Return when a task expires in Unix milliseconds; `None` if it does not.

    Huey counts a length of time from each time at which it puts the task into its queue. For a
    scheduled task the last one is its due time, or the start of the consumer if that is later.
    """
    expires, resolved = message.get("expires"), message.get("expires_resolved")
    if expires and not isinstance(expires, datetime) and (scheduled or due > now):
        length = expires if isinstance(expires, timedelta) else timedelta(seconds=expires)
        return max(due, now) + length // timedelta(milliseconds=1)
    return round(_seconds(resolved) * 1000) if resolved else None
