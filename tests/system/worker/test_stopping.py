"""Leaving: what runs finishes within the grace, or is handed back; by signals and requests."""

import asyncio
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.consuming.consumer import Consumer
from bide.consuming.store_client import StoreClient
from bide.engines.memory import MemoryEngine
from bide.lane.lane import Lane
from bide.lane.steps import run_steps
from bide.model.commands import Claim, Find, Put, RetryCommand
from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.model.replies import Claimed, Found
from bide.observing.heartbeat import Report, put_report
from bide.observing.workers import STOPS, request_stop, take_requests
from bide.testing import FakeClock, FlakyEngine
from bide.testing.hooks import count_waiting, lane_of
from bide.worker.process.runner import Runner
from tests.system.worker.processes import (
    APP,
    BOUND,
    children,
    counts,
    log,
    put,
    said,
    wait_for,
    worker,
)
from tests.system.worker.worker_app import PATIENCE, Scene, entered, until


async def start(scene: Scene, **options: Any) -> tuple[Runner, "asyncio.Task[None]"]:
    ready = asyncio.Event()
    runner = Runner(scene.app, lane=scene.lane, ready=ready.set, **options)
    task = asyncio.create_task(runner.run())
    await ready.wait()
    return runner, task


def any_entered(runner: Runner) -> Callable[[], bool]:
    return lambda: any(entered(one) for one in runner.consumers["q"].running)


def test_an_idle_worker_leaves_at_once(scene: Scene) -> None:
    async def story() -> None:
        scene.app.handler("q")(lambda body: None)
        runner, task = await start(scene)
        runner.stop()
        await task
        await scene.put(1)
        assert (await scene.counts()).sizes.ready + (await scene.counts()).sizes.delayed == 1

    scene.play(story())


def test_what_runs_may_finish_and_nothing_new_is_claimed(scene: Scene) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            await gate.wait()

        await scene.put(1, id="first")
        runner, task = await start(scene)
        await until(any_entered(runner))
        runner.stop()
        await asyncio.sleep(0.02)
        await scene.put(2, id="second")
        scene.clock.advance(29)
        assert not task.done()
        gate.set()
        await task
        counts = await scene.counts()
        assert (counts.flow.acked, counts.sizes.leased, counts.sizes.total) == (1, 0, 1)

    scene.play(story())


def test_what_a_claim_brings_in_the_moment_of_leaving_goes_back(scene: Scene) -> None:
    class Leaving(StoreClient):
        async def patiently(self, *arguments: Any) -> Any:
            reply = await super().patiently(*arguments)
            if isinstance(reply, Claimed):  # done, but its consumer does not know yet
                asyncio.get_running_loop().call_soon(tasks[0].cancel)
            return reply

    tasks: list[asyncio.Task[None]] = []

    async def story() -> None:
        scene.app.handler("q")(lambda body: None)
        store_client, queue_handlers = (
            Leaving(scene.lane, scene.clock),
            scene.app.queue_handlers["q"],
        )
        consumer = Consumer(queue_handlers, (), scene.app.state, store_client, "worker")
        await scene.put(1, 2)
        tasks[:] = [asyncio.create_task(work()) for work in (consumer.claim, consumer.settle)]
        await asyncio.wait(tasks[:1])
        assert tasks[0].cancelled()
        consumer.leave()
        await consumer.until_quiet()
        tasks[1].cancel()
        counts = await scene.counts()
        assert (counts.sizes.ready, counts.sizes.leased) == (2, 0)
        assert (await scene.find("q-0")).attempt == 0
        await consumer.close()

    scene.play(story())


def test_leases_are_extended_during_the_grace(scene: Scene) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q", lease="6s")
        async def handle(_: Any) -> None:
            await gate.wait()

        await scene.put(1)
        runner, task = await start(scene)
        await until(any_entered(runner))
        runner.stop()
        for _ in range(20):
            await scene.step(1)
        gate.set()
        await task
        assert (await scene.counts()).flow.lapsed == 0
        assert (await scene.counts()).flow.acked == 1

    scene.play(story())


