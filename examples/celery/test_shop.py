"""The shop with a real broker, a worker of Celery, and `bide worker --celery`."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
BOUND = 60.0


class Shop:
    """The shop, used by programs of its own while both workers run."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment

    def do(self, *statements: str) -> None:
        code = "\n".join(("from examples.celery import shop", *statements))
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env=os.environ | self.environment,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr

    def order(self, id: str) -> tuple[str, int]:
        """Return the state of an order, and how often it was charged."""
        with closing(sqlite3.connect(self.folder / "shop.db", timeout=30)) as database:
            rows = database.execute("SELECT state, charged FROM orders WHERE id = ?", (id,))
            found: tuple[str, int] = rows.fetchone()
            return found

    def wait_for(self, id: str, state: str) -> None:
        deadline = time.monotonic() + BOUND
        while self.order(id)[0] != state:
            logs = "".join(log.read_text() for log in self.folder.glob("*.log"))
            assert time.monotonic() < deadline, logs
            time.sleep(0.02)


@contextmanager
def running(log: Path, *arguments: str, **environment: str) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env=os.environ | environment,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    broker = RedisServer(tmp_path)
    environment = {
        "CELERY_BROKER_URL": f"redis+socket://{broker.path}",
        "BIDE_URL": f"sqlite:///{tmp_path / 'bide.db'}",
        "SHOP_DB": str(tmp_path / "shop.db"),
        "PAY_WITHIN": "0.3",
    }
    name = "examples.celery.shop"
    celery = ("celery", "-A", name, "worker", "-c", "2", "--without-mingle", "--without-gossip")
    try:
        with (
            running(tmp_path / "celery.log", *celery, **environment),
            running(tmp_path / "bide.log", "bide", "worker", "--celery", name, **environment),
        ):
            yield Shop(tmp_path, environment)
    finally:
        broker.stop()


@pytest.mark.full
def test_unpaid_orders_are_cancelled_and_paid_ones_are_charged_until_it_works(shop: Shop) -> None:
    shop.do("shop.open_shop()", "shop.place('41')")
    shop.wait_for("41", "cancelled")
    # Within one program, and with time, so that the payment comes before the timeout.
    shop.do("shop.PAY_WITHIN = 1800", "shop.place('42')", "shop.pay('42')")
    shop.wait_for("42", "shipped")
    assert shop.order("42") == ("shipped", 2)
