"""Which process this is, and which one is dead for certain."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bide.observing.process_origin import LONGEST, PROC, UNKNOWN, is_dead, of_this_process

BOOT = "0b2a0a4e-54a5-4f0e-9d6c-2f1f2f3d4c5b"
NO_PID = "9999999"
"""A process id that no system gives."""

SHOWN = pytest.mark.skipif(
    of_this_process() == UNKNOWN, reason="only Linux describes processes in /proc"
)


class Machine:
    """A folder like /proc, with this process in it."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder
        (folder / "sys/kernel/random").mkdir(parents=True)
        (folder / "sys/kernel/random/boot_id").write_text(BOOT + "\n")
        (folder / "self/ns").mkdir(parents=True)
        for name in ("pid", "time"):
            (folder / "self/ns" / name).touch()
        self.run("self", start=7, pid=os.getpid())

    def run(
        self, name: str, start: int = 70, *, pid: int = 1, state: str = "S", title: str = "python"
    ) -> None:
        """Let a process run, or end as a zombie."""
        (self.proc / name).mkdir(exist_ok=True)
        # The start is the 22nd of its fields.
        fields = [state, *map(str, range(4, 22)), str(start), "0", "0"]
        (self.proc / name / "stat").write_text(f"{pid} ({title}) {' '.join(fields)}\n")

    def origin_of(self, pid: str, start: int = 70) -> str:
        """Return the origin of another process of this machine."""
        place, _, _ = of_this_process(self.proc).rsplit(" ", 2)
        return f"{place} {pid} {start}"

    def is_dead(self, origin: str) -> bool:
        """Return whether a process is dead for certain, as this machine shows it."""
        return is_dead(origin, self.proc)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_names_the_boot_the_namespaces_the_id_and_the_start(machine: Machine) -> None:
    inodes = [(machine.proc / "self/ns" / name).stat().st_ino for name in ("pid", "time")]
    origin = of_this_process(machine.proc)
    assert origin == f"{BOOT} {inodes[0]} {inodes[1]} {os.getpid()} 7"
    assert len(f"{BOOT} {1 << 64} {1 << 64} {NO_PID} {1 << 64}") <= LONGEST


def test_an_older_system_has_no_namespace_of_times(machine: Machine) -> None:
    (machine.proc / "self/ns/time").unlink()
    assert of_this_process(machine.proc).split()[2] == "0"


@pytest.mark.parametrize(
    "missing", ["sys/kernel/random/boot_id", "self/ns/pid", "self/stat"], ids=str
)
def test_without_one_of_them_nothing_is_known(machine: Machine, missing: str) -> None:
    origin = machine.origin_of(NO_PID)
    assert machine.is_dead(origin)
    (machine.proc / missing).unlink()
    assert of_this_process(machine.proc) == UNKNOWN
    assert not machine.is_dead(origin)
    assert not machine.is_dead(UNKNOWN)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda proc: (proc / "sys/kernel/random/boot_id").write_text("of another kind\n"),
        lambda proc: (proc / "sys/kernel/random/boot_id").write_bytes(b"\xff"),
        lambda proc: (proc / "self/stat").write_text("7 python S 1"),
        lambda proc: (proc / "self/stat").write_text(""),
        lambda proc: (proc / "self/stat").write_text(f"{os.getpid()} (python) S 1 2"),
    ],
)
def test_what_no_system_says_is_unknown(machine: Machine, break_it: Callable[[Path], int]) -> None:
    break_it(machine.proc)
    assert of_this_process(machine.proc) == UNKNOWN


def test_where_proc_is_of_another_namespace_nothing_is_known(machine: Machine) -> None:
    origin = machine.origin_of(NO_PID)
    machine.run("self", start=7, pid=os.getpid() + 1)
    assert of_this_process(machine.proc) == UNKNOWN
    assert not machine.is_dead(origin)


def test_a_process_of_another_start_is_another_one(machine: Machine) -> None:
    machine.run("4711", start=70, title="a) b (c")
    assert not machine.is_dead(machine.origin_of("4711"))
    assert machine.is_dead(machine.origin_of("4711", start=69))
    assert machine.is_dead(machine.origin_of(NO_PID))


@pytest.mark.parametrize(("state", "dead"), [("Z", True), ("X", True), ("D", False), ("T", False)])
def test_a_zombie_is_dead_and_one_that_stands_still_is_not(
    machine: Machine, state: str, dead: bool
) -> None:
    machine.run("4711", state=state)
    assert machine.is_dead(machine.origin_of("4711")) is dead


def test_of_another_boot_or_namespace_nothing_is_known(machine: Machine) -> None:
    boot, pids, times, pid, start = machine.origin_of(NO_PID).split()
    other_boot = BOOT.replace("0", "1")
    assert machine.is_dead(f"{boot} {pids} {times} {pid} {start}")
    assert not machine.is_dead(f"{other_boot} {pids} {times} {pid} {start}")
    assert not machine.is_dead(f"{boot} {pids}0 {times} {pid} {start}")
    assert not machine.is_dead(f"{boot} {pids} {times}0 {pid} {start}")


@pytest.mark.parametrize(
    "change",
    [
        lambda origin: origin + " 1",
        lambda origin: origin + "\n",
        lambda origin: origin.replace(NO_PID, "0"),
        lambda origin: origin.replace(NO_PID, "-1"),
        lambda origin: origin.replace(NO_PID, NO_PID * 3),
        lambda origin: origin.replace(NO_PID, "../1"),
        lambda origin: origin.replace(NO_PID, "\u0664"),  # a digit of another script
        lambda origin: origin.replace(" ", "  "),
    ],
)
def test_a_wrong_text_is_no_origin(machine: Machine, change: Callable[[str], str]) -> None:
    assert machine.is_dead(machine.origin_of(NO_PID))
    assert not machine.is_dead(change(machine.origin_of(NO_PID)))


def test_what_may_not_be_read_or_says_nothing_is_not_dead(machine: Machine) -> None:
    (machine.proc / "4711/stat").mkdir(parents=True)  # to read it is an `OSError`, for root as well
    assert not machine.is_dead(machine.origin_of("4711"))
    machine.run("4712")
    (machine.proc / "4712/stat").write_text("4712")
    assert not machine.is_dead(machine.origin_of("4712"))


@pytest.mark.parametrize("answer", [None, PermissionError])
def test_a_process_that_proc_hides_is_not_dead(
    machine: Machine, answer: type[OSError] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `hidepid=2` does to the processes of other users."""
    asked: list[tuple[int, int]] = []

    def kill(pid: int, signal_number: int) -> None:
        asked.append((pid, signal_number))
        if answer is not None:
            raise answer

    monkeypatch.setattr("os.kill", kill)
    assert not machine.is_dead(machine.origin_of("4711"))
    assert asked == [(4711, 0)]


@pytest.fixture
def other() -> Iterator["subprocess.Popen[str]"]:
    """Provide a process that has said its origin."""
    code = (
        "import sys; from bide.observing.process_origin import of_this_process; "
        "print(of_this_process(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@SHOWN
@pytest.mark.process
def test_a_real_process_lives_until_it_is_killed(other: "subprocess.Popen[str]") -> None:
    assert other.stdout is not None
    origin = other.stdout.readline().strip()
    assert not is_dead(origin)
    assert not is_dead(of_this_process())
    assert f" {other.pid} " in origin
    os.kill(other.pid, signal.SIGSTOP)
    assert not is_dead(origin)
    os.kill(other.pid, signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert "Z" in (PROC / str(other.pid) / "stat").read_text()
    assert is_dead(origin)
    other.wait()
    assert is_dead(origin)