def test_what_has_not_finished_within_the_grace_is_handed_back_untouched(scene: Scene) -> None:
    begun, over = threading.Event(), threading.Event()

    async def story() -> None:
        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            await asyncio.Event().wait()

        def plain(delivery: bide.Handling) -> None:
            begun.set()
            delivery.lost.wait(PATIENCE)
            over.set()

        scene.app.handler("plain")(plain)
        await scene.put(1)
        await scene.put(2, queue="plain")
        runner, task = await start(scene, grace=10)
        await until(any_entered(runner))
        await until(begun.is_set)
        runner.stop()
        await scene.pass_time(task.done)
        await task
        for queue in ("q", "plain"):
            found = await scene.find(f"{queue}-0", queue)
            assert (found.state, found.attempt, found.failures) == ("ready", 0, ())
        assert all(command.release for command in scene.sent(RetryCommand))
        assert over.wait(PATIENCE)

    scene.play(story())


def test_a_second_stop_hands_back_at_once(scene: Scene) -> None:
    async def story() -> None:
        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            await asyncio.Event().wait()

        await scene.put(1)
        runner, task = await start(scene)
        await until(any_entered(runner))
        runner.stop()
        await asyncio.sleep(0.02)
        runner.stop(hurry=True)
        await task  # the clock stands still
        assert (await scene.find("q-0")).state == "ready"

    scene.play(story())


def test_a_handler_that_refuses_to_end_is_left_behind(scene: Scene) -> None:
    async def story() -> None:
        over = asyncio.Event()

        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue

        await scene.put(1)
        runner, task = await start(scene)
        await until(any_entered(runner))
        runner.stop(hurry=True)
        await asyncio.sleep(0.02)
        assert not task.done()
        await scene.pass_time(task.done)
        await task
        assert (await scene.find("q-0")).state == "ready"
        over.set()
        await asyncio.sleep(0)

    scene.play(story())


def test_what_was_started_in_the_last_moment_is_handed_back(scene: Scene) -> None:
    """A task that is cancelled before its first step never runs a line of itself."""

    async def story() -> None:
        began: list[Any] = []

        @scene.app.handler("q")
        async def handle(body: Any) -> None:
            began.append(body)
            await asyncio.Event().wait()

        await scene.put(*range(3))
        runner, task = await start(scene)
        consumer = runner.consumers["q"]
        while not consumer.running:  # noqa: ASYNC110  (the very turn of the loop counts)
            await asyncio.sleep(0)
        assert not began
        consumer.release_running()
        runner.stop()
        await task
        assert not began
        assert (await scene.counts()).flow.retried == 0

    scene.play(story())


