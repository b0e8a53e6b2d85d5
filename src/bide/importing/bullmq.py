"""Jobs of BullMQ 5 and 6."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from bide.importing.source import (
    NOW,
    HeldMessage,
    NotTakenOver,
    Place,
    SourceEntry,
    SourceQueue,
    created_at,
    due_at,
)
from bide.model.errors import InvalidArgument
from bide.model.message import Item

_SHIFT = 0x1000
"""The score of a delayed job is its time in milliseconds, times this, plus a counter."""

_KNOWN = (b"bullmq:5.", b"bullmq:6.")
"""How the versions begin whose layout is known."""


class BullMQSource(SourceQueue):
    """A queue of BullMQ with the default prefix: lists and sorted sets of ids, a hash for each job.

    The body of a message is the job's `data`.
    """

    default = ""
    refusals: ClassVar[dict[bytes, str]] = {
        b"rjk": "it repeats; make it a schedule of bide",
        b"parentKey": "another job waits for it (a flow)",
    }

    @property
    def _prefix(self) -> bytes:
        """How the keys of the queue begin."""
        return f"bull:{self.queue}:".encode()

    def places(self) -> list[Place]:
        """Return the keys of waiting, paused, prioritized and delayed jobs.

        Raises:
            InvalidArgument: another version of BullMQ wrote the queue, or there is none.
        """
        meta = self._prefix + b"meta"
        version, max_events = self.redis.ask("HMGET", meta, "version", "opts.maxLenEvents")
        # BullMQ for Python has the layout of the known versions, and notes none of them.
        is_of_python = version is None and max_events is not None
        if not is_of_python and (version is None or not version.startswith(_KNOWN)):
            version_text = (
                "no version of BullMQ" if version is None else version.decode(errors="replace")
            )
            raise InvalidArgument(
                f"{meta.decode()} names {version_text}; bide takes over queues of BullMQ 5 and 6 "
                "with the prefix 'bull'"
            )
        return [
            Place(self._prefix + b"delayed", "zset"),
            Place(self._prefix + b"prioritized", "zset"),
            Place(self._prefix + b"wait", "list", oldest_last=True),
            Place(self._prefix + b"paused", "list", oldest_last=True),
        ]

    def content(self, entry: SourceEntry) -> list[Sequence[Any]]:
        """Return the command that reads the job."""
        return [("HGETALL", self.keys(entry)[0])]

    def keys(self, entry: SourceEntry) -> list[bytes]:
        """Return the hash of the job, and its logs."""
        key = self._prefix + entry.member
        return [key, key + b":logs"]

    def item(self, entry: SourceEntry, content: Sequence[Any], now: int) -> Item:
        """Return the job: its name is in the header, its data is the body."""
        [job] = content
        if not {b"name", b"data", b"timestamp"} <= job.keys():
            raise NotTakenOver("it is not a job of BullMQ 5 or 6, or a marker of an older version")
        self._refuse(job)
        is_delayed = entry.place.key.endswith(b":delayed")
        return self._job(
            id=entry.member.decode(),
            name=job[b"name"].decode(errors="replace"),
            body=json.loads(job[b"data"]),
            due=due_at(int(entry.score) // _SHIFT / 1000) if is_delayed else NOW,
            # In BullMQ the lowest number goes first, in bide the highest.
            priority=255 - min(int(job.get(b"priority") or 0), 255),
            created=created_at(int(job[b"timestamp"]) / 1000),
        )

    def held(self) -> Iterator[HeldMessage]:
        """Yield the jobs that workers run."""
        for member in self.redis.ask("LRANGE", self._prefix + b"active", 0, -1):
            yield HeldMessage(member.decode(errors="replace"), "active")

    def stranded(self) -> Iterator[HeldMessage]:
        """Yield the jobs that wait for their children."""
        for member in self.redis.ask("ZRANGE", self._prefix + b"waiting-children", 0, -1):
            yield HeldMessage(member.decode(errors="replace"), "it waits for other jobs (a flow)")
