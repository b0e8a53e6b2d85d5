"""The shop with a real broker, a worker of Celery, and `bide worker --celery`."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.stage import wait_until
from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
Ask = Callable[[str], object]


@contextmanager
def running(log: Path, *arguments: str, **environment: str) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=ROOT, stdout=output, stderr=output,
            env=os.environ | environment,
        )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Evaluate an expression with the shop, in a program of its own, while both workers run."""
    broker = RedisServer(tmp_path)
    environment = {
        "CELERY_BROKER_URL": f"redis+socket://{broker.path}",
        "BIDE_URL": f"sqlite:///{tmp_path / 'bide.db'}",
        "SHOP_DB": str(tmp_path / "shop.db"), "PAY_WITHIN": "0.3",
    }  # fmt: skip

    def evaluate(expression: str) -> object:
        code = f"import json; from examples.celery import shop; print(json.dumps({expression}))"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True,
            env=os.environ | environment, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    shop = "examples.celery.shop"
    celery = ("celery", "-A", shop, "worker", "-P", "solo", "--without-mingle", "--without-gossip")
    try:
        with (
            running(tmp_path / "celery.log", *celery, **environment),
            running(tmp_path / "bide.log", "bide", "worker", "--celery", shop, **environment),
        ):
            yield evaluate
    finally:
        broker.stop()


def test_unpaid_orders_are_cancelled_and_paid_ones_are_charged_until_it_works(ask: Ask) -> None:
    ask("[shop.open_shop(), shop.place('41')]")
    wait_until(lambda: ask("shop.state('41')") == "cancelled")
    # Within one program, so that the payment comes in time.
    ask("[setattr(shop, 'PAY_WITHIN', 1800), shop.place('42'), shop.pay('42')]")
    wait_until(lambda: ask("shop.state('42')") == "shipped")
    assert ask("shop.execute('SELECT charged FROM orders WHERE id = ?', '42')") == [[2]]
