"""Jobs of arq (its layout of 0.25 to 0.28), RQ (of 1.16 to 3) and BullMQ 5 and 6."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.queue.takeover.source import (
    NOW,
    Elsewhere,
    Entry,
    Gone,
    Held,
    Place,
    Refused,
    Source,
    created_at,
    decoded,
    due_at,
    inflated,
    iso_seconds,
    lasting,
)


class ArqSource(Source):
    """A queue of arq: a sorted set of ids, and a key for each job."""

    default = "arq:queue"

    def places(self) -> list[Place]:
        """Return the set of jobs.

        Raises:
            InvalidArgument: a worker of arq is running: it looks at a job and starts it in two
                steps, between which a job could be taken over.
        """
        health = f"{self.queue}:health-check"
        if self.redis.ask("EXISTS", health):
            raise InvalidArgument(
                f"a worker of arq works on {self.queue}; stop it first (if it was killed, wait "
                f"until the key {health} has expired, or delete it)"
            )
        return [Place(self.queue.encode(), "zset")]

    def content(self, entry: Entry) -> list[Sequence[Any]]:
        """Read the job, and whether a worker has it."""
        names = (b"arq:in-progress:" + entry.member, b"arq:abort")
        return [
            ("GET", self.keys(entry)[0]),
            ("EXISTS", names[0]),
            ("ZSCORE", names[1], entry.member),
        ]

    def keys(self, entry: Entry) -> list[bytes]:
        """Return the key of the job."""
        return [b"arq:job:" + entry.member]

    def item(self, entry: Entry, content: Sequence[Any], now: int) -> Item:
        """Return the call of the job's function."""
        data, running, aborted = content
        if entry.member.startswith(b"cron:"):
            raise Refused("it is a cron job; make it a schedule of bide")
        if running:
            raise Refused("a worker has it")
        if aborted is not None:
            raise Refused("it was aborted")
        if data is None:
            raise Gone
        job = decoded(data, pickles=self.pickles)
        created = created_at(int(job["et"]) / 1000)
        due = due_at(entry.score / 1000)
        return self._call(entry.member.decode(), job["f"], job["a"], job["k"], due, created)


_LIMITED = b"rq:rl:"

_NO_KEY = -2
"""What `PTTL` answers if there is no key: it was deleted since its content was read."""

_STRANDED = {
    "deferred": "it waits for another job",
    "ready": "the job that it waited for is done; let a worker of RQ start, it enqueues this one",
}


class RQSource(Source):
    """A queue of RQ: a list of ids, sorted sets of others, a hash for each job.

    The sets are the scheduled jobs of a queue, and the jobs of all queues that wait for the same
    rate limit.
    """

    default = "default"
    refusals = {b"repeats_left": "it repeats; make it a schedule of bide"} | dict.fromkeys(
        (b"success_callback_name", b"failure_callback_name", b"stopped_callback_name"),
        "it has callbacks, which bide does not call",
    )

    def places(self) -> list[Place]:
        """Return the list of waiting jobs, and the sets of scheduled and of rate-limited ones."""
        return [
            Place(f"rq:scheduled:{self.queue}".encode(), "zset"),
            Place(f"rq:queue:{self.queue}".encode(), "list"),
            *(
                Place(_LIMITED + limit + b":rate_limited", "zset")
                for limit in sorted(self.redis.ask("SMEMBERS", "rq:rl-keys"))
            ),
        ]

    def content(self, entry: Entry) -> list[Sequence[Any]]:
        """Read the job, whether others wait for it, and how long Redis keeps it: for its `ttl`."""
        key = self.keys(entry)[0]
        return [("HGETALL", key), ("EXISTS", key + b":dependents"), ("PTTL", key)]

    def keys(self, entry: Entry) -> list[bytes]:
        """Return the hash of the job."""
        return [b"rq:job:" + entry.member]

    def item(self, entry: Entry, content: Sequence[Any], now: int) -> Item:
        """Return the call of the job's function."""
        job, dependents, left = content
        if not job or left == _NO_KEY:
            raise Gone
        if not {b"data", b"status", b"created_at"} <= job.keys():
            raise Refused("its job is not one of RQ 1.16 to 3")
        limited = entry.place.key.startswith(_LIMITED)
        if limited and job.get(b"origin") != self.queue.encode():
            raise Elsewhere
        self._refuse(job)
        if dependents:
            raise Refused("other jobs depend on it")
        data = inflated(job[b"data"], 2 * self.max_body)
        name, instance, args, kwargs = decoded(data, pickles=self.pickles)
        if instance is not None:
            raise Refused("it calls a method of a pickled object")
        due = due_at(entry.score) if entry.place.kind == "zset" and not limited else NOW
        created = _created(job[b"created_at"])
        end = _end(job, due, left, now)
        expires = None if end is None else lasting(due, end, now)
        return self._call(entry.member.decode(), name, args, kwargs, due, created, expires=expires)

    def held(self) -> Iterator[Held]:
        """Yield the jobs that workers run."""
        for member in self.redis.ask("ZRANGE", f"rq:wip:{self.queue}", 0, -1):
            yield Held(member.decode(errors="replace").partition(":")[0], "running")

    def stranded(self) -> Iterator[Held]:
        """Yield the jobs that wait for others."""
        for registry, reason in _STRANDED.items():
            for member in self.redis.ask("ZRANGE", f"rq:{registry}:{self.queue}", 0, -1):
                yield Held(member.decode(errors="replace"), reason)


