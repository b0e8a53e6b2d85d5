"""Parts of a deployment that start before their store: they wait for it, and stop at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import bide
from bide.engines.redis.layout import VERSION
from tests.effort import one_in
from tests.postgres_server import PostgresServer, new_folder
from tests.servers import RedisServer, free_port
from tests.system.server.process import ServerProcess

pytestmark = pytest.mark.process

BOUND = 60.0
AWAY = "waiting for it"

APP = "import bide\napp = bide.App()\n@app.handler('q')\ndef handle(body: dict): ...\n"

COMMANDS = {
    "worker": (["worker", "jobs:app"], "at work on q"),
    "serve": (["serve", "--port", "0"], "listening on"),
    "dashboard": (["dashboard", "--port", "0"], "url\thttp://"),
    "push": (["push"], "pushing, from"),
}
"""By its name: the words of a command, and what it says once it has its store."""


class Part:
    """A command of bide that runs."""

    def __init__(self, folder: Path, command: str, url: str) -> None:
        words, self._ready = COMMANDS[command]
        (folder / "jobs.py").write_text(APP)
        self._log = folder / f"{command}.log"
        kept = {name: text for name, text in os.environ.items() if not name.startswith("BIDE_")}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bide", *words],
                cwd=folder,
                env=kept | {"BIDE_URL": url},
                stdout=log,
                stderr=log,
            )

    @property
    def text(self) -> str:
        return self._log.read_text()

    def says(self, text: str) -> None:
        deadline = time.monotonic() + BOUND
        while text not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.02)

    def waits(self) -> None:
        self.says(AWAY)
        assert self._ready not in self.text

    def works(self) -> None:
        self.says(self._ready)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(BOUND)


@contextmanager
def part(folder: Path, command: str, url: str) -> Iterator[Part]:
    running = Part(folder, command, url)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGINT)  # its own processes end with it
            try:
                running.process.wait(BOUND)
            finally:
                running.process.kill()
                running.process.wait()


@contextmanager
def absent_postgres(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    with new_folder() as files:
        server = PostgresServer(files)
        server.stop()
        try:
            yield server.url, server.start
        finally:
            if (server.data / "postmaster.pid").exists():
                server.stop()


@contextmanager
def absent_redis(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    server = RedisServer(folder)
    server.stop()
    try:
        yield server.url, server.start
    finally:
        server.stop()


@contextmanager
def absent_http(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    port = free_port()
    servers: list[ServerProcess] = []

    def start() -> None:
        servers.append(ServerProcess(folder, "--port", str(port)))

    try:
        yield f"http://127.0.0.1:{port}", start
    finally:
        for server in servers:
            server.stop()


STORES = {"postgres": absent_postgres, "redis": absent_redis, "http": absent_http}
FIRST = {("worker", "redis"), ("serve", "postgres"), ("dashboard", "http")}
"""What the suite tries; the other pairs repeat these."""

PAIRS = [
    pytest.param(command, store, marks=() if (command, store) in FIRST else pytest.mark.full)
    for command in COMMANDS
    for store in STORES
    if (command, store) != ("push", "http")  # a server pushes by itself
]


@pytest.mark.parametrize(("command", "store"), PAIRS)
def test_what_starts_before_its_store_waits_and_then_works(
    tmp_path: Path, command: str, store: str
) -> None:
    with STORES[store](tmp_path) as (url, start), part(tmp_path, command, url) as running:
        running.waits()
        start()
        running.works()
        assert running.stop() == 0
        assert "Traceback" not in running.text
        assert running.text.count("is away; waiting for it") <= 1


@pytest.mark.parametrize("command", one_in(2, COMMANDS))
@pytest.mark.parametrize(
    "url",
    [
        pytest.param("redis://127.0.0.1:1/0"),  # its engine connects for five seconds at a time
        pytest.param("postgresql://shop@127.0.0.1:1/shop", marks=pytest.mark.full),
        pytest.param("postgresql://shop@store.invalid/shop", marks=pytest.mark.full),
    ],
)
def test_what_waits_for_its_store_stops_when_it_is_told_to(
    tmp_path: Path, command: str, url: str
) -> None:
    with part(tmp_path, command, url) as running:
        running.waits()
        assert running.stop() == 0
        assert "Traceback" not in running.text


def fails(folder: Path, command: str, url: str) -> str:
    """Run a command that waiting would not help; return what it says."""
    with part(folder, command, url) as running:
        assert running.process.wait(BOUND) == 3, running.text
    assert AWAY not in running.text.replace("has not answered yet; waiting for it", "")
    assert running.text.count("error: ") == 1
    return running.text


ONE_OF_ALL = [
    pytest.param(command, marks=() if command == "worker" else pytest.mark.full)
    for command in COMMANDS
]


@pytest.mark.parametrize("command", ONE_OF_ALL)
def test_a_wrong_password_or_database_on_postgres_ends_it(tmp_path: Path, command: str) -> None:
    with new_folder() as files:
        port = free_port()
        server = PostgresServer(files, listen_addresses="127.0.0.1", port=str(port))
        try:
            with psycopg.connect(f"{server.url}&port={port}", autocommit=True) as client:
                client.execute("ALTER USER bide PASSWORD 'right'")
                (server.data / "pg_hba.conf").write_text(
                    "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
                )
                client.execute("SELECT pg_reload_conf()")
            place = f"127.0.0.1:{port}"
            wrong = f"postgresql://bide:wrong@{place}/postgres"
            assert "refused the password" in fails(tmp_path, command, wrong)
            missing = f"postgresql://bide:right@{place}/shop"
            assert "no such database" in fails(tmp_path, command, missing)
        finally:
            server.stop()


@pytest.mark.parametrize("command", ONE_OF_ALL)
def test_a_wrong_password_or_a_newer_store_on_redis_ends_it(tmp_path: Path, command: str) -> None:
    port = free_port()
    server = RedisServer(tmp_path, port=port, requirepass="right")
    try:
        wrong = f"redis://:wrong@127.0.0.1:{port}/0"
        assert "the user or the password in the URL is wrong" in fails(tmp_path, command, wrong)
        server.client(password="right").set(VERSION, "99")
        newer = f"redis://:right@127.0.0.1:{port}/0"
        assert "upgrade bide here" in fails(tmp_path, command, newer)
    finally:
        server.stop()


@pytest.mark.parametrize("command", ["worker", "dashboard"])
def test_a_token_that_a_server_does_not_know_ends_it(tmp_path: Path, command: str) -> None:
    with ServerProcess(tmp_path, "--auth", "required") as server:
        url = f"http://:unknown@127.0.0.1:{server.port}"
        assert "the token is unknown" in fails(tmp_path, command, url)


def test_a_dashboard_waits_until_a_worker_has_made_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    with part(tmp_path, "dashboard", url) as running:
        running.waits()
        assert f"there is no store at {tmp_path}/bide.db yet" in running.text
        with bide.Queue("q", url) as queue:
            queue.put(1)
        running.works()
        assert running.stop() == 0


def test_a_dashboard_does_not_wait_for_a_file_in_a_folder_that_is_not_there(
    tmp_path: Path,
) -> None:
    said = fails(tmp_path, "dashboard", f"sqlite:///{tmp_path}/nowhere/bide.db")
    assert f"there is no directory {tmp_path}/nowhere" in said
