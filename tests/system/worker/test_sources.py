"""Sources: window after window, each asked for once, by a clock of their own; what is refused."""

import asyncio
import functools
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

import bide
from bide.engines import losses
from bide.lane.lane import Lane
from bide.model.commands import Configure, Put
from bide.model.limits import MAX_BYTES
from bide.observing.tally import BOUNDS
from bide.worker.periodic.source import home_of
from tests.system.worker.source_app import (
    HOME,
    MINUTE,
    Shop,
    ask,
    body,
    found,
    found_all,
    progress,
    waiting,
)
from tests.system.worker.worker_app import PATIENCE, Scene, until


def test_a_source_is_asked_for_the_time_ahead_again_and_again(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop)
        shop.place("soon", 300)
        shop.place("later", 650)
        async with scene.at_work() as runner:
            await until(lambda: shop.asks == 1)
            await waiting(scene)
            assert await found(scene) == {"soon"}
            assert runner.consumers[HOME].current().lateness.quantile(1) == BOUNDS[0]
            await scene.pass_calmly(lambda: shop.asks == 3, 5)
            await waiting(scene)
            assert await found(scene) == {"soon", "later"}
        first, second, third = shop.asked
        assert first == (-600, 600)  # the past of a fresh store: as far back as ahead
        assert second[0] == 0  # each reaches from the asking before
        assert 0 < second[1] - 600 <= MINUTE + 6  # the clock moves in steps of 5 s
        assert third[0] == second[1] - 600
        assert third[1] - second[1] == pytest.approx(MINUTE, abs=6)

    scene.play(story())


def test_a_store_that_lost_changes_is_filled_again_at_once(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop)
        shop.place("soon", 300)
        async with scene.at_work():
            await until(lambda: shop.asks == 1)
            await waiting(scene)
            losses.report("a store", "orders", 1)
            await until(lambda: shop.asks == 2)
            await waiting(scene)
        assert shop.asked[1] == pytest.approx((-600, 600), abs=6)  # as in a fresh store

    scene.play(story())


def test_how_far_back_a_fresh_store_is_filled_can_be_said(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop, back=0)
        async with scene.at_work():
            await until(lambda: shop.asks == 1)
        assert shop.asked == [(0, 600)]

    scene.play(story())


def test_what_is_there_stays_as_it_is(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop, every="1s")
        shop.place("a", 300)
        await scene.put("mine", queue="orders", id="a", delay=60_000)
        async with scene.at_work():
            await scene.pass_calmly(lambda: shop.asks == 3)
            window = await waiting(scene)
        assert (await scene.find("a", "orders")).body == "mine"
        last = body(window).last
        assert last is not None
        assert (last.found, last.put, body(window).put) == (1, 0, 0)

    scene.play(story())


