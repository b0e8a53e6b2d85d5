"""A worker inside a program: `async with app.running()`."""

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.engines.memory import MemoryEngine
from bide.engines.port import Capabilities, Identities
from bide.engines.registry import opener
from bide.lane.lane import Lane
from bide.model.commands import Command, Scan
from bide.model.replies import Page, Reply
from bide.observing import heartbeat
from bide.testing.faults import EngineWrapper
from bide.worker.process.in_process import InProcessWorker
from bide.worker.process.runner import Runner
from tests.servers import RedisServer
from tests.system.worker.processes import BOUND
from tests.system.worker.worker_app import until


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, BOUND))


def app_of(url: str, handled: list[Any], **options: Any) -> bide.App:
    app = bide.App(url, **options)

    @app.handler("q")
    async def handle(body: Any) -> None:
        handled.append(body)

    return app


def trouble(worker: InProcessWorker, text: str | None) -> Callable[[], bool]:
    return lambda: worker.trouble() == text


@pytest.fixture
def redis(tmp_path: Path) -> Any:
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis", appendonly="yes")
    yield server
    server.stop()


def test_a_store_that_is_down_at_the_start_is_waited_for(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The cause of a worker in a web application that handled nothing, and said nothing."""
    handled: list[Any] = []

    url = f"{redis.url}?reconnect=100ms"

    async def story() -> None:
        redis.stop()
        async with app_of(url, handled).running() as worker:
            await until(trouble(worker, "the store is away"))
            await asyncio.to_thread(redis.start)
            await worker.ready()
            await until(trouble(worker, None))
            async with bide.AsyncQueue("q", url) as queue:
                await queue.put(1)
                await until(lambda: handled == [1])
                await asyncio.to_thread(redis.stop)
                await until(trouble(worker, "the store is away"))
                await asyncio.to_thread(redis.start)
                await until(trouble(worker, None))
                await queue.put(2)
                await until(lambda: handled == [1, 2])
        assert worker.trouble() == "the worker does not run"

    play(story())
    assert caplog.text.count("the store is away; waiting for it") == 2
    assert caplog.text.count("the store is back after") == 2


@pytest.mark.parametrize("began", [True, False])
def test_a_lifespan_that_fails_at_its_end_ends_the_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, began: bool
) -> None:
    entering = asyncio.Event()

    @asynccontextmanager
    async def pool(app: bide.App) -> AsyncIterator[None]:
        try:
            entering.set()
            if not began:
                await asyncio.Event().wait()
            yield
        finally:
            raise RuntimeError("the pool was closed already")

    async def story() -> None:
        app = app_of(f"sqlite:///{tmp_path}/bide.db", [], lifespan=pool)
        async with app.running() as worker:
            await (worker.ready() if began else entering.wait())
        assert worker.trouble() == "the worker does not run"

    play(story())
    assert "the worker has failed at its end: the pool was closed already" in caplog.text


def test_a_worker_that_is_cancelled_before_it_claims_leaves_nothing_behind() -> None:
    reading, may_answer = threading.Event(), threading.Event()

    class Slow(EngineWrapper):
        """Answers late when the worker reads the reports of others."""

        capabilities = Capabilities()

        def execute(
            self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
        ) -> list[Reply]:
            if any(isinstance(one, Scan) and one.queue == heartbeat.REGISTER for one in commands):
                reading.set()
                may_answer.wait()
            return super().execute(commands, now)

    async def story() -> None:
        app = app_of("memory://", [])

        @app.schedule("ticks", every="1h")
        async def tick(tick: bide.Tick) -> None: ...

        lane = Lane(lambda: Slow(MemoryEngine()))
        runner = Runner(app, lane=lane)
        before = asyncio.all_tasks()
        running = asyncio.create_task(runner.run())
        await asyncio.to_thread(reading.wait)
        running.cancel()
        await asyncio.wait([running])
        may_answer.set()
        assert asyncio.all_tasks() == before
        assert not [one for one in threading.enumerate() if one.name == "bide-watch"]
        await asyncio.to_thread(lane.close)

    play(story())


def test_it_ends_while_the_store_is_down(redis: RedisServer) -> None:
    url = f"{redis.url}?reconnect=100ms"

    async def story() -> None:
        redis.stop()
        async with app_of(url, []).running() as worker:
            await until(trouble(worker, "the store is away"))

    play(story())


def test_a_file_that_cannot_be_opened_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[Any] = []
    folder = tmp_path / "later"
    url = f"sqlite:///{folder}/bide.db"

    async def story() -> None:
        async with app_of(url, handled).running() as worker:
            failed = "the worker has failed (StoreUnavailable), and begins again"
            await until(trouble(worker, failed))
            folder.mkdir()
            async with bide.AsyncQueue("q", url) as queue:
                await queue.put(1)
                await until(lambda: handled == [1])
            assert worker.trouble() is None

    play(story())
    assert "the worker has failed: there is no directory" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_lifespan_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    tries = 0

    @asynccontextmanager
    async def lifespan(app: bide.App) -> AsyncIterator[None]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("the database is not there yet")
        yield

    async def story() -> None:
        async with app_of("memory://", [], lifespan=lifespan).running() as worker:
            await worker.ready()
        assert tries == 2

    play(story())
    assert "the worker has failed: the database is not there yet; it begins again in" in caplog.text
    assert "Traceback" in caplog.text


def test_two_are_listed_while_they_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"

    async def story() -> None:
        lane = Lane(opener(url))

        def holders() -> list[str]:
            reply = lane.call(Scan(heartbeat.REGISTER))
            assert isinstance(reply, Page)
            reports = [heartbeat.read(message) for message in reply.messages]
            return sorted(holder for report in reports if report for holder in report.workers)

        async with app_of(url, []).running(), app_of(url, []).running():
            await until(lambda: len(holders()) == 2)
            first, second = holders()
            assert first != second
            with pytest.raises(bide.InvalidArgument, match="has no supervisor"):
                await asyncio.to_thread(bide.stop_worker, second, url)
        assert holders() == []
        await asyncio.to_thread(lane.close)

    play(story())


def test_handlers_get_the_grace_to_finish() -> None:
    async def story() -> None:
        app = bide.App("memory://")
        began, ended = asyncio.Event(), []

        @app.handler("q")
        async def handle(body: Any) -> None:
            began.set()
            try:
                await asyncio.sleep(0 if body == "quick" else 1000)
            finally:
                ended.append(body)

        async with bide.AsyncQueue("q", "memory://") as queue:
            async with app.running(grace="10ms"):
                await queue.put("slow", id="slow")
                await began.wait()
            assert ended == ["slow"]
            found = await queue.get("slow")
            assert found is not None
            assert (found.state, found.attempt) == ("ready", 0)

    play(story())


HANGING = """
import asyncio, sys, threading
import bide

url, batch = sys.argv[1], int(sys.argv[2])
app = bide.App(url)
begun = threading.Event()

@app.handler("q", batch=batch or None)
def hang(body):
    begun.set()
    threading.Event().wait()

async def program():
    async with app.running(grace=0):
        await asyncio.to_thread(begun.wait)

asyncio.run(program())
print("stopped")
"""


@pytest.mark.process
@pytest.mark.parametrize("batch", [0, 2], ids=["one by one", "in batches"])
def test_a_program_ends_beside_a_plain_handler_that_hangs(tmp_path: Path, batch: int) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    with bide.Queue("q", url) as queue:
        queue.put("stuck", id="stuck")
        command = [sys.executable, "-c", HANGING, url, str(batch)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
        assert (done.returncode, done.stdout) == (0, "stopped\n")
        assert "a handler does not end; the process ends anyway" in done.stderr
        (delivery,) = queue.claim()
        assert (delivery.id, delivery.attempt) == ("stuck", 1)


def test_an_error_of_the_program_ends_it() -> None:
    async def story() -> None:
        worker = app_of("memory://", []).running()

        async def program() -> None:
            async with worker:
                await worker.ready()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await program()
        assert worker.trouble() == "the worker does not run"

    play(story())


def test_a_cancelled_program_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        ready = asyncio.Event()

        async def program() -> None:
            async with app_of("memory://", []).running() as worker:
                await worker.ready()
                ready.set()
                await asyncio.Event().wait()

        before = asyncio.all_tasks()
        task = asyncio.create_task(program())
        await ready.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before

    caplog.set_level(logging.WARNING)
    play(story())
    assert caplog.text == ""


@pytest.mark.parametrize("cancels", [1, 2])
def test_a_program_that_is_cancelled_at_its_end_releases_messages(cancels: int) -> None:
    async def story() -> None:
        app = bide.App("memory://")
        steps: list[str] = []
        began, leaving, interrupted = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @app.handler("q")
        async def handle(body: Any, delivery: bide.Handling) -> None:
            try:
                began.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                interrupted.set()
                if cancels == 2:
                    await asyncio.Event().wait()
                raise
            finally:
                steps.append("handler")

        async def program() -> None:
            async with app.running(grace="1h"):
                try:
                    await asyncio.Event().wait()
                finally:
                    leaving.set()

        async with bide.AsyncQueue("q", "memory://") as queue:
            task = asyncio.create_task(program())
            await queue.put(1, id="m")
            await began.wait()
            task.cancel()
            await leaving.wait()
            task.cancel()
            if cancels == 2:
                await interrupted.wait()
                task.cancel()
            await asyncio.wait([task])
            steps.append("program")
            assert task.cancelled()
            if cancels == 1:
                assert steps == ["handler", "program"]
            (delivery,) = await queue.claim(wait=BOUND)
            assert delivery.attempt == 1
            await until(lambda: "handler" in steps)

    play(story())


def test_what_cannot_run_is_refused_at_once() -> None:
    app = bide.App("memory://")
    with pytest.raises(bide.InvalidArgument, match="the app has no handlers"):
        app.running()
    app.handler("q")(lambda body: None)
    with pytest.raises(bide.InvalidArgument, match="queue 'r' has no handler"):
        app.running(["r"])

    async def story() -> None:
        worker = app.running()
        async with worker:
            await worker.ready()
        with pytest.raises(bide.WrongContext, match=r"call app.running\(\)"):
            async with worker:
                raise AssertionError("it runs twice")

    play(story())


def test_in_a_test_with_a_store_of_its_own_it_claims_nothing(bide_store: Any) -> None:
    """Else it would work on the real store, or compete with the worker of the test."""
    handled: list[Any] = []
    app = app_of("redis://nowhere.invalid", handled)

    async def story() -> None:
        async with bide.AsyncQueue("q") as queue, app.running() as worker:
            await queue.put(1)
            await worker.ready()
            assert worker.trouble() is None

    play(story())
    assert handled == []
    assert bide_store.queue("q").counts().sizes.ready == 1


FORKING = """
import os, sys, threading

from bide.consuming.handler_threads import HandlerThreads

executor = HandlerThreads(2, "handler")
begun, is_held, may_go_on = threading.Event(), threading.Event(), threading.Event()
start = threading.Thread.start


def handle():
    begun.set()
    may_go_on.wait()


def start_late(thread):
    if thread.name == "handler_1":  # the lock of the executor is held
        is_held.set()
        may_go_on.wait()
    start(thread)


executor.submit(handle)
begun.wait()
threading.Thread.start = start_late
submitting = threading.Thread(target=executor.submit, args=(int,))
submitting.start()
is_held.wait()
child = os.fork()
if not child:
    sys.exit()
os.waitpid(child, 0)
may_go_on.set()
submitting.join()  # at its end Python 3.12 starts no thread
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="it has no fork")
def test_a_forked_child_ends_beside_the_handlers_of_its_parent() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
    assert (done.returncode, done.stderr) == (0, "")
