"""Valkey has gone its own way since Redis 7.2; bide's scripts do the same on both."""

import itertools
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from bide.engines.port import Engine
from bide.engines.redis import from_url
from bide.testing.conformance import EngineConformance
from tests.servers import RedisServer, valkey_program

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(
        tmp_path_factory.mktemp("valkey"), program=valkey_program(), databases="1024"
    )
    yield server
    server.stop()


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return itertools.count()


class TestValkey(EngineConformance):
    # These go through the same scripts at random, for longer than all others together.
    examples = 0

    @pytest.fixture
    def urls(self) -> dict[Engine, str]:
        return {}

    @pytest.fixture
    def make_engine(
        self, urls: dict[Engine, str], valkey: RedisServer, numbers: Iterator[int]
    ) -> Callable[[], Engine]:
        def make() -> Engine:
            url = f"{valkey.url}?db={next(numbers) % 1024}"
            with valkey.client(db=int(url.rpartition("=")[2])) as client:
                assert "valkey_version" in client.info("server")
                client.flushdb()
            engine = from_url(urlsplit(url))()
            urls[engine] = url
            return engine

        return make

    @pytest.fixture
    def reopen(self, urls: dict[Engine, str]) -> Callable[[Engine], Engine]:
        return lambda engine: from_url(urlsplit(urls[engine]))()
