"""Sources that fail, processes that die while they ask, chains that are broken."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

import bide
from bide.model.commands import Cancel, Purge
from tests.system.worker.source_app import (
    HOME,
    Shop,
    ask,
    body,
    changes,
    found,
    waiting,
)
from tests.system.worker.worker_app import PATIENCE, Scene, until


def test_an_error_has_the_same_window_asked_for_again(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        down, failed = True, 0

        @scene.app.source("orders", every="1m", window="10m", name="unpaid")
        def source(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
            nonlocal failed
            if down:
                failed += 1
                raise OSError("the database is down")
            yield from shop.unpaid(after, before)

        async with scene.at_work():
            await until(lambda: failed == 1)
            await scene.delayed(1, HOME)
            window = await waiting(scene)
            assert (window.error or "").startswith("OSError: the database is down")
            assert 4_500 <= window.due - scene.clock.now() <= 5_500
            await scene.pass_calmly(lambda: failed >= 14, 60)  # far more than a message's attempts
            down = False
            shop.place("o", 60 * 60)
            await scene.pass_calmly(lambda: shop.asks >= 1, 60)
            await waiting(scene)
        assert shop.asked[0][0] == -600  # nothing of that hour is left out
        assert not (await scene.counts(HOME)).sizes.dead

    scene.play(story())


def test_half_a_window_that_was_put_does_no_harm(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        for number in range(700):
            shop.place(f"o{number}", 100)
        fails = [True]

        @scene.app.source("orders", every="1m", window="10m", name="unpaid")
        def source(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
            yield from shop.unpaid(after, before)
            if fails:
                fails.pop()
                raise ValueError("the last row is broken")

        async with scene.at_work():
            await scene.pass_calmly(lambda: shop.asks == 2, 1)
            window = await waiting(scene)
        last = body(window).last
        assert last is not None
        assert (last.found, last.put) == (700, 200)
        assert (await scene.counts("orders")).sizes.total == 700

    scene.play(story())


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "TypeError: a source returns an iterable of bide.NewMessage objects"),
        ("text", "this one returned str"),
        (7, "this one returned int"),
        ([{"id": 1}], "TypeError: a source returns bide.NewMessage objects, and this one dict"),
        ([bide.NewMessage(1)], "ValueError: a message of a source needs an id"),
        ([bide.NewMessage(1, id="x", priority=300)], "InvalidArgument: priority=300"),
    ],
)
def test_what_is_no_message_is_an_error_that_can_be_seen(
    scene: Scene, returned: Any, said: str
) -> None:
    async def story() -> None:
        scene.app.source("orders", every="1m", window="10m", name="unpaid")(lambda a, b: returned)
        async with scene.at_work():
            await scene.delayed(1, HOME)
            error = (await waiting(scene)).error or ""
        assert said in error

    scene.play(story())


@pytest.mark.parametrize("signal", [bide.Discard, bide.Bury])
def test_a_source_cannot_end_its_chain(scene: Scene, shop: Shop, signal: Any) -> None:
    async def story() -> None:
        answers: list[Any] = [signal("enough"), []]

        @scene.app.source("orders", every="1m", window="10m", name="unpaid")
        def source(after: datetime, before: datetime) -> Any:
            if isinstance(answer := answers.pop(0), Exception):
                raise answer
            return answer

        async with scene.at_work():
            await scene.delayed(1, HOME)
            error = (await waiting(scene)).error or ""
            assert f"it raised {signal.__name__}" in error
            await scene.pass_calmly(lambda: not answers, 1)

    scene.play(story())


def test_a_source_that_takes_too_long_fails(scene: Scene) -> None:
    async def story() -> None:
        times = 0

        @scene.app.source("orders", every="1m", window="10m", timeout="30s", lease="12h")
        async def unpaid(after: datetime, before: datetime) -> list[bide.NewMessage]:
            nonlocal times
            times += 1
            if times == 1:
                await asyncio.Event().wait()
            return []

        async with scene.at_work():
            # The next window may be due when this one is asked for again, and follow at once.
            await scene.pass_time(lambda: times >= 2, 1)
            await until(lambda: scene.counts_in_file(HOME).flow.acked)
        window = await waiting(scene)
        assert body(window).last is not None

    scene.play(story())


def test_a_window_that_was_done_is_not_asked_for_again(scene: Scene, shop: Shop) -> None:
    """Its process died between putting the next and acking it."""

    async def story() -> None:
        ask(scene, shop)
        async with scene.at_work():
            await until(lambda: shop.asks == 1)
            following = await waiting(scene)
            await scene.acked(1, HOME)
        await scene.lane.acall(Purge(HOME, "acked"))
        await scene.put({}, queue=HOME, id="done")  # as it would be found
        async with scene.at_work():
            await until(lambda: scene.counts_in_file(HOME).flow.acked == 2)
            assert shop.asks == 1
            assert (await waiting(scene)).id == following.id
            await scene.pass_calmly(lambda: shop.asks == 2, 5)
        assert shop.asked[1][0] == 0

    scene.play(story())


def test_a_source_that_kills_its_process_is_asked_less_and_less(scene: Scene, shop: Shop) -> None:
    """Claimed four times by somebody who died with it, it rests; it is never given up."""

    async def story() -> None:
        ask(scene, shop, retry=bide.Backoff(first="10m", ceiling="10m", jitter=0))
        await scene.put({}, queue=HOME, id="deadly", attempts=10_000)
        async with bide.AsyncQueue(HOME, f"sqlite:///{scene.path}", clock=scene.clock) as windows:
            for _ in range(4):
                assert len(await windows.claim(lease=1)) == 1
                scene.clock.advance(1)
        async with scene.at_work():
            await scene.delayed(1, HOME)
            assert shop.asks == 0
            assert "died again" in ((await waiting(scene)).error or "")
            await scene.pass_calmly(lambda: shop.asks >= 1, 30)

    scene.play(story())


def test_a_chain_that_was_emptied_begins_anew(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop, every="1h", window="1h")
        async with scene.at_work():
            await until(lambda: shop.asks == 1)
            window = await waiting(scene)
            await scene.lane.acall(Cancel(HOME, [window.id]))
            scene.clock.advance(61)
            await scene.pass_calmly(lambda: shop.asks == 2, 5)
            assert shop.asked[1][0] <= 100 - 3600  # as for a fresh store

    scene.play(story())


def test_a_chain_that_was_emptied_begins_at_once_with_the_next_worker(
    scene: Scene, shop: Shop
) -> None:
    async def story() -> None:
        ask(scene, shop, every="1h", window="1h")
        async with scene.at_work():
            await until(lambda: shop.asks == 1)
            await scene.acked(1, HOME)
        await scene.lane.acall(Purge(HOME, "delayed"))
        began = scene.clock.monotonic()
        async with scene.at_work():
            await scene.pass_calmly(lambda: shop.asks == 2, 0.5)
        assert scene.clock.monotonic() - began < 30

    scene.play(story())


def test_a_window_that_was_buried_is_taken_up_again(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop)
        url = f"sqlite:///{scene.path}"
        async with scene.at_work():
            await until(lambda: shop.asks == 1)
            await waiting(scene)
        scene.clock.advance(60)
        async with bide.AsyncQueue(HOME, url, clock=scene.clock) as windows:
            await (await windows.claim())[0].bury("by hand")
        async with scene.at_work():
            await scene.pass_calmly(lambda: shop.asks == 2, 1)
        assert shop.asked[1][0] == 0

    scene.play(story())


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_jumps_an_hour(scene: Scene, shop: Shop, hours: int) -> None:
    async def story() -> None:
        ask(scene, shop)
        async with scene.at_work():
            await scene.pass_calmly(lambda: shop.asks == 2, 5)
            await waiting(scene)
            scene.clock.set_wall(scene.clock.now() + hours * 3_600_000)
            began = scene.clock.monotonic()
            scene.clock.advance(5)  # who waits looks again every second
            await scene.pass_calmly(lambda: shop.asks >= 4, 5)
            assert scene.clock.monotonic() - began < 300
        asked = shop.asked
        assert asked[2][1] == pytest.approx(asked[1][1] + hours * 3600, abs=200)
        assert asked[2][0] <= min(asked[1][1], asked[2][1]) - 600
        assert asked[3][0] == asked[2][1] - 600

    scene.play(story())


def test_the_store_goes_away_while_a_source_is_asked(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        shop.place("o", 100)

        @scene.app.source("orders", every="1m", window="10m", name="unpaid")
        def source(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
            if not shop.asks:
                scene.engine.fail(bide.StoreUnavailable("gone"), times=None, when=changes)
            yield from shop.unpaid(after, before)

        async with scene.at_work():
            await until(lambda: scene.engine.batches and shop.asks == 1)
            scene.clock.advance(10)
            scene.engine.heal()
            # Who waits for the store waits by this clock, perhaps only from now on.
            await scene.pass_time(lambda: shop.asks >= 2)
            await waiting(scene)
        assert await found(scene) == {"o"}

    scene.play(story())


def test_a_worker_that_stops_hands_the_window_back(scene: Scene) -> None:
    async def story() -> None:
        begun = 0
        stuck = asyncio.Event()

        @scene.app.source("orders", every="1m", window="10m")
        async def unpaid(after: datetime, before: datetime) -> list[bide.NewMessage]:
            nonlocal begun
            begun += 1
            if begun == 1:
                await stuck.wait()
            return []

        async with scene.at_work():
            await until(lambda: begun == 1)
        window = await waiting(scene)
        assert window.attempt == 0
        async with scene.at_work():
            await until(lambda: begun == 2)

    scene.play(story())


def test_a_plain_source_that_was_given_up_puts_no_more(scene: Scene) -> None:
    async def story() -> None:
        go, batches = threading.Event(), 0

        @scene.app.source("orders", every="1m", window="10m")
        def unpaid(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
            nonlocal batches
            batches += 1
            for number in range(500):
                yield bide.NewMessage(1, id=f"o{number}")
            go.wait(PATIENCE)
            for number in range(500, 1_000):
                yield bide.NewMessage(1, id=f"o{number}")

        async with scene.at_work(grace=0):
            await until(lambda: scene.counts_in_file("orders").flow.put == 500)
        go.set()
        assert (await waiting(scene)).attempt == 0
        assert (await scene.counts("orders")).flow.put == 500

    scene.play(story())


def test_a_window_that_nobody_can_read_is_asked_for_as_the_first(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop)
        await scene.put("what is this", queue=HOME, id="by hand")
        async with scene.at_work():
            await until(lambda: shop.asks == 1)
            await waiting(scene)
        assert shop.asked == [(-600, 600)]

    scene.play(story())
