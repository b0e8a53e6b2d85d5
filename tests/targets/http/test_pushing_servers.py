"""A server tells the others that it pushes, and that it does not any more."""

import asyncio

from bide.targets.http.addresses import AddressGate
from bide.targets.pusher import Pusher
from tests.targets.http.environment import LOOPBACK, Stage, until
from tests.targets.http.receiver import receiver


def test_a_pusher_that_runs_again_tells_the_others_at_once(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it:
            await stage.subscribe(it.url)
            pusher = Pusher(stage.lane, stage.clock, gate=AddressGate(LOOPBACK), holder="one")
            for run in (1, 2):
                task = asyncio.create_task(pusher.run(0.0))
                await until(lambda: task.done() or pusher.looked == run)  # noqa: B023
                assert stage.counts("bide.server/pushers").sizes.delayed == 1
                task.cancel()
                await asyncio.wait([task])
                assert stage.counts("bide.server/pushers").sizes.delayed == 0

    stage.play(story())
