"""Processes that are told to take the new code, or see by themselves that it has changed."""

import asyncio
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from bide.worker.process.reload import Sources
from bide.worker.process.supervisor import Supervisor
from tests.worker.processes import (
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
