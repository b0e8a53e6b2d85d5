"""The cases of the suite through `Queue` and `AsyncQueue`."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from bide.testing.conformance import AsyncQueueConformance, QueueConformance


class OnMemory:
    @pytest.fixture
    def make_url(self) -> Callable[[], str]:
        return lambda: "memory://"  # each face has a clock, and so a store, of its own


class OnSqlite:
    @pytest.fixture
    def make_url(self, tmp_path: Path) -> Callable[[], str]:
        numbers = itertools.count()
        return lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db?durability=normal"


class OnRedis:
    @pytest.fixture
    def make_url(self, redis_url: Callable[[], str]) -> Callable[[], str]:
        return redis_url


class TestQueueOnMemory(OnMemory, QueueConformance):
    pass


class TestQueueOnSqlite(OnSqlite, QueueConformance):
    pass


class TestQueueOnRedis(OnRedis, QueueConformance):
    pass


class TestAsyncQueueOnMemory(OnMemory, AsyncQueueConformance):
    pass


class TestAsyncQueueOnSqlite(OnSqlite, AsyncQueueConformance):
    pass


class TestAsyncQueueOnRedis(OnRedis, AsyncQueueConformance):
    pass
