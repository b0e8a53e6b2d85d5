import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from bide.testing import ManualWorker, ScratchStore, WorkerFactory
from examples.flask_shop import shop
from examples.stage import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FlaskClient]:
    app = shop.create_app(f"sqlite:///{tmp_path / 'shop.db'}")
    yield app.test_client()
    with app.app_context():
        shop.db.engine.dispose()


@pytest.fixture
def worker(client: FlaskClient, bide_worker: WorkerFactory) -> ManualWorker:
    return bide_worker(shop.bide)


def state(client: FlaskClient, order: int) -> str:
    return str(client.get(f"/orders/{order}").get_json()["state"])


def test_an_unpaid_order_is_cancelled(
    bide_store: ScratchStore, client: FlaskClient, worker: ManualWorker
) -> None:
    assert client.post("/orders/teapot").get_json() == {"order": 1}
    bide_store.assert_put("order-timeouts", {"order": 1}, delay="30m", id="order-1")
    assert state(client, 1) == "unpaid"
    worker.advance("30m")
    assert state(client, 1) == "cancelled"
    assert client.post("/orders/1/payment").status_code == 409


def test_a_paid_order_stays_paid(
    bide_store: ScratchStore, client: FlaskClient, worker: ManualWorker
) -> None:
    client.post("/orders/teapot")
    assert client.post("/orders/1/payment").get_json() == {"timeout_cancelled": True}
    assert worker.advance("1h") == []
    assert state(client, 1) == "paid"


@pytest.mark.full
@pytest.mark.process
def test_flask_bide_worker_runs_it(
    client: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(client.application.config, "PAY_WITHIN", "1s")
    client.post("/orders/teapot")
    client.post("/orders/kettle")
    client.post("/orders/1/payment")
    environment = os.environ | {"DATABASE_URL": f"sqlite:///{tmp_path / 'shop.db'}"}
    flask = [sys.executable, "-m", "flask", "--app", "examples.flask_shop.shop", "bide"]
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(
            [*flask, "worker"], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: state(client, 2) == "cancelled")
    finally:
        worker.terminate()
        assert worker.wait(60) == 0, (tmp_path / "log").read_text()
    assert state(client, 1) == "paid"
    done = subprocess.run(
        [*flask, "counts", "order-timeouts", "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"acked":1' in done.stdout.replace(" ", "")
