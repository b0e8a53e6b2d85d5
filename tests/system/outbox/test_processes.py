"""`bide forward` and `bide worker --outbox` as processes; and a store behind a server."""

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bide
from bide.model.commands import Put
from bide.model.message import Item
from bide.outbox.forwarder import Forwarder, table_of
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing.hooks import lane_of
from tests.system.outbox.shop import rows
from tests.system.server.conftest import running

BOUND = 60.0
KILLS = 3


@pytest.fixture(params=["database", pytest.param("file", marks=pytest.mark.full)])
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    table_of(url).close()
    return url


@contextmanager
def forwarding(url: str, store: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "forward", url, "--url", store],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        while "forwarding what is committed" not in (line := process.stderr.readline()):
            assert line or process.poll() is None
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.process
def test_a_forwarder_that_fails_ends_with_an_error(file: str, redis_url: Callable[[], str]) -> None:
    """Else what has started it, such as systemd, would not start it again."""
    table_of(file).close()
    two = Put("q", [Item("a", b"1"), Item("b", b"1")])  # a row is of one message
    with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as shop:
        shop.execute(
            "INSERT INTO bide_outbox (queue, id, command) VALUES ('q', 'a', ?)",
            (msgspec.json.encode(two).decode(),),
        )
        shop.commit()
    done = subprocess.run(
        [sys.executable, "-m", "bide", "forward", file, "--url", redis_url()],
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 1, done.stderr


@pytest.mark.process
def test_a_forwarder_that_is_killed_neither_loses_nor_doubles(
    url: str, shop: Any, redis_url: Callable[[], str]
) -> None:
    store = redis_url()
    chance = random.Random(7)
    committed: set[int] = set()
    delivered: list[int] = []
    enough = threading.Condition()

    with bide.Queue("orders", store) as orders:

        def consume() -> None:
            with bide.Queue("orders", store) as mine:
                while True:
                    for delivery in mine.claim(10, wait=BOUND):
                        if delivery.body == "end":
                            delivery.ack()
                            return
                        delivery.ack()  # at once, so that the store has forgotten it
                        with enough:
                            delivered.append(delivery.body)
                            enough.notify()

        consumer = threading.Thread(target=consume)
        consumer.start()
        number = 0
        for _ in range(KILLS):
            with forwarding(url, store) as process:
                before = len(delivered) + 1
                for _ in range(25):
                    some = list(range(number, number + chance.randrange(1, 5)))
                    number = some[-1] + 1
                    named = [bide.NewMessage(n, id=f"m{n}") for n in some]
                    assert all(
                        outcome.state == "pending"
                        for outcome in orders.put_many(named, within=shop)
                    )
                    if chance.random() < 0.8:
                        shop.commit()
                        committed.update(some)
                    else:
                        shop.rollback()
                with enough:
                    while len(delivered) < before:
                        assert enough.wait(BOUND)
                process.send_signal(signal.SIGKILL)
        with forwarding(url, store) as process:
            with enough:
                assert enough.wait_for(lambda: len(delivered) >= len(committed), BOUND)
            while rows(shop):  # rows of which the store has the messages
                assert process.poll() is None
                threading.Event().wait(0.01)
            process.send_signal(signal.SIGTERM)
            assert process.wait(BOUND) == 0
        orders.put("end")
        consumer.join(BOUND)
        assert sorted(delivered) == sorted(committed)
        assert orders.counts().flow.put == len(committed) + 1
        assert orders.audit()
    assert shop.execute("SELECT * FROM bide_outbox_dead").fetchall() == []


WORKER = """
import bide
app = bide.App()

@app.handler("orders")
def handle(body):
    with open("done", "a") as file:
        file.write(body + "\\n")
"""


@pytest.mark.process
def test_a_worker_forwards_too(file: str, tmp_path: Path, redis_url: Callable[[], str]) -> None:
    store = redis_url()
    (tmp_path / "shop.py").write_text(WORKER)
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bide",
            "worker",
            "shop:app",
            "--url",
            store,
            "--outbox",
            file,
            "--processes",
            "2",
        ],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stderr is not None
        while "forwarding what is committed" not in (line := worker.stderr.readline()):
            assert line or worker.poll() is None
        with (
            bide.Queue("orders", store) as orders,
            closing(sqlite3.connect(tmp_path / "shop.db")) as shop,
        ):
            assert orders.put("hello", within=shop).state == "pending"
            shop.commit()
            done = threading.Event()
            while not (tmp_path / "done").exists() and worker.poll() is None:
                done.wait(0.01)
        worker.send_signal(signal.SIGTERM)
        _, told = worker.communicate(timeout=BOUND)
        assert worker.returncode == 0, told
    finally:
        worker.kill()
    assert (tmp_path / "done").read_text() == "hello\n"


def test_a_server_refuses_one_message_and_takes_the_others(
    url: str, shop: Any, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/bide.db"
    with running(ServerApp(Settings(store=store, max_body=1_000))) as port:
        with bide.Queue("orders", f"http://127.0.0.1:{port}") as orders:
            for number, body in enumerate(["a", "x" * 2_000, "b"]):
                assert orders.put(body, id=f"m{number}", within=shop).state == "pending"
            shop.commit()
            forwarder = Forwarder(lambda: table_of(url), lane_of(orders))
            with closing(table_of(url)) as table:
                while True:
                    try:
                        if not forwarder.forward(table):
                            break
                    except bide.StoreError:  # of no known cause: it is tried again
                        continue
            assert sorted(message.id for message in orders.scan()) == ["m0", "m2"]
            dead = shop.execute("SELECT id, reason FROM bide_outbox_dead").fetchall()
            assert [id for id, _ in dead] == ["m1"]
            assert "1,000" in dead[0][1] or "1000" in dead[0][1]
