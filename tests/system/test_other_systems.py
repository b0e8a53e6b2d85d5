"""What works where POSIX is not: the library, with its embedded stores, and most commands."""

import subprocess
import sys
from pathlib import Path

import pytest

WINDOWS = """
import asyncio, os, select, signal, socket, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "grp", "pwd", "resource", "termios", "uvloop"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
for module, names in (
    (signal, "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGPIPE pthread_sigmask"),
    (os, "chown fchmod fork geteuid getuid killpg mkfifo register_at_fork setsid O_DIRECTORY"),
    (socket, "AF_UNIX SO_REUSEPORT"),
    (select, "poll epoll"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""
"""Hides what Python lacks on Windows, as far as a program on another system can."""

LIBRARY = """
import bide
import bide.testing, bide.timing

@bide.App().handler("orders")
def handle(message): ...

for url in ("memory://", "sqlite:///test.db"):
    orders = bide.Queue("orders", url)
    orders.put("first")
    orders.put("second", delay=0.01)
    for expected in ("first", "second"):
        with orders.take(wait=30) as delivery:
            assert delivery.body == expected
    assert orders.audit()
    orders.close()
"""

COMMANDS = """
from bide.cli import main
main()
"""


WAITING = """
import sys
for name in ("selectors", "asyncio"):  # what has met poll before it was hidden
    for module in [one for one in sys.modules if one.partition(".")[0] == name]:
        del sys.modules[module]
from bide.engines.waiting import readable, watch

with socket.create_server(("127.0.0.1", 0)) as server:
    here = socket.create_connection(server.getsockname())
    there, _ = server.accept()
    has_input = watch(here.fileno())
    assert not has_input() and not readable(here.fileno(), seconds=0)
    there.sendall(b"news")
    assert readable(here.fileno()) and has_input() and has_input()
"""


def on_windows(folder: Path, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", WINDOWS + program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_library_needs_no_posix(tmp_path: Path) -> None:
    result = on_windows(tmp_path, LIBRARY)
    assert result.returncode == 0, result.stderr


def test_waiting_for_sockets_needs_no_poll(tmp_path: Path) -> None:
    result = on_windows(tmp_path, WAITING)
    assert result.returncode == 0, result.stderr


def test_commands_that_only_use_the_store_need_no_posix(tmp_path: Path) -> None:
    put = on_windows(tmp_path, COMMANDS, "put", "orders", "1", "--id", "a")
    assert put.returncode == 0, put.stderr
    assert on_windows(tmp_path, COMMANDS, "get", "orders", "a").stdout.startswith("a\tready\t")


@pytest.mark.parametrize(
    "name", ["worker", "serve", "push", "rabbitmq", "forward", "demo", "prove"]
)
def test_commands_that_need_posix_say_so(name: str, tmp_path: Path) -> None:
    result = on_windows(tmp_path, COMMANDS, name)
    assert result.returncode == 2
    assert f"bide {name} needs Linux or macOS" in result.stderr


def test_the_help_lists_all_commands(tmp_path: Path) -> None:
    result = on_windows(tmp_path, COMMANDS, "--help")
    assert result.returncode == 0, result.stderr
    assert "serve" in result.stdout
