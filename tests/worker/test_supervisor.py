"""Processes: replaced when they die, told to stop and to reload, and seen to be well."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import bide
from bide.worker.child import Orders
from bide.worker.health import HealthFile
from bide.worker.line import Report
from bide.worker.reload import Sources
from bide.worker.restarts import Restarts
from bide.worker.supervisor import Supervisor, command_of
from bide.worker.systemd import notify, watchdog_seconds
from tests.worker.processes import children, log, wait_for, worker

APP = """
import asyncio, bide
app = bide.App()

@app.handler("q")
async def handle(body: dict, delivery: bide.Handling) -> None:
    print("VERSION began", flush=True)
    await asyncio.sleep(body.get("sleep", 0))
    print("VERSION ended", flush=True)
"""


FAILING = """
import os, sys, bide
from contextlib import asynccontextmanager

@asynccontextmanager
async def lifespan(app):
    WHAT
    yield

app = bide.App(lifespan=lifespan)
app.handler("q")(lambda body: None)
"""


MEMORY = """
import bide
app = bide.App("memory://")
app.handler("q")(lambda body: None)
"""


def put(folder: Path, **body: float) -> None:
    with bide.Queue("q", f"sqlite:///{folder / 'bide.db'}") as queue:
        queue.put(body)


def counts(folder: Path) -> bide.Counts:
    with bide.Queue("q", f"sqlite:///{folder / 'bide.db'}") as queue:
        return queue.counts()


def said(folder: Path, text: str, times: int = 1) -> Callable[[], bool]:
    return lambda: log(folder).count(text) >= times


@pytest.mark.process
def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    with worker(tmp_path, APP, "--processes", "2") as process:
        wait_for(said(tmp_path, "at work on q", 2), tmp_path)
        victim = children(process)[0]
        os.kill(victim, signal.SIGKILL)
        wait_for(said(tmp_path, "at work on q", 3), tmp_path)
        assert "has died (killed by SIGKILL)" in log(tmp_path)
        assert victim not in children(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


@pytest.mark.process
def test_sigterm_lets_handlers_finish(tmp_path: Path) -> None:
    put(tmp_path, sleep=0.5)
    with worker(tmp_path, APP) as process:
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    assert "VERSION ended" in log(tmp_path)
    assert counts(tmp_path).flow.acked == 1


@pytest.mark.process
def test_a_second_sigterm_hands_back_at_once(tmp_path: Path) -> None:
    put(tmp_path, sleep=60)
    with worker(tmp_path, APP) as process:
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        process.send_signal(signal.SIGTERM)
        wait_for(said(tmp_path, "stopping; 1 deliveries"), tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    assert counts(tmp_path).sizes.leased == 0
    assert counts(tmp_path).flow.retried == 0
    assert counts(tmp_path).sizes.total == 1


@pytest.mark.process
def test_what_outlasts_the_grace_is_handed_back(tmp_path: Path) -> None:
    put(tmp_path, sleep=60)
    with worker(tmp_path, APP, "--grace", "200ms") as process:
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 0
    assert counts(tmp_path).sizes.leased == 0


@pytest.mark.process
def test_processes_leave_when_their_supervisor_was_killed(tmp_path: Path) -> None:
    with worker(tmp_path, APP) as process:
        wait_for(said(tmp_path, "at work on q"), tmp_path)
        (orphan,) = children(process)
        process.kill()
        process.wait()
        wait_for(lambda: not Path(f"/proc/{orphan}").exists(), tmp_path)
    assert "the supervisor has died; stopping" in log(tmp_path)


@pytest.mark.process
def test_sighup_takes_the_new_code(tmp_path: Path) -> None:
    with worker(tmp_path, APP) as process:
        wait_for(said(tmp_path, "at work on q"), tmp_path)
        (tmp_path / "jobs.py").write_text(APP.replace("VERSION", "NEW"))
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "at work on q", 2), tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, "NEW ended"), tmp_path)
    assert "has died" not in log(tmp_path)


@pytest.mark.process
def test_reload_looks_at_the_files_and_survives_a_broken_one(tmp_path: Path) -> None:
    with worker(tmp_path, APP, "--reload"):
        wait_for(said(tmp_path, "at work on q"), tmp_path)
        (tmp_path / "jobs.py").write_text("app = 3 +")
        wait_for(said(tmp_path, "has ended (exit code 2) before it was ready"), tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, "VERSION ended"), tmp_path)
        (tmp_path / "jobs.py").write_text(APP.replace("VERSION", "MENDED"))
        wait_for(said(tmp_path, "at work on q", 2), tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, "MENDED ended"), tmp_path)
    assert "jobs.py changed" in log(tmp_path)


@pytest.mark.process
def test_sighup_with_broken_code_leaves_the_old_processes_at_work(tmp_path: Path) -> None:
    well = tmp_path / "well"
    with worker(tmp_path, APP, "--processes", "2", "--health-file", str(well)) as process:
        wait_for(said(tmp_path, "at work on q", 2), tmp_path)
        wait_for(well.exists, tmp_path)
        before = set(children(process))
        (tmp_path / "jobs.py").write_text("1 / 0")
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "has ended (exit code 2) before it was ready"), tmp_path)
        assert "error: jobs cannot be imported: ZeroDivisionError" in log(tmp_path)
        wait_for(lambda: set(children(process)) == before, tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, "VERSION ended"), tmp_path)
        assert well.exists()
        (tmp_path / "jobs.py").write_text(APP.replace("VERSION", "MENDED"))
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "at work on q", 4), tmp_path)
        wait_for(lambda: not before & set(children(process)), tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, "MENDED ended"), tmp_path)
        assert well.exists()  # it never went
    assert "has died" not in log(tmp_path)
    assert log(tmp_path).count("before it was ready") == 1


SLOW_TO_BEGIN = """
import asyncio, os, bide
from contextlib import asynccontextmanager

