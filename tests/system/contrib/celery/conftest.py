"""Apps of the real Celery, whose broker and results are a real Redis."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import redis
from celery import Celery

MakeApp = Callable[..., Any]


class Broker:
    """A database on the Redis of the tests, as Celery names it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        db = parse_qs(parts.query)["db"][0]
        self.store_url = url
        self.url = f"redis+socket://{parts.path}?virtual_host={db}"
        self.client = redis.Redis(unix_socket_path=parts.path, db=int(db))


@pytest.fixture
def broker(redis_url: Callable[[], str]) -> Iterator[Broker]:
    broker = Broker(redis_url())
    yield broker
    broker.client.close()


@pytest.fixture
def celery_app(broker: Broker, tmp_path: Path) -> Iterator[Any]:
    app = Celery("shop", broker=broker.url, backend="cache+memory://", set_as_current=False)

    @app.task(name="shop.expire", shared=False)  # type: ignore[untyped-decorator]
    def expire(order: int) -> int:
        return order

    yield app
    app.close()
