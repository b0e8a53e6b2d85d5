"""Each thread that bide starts is in the list of `bide.threads`, and is restarted if it dies."""

import asyncio
import re
import threading
from pathlib import Path

import pytest

import bide
from bide import threads

SOURCE = Path(threads.__file__).parent

STARTS = re.compile(r"\bthreading\.(?:Thread|Timer)\(|\bThreadPoolExecutor\(|start_new_thread\(")
"""What starts a thread by other means than `Background`."""


def modules_with(pattern: re.Pattern[str]) -> set[str]:
    return {
        ".".join(("bide", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in SOURCE.rglob("*.py")
        if pattern.search(path.read_text()) and path != Path(threads.__file__)
    }


def listed(table: str) -> dict[str, str]:
    """Return the modules of a table, by the names of their threads."""
    rows = re.findall(r"^\| (.+?) \| .+? \| `(bide\..+?)` \|$", table, re.MULTILINE)
    return dict(rows)


def test_each_thread_is_in_the_list_and_those_that_can_die_are_restarted() -> None:
    restarted, others = (threads.__doc__ or "").split("The others")
    assert set(listed(restarted).values()) == modules_with(re.compile(r"\bBackground\(\""))
    assert set(listed(others).values()) == modules_with(STARTS)


def test_the_list_has_the_names_that_the_threads_have() -> None:
    restarted, _ = (threads.__doc__ or "").split("The others")
    for name, module in listed(restarted).items():
        path = SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py")
        assert f'Background("{name}", ' in path.read_text()


def test_work_is_done_without_the_thread_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A task waits for it, and nothing else wakes the task."""
    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if thread.name == "bide-lane":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_others)

    async def put() -> bide.Counts:
        async with bide.AsyncQueue("orders", "memory://no-threads") as orders:
            await orders.put({"order": 42})
            return await orders.counts()

    assert asyncio.run(put()).sizes.ready == 1
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("bide-lane: no thread of this name (can't start new thread)")


def test_a_call_for_which_the_system_has_no_thread_is_made_once() -> None:
    calls: list[int] = []

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def story() -> None:
        loop, may_end = asyncio.get_running_loop(), threading.Event()
        busy = loop.run_in_executor(None, may_end.wait)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            await threads.in_thread(calls.append, 1)
        may_end.set()
        await busy
        await loop.run_in_executor(None, int)  # after all that the pool has queued

    asyncio.run(story())
    assert calls == [1]
