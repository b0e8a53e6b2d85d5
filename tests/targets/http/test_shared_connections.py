"""How subscriptions share the connections of a process."""

import asyncio
from functools import partial

from tests.targets.http.environment import Stage, until
from tests.targets.http.receiver import Got, answer, receiver


async def hang(got: Got, _: object) -> bytes:
    """Never answer."""
    await asyncio.Event().wait()
    return b""


def test_no_more_connections_are_open_than_the_process_may_have(stage: Stage) -> None:
    """And a receiver that hangs leaves some for the others."""

    async def story() -> None:
        async with (
            receiver() as well,
            stage.at_work(concurrency=500, options={"limit": 8}) as (it, _),
        ):
            it.script = hang
            await stage.put(*range(100))
            await until(lambda: it.under_way == 4)
            await stage.subscribe(well.url, name="other", queue="w")
            await stage.put(*range(100), queue="w")
            await stage.pass_time(lambda: stage.counts("w").flow.acked == 100, step=0.01)
            assert it.most == 4
            assert it.connections + well.connections <= 8

    stage.play(story())


def test_a_subscription_is_pinged_while_its_messages_take_their_share(stage: Stage) -> None:
    async def story() -> None:
        async with receiver() as it, stage.pushing(limit=8) as pusher:
            it.script = hang
            one = await stage.subscribe(it.url, concurrency=500)
            pusher.look()
            await stage.put(*range(10))
            await until(lambda: it.under_way == 4)

            async def reply(got: Got, _: object) -> bytes:
                return answer(200)

            it.script = reply
            assert (await pusher.ping(one)).good

    stage.play(story())


def test_requests_from_before_a_change_of_the_queue_hold_up_no_message(stage: Stage) -> None:
    async def story() -> None:
        async with stage.pushing(limit=8) as pusher, receiver() as it:
            it.script = hang
            await stage.subscribe(it.url, concurrency=500)
            pusher.look()
            await stage.put(*range(10))
            await until(lambda: it.under_way == 4)
            await stage.subscribe(it.url, concurrency=500, queue="w")
            await stage.put(1, queue="w")
            began = stage.clock.now()
            pusher.look()
            await stage.pass_time(lambda: it.under_way == 5, pause=0.01)
            assert stage.clock.now() - began < 5_000  # they end only after 15 s

    stage.play(story())


def test_a_namespace_leaves_connections_for_others(stage: Stage) -> None:
    """However many of its receivers hang; and it does not ping with those that are left."""

    async def story() -> None:
        async with receiver() as it, receiver() as well, stage.pushing(limit=8) as pusher:
            it.script = hang
            for name in "abcdef":
                more = {"name": f"evil/{name}", "queue": f"evil/{name}", "concurrency": 500}
                await stage.subscribe(it.url, **more)
                await stage.put(*range(10), queue=f"evil/{name}")
            pusher.look()
            await until(lambda: it.under_way == 4)
            hook = (await pusher.records.listed())[0]
            told = await pusher.ping(hook)
            assert (told.good, "no connection left" in told.text) == (False, True)
            await stage.subscribe(well.url, name="shop/hooks", queue="shop/w")
            await stage.put(*range(100), queue="shop/w")
            pusher.look()
            await stage.pass_time(lambda: stage.counts("shop/w").flow.acked == 100, step=0.01)
            assert it.most == 4

    stage.play(story())


def test_receivers_that_fail_leave_half_of_the_connections_for_others(stage: Stage) -> None:
    """However many they are, and however long each takes to fail."""

    async def story() -> None:
        async with receiver() as it, receiver() as well, stage.pushing(limit=8) as pusher:
            it.script = hang
            for name in "abcdefghij":
                await stage.subscribe(it.url, name=name, queue=name)
                await stage.put(*range(2), queue=name)
            await stage.subscribe(well.url, name="well", queue="w")
            pusher.look()
            workers = pusher.workers.values()
            await stage.pass_time(
                lambda: sum(w.circuit.failures > 0 for w in workers) == 10, step=1
            )
            await stage.pass_time(lambda: pusher._sender._client.free <= 4, step=1)
            began = stage.clock.now()
            await stage.put(1, queue="w")
            await stage.pass_time(lambda: stage.counts("w").flow.acked == 1, pause=0.02)
            assert stage.clock.now() - began < 2_000

    stage.play(story())


def test_connections_that_are_kept_make_room_for_others(stage: Stage) -> None:
    async def story() -> None:
        async with stage.pushing(limit=3) as pusher:
            async with receiver() as one, receiver() as two:
                for number, it in enumerate((one, two, one, two)):
                    await stage.subscribe(it.url, name=f"s{number}", queue=f"q{number}")
                pusher.look()
                for number in range(4):
                    await stage.put(1, 2, queue=f"q{number}")
                for queue in ("q0", "q1", "q2", "q3"):
                    acked = partial(lambda queue: stage.counts(queue).flow.acked == 2, queue)
                    await stage.pass_time(acked, step=0.05)

    stage.play(story())
