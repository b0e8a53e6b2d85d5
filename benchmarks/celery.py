"""Delayed tasks of Celery: in its worker's memory, and in bide. A Redis is broker and store.

The worker loads this module: its app waits in bide if `BENCHMARK_STORE` names a store.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

import bide
from benchmarks.figure import Figure
from bide.contrib.celery import install
from tests.servers import RedisServer

__all__ = ["app", "run"]

PENDING = 100_000
DUE = 10_000
FAR = 30 * 86_400
BATCH = 1_000

app = Celery("benchmark", broker=os.environ.get("BENCHMARK_BROKER", "memory://"))
if "BENCHMARK_STORE" in os.environ:
    install(app, os.environ["BENCHMARK_STORE"])


@app.task(name="work", shared=False)  # type: ignore[untyped-decorator]
def work(order: int) -> None:
    """Do nothing."""


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    for measurement in (memory, publishing):
        if only in measurement.__name__:
            with tempfile.TemporaryDirectory(prefix="bide-celery-") as folder:
                server = RedisServer(Path(folder))
                try:
                    yield from measurement(server)
                finally:
                    server.stop()


def memory(server: RedisServer) -> Iterator[Figure]:
    """Measure a worker of Celery with tasks pending that are due in a month."""
    broker, client = f"redis+socket://{server.path}", server.client()
    environment = {"BENCHMARK_BROKER": broker}
    with _celery(environment) as process:
        empty = _peak(process)
        _send(broker, client)
        _until(lambda: client.hlen("unacked") == PENDING and client.llen("celery") == 0)
        alone = _peak(process)
    client.flushall()
    environment["BENCHMARK_STORE"] = f"{server.url}?db=1"
    _put(environment["BENCHMARK_STORE"])
    with _celery(environment) as process, _bide(environment) as publisher:
        beside = _peak(process)
        [child] = Path(f"/proc/{publisher.pid}/task/{publisher.pid}/children").read_text().split()
        ours = _peak(publisher) + _peak_of(int(child))
    client.close()
    name = f"peak memory of a Celery worker, {PENDING:,} tasks pending"
    yield Figure("peak memory of a Celery worker, no task pending", empty, "MB")
    yield Figure(
        f"{name} in bide, against without bide",
        beside,
        "MB",
        alone,
        goal="< empty + 5 MB",
        met=beside < empty + 5,
    )
    yield Figure("peak memory of bide worker --celery beside it, supervisor included", ours, "MB")


def publishing(server: RedisServer) -> Iterator[Figure]:
    """Publish tasks that are due at one instant, against plain sends by one thread."""
    broker, client = f"redis+socket://{server.path}", server.client()
    plain = Celery("plain", broker=broker, set_as_current=False)
    began = time.perf_counter()
    for order in range(DUE // 5):
        plain.send_task("work", (order,))
    raw = DUE / 5 / (time.perf_counter() - began)
    plain.close()
    client.flushall()
    environment = {"BENCHMARK_BROKER": broker, "BENCHMARK_STORE": f"{server.url}?db=1"}
    with bide.Queue("celery", environment["BENCHMARK_STORE"]) as queue:
        queue.pause()
        for start in range(0, DUE, BATCH):
            queue.put_many([_new(number, 0) for number in range(start, start + BATCH)])
        with _bide(environment):
            began = time.perf_counter()
            queue.resume()
            _until(lambda: client.llen("celery") == DUE)
            rate = DUE / (time.perf_counter() - began)
    client.close()
    yield Figure("due tasks published to Redis, against plain sends by a thread", rate, "/s", raw)


def _send(broker: str, client: Any) -> None:
    """Put tasks with an ETA on the broker: copies of one that Celery has made."""
    maker = Celery("maker", broker=broker, set_as_current=False)
    maker.send_task("work", (1,), countdown=FAR, queue="model")
    maker.close()
    text = client.lpop("model").decode()
    model = json.loads(text)
    id, tag = model["headers"]["id"], model["properties"]["delivery_tag"]
    text = text.replace('"routing_key": "model"', '"routing_key": "celery"')
    for _ in range(PENDING // BATCH):
        copies = [
            text.replace(id, str(uuid.uuid4())).replace(tag, str(uuid.uuid4()))
            for _ in range(BATCH)
        ]
        client.lpush("celery", *copies)


def _new(number: int, delay: float) -> bide.NewMessage:
    from bide.importing.celery import TaskMessage, encoded

    id = str(uuid.uuid4())
    message = TaskMessage(
        "work",
        f'[[{number}], {{}}, {{"callbacks": null, "errbacks": null, "chain": null, '
        '"chord": null}]',
        headers={"id": id, "task": "work", "eta": None, "expires": None},
        properties={"correlation_id": id, "priority": 0, "delivery_mode": 2},
        routing_key="celery",
        declare=["celery"],
    )
    return bide.NewMessage(encoded(message), id=id, delay=delay)


def _put(store: str) -> None:
    with bide.Queue("celery", store) as queue:
        for start in range(0, PENDING, BATCH):
            queue.put_many([_new(number, FAR) for number in range(start, start + BATCH)])


@contextmanager
def _celery(environment: dict[str, str]) -> "Iterator[subprocess.Popen[bytes]]":
    arguments = ("-P", "solo", "--without-mingle", "--without-gossip", "-l", "info")
    command = ["celery", "-A", "benchmarks.celery", "worker", *arguments]
    with _process(command, environment, b" ready.") as process:
        yield process


@contextmanager
def _bide(environment: dict[str, str]) -> "Iterator[subprocess.Popen[bytes]]":
    command = ["bide", "worker", "--celery", "benchmarks.celery"]
    with _process(command, environment, b"at work") as process:
        yield process


@contextmanager
def _process(
    command: list[str], environment: dict[str, str], ready: bytes
) -> "Iterator[subprocess.Popen[bytes]]":
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=log,
            stderr=log,
            env=os.environ | environment,
        )
        try:
            _until(lambda: ready in Path(log.name).read_bytes())
            yield process
        finally:
            process.kill() if command[0] == "celery" else process.terminate()
            process.wait()


def _peak(process: "subprocess.Popen[bytes]") -> float:
    return _peak_of(process.pid)


def _peak_of(pid: int) -> float:
    """Return the most memory that a process has had so far, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)
