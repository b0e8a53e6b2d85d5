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
"""How the keys of sets of rate-limited jobs begin."""

_NO_KEY = -2
"""What `PTTL` answers if there is no key: it was deleted since its content was read."""

_STRANDED = {
    "deferred": "it waits for another job",
    "ready": "the job that it waited for is done; start a worker of RQ, which enqueues this one",
}
"""Registries of jobs that are not pending yet, and why they stay."""


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
        """Return the commands that read the job, whether others wait for it, and its `ttl`."""
        [job_key] = self.keys(entry)
        return [("HGETALL", job_key), ("EXISTS", job_key + b":dependents"), ("PTTL", job_key)]

    def keys(self, entry: SourceEntry) -> list[bytes]:
        """Return the hash of the job."""
        return [b"rq:job:" + entry.member]

    def item(self, entry: SourceEntry, content: Sequence[Any], now: int) -> Item:
        """Return the call of the job's function."""
        job, has_dependents, time_to_live = content
        if not job or time_to_live == _NO_KEY:
            raise Gone
        if not {b"data", b"status", b"created_at"} <= job.keys():
            raise NotTakenOver("its job is not one of RQ 1.16 to 3")
        is_limited = entry.place.key.startswith(_LIMITED)
        if is_limited and job.get(b"origin") != self.queue.encode():
            raise Elsewhere
        self._refuse(job)
        if has_dependents:
            raise NotTakenOver("other jobs depend on it")
        # Larger than a body: a pickle has more around the values than JSON.
        data = inflated(job[b"data"], 2 * self.max_body)
        name, instance, args, kwargs = decoded(data, pickles=self.pickles)
        if instance is not None:
            raise NotTakenOver("it calls a method of a pickled object")
        # The scores of rate-limited jobs are no due times.
        is_scheduled = entry.place.kind == "zset" and not is_limited
        due = due_at(entry.score) if is_scheduled else NOW
        end = _end(job, due, time_to_live, now)
        return self._call(
            id=entry.member.decode(),
            name=name,
            args=args,
            kwargs=kwargs,
            due=due,
            created=_created(job[b"created_at"]),
            expires=None if end is None else lasting(due, end, now),
        )

    def held(self) -> Iterator[HeldMessage]:
        """Yield the jobs that workers run, or have just taken out of the queue."""
        for member in self.redis.ask("LRANGE", f"rq:queue:{self.queue}:intermediate", 0, -1):
            yield HeldMessage(member.decode(errors="replace"), "taken out of the queue")
        for member in self.redis.ask("ZRANGE", f"rq:wip:{self.queue}", 0, -1):
            job_id, _, _ = member.decode(errors="replace").partition(":")  # behind it: the run
            yield HeldMessage(job_id, "running")

    def stranded(self) -> Iterator[HeldMessage]:
        """Yield the jobs that wait for others."""
        for registry, reason in _STRANDED.items():
            for member in self.redis.ask("ZRANGE", f"rq:{registry}:{self.queue}", 0, -1):
                yield HeldMessage(member.decode(errors="replace"), reason)


def _created(text: bytes) -> int | None:
    """Return when a job was made, in Unix milliseconds; `None` if that cannot be read."""
    try:
        return created_at(iso_seconds(text.decode()))
    except ValueError:
        return None


def _end(job: Mapping[bytes, bytes], due: int, time_to_live: int, now: int) -> int | None:
    """Return when a job expires in Unix milliseconds; `None` if it does not.

    The `ttl` of a scheduled job counts from the time at which RQ schedules it, and again from the
    time at which RQ puts it into its queue: its due time, or the start of a worker if that is
    later.

    Args:
        job: its fields.
        due: its due time in Unix milliseconds, or `NOW`.
        time_to_live: after how many milliseconds Redis deletes it; below 0: it does not.
        now: the present time in Unix milliseconds.
    """
    deletion = None if time_to_live < 0 else now + time_to_live
    ttl = int(job.get(b"ttl") or 0) * 1000
    start = max(due, now)
    # Redis deletes one before it is due: then RQ never puts it into its queue.
    if due == NOW or ttl <= 0 or (deletion is not None and deletion < start):
        return deletion
    return start + ttl
