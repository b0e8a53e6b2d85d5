"""Tasks of Celery on Redis, in the layout of kombu's Redis transport (Celery 4 and 5)."""

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from bide.model.message import Item
from bide.queue.takeover.moments import NOW, due_at, iso_seconds
from bide.queue.takeover.source import Entry, Held, Pickled, Place, Refused, Source
from bide.queue.takeover.task_message import TaskMessage, id_of

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
        try:
            return self._item(json.loads(entry.member))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise Refused(f"it is no message of Celery 4 or 5 ({error!r})") from error

    def _item(self, found: dict[str, Any]) -> Item:
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
        item = self._job(id, headers["task"], msgspec.to_builtins(message), due, priority)
        return msgspec.structs.replace(item, group=group)

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
                except (ValueError, TypeError, KeyError):
                    continue  # not written by Celery
                if key == self.queue:
                    eta = f", due {headers['eta']}" if headers.get("eta") else ""
                    yield Held(str(headers.get("id")), f"{headers.get('task')}{eta}")
            if not cursor:
                return
