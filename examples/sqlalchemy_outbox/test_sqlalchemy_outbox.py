"""The shop with its migrations, a real worker that forwards, and Redis."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

import bide
from examples.sqlalchemy_outbox import shop
from examples.stage import wait_until, worker
from tests.servers import RedisServer


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bide.Queue]:
    """Provide the queue of the shop, on Redis, and an open shop."""
    server = RedisServer(tmp_path)
    database = f"sqlite:///{tmp_path}/shop.db"
    settings = {"BIDE_URL": server.url, "DATABASE_URL": database, "BIDE_OUTBOX": database}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["."]))
    shop.migrate(database)
    with bide.Queue("order-timeouts", server.url) as queue, shop.database():
        monkeypatch.setattr(shop, "timeouts", queue)
        yield queue
    server.stop()


def states() -> dict[str, str]:
    with shop.Session() as session:
        return {order.number: order.state for order in session.query(shop.Order)}


@pytest.mark.process
def test_what_is_committed_reaches_the_store(
    store: bide.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.place("late")
    monkeypatch.setattr(shop, "PAY_WITHIN", "1s")
    shop.place("one", "two")
    with pytest.raises(IntegrityError):
        shop.place("three", "two")
    assert shop.pay("one")
    assert not shop.pay("one")
    assert shop.waiting() == 4
    assert store.get("one") is None
    with worker("examples.sqlalchemy_outbox.shop:app", tmp_path):
        wait_until(lambda: states()["two"] == "cancelled")
        wait_until(lambda: shop.waiting() == 0)
    assert states() == {"late": "unpaid", "one": "paid", "two": "cancelled"}
    assert not shop.pay("two")
    assert [message.id for message in store.scan()] == ["late"]
