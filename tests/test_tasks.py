"""Each task that bide runs on event loops is in the list of `bide.tasks`, and survives errors."""

import asyncio
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bide import tasks
from bide.clock import SYSTEM_CLOCK
from bide.lane.shared import close_lane, open_lane
from bide.observing.heartbeat import Heartbeat
from bide.server.service import Service
from bide.targets.amqp import intakes
from bide.targets.pusher import Pusher
from bide.targets.rabbitmq.intake import Intake
from bide.tasks import background, unless_stopped
from bide.threads import deaths
from bide.worker.process.supervisor import Supervisor
from tests.servers import free_port
from tests.system.server.client import Client
from tests.system.server.conftest import Serve, serve
from tests.system.worker.processes import health, put, said, wait_for, worker
from tests.test_threads import SOURCE, modules_with

__all__ = ["serve"]

RABBITMQ = "amqp://127.0.0.1:1/?exchange=delays"
"""An exchange of a broker that is not there."""

Break = Callable[[type, str], list[None]]


@pytest.fixture
def break_once(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Provide a function that makes the first call of a method fail, and returns its calls."""

    def break_once(owner: type, name: str) -> list[None]:
        works: Callable[..., Awaitable[object]] = getattr(owner, name)
        calls: list[None] = []

        async def broken(*arguments: Any) -> object:
            calls.append(None)
            if len(calls) == 1:
                raise ZeroDivisionError("a fault of ours")
            return await works(*arguments)

        monkeypatch.setattr(owner, name, broken)
        return calls

    return break_once


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PAUSE", 0.001)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (no event is set)
            await asyncio.sleep(0.005)


# The mechanism.


def test_a_task_that_dies_is_logged_counted_and_restarted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = iter([ZeroDivisionError(), BaseException(), asyncio.CancelledError(), OSError()])

    async def fail() -> None:
        for error in errors:
            raise error

    async def story() -> None:
        died = deaths["bide-test"]
        task = background("bide-test", fail)
        assert task.get_name() == "bide-test"
        await task
        assert deaths["bide-test"] == died + 4

    asyncio.run(story())
    assert "the task bide-test died of ZeroDivisionError(); it is restarted" in caplog.text


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_a_task_that_is_cancelled_ends_whatever_it_raises_then(
    error: type[Exception] | None,
) -> None:
    begun: list[None] = []

    async def wait() -> None:
        begun.append(None)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if error is None:
                raise
            raise error from None

    async def story() -> None:
        task = background("bide-test", wait)
        await until(lambda: begun)
        task.cancel()
        with pytest.raises(error or asyncio.CancelledError):
            await task
        assert len(begun) == 1

    asyncio.run(story())


# The list.


def listed() -> Iterator[tuple[str, str]]:
    """Yield the names of restarted tasks, and their modules."""
    restarted, *_ = (tasks.__doc__ or "").split("If one of these dies")
    yield from re.findall(r"^\| (bide-\S+) \| .+? \| `(bide\..+?)` \|$", restarted, re.MULTILINE)


def test_each_task_is_in_the_list() -> None:
    pattern = re.compile(r"\bbackground\(\"(.+?)\"")
    started = {
        (name, ".".join(("bide", *path.relative_to(SOURCE).with_suffix("").parts)))
        for path in SOURCE.rglob("*.py")
        for name in pattern.findall(path.read_text())
    }
    assert set(listed()) == started
    _, *others = (tasks.__doc__ or "").split("If one of these dies")
    modules = set(re.findall(r"`(bide\..+?)` \|$", "".join(others), re.MULTILINE))
    starts = re.compile(r"\b(?:create_task|ensure_future)\((?!_keep_running)")
    assert modules == modules_with(starts)


# Each of them dies.

OF_A_SERVER: dict[str, tuple[type, str]] = {
    "bide-tokens": (Service, "keep_tokens"),
    "bide-heartbeat": (Heartbeat, "keep"),
    "bide-push": (Pusher, "run"),
    "bide-zones": (Service, "keep_planned"),
    "bide-past": (Service, "keep_past"),
}

OF_A_SUPERVISOR = {"bide-stop-requests": "_hear_requests", "bide-reload": "_watch"}

OF_A_WORKER = {"bide-report", "bide-orphan", "bide-delays", "bide-outbox", "bide-heartbeat"}


def test_each_listed_task_dies_below() -> None:
    names = {*OF_A_SERVER, *OF_A_SUPERVISOR, *OF_A_WORKER, "bide-intake"}
    assert {name for name, _ in listed()} == names


@pytest.mark.parametrize("name", OF_A_SERVER)
def test_the_tasks_of_a_server_go_on_and_are_shown(
    name: str, serve: Serve, break_once: Break
) -> None:
    calls = break_once(*OF_A_SERVER[name])
    client: Client = serve()
    asyncio.run(until(lambda: len(calls) == 2))
    readiness = client.get("/readyz")
    assert readiness.status == 200
    assert readiness.json == {"status": "ready", "thread_restarts": {name: 1}}


def test_the_tasks_of_a_pusher_go_on(tmp_path: Path, break_once: Break) -> None:
    async def story() -> None:
        intake, heartbeat = break_once(Intake, "run"), break_once(Heartbeat, "keep")
        lane = open_lane(f"sqlite:///{tmp_path}/bide.db")
        died = deaths.copy()
        pusher = Pusher(lane, SYSTEM_CLOCK, intakes=intakes([RABBITMQ]))
        pushing = asyncio.create_task(pusher.run(0))
        await until(lambda: len(intake) == len(heartbeat) == 2)
        pushing.cancel()
        await asyncio.wait([pushing])
        close_lane(lane)
        assert deaths - died == {"bide-intake": 1, "bide-heartbeat": 1}

    asyncio.run(story())


def test_the_tasks_of_a_supervisor_go_on(tmp_path: Path, break_once: Break) -> None:
    async def story() -> None:
        calls = [break_once(Supervisor, method) for method in OF_A_SUPERVISOR.values()]
        died = deaths.copy()
        sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
        supervisor = Supervisor(sleeping, folder=tmp_path)
        running = asyncio.create_task(supervisor.run())
        await until(lambda: [len(one) for one in calls] == [2, 2])
        supervisor.stop()
        supervisor.stop()
        await running
        assert deaths - died == dict.fromkeys(OF_A_SUPERVISOR, 1)

    asyncio.run(story())


FALLIBLE = """
import asyncio, bide
from bide.observing.heartbeat import Heartbeat
from bide.outbox.forwarder import Forwarder
from bide.targets.pusher import Pusher
from bide.worker.process.runner import Runner

app = bide.App()

@app.handler("q")
async def handle(body: dict) -> None:
    print("handled", flush=True)

def break_once(owner, name):
    works, failed = getattr(owner, name), []

    def broken(*arguments):
        if not failed:
            failed.append(True)
            raise ZeroDivisionError("a fault of ours")
        return works(*arguments)

    setattr(owner, name, broken)

for owner, name in (
    (Runner, "tallies"), (asyncio.StreamReader, "read"), (Pusher, "run"), (Forwarder, "run"),
    (Heartbeat, "keep"),
):
    break_once(owner, name)
"""


@pytest.mark.process
def test_the_tasks_of_a_worker_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIDE_RABBITMQ", RABBITMQ)
    monkeypatch.setenv("BIDE_OUTBOX", f"sqlite:///{tmp_path}/shop.db")
    port = free_port()

    def restarted() -> set[str]:
        lines = health(port)
        return set(re.findall(r"^restarts of (\S+): \d+$", lines, re.MULTILINE))

    with worker(tmp_path, FALLIBLE, "--health-port", str(port)) as process:
        wait_for(said(tmp_path, "at work on q"), tmp_path)
        wait_for(lambda: restarted() >= OF_A_WORKER, tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, "handled"), tmp_path)
        process.kill()
        wait_for(said(tmp_path, "the supervisor has died; stopping"), tmp_path)


def test_work_ends_at_a_signal_and_the_handlers_are_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    ends: list[str] = []

    async def work() -> str:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("ended")
        return "never"

    assert asyncio.run(unless_stopped(work())) is None
    assert ends == ["ended"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_work_that_no_signal_stops_returns_or_raises() -> None:
    async def work(result: int) -> int:
        return 6 // result

    assert asyncio.run(unless_stopped(work(2))) == 3
    with pytest.raises(ZeroDivisionError):
        asyncio.run(unless_stopped(work(0)))
