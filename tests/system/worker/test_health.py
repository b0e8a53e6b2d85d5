"""Whether a worker is well: as a file, a port and systemd are told, and as it says in the store."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import bide
from bide.cli.option import read_address
from bide.engines.sqlite import SqliteEngine
from bide.model.commands import Put, Scan
from bide.model.replies import Page
from bide.observing.heartbeat import REGISTER, Report, read
from bide.observing.metrics import MetricsServer
from bide.worker.process import supervisor as supervising
from bide.worker.process.health import notify, update_health_file, watchdog_seconds
from bide.worker.process.processes import ProcessReport
from bide.worker.process.supervisor import Supervisor
from tests.servers import free_port
from tests.system.worker.processes import (
    APP,
    BOUND,
    children,
    health,
    log,
    put,
    said,
    wait_for,
    worker,
)
from tests.system.worker.worker_app import Scene, more, until

HELD_UP = (
    "import os, time\n"
    + APP
    + """
while os.path.exists("held up"):
    time.sleep(0.01)
"""
)


@pytest.mark.process
def test_health_and_logs_for_machines(tmp_path: Path) -> None:
    port = free_port()
    well = tmp_path / "well"
    options = ["--health-port", str(port), "--health-file", str(well)]
    options += ["--log-json", "--log-level", "debug"]
    with worker(tmp_path, HELD_UP, *options) as process:
        wait_for(well.exists, tmp_path)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")
        (tmp_path / "held up").touch()
        os.kill(children(process)[0], signal.SIGKILL)

        with urllib.request.urlopen(f"http://127.0.0.1:{port}/live?x=1", timeout=60) as answer:
            assert answer.status == 200  # nothing hangs: a restart of the worker mends nothing

        def unwell() -> bool:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).close()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code == 503 and b"not ready" in error.read()
            return False

        wait_for(unwell, tmp_path)
        wait_for(lambda: not well.exists(), tmp_path)
        (tmp_path / "held up").unlink()
        wait_for(well.exists, tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, '"outcome":"acked"'), tmp_path)
    assert not well.exists()
    entries = [json.loads(line) for line in log(tmp_path).splitlines() if line.startswith("{")]
    (acked,) = [entry for entry in entries if entry.get("outcome") == "acked"]
    assert (acked["queue"], acked["attempt"], acked["level"]) == ("q", 1, "debug")
    assert acked["duration"] >= 0
    assert acked["lateness"] >= 0


def test_systemd_is_told(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind(address)
        notify("READY=1", {"NOTIFY_SOCKET": address})
        assert service.recv(100) == b"READY=1"
    notify("READY=1", {"NOTIFY_SOCKET": address + "gone"})
    notify("READY=1", {})
    notify("READY=1", {"NOTIFY_SOCKET": "vsock:1"})


@pytest.mark.process
def test_systemd_hears_of_readiness_life_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind(address)
        service.settimeout(BOUND)
        with worker(tmp_path, APP) as process:
            while not any(b"READY=1" in one for one in heard):
                heard.append(service.recv(1000))
            while b"WATCHDOG=1" not in heard:
                heard.append(service.recv(1000))
            process.send_signal(signal.SIGTERM)
            while b"STOPPING=1" not in heard:
                heard.append(service.recv(1000))


def test_a_watchdog_wants_to_hear_twice_as_often_as_it_bites() -> None:
    assert watchdog_seconds({"WATCHDOG_USEC": "3000000"}) == 1.5
    assert watchdog_seconds({"WATCHDOG_USEC": "x"}) is None
    assert watchdog_seconds({}) is None


def test_a_health_file_goes_when_something_is_wrong(tmp_path: Path) -> None:
    update_health_file(tmp_path / "well", None)
    assert (tmp_path / "well").exists()
    update_health_file(tmp_path / "well", "trouble")
    update_health_file(tmp_path / "well", "trouble still")
    assert not (tmp_path / "well").exists()


FALLIBLE = (
    APP
    + """
@app.handler("fail")
async def fail(body: dict) -> None:
    def die(_: None) -> None:
        raise RuntimeError("a fault of ours")

    for executor in EXECUTORS:
        if isinstance(executor, LaneThread):
            executor._notes.append((die, None))
            executor._signal.set()
