"""The programs of "Coming from", each with its library, a worker process and a Redis of its own."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.test_pages import CAPTION, ROOT, blocks, commands
from tests.effort import one_in
from tests.servers import RedisServer, free_port

PAGE = (ROOT / "docs" / "coming-from.md").read_text().partition("\n## Celery\n")[0]
URL = "redis://localhost:6379/0"
BOUND = 120.0

ANSWERS = {
    "bide": "order-41 is cancelled\n",
    "Celery": "None\n",
    "RQ": "",
    "arq": "True\n",
    "Huey": "None\n",
    "Docket": "None\n",
}
"""What each program prints of its cancel."""

READY = {
    "bide": "at work on",
    "Celery": "ready.",
    "RQ": "Listening on",
    "arq": "Starting worker",
    "Huey": "Huey consumer started",
    "Docket": "Starting worker",
}
"""What a worker logs when it has started."""


def tab(library: str) -> str:
    """Return the part of the page with the program of a library."""
    return PAGE.split(f":::{{tab-item}} {library}\n")[1].split("\n:::\n")[0]


class Program:
    """The files and the worker of a library's program, in a folder, on a Redis of its own.

    Half an hour is two seconds.
    """

    def __init__(self, library: str, folder: Path, url: str) -> None:
        self.folder = folder
        self.environment = {
            name: text for name, text in os.environ.items() if not name.startswith("BIDE_")
        }
        self.environment["PYTHONPATH"] = str(folder)
        self.environment["PYTHONUNBUFFERED"] = "1"
        self.worker_command: list[str] = []
        for block in blocks(tab(library)):
            if block.info == "console":
                ((program, *arguments),) = commands(block)
                arguments = [argument.replace(URL, url) for argument in arguments]
                self.worker_command = [str(Path(sys.executable).with_name(program)), *arguments]
                continue
            caption = CAPTION.match(block.text)
            assert caption is not None
            text = block.text[caption.end() :].replace(URL, url)
            text = re.sub(r'\b1800\b|"30m"', "2", text)
            (folder / caption[1]).write_text(text)

    def place(self) -> str:
        """Run the program that calls the function later and cancels one call; return its output."""
        return subprocess.run(
            [sys.executable, "orders.py"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=True,
        ).stdout

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[str]]:
        """Run the worker for the length of a block."""
        with subprocess.Popen(
            self.worker_command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            last_resort = threading.Timer(BOUND, process.kill)
            last_resort.start()
            try:
                yield process
            finally:
                last_resort.cancel()
                process.terminate()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read what a process prints, up to the line with a text."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"{process.args!r} ended:\n{''.join(lines)}")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "redis").mkdir()
    port = free_port()
    server = RedisServer(tmp_path / "redis", port=port)
    yield f"redis://localhost:{port}/0"
    server.stop()


@pytest.mark.process
@pytest.mark.parametrize("library", one_in(3, ANSWERS))
def test_the_program_runs(library: str, tmp_path: Path, redis: str) -> None:
    (tmp_path / "shop").mkdir()
    program = Program(library, tmp_path / "shop", redis)
    with program.worker() as worker:
        read_until(worker, READY[library])
        assert program.place() == ANSWERS[library]
        printed = read_until(worker, "order 42 has timed out")
        assert "order 41 has timed out" not in printed
        worker.terminate()
        assert worker.stdout is not None
        assert "order 41 has timed out" not in worker.stdout.read()


@pytest.mark.full
@pytest.mark.process
def test_a_worker_of_celery_that_starts_later_has_not_heard_of_the_cancel(
    tmp_path: Path, redis: str
) -> None:
    (tmp_path / "shop").mkdir()
    program = Program("Celery", tmp_path / "shop", redis)
    program.place()
    with program.worker() as worker:
        read_until(worker, "order 41 has timed out")


def test_the_tables_name_what_the_programs_do() -> None:
    """The delay, the cancel and the worker of each row are in the program of its library."""
    rows = re.findall(r"^\| \*\*(\w+)\*\* \| (.+) \|$", PAGE, re.M)
    names = [library for library, _ in rows]
    assert names == [*ANSWERS, *ANSWERS]
    for library, row in rows[: len(ANSWERS)]:
        program = tab(library)
        _, delayed, cancelled, worker = row.split(" | ")
        for cell in (delayed, cancelled):
            call = cell.strip("`").removeprefix("await ").split("(")[0]
            assert call in program, (library, call)
        assert worker.strip("`") in program.replace(f" --url {URL}", ""), (library, worker)
