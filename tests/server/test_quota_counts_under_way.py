"""Counts that quotas wait for, repeat or correct while requests go on."""

import asyncio
from collections.abc import Iterator

import pytest

from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Put
from bide.model.errors import StoreUnavailable
from bide.model.message import Item
from bide.server.access.rights import Caller
from bide.server.limits import quotas as module
from bide.server.limits.slow_reads import SlowReads
from bide.server.problem import Problem
from bide.server.settings import Quota, Settings
from bide.server.shared_state import SharedState


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[module.Quotas]:
    """Provide quotas whose counts take no time."""
    monkeypatch.setattr(module, "SHARE", 0)
    lane, usage = open_lane("memory://counting"), SharedState()
    settings = Settings(quotas={"shop": Quota(pending=10)})
    yield module.Quotas(settings, lane, SlowReads(lane), usage)
    usage.close()
    close_lane(lane)


SHOP = Caller("shop", frozenset(["put"]))
PUT = Put("shop/orders", [Item("m", b"1")])


def test_a_count_that_failed_is_repeated_as_soon_as_one_that_did_not(
    counting: module.Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [StoreUnavailable("it is away")]

    async def count(what: str, names: list[str]) -> int:
        if failures:
            raise failures.pop()
        return 10

    async def story() -> None:
        with pytest.raises(StoreUnavailable):
            await counting.admit(SHOP, [PUT])
        with pytest.raises(Problem, match="may have 10 messages and has 10"):
            await counting.admit(SHOP, [PUT])

    monkeypatch.setattr(counting, "_sum", count)
    monkeypatch.setattr(module, "COUNT_EVERY", -1.0)
    asyncio.run(story())


def test_a_put_waits_for_the_first_count_but_for_no_later_one_while_there_is_room(
    counting: module.Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        counted = asyncio.Event()

        async def count(what: str, names: list[str]) -> int:
            await counted.wait()
            return 8

        monkeypatch.setattr(counting, "_sum", count)
        first, second = (asyncio.create_task(counting.admit(SHOP, [PUT])) for _ in range(2))
        await asyncio.sleep(0)
        assert [first.done(), second.done()] == [False, False]
        counted.set()
        await asyncio.gather(first, second)
        counted.clear()
        with counting.shared.of("shop") as use:
            use.messages.value = 0
        await asyncio.wait_for(counting.admit(SHOP, [PUT]), 30)
        counted.set()
        await asyncio.gather(*counting._counting.values())

    monkeypatch.setattr(module, "COUNT_EVERY", -100.0)
    asyncio.run(story())


def test_what_is_put_as_a_count_begins_is_counted_once(
    counting: module.Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        stored, named = 0, asyncio.Event()
        named.set()

        async def names(*_: object, **__: object) -> list[str]:
            await named.wait()
            return [PUT.queue]

        async def count(what: str, names: list[str]) -> int:
            return stored

        monkeypatch.setattr(counting, "_names", names)
        monkeypatch.setattr(counting, "_sum", count)
        for _ in range(6):  # the second of them begins a count, which none waits for
            with await asyncio.wait_for(counting.admit(SHOP, [PUT]), 30):
                stored += 1
            named.clear()
        over = asyncio.ensure_future(asyncio.wait([*counting._counting.values()]))
        named.set()
        await over
        with counting.shared.of("shop") as use:
            assert use.messages.value == 6

    monkeypatch.setattr(module, "COUNT_EVERY", -100.0)
    asyncio.run(story())


def test_a_put_that_is_under_way_as_a_count_begins_is_counted(
    counting: module.Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(what: str, names: list[str]) -> int:
        return 0  # the store does not show it yet

    async def story() -> None:
        monkeypatch.setattr(counting, "_sum", nothing)
        with await counting.admit(SHOP, [PUT] * 7):
            with pytest.raises(Problem, match="may have 10 messages and has 7"):
                await counting.admit(SHOP, [PUT] * 4)
            with await counting.admit(SHOP, [PUT] * 3):
                pass
        assert counting.state.under_way.of("shop") == (0, 0)

    monkeypatch.setattr(module, "COUNT_EVERY", -1.0)
    monkeypatch.setattr(module, "RECOUNT_EVERY", -1.0)
    asyncio.run(story())
