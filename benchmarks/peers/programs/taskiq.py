"""taskiq with taskiq-redis: a schedule for each message; a worker and a scheduler beside it."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from taskiq import TaskiqScheduler
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from benchmarks.peers.programs.protocol import (
    Call,
    Peer,
    hold_async,
    note,
    run,
    run_module,
    setting_options,
    store,
)

__all__ = ["broker", "scheduler"]

broker = RedisStreamBroker(url=store())
source = ListRedisScheduleSource(store())
scheduler = TaskiqScheduler(broker, [source])
MODULE = "benchmarks.peers.programs.taskiq"


@broker.task(task_name="work")  # type: ignore[untyped-decorator]
async def work(number: int, due: float, seconds: float, body: str) -> None:
    """Do nothing, or nothing for a while."""
    await hold_async(seconds)
    note(number, due)


class Taskiq(Peer):
    """A broker and a source of schedules, used by one caller."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._is_open = False

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put each; one that is due at once goes to the broker, as the source is read rarely."""
        keys: Sequence[Any] = self._runner.run(self._put_each(calls))
        return keys

    async def _put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        if not self._is_open:
            await broker.startup()
            await source.startup()
            self._is_open = True
        now = time.time()
        return [
            await work.kiq(*call.arguments)
            if call.due <= now
            else await work.schedule_by_time(source, call.moment, *call.arguments)
            for call in calls
        ]

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Delete the schedule."""
        self._runner.run(self._cancel_each(keys))

    async def _cancel_each(self, keys: Iterable[Any]) -> None:
        for schedule in keys:
            await schedule.unschedule()

    def work(self) -> None:
        """Run `taskiq scheduler` and `taskiq worker`."""
        scheduling = ["scheduler", f"{MODULE}:scheduler", *setting_options()]
        subprocess.Popen([sys.executable, "-m", "taskiq", *scheduling])  # of the same session
        run_module("taskiq", "worker", f"{MODULE}:broker")


if __name__ == "__main__":
    run(Taskiq)
