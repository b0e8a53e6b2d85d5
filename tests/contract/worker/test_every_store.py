"""What workers and their tasks do is the same on every store."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import bide
from bide.model.internal_queues import InternalQueue
from tests.stores_of_each_kind import STORES, url_of
from tests.system.worker.worker_app import until


@dataclass
class Mail:
    to: str


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with url_of(request.param, request) as url:
        yield url


def test_tasks_run(url: str) -> None:
    app = bide.App(url)
    seen: list[Any] = []
    done = asyncio.Semaphore(0)

    @app.task(queue="orders")
    async def expire(order: int, *, reason: str = "unpaid") -> dict[str, int]:
        seen.append((order, reason))
        return {"order": order}

    @app.task(queue="orders")
    async def remind(order: int) -> None:
        seen.append(order)
        done.release()

    async def story() -> None:
        await expire.async_queue.configure(result_ttl="1h")
        async with app.running():
            await expire.later(id="first").aput(42)
            await remind.aput(7)
            await remind.aput_many([(8,)])
            await expire.later("1h", id="later").aput(43)
            assert await expire.aresult("first", wait=60) == {"order": 42}
            assert (await expire.areschedule("later", "2h")).done
            assert (await expire.aexplain("later")).reasons == ("delayed",)
            assert (await expire.acancel("later")).done
            assert await expire.aget("later") is None
            for _ in range(2):
                await done.acquire()

    asyncio.run(asyncio.wait_for(story(), 120))
    assert sorted(map(str, seen)) == ["(42, 'unpaid')", "7", "8"]
    assert expire.result("first") == {"order": 42}
    app.close()


def test_batches(url: str) -> None:
    app = bide.App(url)
    seen: list[str] = []
    over = asyncio.Event()

    @app.handler("mails", batch=10, linger="20ms")
    async def send(mails: list[Mail]) -> None:
        if len(mails) > 1 and any(mail.to == "7" for mail in mails):
            raise ValueError("not together")
        seen.extend(mail.to for mail in mails)
        if len(seen) == 25:
            over.set()

    async def story() -> None:
        mails = app.async_queue("mails")
        await mails.put_many([{"to": f"{number}"} for number in range(25)])
        async with app.running():
            await over.wait()

    asyncio.run(asyncio.wait_for(story(), 120))
    assert sorted(seen, key=int) == [f"{number}" for number in range(25)]
    assert app.queue("mails").counts().flow.acked == 25
    app.close()


def test_a_task_that_runs_is_stopped(url: str) -> None:
    app, began, cleaned = bide.App(url), threading.Event(), threading.Event()

    @app.task
    async def count(to: int) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    async def story() -> None:
        async with app.running():
            await count.later(id="a").aput(5)
            await until(began.is_set)
            outcome = await count.async_queue.cancel("a", running=True, wait="60s")
            assert outcome, str(outcome)
            assert str(outcome) == "a is cancelled"
        assert cleaned.is_set()

    asyncio.run(story())


def test_any_text_of_a_report_comes_back(url: str) -> None:
    with bide.Queue("rows", url) as rows:
        rows.put("a", id="a")
        (delivery,) = rows.claim(1)
        delivery.report(1, text="a\x00b ü \ud800 \"\\ '")
        message = rows.get("a")
        assert message is not None
        assert message.progress is not None
        assert message.progress.text == "a\x00b ü ? \"\\ '"


def test_settings_are_applied(url: str, caplog: pytest.LogCaptureFixture) -> None:
    app = bide.App(url)

    @app.task(queue="calls", result_ttl="1h", history="1d")
    async def call(number: str) -> str:
        return number

    async def story() -> None:
        async with app.running():
            await call.later(id="a").aput("42")
            assert await call.aresult("a", wait=60) == "42"

    caplog.set_level(logging.INFO, "bide.worker")
    for _ in range(2):
        asyncio.run(asyncio.wait_for(story(), 120))
        call.queue.cancel("a")
    said = [r.getMessage() for r in caplog.records if "as the app declares" in r.getMessage()]
    assert said == ["calls: set as the app declares: history 1d, result ttl 1h"]
    assert InternalQueue.DECLARED.value not in bide.queues(url)
    app.close()
