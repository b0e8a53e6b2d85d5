"""Docket: a task at a time, under a key."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from docket import Docket, Worker

from benchmarks.peers.programs.protocol import Call, Peer, hold_async, note, run, settings, store

__all__ = ["DocketPeer"]


async def work(number: int, due: float, seconds: float, body: str) -> None:
    """Do nothing, or nothing for a while."""
    await hold_async(seconds)
    note(number, due)


class DocketPeer(Peer):
    """A docket, used by one caller."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._docket: Docket | None = None

    async def _open(self) -> Docket:
        if self._docket is None:
            self._docket = await Docket("peer", url=store()).__aenter__()
            self._docket.register(work)
        return self._docket

    def put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Put each."""
        keys: Sequence[Any] = self._runner.run(self._put_each(calls))
        return keys

    async def _put_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        docket = await self._open()
        return [(await docket.add(work, when=call.moment)(*call.arguments)).key for call in calls]

    def cancel_each(self, keys: Iterable[Any]) -> None:
        """Cancel by key."""
        self._runner.run(self._cancel_each(keys))

    async def _cancel_each(self, keys: Iterable[Any]) -> None:
        docket = await self._open()
        for key in keys:
            await docket.cancel(key)

    def work(self) -> None:
        """Run a worker, as `docket worker` does."""
        self._runner.run(self._work())

    async def _work(self) -> None:
        chosen = settings()
        options: dict[str, Any] = {}
        if chosen:
            options["concurrency"] = chosen["concurrency"]
            for name in ("minimum_check_interval", "redelivery_timeout"):
                options[name] = timedelta(seconds=chosen[name])
        async with Worker(await self._open(), **options) as worker:
            await worker.run_forever()


if __name__ == "__main__":
    run(DocketPeer)
