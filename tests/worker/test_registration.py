"""What cannot work is refused when it is registered, with the mend."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import bide
from bide.worker.app.lifespan import entered


async def bare_async(app: bide.App) -> AsyncIterator[None]:
    yield


def bare_plain(app: bide.App) -> Iterator[None]:
    yield


@contextlib.contextmanager
def ignores_the_app() -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def good(app: bide.App) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("lifespan", "hint"),
    [
        (3, "must take the app; a lifespan is a function .*: 3 is not a callable object"),
        (ignores_the_app, "ignores_the_app must take the app; .*: too many positional"),
        (contextlib.nullcontext(), "a lifespan is a function that takes the app .* is not a call"),
    ],
)
def test_a_lifespan_that_cannot_be_one(lifespan: Any, hint: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=hint):
        bide.App("memory://", lifespan=lifespan)


@pytest.mark.parametrize("lifespan", [None, good, contextlib.nullcontext])
def test_a_lifespan_that_can_be_one(lifespan: Any) -> None:
    app = bide.App("memory://", lifespan=lifespan)

    async def story() -> None:
        async with entered(app.lifespan, app):
            pass

    asyncio.run(story())


@pytest.mark.parametrize("wrong", [lambda app: 3, bare_async, bare_plain])
def test_a_lifespan_that_makes_something_else(wrong: Any) -> None:
    app = bide.App("memory://", lifespan=wrong)

    async def story() -> None:
        async with entered(app.lifespan, app):
            pass

    with pytest.raises(
        bide.InvalidArgument, match=r"returned .*, which is no context manager; let it"
    ):
        asyncio.run(story())


async def too_few(delivery: Any) -> None: ...


async def too_many(delivery: Any, go_on: Any, more: Any) -> None: ...


async def more_with_defaults(delivery: Any, go_on: Any, more: int = 1) -> None: ...


@pytest.mark.parametrize("function", [too_few, too_many])
def test_middleware_takes_the_delivery_and_what_goes_on(function: Any) -> None:
    with pytest.raises(bide.InvalidArgument, match=r"too_\w+ must take \(delivery, go_on\)"):
        bide.App("memory://").middleware(function)


def test_middleware_may_have_defaults() -> None:
    app = bide.App("memory://")
    app.middleware(more_with_defaults)
    assert app.around == [more_with_defaults]


def no_arguments() -> bool:
    return True


def three(body: Any, delivery: Any, more: Any) -> bool:
    return True


def needs_more(body: Any, *, more: Any) -> bool:
    return True


def yields(body: Any) -> Iterator[bool]:
    yield False


def one(body: Any) -> bool:
    return True


def two(body: Any, delivery: bide.Delivery) -> bool:
    return True


@pytest.mark.parametrize(
    ("still_wanted", "hint"),
    [
        (3, r"still_wanted of .*<lambda> must be a function, not a int"),
        (no_arguments, r"no_arguments names no parameter .*; still_wanted takes \(body\) or"),
        (three, r"three takes too many arguments; still_wanted takes \(body\) or"),
        (needs_more, "needs_more needs more=, which bide does not pass"),
        (yields, "yields is a generator: calling it runs nothing; remove the yield"),
    ],
)
def test_a_check_that_cannot_judge(still_wanted: Any, hint: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=hint):
        bide.App("memory://").handler("q", still_wanted=still_wanted)(lambda body: None)


def delivery_only(delivery: bide.Delivery) -> bool:
    return True


@pytest.mark.parametrize("still_wanted", [one, two, delivery_only, bool, {1: True}.get])
def test_a_check_that_can_judge(still_wanted: Any) -> None:
    app = bide.App("memory://")
    app.handler("q", still_wanted=still_wanted)(lambda body: None)
    assert list(app.queue_handlers) == ["q"]


def test_a_job_says_what_to_do_and_its_check_takes_what_there_is() -> None:
    app = bide.App("memory://")

    class Idle(bide.Job):
        order: int

    with pytest.raises(bide.InvalidArgument, match=r"Idle has no method run.*def run\(self\)"):
        app.job("q")(Idle)

    class Greedy(bide.Job):
        def still_wanted(self, delivery: Any, more: Any) -> bool:
            return True

        def run(self) -> None: ...

    with pytest.raises(bide.InvalidArgument, match=r"Greedy\.still_wanted takes too many"):
        app.job("q")(Greedy)

    class Modest(bide.Job):
        def still_wanted(self) -> bool:
            return True

        def run(self) -> None: ...

    app.job("q")(Modest)
    assert list(app.queue_handlers["q"].handlers) == ["Modest"]


def test_a_window_is_at_least_as_long_as_the_time_between_two() -> None:
    app = bide.App("memory://")
    with pytest.raises(bide.InvalidArgument, match=r"window='5m' is shorter than every='1h'.*more"):
        app.source("q", every="1h", window="5m")
    app.source("q", every="1h", window="1h")
