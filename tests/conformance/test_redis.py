from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from bide.engines.port import Engine
from bide.engines.redis import from_url
from bide.testing.conformance import EngineConformance
from tests.conformance.sharded import Forgetting, ShardedConformance


class TestRedis(EngineConformance):
    @pytest.fixture
    def urls(self) -> dict[Engine, str]:
        return {}

    @pytest.fixture
    def make_engine(
        self, urls: dict[Engine, str], redis_url: Callable[[], str]
    ) -> Callable[[], Engine]:
        def make() -> Engine:
            url = redis_url()
            engine = from_url(urlsplit(url))()
            urls[engine] = url
            return engine

        return make

    @pytest.fixture
    def reopen(self, urls: dict[Engine, str]) -> Callable[[Engine], Engine]:
        return lambda engine: from_url(urlsplit(urls[engine]))()


class TestRedisShards(ShardedConformance):
    @pytest.fixture
    def urls(self) -> dict[Engine, str]:
        return {}

    @pytest.fixture
    def make_engine(
        self, urls: dict[Engine, str], redis_url: Callable[[], str]
    ) -> Callable[[], Engine]:
        def make() -> Engine:
            url = f"{redis_url()}&shards={self.SHARDS}"
            engine = Forgetting(from_url(urlsplit(url))())
            urls[engine] = url
            return engine

        return make

    @pytest.fixture
    def reopen(self, urls: dict[Engine, str]) -> Callable[[Engine], Engine]:
        return lambda engine: Forgetting(from_url(urlsplit(urls[engine]))())
