"""Jobs of arq, in its layout of 0.25 to 0.28."""

from collections.abc import Sequence
from typing import Any

from bide.importing.pickles import decoded
from bide.importing.source import (
    Gone,
    NotTakenOver,
    Place,
    SourceEntry,
    SourceQueue,
    created_at,
    due_at,
)
from bide.model.errors import InvalidArgument
from bide.model.message import Item


class ArqSource(SourceQueue):
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

    def content(self, entry: SourceEntry) -> list[Sequence[Any]]:
        """Return the commands that read the job, and whether a worker has it."""
        [job_key] = self.keys(entry)
        return [
            ("GET", job_key),
            ("EXISTS", b"arq:in-progress:" + entry.member),
            ("ZSCORE", b"arq:abort", entry.member),
        ]

    def keys(self, entry: SourceEntry) -> list[bytes]:
        """Return the key of the job."""
        return [b"arq:job:" + entry.member]

    def item(self, entry: SourceEntry, content: Sequence[Any], now: int) -> Item:
        """Return the call of the job's function."""
        data, running, aborted = content
        if entry.member.startswith(b"cron:"):
            raise NotTakenOver("it is a cron job; make it a schedule of bide")
        if running:
            raise NotTakenOver("a worker has it")
        if aborted is not None:
            raise NotTakenOver("it was aborted")
        if data is None:
            raise Gone
        job = decoded(data, pickles=self.pickles)
        return self._call(
            id=entry.member.decode(),
            name=job["f"],
            args=job["a"],
            kwargs=job["k"],
            due=due_at(entry.score / 1000),
            created=created_at(int(job["et"]) / 1000),
        )
