"""RQ: a job at a time, and a worker with its scheduler."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from redis import Redis
from rq import Queue, Retry

from benchmarks.peers.programs.protocol import (
    Call,
    Peer,
    hold,
    note,
    run,
    run_module,
    settings,
    store,
)

__all__ = ["work"]

WORK = "benchmarks.peers.programs.rq.work"


def work(number: int, due: float, seconds: float, body: str) -> None:
    """Do nothing, or nothing for a while."""
    hold(seconds)
    note(number, due)


class Rq(Peer):
    """A queue and its scheduled registry."""

    def __init__(self) -> None:
        self._queue = Queue(connection=Redis.from_url(store()))
        retries = settings().get("retries")
        self._options: dict[str, Any] = {"retry": Retry(retries)} if retries else {}

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put each; one that is due at once goes to the queue, as its scheduler may not run yet."""
        now = time.time()
        return [
            self._queue.enqueue(WORK, *call.arguments, **self._options)
            if call.due <= now
            else self._queue.enqueue_at(call.moment, WORK, *call.arguments, **self._options)
            for call in calls
        ]

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Cancel the job, whose record is kept."""
        for job in keys:
            job.cancel()

    def work(self) -> None:
        """Run `rq worker`."""
        options = ["--with-scheduler", "--url", store(), "--quiet"]
        if "worker_class" in settings():
            options += ["--worker-class", settings()["worker_class"]]
        run_module("rq.cli", "worker", *options)


if __name__ == "__main__":
    run(Rq)
