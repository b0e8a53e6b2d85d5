"""APScheduler 3 with a table in SQLite: client and scheduler are one process."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler

from benchmarks.peers.programs.protocol import Call, Peer, hold, note, run, settings, store

__all__ = ["work"]

WORK = "benchmarks.peers.programs.apscheduler:work"


def work(number: int, due: float, seconds: float, body: str) -> None:
    """Do nothing, or nothing for a while."""
    hold(seconds)
    note(number, due)


class Apscheduler(Peer):
    """A scheduler that runs in the client."""

    def __init__(self) -> None:
        self._scheduler: Any = BackgroundScheduler(job_defaults=settings())
        self._scheduler.add_jobstore("sqlalchemy", url=f"sqlite:///{store()}")
        self._scheduler.start()

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Add each; one that is due at once is not dropped if the table is slow."""
        now = time.time()
        return [
            self._scheduler.add_job(
                WORK,
                "date",
                run_date=call.moment,
                args=call.arguments,
                **({"misfire_grace_time": None} if call.due <= now else {}),
            )
            for call in calls
        ]

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Remove the job."""
        for job in keys:
            job.remove()


if __name__ == "__main__":
    run(Apscheduler)
