"""What stands for a function, such as a static method, is handled as the function itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pytest

import bide
from bide import InvalidArgument
from bide.testing import ManualWorker, ScratchStore

DAY = date(2030, 1, 1)


@dataclass
class Mail:
    to: str


class Counting:
    """A decorator that is a class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


@pytest.fixture
def app() -> bide.App:
    return bide.App("memory://wrapped")


@pytest.fixture
def store() -> Iterator[ScratchStore]:
    with ScratchStore() as store:
        yield store


@pytest.mark.parametrize("wrapper", [staticmethod, functools.lru_cache, Counting])
def test_arguments_have_the_types_of_the_function(
    wrapper: Callable[..., Any], app: bide.App, store: ScratchStore
) -> None:
    seen: list[object] = []

    def expire(order: int, day: date) -> None:
        seen.append((order, day))

    task = app.task(wrapper(expire))
    assert str(task.parameters) == "(order: int, day: datetime.date)"
    with pytest.raises(InvalidArgument, match="Expected `int`, got `str`"):
        task.put("not a number", DAY)
    task.put(42, DAY)
    with ManualWorker(app, store) as worker:
        worker.run_due()
    assert seen == [(42, DAY)]


def test_bodies_have_the_types_of_the_function(app: bide.App, store: ScratchStore) -> None:
    seen: list[object] = []

    @app.handler("mails")
    @Counting
    def send(mail: Mail) -> None:
        seen.append(mail.to)

    @app.handler("looks")
    @Counting
    def look(handled: bide.Handling) -> None:
        seen.append(handled.message.queue)

    @app.handler("batches", batch=2)
    @Counting
    def send_all(mails: list[Mail]) -> None:
        seen.append([mail.to for mail in mails])

    with ManualWorker(app, store) as worker:
        for queue in ("mails", "looks", "batches"):
            app.queue(queue).put({"to": "ann"})
            worker.run_due()
    assert seen == ["ann", "looks", ["ann"]]


def test_a_signature_alone_names_the_types(app: bide.App) -> None:
    class Proxy:
        __name__ = "proxy"
        __signature__ = inspect.Signature(
            [inspect.Parameter("order", inspect.Parameter.KEYWORD_ONLY, annotation=int)]
        )

        def __call__(self, **_: Any) -> None: ...

    with pytest.raises(InvalidArgument, match="Expected `int`, got `str`"):
        app.task(Proxy()).put(order="not a number")


def test_what_stands_for_an_async_function_is_awaited(app: bide.App, store: ScratchStore) -> None:
    seen: list[object] = []

    async def expire() -> None:
        seen.append("expired")

    async def send(mails: list[Mail]) -> None:
        seen.append(mails)

    async def unpaid(after: datetime, before: datetime) -> list[bide.NewMessage]:
        return [bide.NewMessage({"to": "bob"}, at=after, id="from the source")]

    task = app.task(queue="orders")(staticmethod(expire))
    app.schedule("nightly", every="1h")(task)
    app.handler("mails", batch=2)(functools.partial(staticmethod(send)))
    app.source("mails", every="1h", window="1h", name="unpaid")(staticmethod(unpaid))
    with ManualWorker(app, store) as worker:
        worker.run_due()
        task.put()
        worker.run_due()
        worker.advance("1h")
    assert seen[:2] == [[Mail("bob")], "expired"]
    assert seen.count("expired") == 2


def test_a_generator_is_refused(app: bide.App) -> None:
    def orders() -> Iterator[int]:
        yield 42

    with pytest.raises(InvalidArgument, match="orders is a generator: calling it runs nothing"):
        app.task(staticmethod(orders))
