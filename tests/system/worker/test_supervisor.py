"""Processes: replaced when they die, told to stop or to take new code; orphans are reaped."""

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bide.worker.process.child import Orders
from bide.worker.process.processes import FAILED, Process, ProcessReport
from bide.worker.process.reload import Sources
from bide.worker.process.supervisor import ProcessSlot, Supervisor
from tests.system.worker.processes import (
    APP,
    SLOW_TO_BEGIN,
    children,
    counts,
    log,
    put,
    said,
    wait_for,
    worker,
)
from tests.system.worker.worker_app import until


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
        assert process.wait(60) == 0


@pytest.mark.process
def test_sigterm_lets_handlers_finish(tmp_path: Path) -> None:
    put(tmp_path, sleep=0.5)
    with worker(tmp_path, APP) as process:
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert "VERSION ended" in log(tmp_path)
    assert counts(tmp_path).flow.acked == 1


@pytest.mark.process
def test_a_second_sigterm_hands_back_at_once(tmp_path: Path) -> None:
    put(tmp_path, sleep=60)
    with worker(tmp_path, APP) as process:
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        process.send_signal(signal.SIGTERM)
        wait_for(said(tmp_path, "stopping; 1 running"), tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert counts(tmp_path).sizes.leased == 0
    assert counts(tmp_path).flow.retried == 0
    assert counts(tmp_path).sizes.total == 1


@pytest.mark.process
def test_a_sigterm_to_all_processes_lets_handlers_finish(tmp_path: Path) -> None:
    """As systemd and `killall` do: each worker process gets one from its supervisor as well."""
    put(tmp_path, sleep=1)
    with worker(tmp_path, APP) as process:
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        (child,) = children(process)
        os.kill(child, signal.SIGTERM)
        wait_for(said(tmp_path, "stopping; 1 running"), tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert "VERSION ended" in log(tmp_path)
    assert counts(tmp_path).flow.acked == 1


FORKS = """
import multiprocessing, time, bide
app = bide.App()
fork = multiprocessing.get_context("fork")

@app.handler("q")
def handle(body: dict) -> None:
    for _ in range(20):
        child = fork.Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join()
    print("ended by", child.exitcode, flush=True)
"""


@pytest.mark.process
def test_a_handler_ends_a_process_that_it_has_forked(tmp_path: Path) -> None:
    """It, such as one of a `multiprocessing.Pool`, has the signal handlers of the worker."""
    with worker(tmp_path, FORKS) as process:
        for number in (1, 2):
            put(tmp_path)
            wait_for(said(tmp_path, "ended by -15", number), tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert log(tmp_path).count("stopping") <= 1
    assert "has died" not in log(tmp_path)


@pytest.mark.process
def test_who_cannot_hand_back_is_killed_soon_after_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler holds up the event loop: the grace, which may be long, is not waited for."""
    monkeypatch.setattr("bide.worker.process.supervisor.LEEWAY", 0.1)
    deaf = f"trap '' TERM INT; touch {tmp_path / 'begun'}; exec sleep 600"

    async def story() -> None:
        supervisor = Supervisor(["sh", "-c", deaf], grace=600)
        process = supervisor.start_process(1)
        process.report = ProcessReport(ready=True)
        await until((tmp_path / "begun").exists)
        supervisor.stop()
        supervisor.stop()
        async with asyncio.timeout(60):
            assert await process.over == -signal.SIGKILL

    asyncio.run(story())


@pytest.mark.process
def test_a_process_whose_reports_cannot_be_read_is_killed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    garbles = "import os, sys, time; os.write(int(sys.argv[1]), b'nonsense\\n'); time.sleep(600)"

    async def story() -> None:
        supervisor = Supervisor([sys.executable, "-c", garbles])
        process = supervisor.start_process(1)
        async with asyncio.timeout(60):
            assert await process.over == -signal.SIGKILL

    asyncio.run(story())
    assert "sends something that is not a report (DecodeError(" in caplog.text


@pytest.mark.process
def test_what_outlasts_the_grace_is_handed_back(tmp_path: Path) -> None:
    put(tmp_path, sleep=60)
    with worker(tmp_path, APP, "--grace", "200ms") as process:
        wait_for(said(tmp_path, "VERSION began"), tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
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
def test_who_has_not_begun_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    with worker(tmp_path, SLOW_TO_BEGIN) as process:
        wait_for(said(tmp_path, "begins slowly"), tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert "cleaned up" in log(tmp_path)
    assert "it is killed" not in log(tmp_path)


def test_a_crash_loop_backs_off_and_a_long_life_ends_it() -> None:
    slot = ProcessSlot(1)
    pauses = [slot.pause(0.1) for _ in range(9)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert [slot.pause(lived) for lived in (31, 0.1, 0.1)] == [0.5, 0.5, 1]


def test_a_child_has_the_flags_of_its_parent() -> None:
    command = Orders("m:app", ["q"], 1.0, False, "info", 1, False).command
    assert command[0] == sys.executable
    assert '"target":"m:app"' in command[-1]
    assert command[-3:-1] == ["-m", "bide.worker.process.child"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "cause"), [(9, "killed by SIGKILL"), (40, "killed by signal 40")]
)
def test_the_cause_names_each_signal(number: int, cause: str) -> None:
    async def main() -> str:
        process = Process(1, ["sh", "-c", f"kill -{number} $$"], (), lambda *_: None)
        await process.over
        return process.cause()

    assert asyncio.run(main()) == cause


@pytest.mark.process
def test_the_watchdog_of_systemd_is_fed_while_a_process_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """systemd would kill the others as well, and could not bring back a store either."""
    told: list[str] = []
    monkeypatch.setattr("bide.worker.process.supervisor.notify", told.append)

    async def story() -> None:
        supervisor = Supervisor(["true"], 2)
        for slot in supervisor.slots:
            slot.process = supervisor.start_process(slot.number)
            slot.process.report = ProcessReport(ready=True)
        first, second = (slot.process for slot in supervisor.slots)
        assert first is not None
        assert second is not None
        supervisor.publish_health(feeds_watchdog=True)
        supervisor.slots[0].process = None  # it has died, and waits for its turn
        supervisor.publish_health(feeds_watchdog=True)
        starting = supervisor.slots[0].process = supervisor.start_process(1)
        starting.reported -= 60  # it waits for the store
        supervisor.publish_health(feeds_watchdog=True)
        second.reported -= 60
        supervisor.publish_health(feeds_watchdog=True)
        await asyncio.wait([first.over, second.over, starting.over])

    asyncio.run(story())
    words = [text.partition("=")[0] for text in told]
    assert words == ["READY", "WATCHDOG", "WATCHDOG", "WATCHDOG"]


@pytest.mark.process
def test_the_watchdog_of_systemd_guards_also_during_a_reload(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr("bide.worker.process.supervisor.notify", told.append)

    async def story() -> None:
        supervisor = Supervisor(["true"])
        supervisor.publish_health(feeds_watchdog=True)  # it begins
        process = supervisor.slots[0].process = supervisor.start_process(1)
        process.report = ProcessReport(ready=True)
        supervisor.publish_health(feeds_watchdog=True)
        supervisor.reload()
        process.reported -= 60  # its event loop is blocked
        supervisor.publish_health(feeds_watchdog=True)
        await process.over

    asyncio.run(story())
    words = [text.partition("=")[0] for text in told]
    assert words == ["WATCHDOG", "READY", "WATCHDOG", "RELOADING"]


def test_a_process_that_cannot_be_started_ends_as_one_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def story() -> int:
        with monkeypatch.context() as patch:
            patch.setattr("bide.worker.process.processes.socket.socketpair", refuse)
            process = Process(1, ["true"], (), lambda: None)
            await asyncio.wait([process.over])
        return process.over.result()

    assert asyncio.run(story()) == FAILED
    assert "process 1 cannot be started: [Errno 24] Too many open files" in caplog.text


@pytest.mark.process
def test_sighup_takes_the_new_code(tmp_path: Path) -> None:
    with worker(tmp_path, APP) as process:
        wait_for(said(tmp_path, "at work on q"), tmp_path)
        old = set(children(process))
        (tmp_path / "jobs.py").write_text(APP.replace("VERSION", "NEW"))
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "at work on q", 2), tmp_path)
        wait_for(lambda: not old & set(children(process)), tmp_path)  # else it may take the message
        put(tmp_path)
        wait_for(said(tmp_path, "NEW ended"), tmp_path)
    assert "has died" not in log(tmp_path)


@pytest.mark.process
def test_reload_looks_at_the_files_and_survives_a_broken_one(tmp_path: Path) -> None:
    with worker(tmp_path, APP, "--reload") as process:
        wait_for(said(tmp_path, "at work on q"), tmp_path)
        old = set(children(process))
        (tmp_path / "jobs.py").write_text("app = 3 +")
        wait_for(said(tmp_path, "has ended (exit code 2) before it was ready"), tmp_path)
        put(tmp_path)
        wait_for(said(tmp_path, "VERSION ended"), tmp_path)
        (tmp_path / "jobs.py").write_text(APP.replace("VERSION", "MENDED"))
        wait_for(said(tmp_path, "at work on q", 2), tmp_path)
        wait_for(lambda: not old & set(children(process)), tmp_path)  # else it may take the message
        put(tmp_path)
        wait_for(said(tmp_path, "MENDED ended"), tmp_path)
    assert "jobs.py changed" in log(tmp_path)


@pytest.mark.process
def test_a_restart_that_a_second_reload_gives_up_has_not_died(tmp_path: Path) -> None:
    with worker(tmp_path, SLOW_TO_BEGIN) as process:
        wait_for(said(tmp_path, "at work on q"), tmp_path)
        (tmp_path / "slow").touch()
        os.kill(children(process)[0], signal.SIGKILL)
        wait_for(said(tmp_path, "has died (killed by SIGKILL)"), tmp_path)
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "begins slowly"), tmp_path)
        (tmp_path / "slow").unlink()
        process.send_signal(signal.SIGHUP)
        wait_for(said(tmp_path, "at work on q", 2), tmp_path)
    assert log(tmp_path).count("has died") == 1


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


def test_what_cannot_be_read_is_no_source() -> None:
    folder = Path(tempfile.mkdtemp())  # unlike those of pytest, open to other users
    user = os.geteuid()
    try:
        (folder / "a.py").write_text("1")
        (folder / "loop.py").symlink_to("loop.py")
        (folder / "data").mkdir(mode=0o000)
        folder.chmod(0o777)
        if user == 0:  # root may read everything
            os.seteuid(65534)
        sources = Sources(folder)
        assert sources.changed() == []
        (folder / "b.py").write_text("1")
        assert sources.changed() == [folder / "b.py"]
    finally:
        os.seteuid(user)
        (folder / "data").chmod(0o700)
        shutil.rmtree(folder)


def test_a_worker_that_stops_does_not_reload(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def story() -> None:
        supervisor = Supervisor([])
        supervisor.stop()
        supervisor.reload()
        assert not supervisor.slots[0].wanted

    asyncio.run(story())
    assert "reloading" not in caplog.text


CODE = """
import ctypes, os
from bide.worker.process.orphans import PAUSE, Orphans, _dead_children

PR_SET_CHILD_SUBREAPER = 36  # orphans become children of this process, as of PID 1
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
reading, writing = os.pipe()
parent = os.fork()
if not parent:
    os.fork()
    os._exit(0)  # both: the second one is an orphan if the first has ended, else a grandchild
os.close(writing)
os.waitpid(parent, 0)
os.read(reading, 1)  # ends with the orphan, which has the other end
orphans = Orphans()
while not _dead_children():
    os.sched_yield()
(dead,) = _dead_children()
orphans.reap(0.0)
assert _dead_children() == {dead}, "the first look only remembers it"
orphans.reap(PAUSE / 2)
assert _dead_children() == {dead}, "it was too early to look"
orphans.reap(PAUSE)
assert _dead_children() == set()
orphans.reap(2 * PAUSE)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has containers and /proc")
def test_an_orphan_is_reaped_at_the_second_look() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
