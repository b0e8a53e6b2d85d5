"""arq: a job that is deferred until a time."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from arq.connections import RedisSettings, create_pool
from arq.worker import run_worker

from benchmarks.peers.programs.protocol import Call, Peer, hold_async, note, run, settings, store

__all__ = ["Arq"]


async def work(_: Any, number: int, due: float, seconds: float, body: str) -> None:
    """Do nothing, or nothing for a while."""
    await hold_async(seconds)
    note(number, due)


class Arq(Peer):
    """A pool of connections, used by one caller."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._pool: Any = None

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put each."""
        jobs: Sequence[Any] = self._runner.run(self._put_each(calls))
        return jobs

    async def _put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        if self._pool is None:
            self._pool = await create_pool(RedisSettings.from_dsn(store()))
        return [
            await self._pool.enqueue_job("work", *call.arguments, _defer_until=call.moment)
            for call in calls
        ]

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Ask the workers to abort the job, without waiting for it."""
        self._runner.run(self._cancel_each(keys))

    async def _cancel_each(self, keys: Iterable[Any]) -> None:
        for job in keys:
            with suppress(asyncio.TimeoutError):  # the answer of the worker is not awaited
                await job.abort(timeout=0)

    def work(self) -> None:
        """Run a worker, as `arq` does; aborts must be allowed for a cancel to have an effect."""
        options = {"allow_abort_jobs": True, "functions": [work], "burst": False, **settings()}
        # Without a loop of the thread it would make one in a way that Python no longer has.
        asyncio.set_event_loop(asyncio.new_event_loop())
        run_worker({"redis_settings": RedisSettings.from_dsn(store()), **options})


if __name__ == "__main__":
    run(Arq)
