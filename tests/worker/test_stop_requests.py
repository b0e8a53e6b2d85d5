"""Operators have a process replaced: through the store, whatever the process is busy with."""

import os
import signal
import socket
from pathlib import Path

import pytest

import bide
from bide.engines.memory import MemoryEngine
from bide.lane.lane import Lane
from bide.lane.steps import run_steps
from bide.model.commands import Find, Put
from bide.model.errors import InvalidArgument
from bide.model.message import Item
from bide.model.replies import Found
from bide.observing.heartbeat import Report, put_report
from bide.observing.workers import STOPS, request_stop, take_requests
from bide.testing import FakeClock, FlakyEngine
from bide.testing.hooks import lane_of
from tests.worker.processes import children, counts, log, put, said, wait_for, worker

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


def test_a_request_outlives_a_look_at_a_store_that_is_away() -> None:
    store = Store()
    store.ask("web1:7", None)
    store.engine.fail(bide.StoreUnavailable("away"))
    with pytest.raises(bide.StoreUnavailable):
        store.take("web1:7")
    assert store.take("web1:7") == {"web1:7": "an unknown user"}


def test_who_cannot_be_replaced_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    with pytest.raises(InvalidArgument, match="no worker 'web1:7' reports"):
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
