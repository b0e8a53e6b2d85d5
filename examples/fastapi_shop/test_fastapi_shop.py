from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from bide.testing import ManualWorker, ScratchStore, WorkerFactory
from examples.conftest import Play
from examples.fastapi_shop import shop


@pytest.fixture
def client(
    bide_store: ScratchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    monkeypatch.setattr(shop, "DATABASE", f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    with TestClient(shop.app) as client:
        yield client


def state(client: TestClient, order: int) -> str:
    return str(client.get(f"/orders/{order}").json()["state"])


@pytest.fixture
def worker(client: TestClient, bide_worker: WorkerFactory) -> ManualWorker:
    return bide_worker(shop.jobs)


def test_an_unpaid_order_is_cancelled(
    client: TestClient, worker: ManualWorker, bide_store: ScratchStore
) -> None:
    assert client.post("/orders", json={"article": "teapot"}).json() == {"order": 1}
    bide_store.assert_put("order-timeouts", {"order": 1}, delay="30m", id="order-1")
    assert state(client, 1) == "unpaid"
    worker.advance("30m")
    assert state(client, 1) == "cancelled"
    assert client.post("/orders/1/payment").status_code == 409


def test_a_paid_order_stays_paid(client: TestClient, worker: ManualWorker) -> None:
    client.post("/orders", json={"article": "teapot"})
    assert client.post("/orders/1/payment").json() == {"timeout_cancelled": True}
    assert client.get("/orders/1").json() == {"state": "paid", "pay_until": None}
    assert worker.advance("1h") == []


def test_what_is_not_valid_is_refused(client: TestClient, bide_store: ScratchStore) -> None:
    assert client.post("/orders", json={"article": ""}).status_code == 422
    assert client.get("/orders/7").status_code == 404
    assert client.post("/orders/7/payment").status_code == 409
    assert bide_store.puts() == []


@pytest.mark.process
def test_it_plays_with_a_real_server(play: Play) -> None:
    assert play("fastapi_shop").splitlines() == [
        "the timeout is cancelled: {'timeout_cancelled': True}",
        "order 1 is paid",
        "order 2 is cancelled, and the shop is ok",
    ]
