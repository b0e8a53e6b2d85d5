from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from bide.engines.port import Engine
from bide.engines.postgres import from_url
from bide.testing.conformance import EngineConformance
from bide.testing.conformance.scripts import EXAMPLES
from tests.effort import effort


class TestPostgres(EngineConformance):
    examples = EXAMPLES // effort(20, 1)

    @pytest.fixture
    def urls(self) -> dict[Engine, str]:
        return {}

    @pytest.fixture
    def make_engine(
        self, urls: dict[Engine, str], postgres_url: Callable[[], str]
    ) -> Callable[[], Engine]:
        def make() -> Engine:
            url = postgres_url()
            engine = from_url(urlsplit(url))()
            urls[engine] = url
            return engine

        return make

    @pytest.fixture
    def reopen(self, urls: dict[Engine, str]) -> Callable[[Engine], Engine]:
        return lambda engine: from_url(urlsplit(urls[engine]))()


@pytest.mark.full
class TestPostgres15(TestPostgres):
    """Debian's server, without the long random scripts."""

    examples = 0

    @pytest.fixture
    def postgres_url(self, postgres_15_url: Callable[[], str]) -> Callable[[], str]:
        return postgres_15_url