def test_what_was_handled_is_not_put_again(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        handled: list[str] = []
        scene.app.handler("orders")(lambda delivery: handled.append(delivery.id))
        ask(scene, shop, every="10s", window="1m")
        for number in range(10):
            shop.place(f"o{number}", number * 7)
        async with scene.at_work():
            await scene.pass_calmly(lambda: shop.asks == 12, 1)
        assert sorted(handled) == sorted(shop.orders)

    scene.play(story())


def test_the_queue_remembers_for_as_long_as_that_takes(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop)
        async with scene.at_work():
            await until(lambda: shop.asks == 1)
        assert (await scene.counts("orders")).keep == 21 * 60_000
        await scene.lane.acall(Configure("orders", keep=86_400_000))
        async with scene.at_work():
            await scene.pass_calmly(lambda: shop.asks == 2, 5)
        assert (await scene.counts("orders")).keep == 86_400_000

    scene.play(story())


def test_what_was_missed_while_nobody_worked_is_asked_for(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop)
        async with scene.at_work():
            await scene.pass_calmly(lambda: shop.asks == 2, 5)
            await waiting(scene)
        scene.clock.advance(3 * 3600)
        shop.place("meanwhile", 3600)
        async with scene.at_work():
            await until(lambda: shop.asks == 3)
            await waiting(scene)
        asked_before = shop.asked[1][1] - 600
        assert shop.asked[2][0] == asked_before
        assert shop.asked[2][1] > 3 * 3600 + 600
        assert await found(scene) == {"meanwhile"}

    scene.play(story())


def test_a_lost_store_is_filled_again(scene: Scene, shop: Shop) -> None:
    """All of it is gone: what was to come, and what had fallen due and was not handled yet."""

    async def story() -> None:
        ask(scene, shop)
        for number in range(2_000):
            shop.place(f"o{number}", number % 500)
        async with scene.at_work():
            await until(lambda: shop.asks == 1)
            await waiting(scene)
        assert len(await found_all(scene)) == 2_000
        scene.clock.advance(240)
        scene.close()
        for file in scene.path.parent.glob("bide.db*"):
            file.unlink()
        scene.open()
        async with scene.at_work():
            await until(lambda: shop.asks == 2)
            window = await waiting(scene)
        assert len(await found_all(scene)) == 2_000
        last = body(window).last
        assert last is not None
        assert (last.found, last.put) == (2_000, 2_000)

    scene.play(story())


def test_a_slow_source_never_overlaps_itself(scene: Scene) -> None:
    """While it is being asked no other window begins, here or in another process."""

    async def story() -> None:
        go, inside, most, times = threading.Event(), 0, 0, 0

        @scene.app.source("orders", every="1s", window="10s")
        def unpaid(after: datetime, before: datetime) -> list[bide.NewMessage]:
            nonlocal inside, most, times
            inside += 1
            times += 1
            most = max(most, inside)
            go.wait(PATIENCE)
            inside -= 1
            return []

        async with scene.at_work(), scene.at_work():
            await until(lambda: times == 1)
            for _ in range(100):  # ten minutes, in which the lease is extended
                await scene.step(6)
            assert times == 1
            go.set()
            await scene.pass_calmly(lambda: times >= 4, 0.3)
        assert most == 1

    scene.play(story())


def test_many_processes_ask_for_each_window_once(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop)
        async with scene.at_work(), scene.at_work(), scene.at_work(), scene.at_work():
            await scene.pass_calmly(lambda: shop.asks == 10, 5)
        spans = shop.asked
        assert all(later[0] == earlier[1] - 600 for earlier, later in itertools.pairwise(spans))

    scene.play(story())


async def _async_function(after: datetime, before: datetime) -> list[bide.NewMessage]:
    await asyncio.sleep(0)
    return [bide.NewMessage(1, at=after, id="x")]


async def _async_iterator(after: datetime, before: datetime) -> AsyncIterator[bide.NewMessage]:
    for number in range(1_100):
        yield bide.NewMessage(1, at=before, id=f"x{number}")


async def _returns_an_iterator(after: datetime, before: datetime) -> Any:
    return _async_iterator(after, before)


def _function(after: datetime, before: datetime) -> tuple[bide.NewMessage, ...]:
    return (bide.NewMessage(1, delay="30s", id="x"),)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (_function, 1),
        (_async_function, 1),
        (_async_iterator, 1_100),
        (_returns_an_iterator, 1_100),
        (functools.partial(_function), 1),
    ],
)
def test_a_source_may_be_written_in_many_ways(
    scene: Scene, function: Callable[..., Any], count: int
) -> None:
    async def story() -> None:
        scene.app.source("orders", every="1m", window="10m", name="unpaid")(function)
        async with scene.at_work():
            window = await progress(scene)
        assert window.put == count
        assert (await scene.counts("orders")).sizes.total == count

    scene.play(story())


