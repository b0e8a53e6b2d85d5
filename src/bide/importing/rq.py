"""Jobs of RQ 1.16 to 3."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bide.importing.pickles import decoded, inflated
from bide.importing.source import (
    NOW,
    Elsewhere,
    Gone,
    HeldMessage,
    NotTakenOver,
    Place,
    SourceEntry,
    SourceQueue,
    created_at,
    due_at,
    iso_seconds,
    lasting,
)
from bide.model.message import Item

_LIMITED = b"rq:rl:"

_NO_KEY = -2
"""What `PTTL` answers if there is no key: it was deleted since its content was read."""

_STRANDED = {
    "deferred": "it waits for another job",
    "ready": "the job that it waited for is done; let a worker of RQ start, it enqueues this one",
}


class RQSource(SourceQueue):
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

    def content(self, entry: SourceEntry) -> list[Sequence[Any]]:
        """Read the job, whether others wait for it, and how long Redis keeps it: for its `ttl`."""
        key = self.keys(entry)[0]
        return [("HGETALL", key), ("EXISTS", key + b":dependents"), ("PTTL", key)]

    def keys(self, entry: SourceEntry) -> list[bytes]:
        """Return the hash of the job."""
        return [b"rq:job:" + entry.member]

    def item(self, entry: SourceEntry, content: Sequence[Any], now: int) -> Item:
        """Return the call of the job's function."""
        job, dependents, time_to_live = content
        if not job or time_to_live == _NO_KEY:
            raise Gone
        if not {b"data", b"status", b"created_at"} <= job.keys():
            raise NotTakenOver("its job is not one of RQ 1.16 to 3")
        limited = entry.place.key.startswith(_LIMITED)
        if limited and job.get(b"origin") != self.queue.encode():
            raise Elsewhere
        self._refuse(job)
        if dependents:
            raise NotTakenOver("other jobs depend on it")
        data = inflated(job[b"data"], 2 * self.max_body)
        name, instance, args, kwargs = decoded(data, pickles=self.pickles)
        if instance is not None:
            raise NotTakenOver("it calls a method of a pickled object")
        due = due_at(entry.score) if entry.place.kind == "zset" and not limited else NOW
        created = _created(job[b"created_at"])
        end = _end(job, due, time_to_live, now)
        expires = None if end is None else lasting(due, end, now)
        return self._call(entry.member.decode(), name, args, kwargs, due, created, expires=expires)

    def held(self) -> Iterator[HeldMessage]:
        """Yield the jobs that workers run."""
        for member in self.redis.ask("ZRANGE", f"rq:wip:{self.queue}", 0, -1):
            yield HeldMessage(member.decode(errors="replace").partition(":")[0], "running")

    def stranded(self) -> Iterator[HeldMessage]:
        """Yield the jobs that wait for others."""
        for registry, reason in _STRANDED.items():
            for member in self.redis.ask("ZRANGE", f"rq:{registry}:{self.queue}", 0, -1):
                yield HeldMessage(member.decode(errors="replace"), reason)


def _created(text: bytes) -> int | None:
    try:
        return created_at(iso_seconds(text.decode()))
    except ValueError:
        return None


def _end(job: Mapping[bytes, bytes], due: int, time_to_live: int, now: int) -> int | None:
    """Return when a job expires in Unix milliseconds, if it does.

    The `ttl` of a scheduled job counts from the time at which RQ schedules it, and again from the
    time at which RQ puts it into its queue: its due time, or the start of a worker if that is
    later.
    """
    deleted = None if time_to_live < 0 else now + time_to_live
    ttl = int(job.get(b"ttl") or 0) * 1000
    start = max(due, now)
    if due == NOW or ttl <= 0 or (deleted is not None and deleted < start):
        return deleted
    return start + ttl
