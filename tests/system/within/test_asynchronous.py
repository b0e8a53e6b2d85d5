"""Every asynchronous library: what is put in a transaction shares its fate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

import bide
from tests.system.within.libraries import ASYNCHRONOUS, AsyncUser


@pytest.fixture(params=ASYNCHRONOUS)
def shop(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> "Shop":
    kind, _ = ASYNCHRONOUS[request.param]
    return Shop(request.param, url_of(kind))


class Shop:
    def __init__(self, name: str, url: str) -> None:
        self.made = ASYNCHRONOUS[name][1]
        self.url = url

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[AsyncUser, bide.AsyncQueue]]:
        async with bide.AsyncQueue("orders", self.url) as orders:
            assert (await orders.counts()).flow.put == 0  # the store is there
            user = await self.made(self.url)
            yield user, orders
            await user.rollback()
            await user.close()
            assert await orders.audit()


def test_a_message_is_there_with_the_commit_and_not_before(shop: Shop) -> None:
    async def main() -> None:
        async with shop.open() as (user, orders):
            await user.begin()
            outcome = await orders.put({"order": 1}, delay="30m", id="a", within=user.within)
            assert (outcome.done, outcome.state) == (True, "delayed")
            assert all(await orders.put_many([b"\0", {"ü": 1}], within=user.within))
            assert await orders.get("a") is None
            await user.commit()
            bodies = [message.body async for message in orders.scan()]
            assert sorted(bodies, key=repr) == [b"\0", {"order": 1}, {"ü": 1}]

    asyncio.run(main())


def test_a_rollback_leaves_nothing(shop: Shop) -> None:
    async def main() -> None:
        async with shop.open() as (user, orders):
            await orders.put_many([bide.NewMessage(n, id=f"m{n}", group="g") for n in range(4)])
            before = await orders.counts()
            await user.begin()
            assert await orders.put(1, within=user.within)
            assert await orders.reschedule("m1", delay="1h", within=user.within)
            assert await orders.cancel("m2", within=user.within)
            assert await orders.cancel(group="g", within=user.within) == 3
            await user.rollback()
            now = await orders.counts()
            assert (now.sizes, now.flow) == (before.sizes, before.flow)

    asyncio.run(main())


def test_a_refusal_is_a_result_and_the_transaction_goes_on(shop: Shop) -> None:
    async def main() -> None:
        async with shop.open() as (user, orders):
            await orders.put(1, id="there", delay=60)
            await user.begin()
            assert not await orders.put(2, id="there", within=user.within)
            with pytest.raises(bide.AlreadyExists):
                await orders.put(2, id="there", on_conflict="raise", within=user.within)
            assert not await orders.cancel("no", within=user.within)
            assert await orders.put(3, id="new", within=user.within)
            await user.commit()
            assert await orders.get("new") is not None

    asyncio.run(main())
