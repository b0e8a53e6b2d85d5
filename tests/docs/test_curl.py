"""The examples of the pages about the service run: curl, and JavaScript in Node."""

import asyncio
import doctest
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.server.app import ServerApp
from bide.server.routes import OPERATIONS
from bide.server.settings import Settings
from tests.docs.test_pages import ROOT, blocks
from tests.system.server.conftest import running
from tests.system.server.process import ServerProcess
from tests.system.targets.http.receiver import receiver

PAGES = [
    ROOT / "docs/howto" / name
    for name in ("service.md", "push.md", "undo.md", "recover.md", "http-clients.md")
]
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
    begun.wait(60)
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
                ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120
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


PAGE = ROOT / "docs/howto/http-clients.md"
BOUND = 60.0


def program(*changes: tuple[str, str]) -> str:
    """Return the program of the page, with changes; each must change something."""
    found = re.search(r"```\{code-block\} javascript\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    text = found[1]
    for old, new in (('delay: "30m"', 'delay: "300ms"'), *changes):
        assert old in text
        text = text.replace(old, new)
    return text


@contextmanager
def node(folder: Path, url: str, text: str) -> Iterator["subprocess.Popen[str]"]:
    name = shutil.which("node")
    assert name is not None, "no node on PATH: run `make test`, or tools/servers"
    (folder / "worker.mjs").write_text(text)
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [name, "worker.mjs"],
            cwd=folder,
            env={"BIDE_URL": url, "PATH": "/usr/bin:/bin"},
            stdout=said,
            stderr=said,
            text=True,
        )
    try:
        yield process
        assert process.poll() is None, (folder / "said").read_text()
    finally:
        process.kill()
        process.wait()


def until(folder: Path, condition: Callable[[str], Any]) -> None:
    deadline = time.monotonic() + BOUND
    while not condition((folder / "said").read_text()):
        assert time.monotonic() < deadline, (folder / "said").read_text()
        time.sleep(0.02)


@pytest.mark.process
def test_it_handles_what_it_has_put_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path) as server,
        bide.Queue("orders", f"sqlite:///{tmp_path}/bide.db") as orders,
        node(tmp_path, server.url, program()),
    ):
        port = server.port
        until(tmp_path, lambda said: "order 42 has timed out" in said)
        until(tmp_path, lambda said: orders.counts().flow.acked == 1)
        server.kill()
        until(tmp_path, lambda said: "ECONN" in said or "other side closed" in said)
        orders.put({"order": 43})
        with ServerProcess(tmp_path, "--port", str(port)):
            until(tmp_path, lambda said: "order 43 has timed out" in said)
            until(tmp_path, lambda said: orders.counts().flow.acked == 2)


@pytest.mark.process
def test_what_fails_is_retried_and_a_lost_lease_stops_nothing(tmp_path: Path) -> None:
    handle = (
        "async function handle(order) {",
        "let tries = 0;\nasync function handle(order) {\n"
        '  if (!tries++) throw new Error("not yet");\n'
        "  if (order.order === 42) await pause(1.5);",
    )
    changes = handle, ('delay: "1m", reason', 'delay: "100ms", reason'), ('lease: "1m"', "lease: 1")
    url = f"sqlite:///{tmp_path}/bide.db"
    with (
        running(ServerApp(Settings(store=url))) as port,
        bide.Queue("orders", url) as orders,
        node(tmp_path, f"http://127.0.0.1:{port}", program(*changes)),
    ):
        until(tmp_path, lambda said: orders.counts().flow.retried == 1)
        message = orders.get("order-42")
        assert message is not None
        assert "not yet" in (message.error or "")
        assert message.failures[0].holder == "worker.mjs"
        until(tmp_path, lambda said: "order 42 has timed out" in said)
        orders.cancel("order-42")
        orders.put({"order": 43})
        until(tmp_path, lambda said: "order 43 has timed out" in said)


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Give each request one of these answers; provide the URL, and the requests so far."""
    asked: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            connection, _ = listening.accept()
            with connection:
                asked.append(connection.recv(65_536))
                connection.sendall(b"HTTP/1.1 " + answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked


@pytest.mark.process
def test_it_asks_again_after_what_a_proxy_says_and_an_answer_that_breaks_off(
    tmp_path: Path,
) -> None:
    page = b"connection: close\r\ncontent-length: 6\r\n\r\n<html>"
    broken = b"200 OK\r\ncontent-length: 60\r\n\r\n" + b'{"messages":[{"id":"m'
    put = b"201 Created\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
    answers = b"502 Bad Gateway\r\n" + page, put, b"504 Gateway Timeout\r\n" + page, broken, broken
    with (
        answering(*answers) as (url, asked),
        node(tmp_path, url, program()) as process,
    ):
        until(tmp_path, lambda said: len(asked) == len(answers) or process.poll() is not None)
    paths = [request.partition(b" HTTP/")[0].rpartition(b"/")[2] for request in asked]
    assert paths == [b"order-42", b"order-42", b"claim", b"claim", b"claim"]
