"""Behind a real PgBouncer in transaction mode: every transaction may have another backend."""

import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from urllib.parse import quote

import psycopg
import pytest

import bide
from bide.engines.findings import examine
from tests.postgres_server import PostgresServer, new_folder
from tests.waiting import until

BOUND = 60.0
PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"


@contextmanager
def bouncer(server: PostgresServer) -> Iterator[str]:
    """Run PgBouncer before a server; provide its URL."""
    assert Path(PROGRAM).exists(), "no pgbouncer: run `make test`, or tools/servers"
    with new_folder() as folder:
        (folder / "users").write_text('"bide" ""\n')
        (folder / "ini").write_text(
            f"[databases]\n* = host={server.folder}\n[pgbouncer]\nlisten_port = 6432\n"
            f"unix_socket_dir = {folder}\nauth_type = trust\nauth_file = {folder}/users\n"
            f"pool_mode = transaction\ndefault_pool_size = 3\nlogfile = {folder}/log\n"
        )
        command = [PROGRAM, str(folder / "ini")]
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody", "nogroup")
            command[:0] = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        url = f"postgresql://bide@/postgres?host={folder}&port=6432"
        try:
            deadline = time.monotonic() + BOUND
            while not _answers(url):
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.01)
            yield url
        finally:
            process.kill()
            process.wait(BOUND)


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture
def pooled(postgres: PostgresServer, postgres_url: Callable[[], str]) -> Iterator[str]:
    """Provide the URL of an empty store, by way of PgBouncer."""
    schema = postgres_url().rpartition("&schema=")[2]
    with bouncer(postgres) as url:
        yield f"{url}&schema={schema}"


def another(url: str) -> str:
    """Return a URL of the same store, so that another lane with its own connections serves it."""
    return f"{url}&application_name=another"


def test_everything_works_behind_a_pooler(pooled: str) -> None:
    with bide.Queue("q", pooled) as queue, bide.Queue("q", another(pooled)) as other:

        def put(number: int) -> None:
            for n in range(10):
                (queue, other)[n % 2].put(f"{number}.{n}")

        threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        queue.put_many([bide.NewMessage(body="late", delay=3600, id=f"late{n}") for n in range(9)])
        assert queue.reschedule("late0", delay=0)
        assert other.cancel("late1")
        got: list[object] = []
        while deliveries := other.claim(7):
            got += [delivery.body for delivery in deliveries]
            assert all(queue.ack(deliveries))
        assert len(got) == 81
        assert queue.counts().sizes.delayed == 7
        assert queue.audit()


def take_what_another_puts(url: str, others: str, meanwhile: Callable[[], None]) -> None:
    """Wait for messages that another lane puts one by one, each when the last was taken."""
    with bide.Queue("q", url) as queue, bide.Queue("q", others) as other:
        got: SimpleQueue[object] = SimpleQueue()

        def take() -> None:
            for _ in range(4):
                with queue.take(wait=BOUND) as message:
                    got.put(message.body)

        waiter = threading.Thread(target=take)
        waiter.start()
        for number in range(4):
            other.put(number)
            assert got.get(timeout=BOUND) == number
            if number == 0:
                meanwhile()
        waiter.join(BOUND)


def test_without_a_direct_address_claims_look_often_and_the_log_says_so(
    pooled: str, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> bool:
        return "?listen=" in caplog.text

    with caplog.at_level(logging.WARNING, "bide.postgres"):
        take_what_another_puts(pooled, another(pooled), lambda: until(told))
    assert any("a pooler is between" in finding.what for finding in examine(pooled))


def test_with_a_direct_address_whoever_waits_listens_there(
    postgres: PostgresServer, pooled: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{pooled}&listen={quote(f'{postgres.url}&application_name=ear', safe='')}"

    def somebody_listens() -> bool:
        with postgres.client() as client:
            query = "SELECT query FROM pg_stat_activity WHERE application_name = 'ear'"
            return any(asked.startswith("LISTEN") for (asked,) in client.execute(query))

    with caplog.at_level(logging.WARNING, "bide.postgres"):
        take_what_another_puts(url, pooled, lambda: until(somebody_listens))
    assert caplog.text == ""
    assert not any("a pooler is between" in finding.what for finding in examine(url))
