"""Jobs of RQ (the layout of RQ 1.16 to 3)."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from bide.model.message import Item
from bide.queue.takeover.pickled import decoded, inflated
from bide.queue.takeover.source import (
    NOW,
    Entry,
    Held,
    Place,
    Refused,
    Source,
    call_item,
    created_at,
    due_at,
    iso_seconds,
)

_REFUSED = {
    b"repeats_left": "it repeats; make it a schedule of bide",
    b"success_callback_name": "it has callbacks, which bide does not call",
    b"failure_callback_name": "it has callbacks, which bide does not call",
    b"stopped_callback_name": "it has callbacks, which bide does not call",
}


class RQSource(Source):
    """A queue of RQ: a list of ids, a sorted set of the scheduled ones, a hash for each job."""

    default: ClassVar[str] = "default"

    def places(self) -> list[Place]:
        """Return the list of waiting jobs and the set of scheduled ones."""
        return [
            Place(f"rq:scheduled:{self._queue}".encode(), "zset"),
            Place(f"rq:queue:{self._queue}".encode(), "list"),
        ]

    def content(self, entry: Entry) -> list[Sequence[Any]]:
        """Read the job, and whether others wait for it."""
        key = self.keys(entry)[0]
        return [("HGETALL", key), ("EXISTS", key + b":dependents")]

    def keys(self, entry: Entry) -> list[bytes]:
        """Return the hash of the job."""
        return [b"rq:job:" + entry.member]

    def item(self, entry: Entry, content: Sequence[Any]) -> Item:
        """Return the call of the job's function."""
        job, dependents = content
        if not {b"data", b"status", b"created_at"} <= job.keys():
            raise Refused("its job is gone" if not job else "its job is not one of RQ 1.16 to 3")
        for field, reason in _REFUSED.items():
            if job.get(field):
                raise Refused(reason)
        if dependents:
            raise Refused("other jobs depend on it")
        data = inflated(job[b"data"], 2 * self._max_body)
        try:
            name, instance, args, kwargs = decoded(data, pickles=self._pickles)
        except (ValueError, TypeError) as error:
            raise Refused(f"its call is neither pickle nor JSON ({error})") from error
        if instance is not None:
            raise Refused("it calls a method of a pickled object")
        due = due_at(entry.score) if entry.place.kind == "zset" else NOW
        return call_item(
            entry.member.decode(), name, args, kwargs, due, self._max_body,
            created=_created(job[b"created_at"]),
        )  # fmt: skip

    def held(self) -> Iterator[Held]:
        """Yield the jobs that workers run."""
        for member in self._redis.ask("ZRANGE", f"rq:wip:{self._queue}", 0, -1):
            yield Held(member.decode(errors="replace").partition(":")[0], "running")


def _created(text: bytes) -> int | None:
    try:
        return created_at(iso_seconds(text.decode()))
    except ValueError:
        return None
