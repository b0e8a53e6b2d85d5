"""Results that visitors of the dashboard share while they are read."""

import asyncio
from collections import defaultdict

import pytest

from bide.dashboard.reading import RecentResults
from bide.server.limits.request_bodies import ClientGone


class Reading:
    """Reads of one result for several clients."""

    def __init__(self) -> None:
        self.recent = RecentResults()
        self.began: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """By client: set when it reads."""
        self.gone: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """By client: set when it has gone."""
        self.readers: list[str] = []

    async def of(self, client: str, *, leaves: bool = False) -> str:
        async def read() -> str:
            self.readers.append(client)
            self.began[client].set()
            if leaves:
                await self.gone[client].wait()
                raise ClientGone
            return client

        return await self.recent.get("names", 60, read)


def test_who_waits_for_the_read_of_a_client_that_has_gone_reads_again() -> None:
    async def story() -> None:
        reading = Reading()
        first = asyncio.create_task(reading.of("first", leaves=True))
        await reading.began["first"].wait()
        others = [asyncio.create_task(reading.of(name)) for name in ("second", "third")]
        await asyncio.sleep(0)  # they wait for the first
        reading.gone["first"].set()
        assert await asyncio.gather(*others) == ["second", "second"]
        with pytest.raises(ClientGone):
            await first
        assert reading.readers == ["first", "second"]

    asyncio.run(story())


def test_a_waiter_that_has_gone_as_well_stops() -> None:
    async def story() -> None:
        reading = Reading()
        clients = [asyncio.create_task(reading.of(name, leaves=True)) for name in ("a", "b")]
        for name in ("a", "b"):
            await reading.began[name].wait()
            reading.gone[name].set()
        for client in clients:
            with pytest.raises(ClientGone):
                await client
        assert reading.readers == ["a", "b"]

    asyncio.run(story())


def test_who_comes_between_the_end_of_such_a_read_and_its_callbacks_reads_again() -> None:
    async def story() -> None:
        recent = RecentResults()
        latecomers: list[asyncio.Task[str]] = []

        async def read() -> str:
            return "read"

        async def leave() -> str:
            # Its turn comes when this task is done, and before the callbacks of that.
            latecomers.append(asyncio.create_task(recent.get("names", 60, read)))
            raise ClientGone

        with pytest.raises(ClientGone):
            await recent.get("names", 60, leave)
        assert await latecomers[0] == "read"
        assert await recent.get("names", 60, leave) == "read"

    asyncio.run(story())