@pytest.mark.parametrize("is_async", [False, True])
def test_large_messages_of_a_source_go_in_several_commands(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    sizes: list[int] = []
    for name in ("call", "acall"):
        real = getattr(Lane, name)

        def note(lane: Lane, command: Any, *more: Any, real: Any = real, **options: Any) -> Any:
            if type(command) is Put and command.queue == "orders":
                sizes.append(sum(len(item.data) for item in command.items))
            return real(lane, command, *more, **options)

        monkeypatch.setattr(Lane, name, note)

    def plain(after: datetime, before: datetime) -> list[bide.NewMessage]:
        return [bide.NewMessage("x" * 900_000, at=before, id=f"o{n}") for n in range(12)]

    async def asynchronous(after: datetime, before: datetime) -> list[bide.NewMessage]:
        return plain(after, before)

    async def story() -> None:
        source = asynchronous if is_async else plain
        scene.app.source("orders", every="1m", window="10m", name="unpaid")(source)
        async with scene.at_work():
            assert (await progress(scene)).put == 12
        assert len(sizes) == 2
        assert max(sizes) < MAX_BYTES

    scene.play(story())


def test_a_plain_generator_stays_in_one_thread(scene: Scene) -> None:
    """Its connection to a database may not be used in another."""

    async def story() -> None:
        threads = set()

        @scene.app.source("orders", every="1m", window="10m")
        def unpaid(after: datetime, before: datetime) -> Iterator[bide.NewMessage]:
            for number in range(1_600):
                threads.add(threading.get_ident())
                yield bide.NewMessage(1, id=f"o{number}")

        async with scene.at_work():
            assert (await progress(scene)).put == 1_600
        assert len(threads) == 1
        assert threading.get_ident() not in threads

    scene.play(story())


def test_a_shorter_period_counts_at_once(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop, every="1d", window="2d")
        async with scene.at_work():
            await until(lambda: shop.asks == 1)
            await waiting(scene)
        scene.app = bide.App("memory://", clock=scene.clock)
        ask(scene, shop, every="1m", window="2d")
        async with scene.at_work():
            await scene.pass_calmly(lambda: shop.asks == 2, 5)
        assert shop.asked[1][1] - 2 * 86_400 < 300

    scene.play(story())


def test_the_worker_may_be_told_which_queues(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        scene.app.handler("mail")(lambda body: None)
        scene.app.handler("orders")(lambda body: None)
        ask(scene, shop)
        async with scene.at_work(queues=["mail"]) as runner:
            assert list(runner.consumers) == ["mail"]
        async with scene.at_work(queues=["orders"]) as runner:
            assert list(runner.consumers) == ["orders", HOME]
        async with scene.at_work(queues=[HOME]) as runner:
            assert list(runner.consumers) == [HOME]
            await until(lambda: shop.asks == 1)

    scene.play(story())


def test_two_sources_may_fill_a_queue(scene: Scene, shop: Shop) -> None:
    async def story() -> None:
        ask(scene, shop)
        scene.app.source("orders", every="1m", window="1h", name="stale")(shop.unpaid)
        async with scene.at_work():
            await until(lambda: shop.asks == 2)
        assert sorted(before for _, before in shop.asked) == [600, 3600]

    scene.play(story())


def test_it_works_in_memory(shop: Shop, scene: Scene) -> None:
    """With a handler for what it puts, on an engine of another kind."""

    async def story() -> None:
        from bide.worker.process.runner import Runner

        app = bide.App("memory://sources", clock=scene.clock)
        handled: list[str] = []
        app.source("orders", every="10s", window="1m")(shop.unpaid)

        @app.handler("orders")
        async def expire(delivery: bide.Handling) -> None:
            handled.append(delivery.id)

        for number in range(20):
            shop.place(f"o{number}", number * 10)
        runner = Runner(app)
        work = asyncio.create_task(runner.run())
        await scene.pass_calmly(lambda: len(handled) == 20, 1)
        runner.stop()
        await work
        assert handled == [f"o{number}" for number in range(20)]

    scene.play(story())


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (7, {}, r"must take \(after, before\), .*: 7 is not a callable object"),
        (lambda: [], {}, r"must take \(after, before\), the start and end of a window"),
        (lambda a, b, c: [], {}, "missing a required argument: 'c'"),
        (lambda a, b: [], {}, r"name='<lambda>' cannot be the name of a source"),
        (lambda a, b: [], {"name": "a:b"}, "name='a:b' cannot be"),
        (
            lambda a, b: [],
            {"name": "x" * 120},
            r"bide:source:orders:x+' is not a valid name of a queue",
        ),
        (lambda a, b: [], {"name": "x", "every": 0}, "every=0 must be 100 ms or longer"),
        (lambda a, b: [], {"name": "x", "every": "soon"}, "every='soon' is not a valid duration"),
        (lambda a, b: [], {"name": "x", "window": 0}, "window=0 is shorter than every"),
        (lambda a, b: [], {"name": "x", "back": -1}, "back=-1 is negative"),
        (lambda a, b: [], {"name": "x", "lease": 0}, "lease=0s must be between"),
        (lambda a, b: [], {"name": "x", "timeout": 0}, "timeout must be longer than 0"),
        (lambda a, b: [], {"name": "x", "retry": 3}, "retry=3 must be a bide.Backoff"),
        (lambda a, b: [], {"name": "x", "queue": "?"}, "is not a valid name of a queue"),
    ],
)
def test_what_cannot_be_is_refused_when_the_app_is_made(
    function: Any, options: dict[str, Any], said: str
) -> None:
    app = bide.App("memory://")
    given: dict[str, Any] = {"queue": "orders", "every": "1m", "window": "10m", **options}
    with pytest.raises(bide.InvalidArgument, match=said):
        app.source(given.pop("queue"), **given)(function)
    assert not app.queue_handlers


def test_a_name_is_taken_once() -> None:
    app = bide.App("memory://")

    @app.source("acme/orders", every="1m", window="10m")
    def unpaid(after: datetime, before: datetime) -> list[bide.NewMessage]:
        return []

    assert list(app.queue_handlers) == list(app.sources) == ["acme/bide:source:orders:unpaid"]
    assert home_of("orders", "unpaid") == HOME
    with pytest.raises(bide.InvalidArgument, match=r"already; give one source another name="):
        app.source("acme/orders", every="5m", window="10m")(unpaid)
    app.source("acme/orders", every="5m", window="10m", name="other")(unpaid)
