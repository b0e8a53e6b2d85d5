"""PGQueuer: a job with a delay, in PostgreSQL."""

import asyncio
import json
import time
from collections.abc import Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.programs.protocol import Call, Peer, hold_async, note, run, settings, store

__all__ = ["Pgqueuer"]


class Pgqueuer(Peer):
    """Its queries on one connection; the client makes the tables."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._queries: Any = None

    def _run(self, making: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(making)

    async def _open(self) -> Any:
        if self._queries is None:
            self._queries = Queries(AsyncpgDriver(await asyncpg.connect(store())))
        return self._queries

    def prepare(self) -> None:
        """Make the tables."""

        async def install() -> None:
            await (await self._open()).install()

        self._run(install())

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put each."""

        async def put() -> list[Any]:
            queries = await self._open()
            ids: list[Any] = []
            for call in calls:
                ids += await queries.enqueue("work", _body(call), execute_after=_delay(call))
            return ids

        ids: Sequence[Any] = self._run(put())
        return ids

    def put_list(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put all with one statement."""

        async def put() -> Any:
            queries = await self._open()
            bodies = [_body(call) for call in calls]
            delays = [_delay(call) for call in calls]
            zeros, names = [0] * len(calls), ["work"] * len(calls)
            return await queries.enqueue(names, bodies, zeros, delays)

        ids: Sequence[Any] = self._run(put())
        return ids

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Cancel by id."""

        async def cancel() -> None:
            queries = await self._open()
            for id in keys:
                await queries.mark_job_as_cancelled([id])

        self._run(cancel())

    def work(self) -> None:
        """Run a worker, as `pgq run` does."""

        async def handle() -> None:
            queue = PgQueuer((await self._open()).driver)

            @queue.entrypoint("work")  # type: ignore[untyped-decorator]
            async def work(job: Job) -> None:
                number, due, seconds, _ = json.loads(job.payload or b"")
                await hold_async(seconds)
                note(number, due)

            chosen = settings()
            if chosen:
                wait = timedelta(seconds=chosen["dequeue_timeout"])
                await queue.run(dequeue_timeout=wait, batch_size=chosen["batch_size"])
            await queue.run()

        self._run(handle())


def _body(call: Call) -> bytes:
    return json.dumps(call.arguments).encode()


def _delay(call: Call) -> timedelta:
    return timedelta(seconds=max(0.0, call.due - time.time()))


if __name__ == "__main__":
    run(Pgqueuer)
