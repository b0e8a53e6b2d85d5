"""Procrastinate: a job that is scheduled at a time, in PostgreSQL."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import procrastinate

from benchmarks.peers.programs.protocol import Call, Peer, hold_async, note, run, settings, store

__all__ = ["app"]

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=store()))


@app.task(name="work")  # type: ignore[untyped-decorator]
async def work(number: int, due: float, seconds: float, body: str) -> None:
    """Do nothing, or nothing for a while."""
    await hold_async(seconds)
    note(number, due)


class Procrastinate(Peer):
    """An app, used by one caller; the client makes the tables."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._is_open = False

    def _run(self, making: Coroutine[Any, Any, Any]) -> Any:
        async def opened() -> Any:
            if not self._is_open:
                await app.open_async()
                self._is_open = True
            return await making

        return self._runner.run(opened())

    def prepare(self) -> None:
        """Make the tables."""
        self._run(app.schema_manager.apply_schema_async())

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put each."""
        ids: Sequence[Any] = self._run(self._put_each(calls))
        return ids

    async def _put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        return [
            await work.configure(schedule_at=call.moment).defer_async(**_named(call))
            for call in calls
        ]

    def put_list(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put all with one statement for each time that they are due at."""
        ids: list[Any] = []
        for due in dict.fromkeys(call.moment for call in calls):
            jobs = [_named(call) for call in calls if call.moment == due]
            ids += self._run(work.configure(schedule_at=due).batch_defer_async(*jobs))
        return ids

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Cancel by id; the row is kept."""
        self._run(self._cancel_each(keys))

    async def _cancel_each(self, keys: Iterable[Any]) -> None:
        for id in keys:
            await app.job_manager.cancel_job_by_id_async(id)

    def work(self) -> None:
        """Run a worker, as `procrastinate worker` does."""
        self._run(app.run_worker_async(**settings()))


def _named(call: Call) -> dict[str, Any]:
    return dict(zip(("number", "due", "seconds", "body"), call.arguments, strict=True))


if __name__ == "__main__":
    run(Procrastinate)