def _created(text: bytes) -> int | None:
    try:
        return created_at(iso_seconds(text.decode()))
    except ValueError:
        return None


def _end(job: Mapping[bytes, bytes], due: int, left: int, now: int) -> int | None:
    """Return when a job expires in Unix milliseconds, if it does.

    The `ttl` of a scheduled job counts from the time at which RQ schedules it, and again from the
    time at which RQ puts it into its queue: its due time, or the start of a worker if that is
    later.
    """
    deleted = None if left < 0 else now + left
    ttl = int(job.get(b"ttl") or 0) * 1000
    start = max(due, now)
    if due == NOW or ttl <= 0 or (deleted is not None and deleted < start):
        return deleted
    return start + ttl


_SHIFT = 0x1000
"""The score of a delayed job is its time in milliseconds, times this, plus a counter."""

_KNOWN = (b"bullmq:5.", b"bullmq:6.")


class BullMQSource(Source):
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
        return f"bull:{self.queue}:".encode()

    def places(self) -> list[Place]:
        """Return the keys of waiting, paused, prioritized and delayed jobs.

        Raises:
            InvalidArgument: another version of BullMQ wrote the queue, or there is none.
        """
        meta = self._prefix + b"meta"
        version, events = self.redis.ask("HMGET", meta, "version", "opts.maxLenEvents")
        # BullMQ for Python has the layout of the known versions, and notes none.
        if not version.startswith(_KNOWN) if version is not None else events is None:
            named = "no version of BullMQ" if version is None else version.decode(errors="replace")
            raise InvalidArgument(
                f"{meta.decode()} names {named}; bide takes over queues of BullMQ 5 and 6 with the "
                "prefix 'bull'"
            )
        return [
            Place(self._prefix + b"delayed", "zset"),
            Place(self._prefix + b"prioritized", "zset"),
            Place(self._prefix + b"wait", "list", oldest_last=True),
            Place(self._prefix + b"paused", "list", oldest_last=True),
        ]

    def content(self, entry: Entry) -> list[Sequence[Any]]:
        """Read the job."""
        return [("HGETALL", self.keys(entry)[0])]

    def keys(self, entry: Entry) -> list[bytes]:
        """Return the hash of the job, and its logs."""
        key = self._prefix + entry.member
        return [key, key + b":logs"]

    def item(self, entry: Entry, content: Sequence[Any], now: int) -> Item:
        """Return the job: its name is in the header, its data is the body."""
        [job] = content
        if not {b"name", b"data", b"timestamp"} <= job.keys():
            raise Refused("it is no job of BullMQ 5 or 6, or a marker of an older version")
        self._refuse(job)
        data = json.loads(job[b"data"])
        priority = 255 - min(int(job.get(b"priority") or 0), 255)
        created = created_at(int(job[b"timestamp"]) / 1000)
        delayed = entry.place.key.endswith(b":delayed")
        due = due_at(int(entry.score) // _SHIFT / 1000) if delayed else NOW
        name = job[b"name"].decode(errors="replace")
        return self._job(entry.member.decode(), name, data, due, priority, created)

    def held(self) -> Iterator[Held]:
        """Yield the jobs that workers run."""
        for member in self.redis.ask("LRANGE", self._prefix + b"active", 0, -1):
            yield Held(member.decode(errors="replace"), "active")

    def stranded(self) -> Iterator[Held]:
        """Yield the jobs that wait for their children."""
        for member in self.redis.ask("ZRANGE", self._prefix + b"waiting-children", 0, -1):
            yield Held(member.decode(errors="replace"), "it waits for other jobs (a flow)")
