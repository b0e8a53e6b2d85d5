"""`bide worker --celery`, as a process, on a broker that comes and goes."""

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery

import bide
from bide.contrib.celery import delays, install
from bide.importing.celery import TaskMessage
from bide.testing import ManualWorker
from bide.worker.app.loading import load
from tests.servers import RedisServer
from tests.system.worker.processes import children, log, said, wait_for, worker

SOURCE = """
from celery import Celery
from bide.contrib.celery import install

app = Celery("jobs", broker="redis+socket://BROKER")
install(app)
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    return SOURCE.replace("BROKER", str(tmp_path / "redis.sock"))


def plain() -> Any:
    return Celery("jobs", set_as_current=False)


def installed() -> Any:
    app = plain()
    install(app)
    return app


def put(folder: Path, *ids: str) -> None:
    """Put tasks that are due, as `apply_async` does."""
    app = Celery("jobs", broker="memory://", set_as_current=False)
    install(app, f"sqlite:///{folder / 'bide.db'}")
    for id in ids:
        app.send_task("shop.expire", (1,), countdown=0.001, task_id=id)
    app.close()


def sizes(folder: Path) -> tuple[int, int, int]:
    """Return how many tasks wait, how many were published, and how many attempts failed."""
    with bide.Queue("celery", f"sqlite:///{folder / 'bide.db'}") as queue:
        counts = queue.counts()
    return counts.sizes.total, counts.flow.acked, counts.flow.retried


def arrived(server: RedisServer) -> list[Any]:
    with server.client() as client:
        return [json.loads(one)["headers"]["id"] for one in client.lrange("celery", 0, -1)]


@pytest.mark.filterwarnings("ignore")  # of kombu's models, by SQLAlchemy
def test_a_broker_in_a_database_gets_tasks_too(
    tmp_path: Path, bide_worker: Callable[[bide.App], ManualWorker]
) -> None:
    app = Celery("jobs", broker=f"sqla+sqlite:///{tmp_path}/broker.db", set_as_current=False)
    install(app, "memory://celery-tests")
    app.send_task("shop.expire", (1,), countdown=60, task_id="a")
    bide_worker(app.__bide_app__()).advance("1m")
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("celery").get(timeout=60)
    assert message.headers["id"] == "a"
    app.close()


@pytest.mark.process
def test_tasks_wait_for_the_broker_and_no_attempt_is_lost(tmp_path: Path, source: str) -> None:
    put(tmp_path, "a", "b", "c")
    with worker(tmp_path, source, "--celery"):
        wait_for(said(tmp_path, "cannot be reached; waiting"), tmp_path)
        server = RedisServer(tmp_path)
        try:
            wait_for(lambda: sizes(tmp_path) == (0, 3, 0), tmp_path)
            assert sorted(arrived(server)) == ["a", "b", "c"]
            wait_for(said(tmp_path, "the broker of Celery is back"), tmp_path)

            server.stop()  # while connections are open
            put(tmp_path, "d")
            wait_for(said(tmp_path, "cannot be reached; waiting", times=2), tmp_path)
            server.start()
            wait_for(lambda: sizes(tmp_path) == (0, 4, 0), tmp_path)
            assert arrived(server) == ["d"]
        finally:
            server.stop()
    # Once for each outage; a thread whose try ends just after another one's success says it again.
    assert 2 <= log(tmp_path).count("cannot be reached") <= 4


@pytest.mark.full
@pytest.mark.process
def test_a_worker_that_stops_while_the_broker_is_gone_returns_the_task(
    tmp_path: Path, source: str
) -> None:
    put(tmp_path, "a")
    with worker(tmp_path, source, "--celery", "--grace", "10ms") as process:
        wait_for(said(tmp_path, "cannot be reached; waiting"), tmp_path)
        process.terminate()
        process.wait(60)
    with bide.Queue("celery", f"sqlite:///{tmp_path / 'bide.db'}") as queue:
        message = queue.get("a")
    assert message is not None
    assert (message.state, message.attempt) == ("ready", 0)


@pytest.mark.full
@pytest.mark.process
def test_a_task_cancelled_while_the_broker_is_gone_does_not_count_as_published(
    tmp_path: Path, source: str
) -> None:
    put(tmp_path, "a")
    with bide.Queue("celery", f"sqlite:///{tmp_path / 'bide.db'}", history="1d") as queue:
        with worker(tmp_path, source, "--celery"):
            wait_for(said(tmp_path, "cannot be reached; waiting"), tmp_path)
            assert queue.cancel("a", running=True, wait="1m")
        assert [end.how for end in queue.history("a")] == ["cancelled"]


@pytest.mark.process
def test_a_worker_that_is_killed_loses_nothing_and_repeats_only_what_it_held(
    tmp_path: Path, source: str
) -> None:
    ids = [f"task-{number}" for number in range(1_000)]
    put(tmp_path, *ids)
    server = RedisServer(tmp_path)
    try:
        with worker(tmp_path, source, "--celery") as process:
            wait_for(lambda: len(arrived(server)) >= 100, tmp_path)
            [child] = children(process)
            os.kill(child, signal.SIGKILL)
            wait_for(lambda: children(process) not in ([], [child]), tmp_path)
            with bide.Queue("celery", f"sqlite:///{tmp_path / 'bide.db'}") as queue:
                held = [
                    message.id
                    for message in queue.scan("leased")
                    if str(message.holder).endswith(f":{child}")
                ]
                for id in held:
                    queue.release(id)  # instead of waiting until their leases end
                wait_for(lambda: queue.counts().flow.acked == len(ids), tmp_path)
                assert queue.audit()
        found = arrived(server)
    finally:
        server.stop()
    assert set(found) == set(ids)
    assert {id for id, times in Counter(found).items() if times > 1} <= set(held)


@pytest.mark.process
def test_a_broker_that_hangs_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delays, "CONFIRM", 0.5)
    monkeypatch.setattr(delays, "AGAIN", 0.01)
    server = RedisServer(tmp_path)
    app = Celery("jobs", broker=f"redis+socket://{server.path}", set_as_current=False)
    message = TaskMessage("shop.expire", "[[], {}, {}]", headers={"id": "a"}, routing_key="celery")
    publishing = delays.CeleryPublisher(app)
    delivery: Any = SimpleNamespace(lost=threading.Event())
    with publishing.lifespan(bide.App("memory://")), ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(publishing.publish, message, delivery).result(60)
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            waiting = pool.submit(publishing.publish, message, delivery)
            wait_for(lambda: "cannot be reached" in caplog.text)
            assert not waiting.done()
            server.process.send_signal(signal.SIGCONT)
            waiting.result(60)
        finally:
            delivery.lost.set()
    assert set(arrived(server)) == {"a"}
    assert len(arrived(server)) >= 2
    server.stop()
    app.close()


@pytest.mark.parametrize(
    ("made", "celery", "hint"),
    [
        (installed, False, "to publish its delayed tasks when they are due: bide worker --celery"),
        (plain, True, r"it is of type Celery; call bide\.contrib\.celery\.install\(app\)"),
        (bide.App, True, "it is of type App; call"),
        (type(None), True, "it is missing"),
    ],
)
def test_the_option_and_the_app_must_agree(
    made: Callable[[], object], celery: bool, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("jobs")
    vars(module)["app"] = made()
    monkeypatch.setitem(sys.modules, "jobs", module)
    with pytest.raises(bide.InvalidArgument, match=hint):
        load("jobs:app", celery=celery)
