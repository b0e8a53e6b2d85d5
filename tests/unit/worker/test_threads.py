"""The threads of plain handlers."""

import asyncio
import threading
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest

from bide.consuming.handler_threads import HandlerThreads
from bide.consuming.run import Threads
from tests.waiting import until


def call_of(function: Any) -> Any:
    """Return a delivery whose handler is a function without arguments."""
    one = SimpleNamespace(returned=None, stopping=False, outcome_ignored=False, thread=None)
    one.handler = SimpleNamespace(name="handler", call=lambda _: function())
    return one


def test_a_call_that_comes_with_the_end_of_a_job_waits_for_no_other_handler() -> None:
    async def story() -> None:
        loop, threads = asyncio.get_running_loop(), Threads(2)
        long_done, may_end = threading.Event(), threading.Event()
        began, next_ran = asyncio.Event(), asyncio.Event()

        def end_late() -> None:
            loop.call_soon_threadsafe(began.set)
            may_end.wait()

        def ended(one: Any, error: BaseException | None) -> None:
            if one is quick:
                threads.call(call_of(lambda: None), copy_context(), next_one_ended)

        def next_one_ended(one: Any, error: BaseException | None) -> None:
            next_ran.set()

        quick = call_of(end_late)
        threads.call(call_of(long_done.wait), copy_context(), ended)
        threads.call(quick, copy_context(), ended)
        await began.wait()
        may_end.set()
        until(lambda: len(threads._results) == 2)  # its end, and that of its job
        try:
            await asyncio.wait_for(next_ran.wait(), 5)
        finally:
            long_done.set()
            threads.close()

    asyncio.run(story())


@pytest.mark.parametrize("reason", ["stopping", "outcome_ignored"])
def test_a_call_that_is_no_longer_wanted_when_it_gets_a_thread_never_begins(reason: str) -> None:
    async def story() -> None:
        loop, threads = asyncio.get_running_loop(), Threads(1)
        began, may_end = asyncio.Event(), threading.Event()
        calls: list[str] = []
        errors: asyncio.Queue[BaseException | None] = asyncio.Queue()

        def occupy() -> None:
            loop.call_soon_threadsafe(began.set)
            may_end.wait()

        def ended(_: Any, error: BaseException | None) -> None:
            errors.put_nowait(error)

        unwanted = call_of(lambda: calls.append("unwanted"))
        threads.call(call_of(occupy), copy_context(), ended)
        threads.call(unwanted, copy_context(), ended)
        await began.wait()
        setattr(unwanted, reason, True)
        may_end.set()
        assert await errors.get() is None
        assert isinstance(await errors.get(), asyncio.CancelledError)
        assert calls == []
        threads.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_after_the_end_no_call_is_accepted() -> None:
    executor = HandlerThreads(1, "test")
    assert executor.submit(int).result(60) == 0
    executor.shutdown()
    with pytest.raises(RuntimeError, match="they make no more calls"):
        executor.submit(int)


def refuse(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_call_for_which_the_system_has_no_thread_is_never_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor, calls, may_end = HandlerThreads(2, "test"), list[str](), threading.Event()
    first = executor.submit(may_end.wait)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            executor.submit(calls.append, "refused")
    last = executor.submit(calls.append, "last")
    may_end.set()
    first.result(60)
    last.result(60)
    executor.shutdown()
    assert calls == ["last"]


def test_a_handler_for_which_the_system_has_no_thread_is_never_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        threads, calls, ended = Threads(1), list[str](), asyncio.Event()
        refused = call_of(lambda: calls.append("refused"))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                threads.call(refused, copy_context(), lambda *_: None)
        last = call_of(lambda: calls.append("last"))
        threads.call(last, copy_context(), lambda *_: ended.set())
        await asyncio.wait_for(ended.wait(), 60)
        assert calls == ["last"]
        threads.close()

    asyncio.run(story())
