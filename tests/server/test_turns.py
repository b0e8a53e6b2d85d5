"""What takes long is done one at a time, with pauses, and lets others go on."""

import asyncio

from bide.server.limits.slow_reads import Turns


def test_one_at_a_time_in_their_order_also_after_a_failure() -> None:
    async def story() -> list[str]:
        turns, told = Turns(), []

        async def work(name: str) -> None:
            async with turns.one():
                told.append(f"{name} begins")
                await asyncio.sleep(0)
                if name == "b":
                    raise ValueError(name)
                told.append(f"{name} ends")

        await asyncio.gather(*map(work, "abc"), return_exceptions=True)
        return told

    told = asyncio.run(story())
    assert told == ["a begins", "a ends", "b begins", "c begins", "c ends"]


def test_who_waits_no_longer_takes_no_turn() -> None:
    async def story() -> None:
        turns = Turns()
        async with turns.one():
            waiting = asyncio.create_task(turns.one().__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
        async with turns.one():
            pass

    asyncio.run(story())
