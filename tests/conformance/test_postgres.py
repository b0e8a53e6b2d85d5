from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from bide.engines.port import Engine
from bide.engines.postgres import from_url
from bide.testing.conformance import EngineConformance
from bide.testing.conformance.scripts import ScriptCases
from tests.conformance.shards import fewer
from tests.effort import effort


class TestPostgres(EngineConformance):
    test_any_script_is_answered_as_the_memory_engine_answers = fewer(
        ScriptCases.test_any_script_is_answered_as_the_memory_engine_answers, effort(8, 1)
    )
    test_any_script_of_limited_queues_is_answered_as_the_memory_engine_answers = fewer(
        ScriptCases.test_any_script_of_limited_queues_is_answered_as_the_memory_engine_answers,
        effort(8, 1),
    )

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

    test_any_script_is_answered_as_the_memory_engine_answers = None
    test_any_script_of_limited_queues_is_answered_as_the_memory_engine_answers = None

    @pytest.fixture
    def postgres_url(self, postgres_15_url: Callable[[], str]) -> Callable[[], str]:
        return postgres_15_url
