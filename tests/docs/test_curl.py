"""The curl examples of the pages about the service run, and print what the page says."""

import asyncio
import doctest
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bide.server.app import ServerApp
from bide.server.routes import OPERATIONS
from bide.server.settings import Settings
from tests.docs.test_pages import ROOT, blocks
from tests.server.conftest import running
from tests.targets.http.receiver import receiver

PAGES = [ROOT / "docs/howto" / name for name in ("service.md", "push.md", "undo.md")]
ELSEWHERE = {"docsScript", "healthz", "readyz", "metrics", "openapi", "docs"}
"""Operations that the page tells of without a call."""


def examples(page: Path) -> list[tuple[str, str]]:
    """Return the commands of a page, and what they print."""
    found: list[tuple[str, str]] = []
    for block in blocks(page.read_text()):
        if block.info == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                found.append((command, output))
    return found


@contextmanager
def receiving() -> Iterator[int]:
    """Take whatever is pushed, and give the port where that is."""
    begun, loop, over = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    port = 0

    async def serve() -> None:
        nonlocal port
        async with receiver() as it:
            port = it.port
            begun.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    begun.wait(20)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_example_prints_what_the_page_says(tmp_path: Path, page: Path) -> None:
    functions = [command for command, _ in examples(page) if "() {" in command]
    settings = Settings(store=f"sqlite:///{tmp_path}/bide.db", push_networks=["127.0.0.1"])
    with receiving() as receiving_port, running(ServerApp(settings)) as port:
        for command, output in examples(page):
            script = "\n".join([*functions, command]).replace(":8642", f":{port}")
            script = script.replace(":9000", f":{receiving_port}")
            done = subprocess.run(
                ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=30
            )
            got = f"{done.stdout.rstrip()}\n" if done.stdout.strip() else ""
            same = doctest.OutputChecker().check_output(output, got, doctest.ELLIPSIS)
            assert same, f"{command}\nprints\n{got}\nthe page says\n{output}{done.stderr}"


def test_every_operation_has_an_example() -> None:
    told = [command for page in PAGES for command, _ in examples(page)]
    for operation in OPERATIONS:
        path = re.sub(r"\\{\w+\\}", r"[^/? ']+", re.escape(operation.path))
        calls = [c for c in told if re.search(rf"localhost:8642{path}(?=[?' ]|$)", c)]
        if operation.method not in ("GET", "POST"):
            calls = [call for call in calls if f"-X {operation.method}" in call]
        elif operation.method == "POST":
            calls = [call for call in calls if "--json" in call or "-X POST" in call]
        else:
            calls = [call for call in calls if "-X" not in call and "--json" not in call]
        assert calls or operation.name in ELSEWHERE, operation.name