@asynccontextmanager
async def lifespan(app):
    if os.path.exists("slow"):
        print("begins slowly", flush=True)
        try:
            await asyncio.sleep(1000)
        finally:
            print("cleaned up", flush=True)
    yield

app = bide.App(lifespan=lifespan)

@app.handler("q")
async def handle(body: dict) -> None:
    print("ended", flush=True)
"""


@pytest.mark.process
def test_a_second_sighup_gives_up_a_process_that_does_not_get_ready(tmp_path: Path) -> None:
    with worker(tmp_path, SLOW_TO_BEGIN) as process:
        wait_for(said(tmp_path, "at work on q"), tmp_path)
        (old,) = children(process)
        (tmp_path / "slow").touch()
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "begins slowly"), tmp_path)
        assert old in children(process)
        (tmp_path / "slow").unlink()
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "cleaned up"), tmp_path)
        wait_for(said(tmp_path, "at work on q", 2), tmp_path)
        wait_for(lambda: old not in children(process), tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, "ended"), tmp_path)


@pytest.mark.process
def test_who_has_not_begun_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    with worker(tmp_path, SLOW_TO_BEGIN) as process:
        wait_for(said(tmp_path, "begins slowly"), tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert "cleaned up" in log(tmp_path)
    assert "it is killed" not in log(tmp_path)


@pytest.mark.process
def test_a_process_that_was_to_begin_anyway_takes_the_new_code(tmp_path: Path) -> None:
    with worker(tmp_path, "1 / 0", "--reload", "--processes", "2") as process:
        wait_for(said(tmp_path, "has died (exit code 2)", 2), tmp_path)
        (tmp_path / "jobs.py").write_text(APP)
        wait_for(said(tmp_path, "at work on q", 2), tmp_path)
        wait_for(lambda: len(children(process)) == 2, tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, "VERSION ended"), tmp_path)


@pytest.mark.process
def test_reload_does_not_wait_for_what_runs(tmp_path: Path) -> None:
    put(tmp_path, sleep=60)
    with worker(tmp_path, APP, "--reload"):
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        (tmp_path / "jobs.py").write_text(APP.replace("VERSION", "NEW"))
        wait_for(said(tmp_path, "NEW began"), tmp_path)
    assert counts(tmp_path).flow.lapsed == 0


@pytest.mark.process
def test_health_and_logs_for_machines(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    well = tmp_path / "well"
    options = ["--health-port", str(port), "--health-file", str(well)]
    options += ["--log-json", "--log-level", "debug"]
    with worker(tmp_path, APP, *options) as process:
        wait_for(well.exists, tmp_path)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
            assert (answer.status, answer.read()) == (200, b"well\n")
        os.kill(children(process)[0], signal.SIGKILL)

        def unwell() -> bool:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code == 503 and b"not ready" in error.read()
            return False

        wait_for(unwell, tmp_path)
        wait_for(lambda: not well.exists(), tmp_path)
        wait_for(well.exists, tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, '"outcome":"acked"'), tmp_path)
    assert not well.exists()
    entries = [json.loads(line) for line in log(tmp_path).splitlines() if line.startswith("{")]
    (acked,) = [entry for entry in entries if entry.get("outcome") == "acked"]
    assert (acked["queue"], acked["attempt"], acked["level"]) == ("q", 1, "debug")
    assert acked["duration"] >= 0
    assert acked["lateness"] >= 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("source", "options", "code", "hint"),
    [
        ("import nosuchmodule", (), 2,
         "jobs imports 'nosuchmodule', which is not installed (jobs.py, line 1); install the "
         "package that brings it, for "),
        ("import bide\nimport cronsim.nosuch", (), 2,
         "jobs imports 'cronsim.nosuch', which is not installed (jobs.py, line 2); "
         "pip install 'bide[schedules]', for "),
        ("1 / 0", (), 2, "jobs cannot be imported: ZeroDivisionError"),
        ("", (), 2, "jobs has no 'app'; make one there with: app = bide.App()"),
        ("app = 3", (), 2, "jobs has something else than a bide.App as 'app'"),
        ("import bide; work = bide.App()", (), 2, "jobs has no 'app'; it has: jobs:work"),
        ("import bide; app = bide.App()", (), 2, "the app has no handlers"),
        (APP, ("--queues", "r"), 2, "queue 'r' has no handler in the app; it has: q"),
        ("import bide\napp = bide.App('sqlite:////no/such/x.db')\n"
         "app.handler('q')(lambda body: None)", (), 3, "there is no directory /no/such"),
        (FAILING.replace("WHAT", "raise RuntimeError('no database')"), (), 3,
         "jobs:app could not begin its work: RuntimeError: no database"),
        (FAILING.replace("WHAT", "os._exit(7)"), (), 7, ""),
        (FAILING.replace("WHAT", "sys.exit()"), (), 3, ""),
        (MEMORY, ("--processes", "2"), 2, "memory:// lives in one process, and 2 are to share it"),
        (APP, ("--url", "nonsense"), 2, "--url 'nonsense' begins with none of"),
    ],
)  # fmt: skip
def test_what_is_wrong_from_the_start_ends_it_with_a_reason(
    tmp_path: Path, source: str, options: tuple[str, ...], code: int, hint: str
) -> None:
    with worker(tmp_path, source, *options) as process:
        assert process.wait(15) == code
    expected = f"error: {hint}" if hint else "before it was ready"
    assert expected in log(tmp_path)
    assert "has died" not in log(tmp_path)


@pytest.mark.process
def test_a_mistake_at_import_shows_the_frames_of_the_program_alone(tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text("def read():\n    return {}['pen']\n")
    source = (
        "import prices\n"
        "try:\n    prices.read()\n"
        "except KeyError as error:\n    raise ValueError('no price') from error\n"
    )
    with worker(tmp_path, source) as process:
        assert process.wait(15) == 2
    told = log(tmp_path)
    assert "importlib" not in told
    assert "loading.py" not in told
    assert re.search(r'(?s)jobs.py", line 3, .*prices.py", line 2', told)
    assert "KeyError: 'pen'" in told
    assert "direct cause" in told
    assert "error: jobs cannot be imported: ValueError: no price" in told


@pytest.mark.process
@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--health-port", "error: --health-port {} cannot be listened on: Address already in use"),
        ("--metrics", "error: --metrics cannot be served at *:{}: Address already in use"),
    ],
)
def test_a_port_that_is_taken_is_named_with_its_option(
    tmp_path: Path, option: str, text: str
) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with worker(tmp_path, APP, option, str(port)) as process:
            assert process.wait(15) == 3
    told = log(tmp_path)
    assert text.format(port) in told
    assert "Traceback" not in told


@pytest.mark.process
def test_a_url_goes_before_those_of_the_app_and_of_the_environment(tmp_path: Path) -> None:
    given = f"sqlite:///{tmp_path / 'given.db'}"
    source = APP.replace("bide.App()", "bide.App('sqlite:///nowhere/named.db')")
    assert source != APP
    with bide.Queue("q", given) as queue:
        queue.put({})
        with worker(tmp_path, source, "--url", given) as process:
            wait_for(lambda: queue.counts().flow.acked == 1, tmp_path)
            shown = Path(f"/proc/{children(process)[0]}/cmdline").read_text()
    assert "given.db" not in shown  # a URL may have a password in it
    assert not (tmp_path / "bide.db").exists()


@pytest.mark.process
def test_a_store_in_memory_is_warned_of(tmp_path: Path) -> None:
    with worker(tmp_path, MEMORY):
        wait_for(said(tmp_path, "memory:// lives in this process: nobody else can put"), tmp_path)


def test_a_crash_loop_backs_off_and_a_long_life_ends_it() -> None:
    restarts = Restarts()
    pauses = [restarts.pause(0.1) for _ in range(9)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert [restarts.pause(lived) for lived in (31, 0.1, 0.1)] == [0.5, 0.5, 1]


def test_systemd_is_told(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.bind(address)
        assert notify("READY=1", {"NOTIFY_SOCKET": address})
        assert service.recv(100) == b"READY=1"
    assert not notify("READY=1", {"NOTIFY_SOCKET": address + "gone"})
    assert not notify("READY=1", {})
    assert not notify("READY=1", {"NOTIFY_SOCKET": "vsock:1"})


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
        service.settimeout(15)
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


def test_sources_tell_what_changed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.py").write_text("1")
    for hidden in (".venv", "__pycache__"):
        (tmp_path / hidden).mkdir()
        (tmp_path / hidden / "c.py").write_text("1")
    sources = Sources(tmp_path)
    assert sources.changed() == []
    os.utime(tmp_path / "a.py", ns=(1, 1))
    (tmp_path / "sub" / "b.py").unlink()
    (tmp_path / "d.py").write_text("1")
    (tmp_path / ".venv" / "c.py").write_text("22")
    (tmp_path / "notes.txt").write_text("1")
    assert sources.changed() == [tmp_path / "a.py", tmp_path / "d.py", tmp_path / "sub" / "b.py"]
    assert sources.changed() == []


def test_a_health_file_goes_when_something_is_wrong(tmp_path: Path) -> None:
    health = HealthFile(tmp_path / "well")
    health.tell(None)
    assert (tmp_path / "well").exists()
    health.tell("trouble")
    health.tell("trouble still")
    assert not (tmp_path / "well").exists()


def test_a_child_has_the_flags_of_its_parent() -> None:
    command = command_of(Orders("m:app", ["q"], 1.0, False, "info", 1, False, False, -1))(7)
    assert command[0] == sys.executable
    assert '"line":7' in command[-1]
    assert command[-3:-1] == ["-m", "bide.worker.child"]


def test_a_supervisor_that_has_not_begun_is_not_well() -> None:
    async def story() -> None:
        supervisor = Supervisor(lambda line: [], 2)
        assert supervisor.trouble() == "process 1 is not ready"
        supervisor.stop()
        assert supervisor.trouble() == "stopping"

    asyncio.run(story())


def test_a_process_that_is_not_heard_of_or_is_stuck_is_not_well() -> None:
    async def story() -> None:
        supervisor = Supervisor(lambda line: [sys.executable, "-c", "import time; time.sleep(60)"])
        (place,) = supervisor.places
        process = place.process = supervisor._start(1)
        process.report = Report(ready=True)
        assert supervisor.trouble() is None
        process.report = Report(ready=True, stuck=["q", "r"])
        told = "all places of q, r are taken by handlers that do not return"
        assert supervisor.trouble() == f"process 1: {told}"
        process.heard -= 11
        assert supervisor.trouble() == "the event loop of process 1 stands still"
        supervisor.stop()
        await asyncio.wait([process.over])

    asyncio.run(story())


def test_a_health_file_that_cannot_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(bide.InvalidArgument, match=r"there is no folder .*nowhere for well"):
        HealthFile(tmp_path / "nowhere" / "well")
    (tmp_path / "folder").mkdir()
    health = HealthFile(tmp_path / "folder" / "well")
    (tmp_path / "folder").rmdir()
    health.tell(None)
    assert "the health file cannot be kept" in caplog.text