"""
)


@pytest.mark.process
def test_a_worker_shows_lost_notifications_and_threads_that_died(tmp_path: Path) -> None:
    port, metrics = free_port(), free_port()
    imports = (
        "from bide.lane.executor import EXECUTORS\nfrom bide.lane.lane_thread import LaneThread\n"
    )

    def scraped() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    options = ["--health-port", str(port), "--metrics", str(metrics)]
    with worker(tmp_path, imports + FALLIBLE, *options):
        wait_for(said(tmp_path, "at work on q, fail"), tmp_path)
        wait_for((tmp_path / "bide.db-bell").exists, tmp_path)
        with bide.Queue("fail", f"sqlite:///{tmp_path}/bide.db") as queue:
            queue.put({})
            wait_for(lambda: "restarts of bide-lane: " in health(port), tmp_path)
            assert 'bide_thread_restarts_total{thread="bide-lane"} ' in scraped()
            pipes = tmp_path / "bide.db-bell"
            shutil.rmtree(pipes)
            pipes.touch()  # else the process makes another pipe
            lost = "process 1: notifications are lost, so claims poll the store\n"
            wait_for(lambda: lost in health(port), tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, "VERSION ended"), tmp_path)


def test_a_supervisor_that_has_not_begun_is_not_well() -> None:
    async def story() -> None:
        supervisor = Supervisor([], 2)
        assert supervisor.trouble() == "process 1 is not ready"
        supervisor.stop()
        assert supervisor.trouble() == "stopping"

    asyncio.run(story())


@pytest.mark.process
def test_a_process_that_does_not_get_ready_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervising, "SLOW", 0.0)

    async def story() -> None:
        supervisor = Supervisor([sys.executable, "-c", "import time; time.sleep(60)"])
        running = asyncio.create_task(supervisor.run())
        await until(lambda: "the new process 1 is not ready after " in caplog.text)
        supervisor.stop()
        supervisor.stop()
        await running

    asyncio.run(story())


def test_a_process_that_is_not_heard_of_or_is_stuck_is_not_well() -> None:
    async def story() -> None:
        supervisor = Supervisor([sys.executable, "-c", "import time; time.sleep(60)"])
        (slot,) = supervisor.slots
        process = slot.process = supervisor.start_process(1)
        process.reported -= 11
        assert supervisor.trouble() == "process 1 is not ready"
        assert supervisor.hang() is None  # it starts, perhaps while the store is away
        process.reported += 11
        process.report = ProcessReport(ready=True)
        assert supervisor.trouble() is supervisor.hang() is None
        process.report = ProcessReport(ready=True, stuck=["q", "r"])
        told = "all slots of q, r are taken by handlers that do not return"
        assert supervisor.trouble() == supervisor.hang() == f"process 1: {told}"
        process.reported -= 11
        told = "the event loop of process 1 is blocked"
        assert supervisor.trouble() == supervisor.hang() == told
        supervisor.stop()
        await asyncio.wait([process.over])

    asyncio.run(story())


def test_a_health_file_that_cannot_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(bide.InvalidArgument, match=r"there is no folder .*nowhere for well"):
        Supervisor([], health_file=tmp_path / "nowhere" / "well")
    update_health_file(tmp_path / "folder" / "well", None)
    assert "the health file cannot be written" in caplog.text


def test_metrics_listen_on_this_machine_alone_unless_told_otherwise() -> None:
    server = MetricsServer(CollectorRegistry(), 0)
    server.open()
    assert server._running is not None
    assert server._running[0].server_address[0] == "127.0.0.1"
    server.close()
    assert read_address("9464") == ("127.0.0.1", 9464)
    assert read_address("0.0.0.0:9464") == ("0.0.0.0", 9464)


ME = f"{socket.gethostname()}:{os.getpid()}"


def reports(scene: Scene) -> list[Report]:
    """Return what living processes have said, as another process reads it."""
    reader = SqliteEngine(scene.path, read_only=True)
    (page,) = reader.execute([Scan(REGISTER, "delayed")], scene.clock.now())
    reader.close()
    assert isinstance(page, Page)
    return [report for message in page.messages if (report := read(message)) is not None]


def test_one_without_work_says_so_for_hours_and_takes_its_leave(scene: Scene) -> None:
    @scene.app.handler("q")
    async def handle(body: int) -> None: ...

    async def story() -> None:
        async with scene.at_work():
            await until(lambda: reports(scene))
            for _ in range(3):
                await scene.pass_time(more(lambda: len(scene.sent(Put))), 5)
                await scene.pass_time(lambda: reports(scene))
                assert [report.workers for report in reports(scene)] == [{ME: ["q"]}]
        assert reports(scene) == []

    scene.play(story())


def test_it_tells_how_late_deliveries_began(scene: Scene) -> None:
    @scene.app.handler("q")
    async def handle(body: int) -> None: ...

    async def story() -> None:
        await scene.put(*range(20))
        scene.clock.advance(3)
        async with scene.at_work():
            await scene.acked(20)
            await scene.pass_time(lambda: any(report.lateness for report in reports(scene)), 1)
            (report,) = reports(scene)
            assert report.lateness["q"].count == 20
            assert report.lateness["q"].quantile(0.5) == 5.0

    scene.play(story())


def test_it_tells_what_it_handles_and_for_how_long(scene: Scene) -> None:
    over = asyncio.Event()

    @scene.app.handler("q", concurrency=2)
    async def handle(body: int) -> None:
        await over.wait()

    async def story() -> None:
        began = scene.clock.now()
        await scene.put(1)
        async with scene.at_work() as runner:
            await until(lambda: runner.consumers["q"].busy().running)
            await scene.pass_time(
                lambda: any(report.busy["q"].running for report in reports(scene)), 1
            )
            (report,) = reports(scene)
            assert report.busy["q"].places == 2
            assert (report.busy["q"].running, report.busy["q"].longest) == (1, "q-0")
            assert began <= (report.busy["q"].since or 0) <= scene.clock.now()
            over.set()
            await scene.acked(1)

    scene.play(story())


def test_a_store_that_is_away_does_not_stop_it(scene: Scene) -> None:
    @scene.app.handler("q")
    async def handle(body: int) -> None: ...

    async def story() -> None:
        async with scene.at_work():
            await until(lambda: reports(scene))
            away = bide.StoreUnavailable("away")
            scene.engine.fail(away, when=lambda command: command.queue == REGISTER, times=None)
            await scene.pass_time(lambda: not reports(scene), 5)
            while True:
                try:
                    await scene.put(1)
                    break
                except bide.StoreUnavailable:  # it went in one batch with a command that fails
                    pass
            await scene.pass_time(lambda: scene.counts_in_file("q").flow.acked == 1)
            scene.engine.heal()
            await scene.pass_time(lambda: reports(scene), 1)

    scene.play(story())


def test_who_is_not_asked_to_says_nothing(scene: Scene) -> None:
    @scene.app.handler("q")
    async def handle(body: int) -> None: ...

    async def story() -> None:
        async with scene.at_work():
            await scene.put(1)
            await scene.acked(1)
        assert reports(scene) == []

    scene.play(story())
