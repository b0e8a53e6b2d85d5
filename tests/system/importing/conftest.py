"""Queues of other libraries, filled by the libraries themselves, on a real Redis."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bide
from tests.system.contrib.celery.conftest import Broker


@pytest.fixture
def broker(redis_url: Callable[[], str]) -> Iterator[Broker]:
    broker = Broker(redis_url())
    yield broker
    broker.client.close()


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[bide.Queue]:
    with bide.Queue("orders", f"sqlite:///{tmp_path / 'bide.db'}") as queue:
        yield queue