def test_a_store_that_is_away_keeps_nobody_from_leaving(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        @scene.app.handler("q")
        async def handle(_: Any) -> None:
            await gate.wait()

        await scene.put(1)
        runner, task = await start(scene, grace=3)
        await until(any_entered(runner))
        scene.engine.fail(bide.StoreUnavailable("gone"), times=None)
        gate.set()
        await until(lambda: runner.consumers["q"].to_settle)
        runner.stop()
        while not task.done():
            scene.clock.advance(1)
            await asyncio.sleep(0.01)
        await task

    caplog.set_level("INFO")
    scene.play(story())
    assert "stopping; 1 to settle in the store, with 3 s to finish" in caplog.text
    assert "their leases expire" in caplog.text


def test_a_worker_of_which_a_part_fails_leaves_no_handler_without_a_lease(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, told = list[str](), list[str]()

    @scene.app.handler("q", concurrency=1)
    async def handle(body: str) -> None:
        begun.append(body)
        try:
            await asyncio.Event().wait()
        finally:
            told.append(body)

    @scene.app.handler("r", concurrency=1)
    def handle_plainly(body: str, delivery: bide.Handling) -> None:
        begun.append(body)
        if delivery.lost.wait(60):
            told.append(body)

    async def story() -> None:
        fails = asyncio.Event()

        async def fail(consumer: Consumer) -> None:
            await fails.wait()
            raise RuntimeError("a part has failed")

        monkeypatch.setattr(Consumer, "lapse", fail)
        await scene.put("a")
        await scene.put("b", queue="r")
        running = asyncio.create_task(Runner(scene.app, lane=scene.lane).run())
        await until(lambda: sorted(begun) == ["a", "b"])
        fails.set()
        with pytest.raises(RuntimeError, match="a part has failed"):
            await running
        await until(lambda: sorted(told) == ["a", "b"])
        for queue in "qr":
            counts = await scene.counts(queue)
            assert (counts.sizes.ready, counts.flow.lapsed) == (1, 0)

    scene.play(story())


def test_no_claim_is_left_behind(scene: Scene) -> None:
    async def story() -> None:
        scene.app.handler("q")(lambda body: None)
        for _ in range(3):
            runner, task = await start(scene)
            await until(lambda: count_waiting(scene.lane) == 1)
            runner.stop()
            await task
            assert count_waiting(scene.lane) == 0
        assert len(scene.sent(Claim)) == 3

    scene.play(story())


def test_an_app_without_handlers_is_refused() -> None:
    app = bide.App("memory://")

    async def story() -> None:
        with pytest.raises(bide.InvalidArgument, match="the app has no handlers"):
            Runner(app)
        app.handler("q")(lambda body: None)
        with pytest.raises(bide.InvalidArgument, match=r"queue 'r' has no handler in the app.*: q"):
            Runner(app, ["q", "r"])

    asyncio.run(story())


def test_only_the_queues_that_were_asked_for(scene: Scene) -> None:
    async def story() -> None:
        scene.app.handler("q")(lambda body: None)
        scene.app.handler("other")(lambda body: None)
        await scene.put(1)
        await scene.put(1, queue="other")
        async with scene.at_work(queues=["q"]):
            await scene.acked(1)
        assert (await scene.counts("other")).flow.acked == 0

    scene.play(story())


def test_a_runner_opens_and_closes_the_store_of_its_app(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    app = bide.App(url)
    handled = asyncio.Event()

    @app.handler("q")
    async def handle(_: Any) -> None:
        handled.set()

    async def story() -> None:
        async with bide.AsyncQueue("q", url) as queue:
            runner = Runner(app)
            task = asyncio.create_task(runner.run())
            await queue.put(1)
            await asyncio.wait_for(handled.wait(), PATIENCE)
            runner.stop()
            await task
            assert (await queue.counts()).flow.acked == 1

    asyncio.run(story())


HANGS = """
import os, time, bide
app = bide.App()
first = not os.path.exists("hangs")  # on a busy machine what is acked at once may take a while

@app.handler("q", lease="2s" if first else "1m")
async def handle(body: dict, delivery: bide.Handling) -> None:
    open("hangs", "w").close()
    print("VERSION began", flush=True)
    if delivery.attempt == 1:
        time.sleep(600)  # nothing else of the process runs meanwhile
    print("VERSION ended", flush=True)
"""


@pytest.mark.process
def test_a_process_that_hangs_is_replaced_when_it_is_asked_for(tmp_path: Path) -> None:
    put(tmp_path)
    with worker(tmp_path, HANGS) as process:
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        (hung,) = children(process)
        name = f"{socket.gethostname()}:{hung}"
        url = f"sqlite:///{tmp_path}/bide.db"
        (found,) = bide.workers(url)
        assert (found.holder, found.queues, found.stops) == (name, ["q"], STOPS)
        assert bide.stop_worker(name, url, actor="ann", wait=60)
        wait_for(said(tmp_path, "VERSION ended"), tmp_path)
        wait_for(lambda: counts(tmp_path).flow.acked == 1, tmp_path)
        assert "is replaced: ann asked for it" in log(tmp_path)
        os.kill(hung, signal.SIGKILL)  # its supervisor would after the grace
    assert counts(tmp_path).flow.lapsed == 1


class Store:
    """A store in memory with a clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.engine = FlakyEngine(MemoryEngine())
        self.lane = Lane(lambda: self.engine, self.clock)

    def ask(self, holder: str, actor: str | None = "ann") -> None:
        self.lane.call(request_stop(STOPS, holder, actor))

    def take(self, *holders: str) -> dict[str, str]:
        return run_steps(take_requests(list(holders)), self.lane.call)

    def waiting(self, holder: str) -> bool:
        reply = self.lane.call(Find(STOPS, [holder]))
        assert isinstance(reply, Found)
        return reply.messages != [None]


def test_a_request_is_taken_once_and_by_its_own_supervisor() -> None:
    store = Store()
    store.ask("web1:7")
    assert store.take("web1:8") == {}
    assert store.take("web1:8", "web1:7") == {"web1:7": "ann"}
    assert store.take("web1:7") == {}


def test_a_request_that_is_too_old_is_void() -> None:
    store = Store()
    store.ask("web1:7")
    store.clock.advance(61)  # the name may belong to another process by now
    assert store.take("web1:7") == {}
    assert not store.waiting("web1:7")
    store.lane.call(Put(STOPS, [Item("web1:7", b"not a request", json=False, delay=60_000)]))
    assert store.take("web1:7") == {}


def test_a_request_without_its_body_counts() -> None:
    """A server may withhold it, and the request is gone once it is taken."""
    store = Store()
    store.lane.call(Put(STOPS, [Item("web1:7", b"", delay=60_000)]))
    assert store.take("web1:7") == {"web1:7": "an unknown user"}


def test_a_request_outlives_a_look_at_a_store_that_is_away() -> None:
    store = Store()
    store.ask("web1:7", None)
    store.engine.fail(bide.StoreUnavailable("away"))
    with pytest.raises(bide.StoreUnavailable):
        store.take("web1:7")
    assert store.take("web1:7") == {"web1:7": "an unknown user"}


def test_who_cannot_be_replaced_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    with pytest.raises(InvalidArgument, match="no running worker is named 'web1:7'"):
        bide.stop_worker("web1:7", url)
    with bide.Queue("bide:workers", url) as register:
        command = put_report("push", Report({"push:web1": ["q"]}))
        lane_of(register).call(command)
        command = put_report("web1:7", Report({"web1:7": ["q"]}, supervised=True))
        lane_of(register).call(command)
    with pytest.raises(InvalidArgument, match="push:web1 has no supervisor"):
        bide.stop_worker("push:web1", url)
    assert not bide.stop_worker("web1:7", url, wait=0.5)  # nobody is there
    with bide.Queue(STOPS, url) as requests:
        assert requests.counts().sizes.total == 0


TAKE_TERMINAL = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
WORK = 'import os, sys; os.execv(sys.executable, [sys.executable, "-m", "bide", *sys.argv[1:]])'
IGNORE = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "


@contextmanager
def in_terminal(folder: Path, before: str = "") -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Run `bide worker` with a terminal as stdin; provide it, and the other end of the terminal."""
    (folder / "jobs.py").write_text(APP)
    environment = {**os.environ, "BIDE_URL": f"sqlite:///{folder / 'bide.db'}"}
    ours, theirs = pty.openpty()
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", before + WORK, "worker", "jobs:app"],
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()


@pytest.mark.process
def test_a_closed_terminal_lets_handlers_finish_and_ends_the_worker(tmp_path: Path) -> None:
    put(tmp_path, sleep=1)
    with in_terminal(tmp_path, TAKE_TERMINAL) as (process, terminal):
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        os.close(terminal)
        assert process.wait(BOUND) == 0
    assert said(tmp_path, "VERSION ended")()
    assert said(tmp_path, "the terminal was closed (SIGHUP): stopping")()
    assert counts(tmp_path).flow.acked == 1


@pytest.mark.process
def test_the_second_signal_of_a_closed_terminal_hurries_nobody(tmp_path: Path) -> None:
    put(tmp_path, sleep=1)
    with in_terminal(tmp_path) as (process, terminal):
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "stopping"), tmp_path)
        process.send_signal(signal.SIGHUP)
        assert process.wait(BOUND) == 0
        os.close(terminal)
    assert said(tmp_path, "VERSION ended")()


@pytest.mark.process
def test_a_worker_that_ignores_closed_terminals_reloads(tmp_path: Path) -> None:
    with in_terminal(tmp_path, IGNORE) as (process, terminal):
        wait_for(said(tmp_path, "at work on q"), tmp_path)
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "at work on q", 2), tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(BOUND) == 0
        os.close(terminal)
