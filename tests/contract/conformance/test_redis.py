"""The suite on Redis: one server, shards, a cluster; and on Valkey."""

import itertools
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from bide.engines.port import Engine
from bide.engines.redis import from_url
from bide.engines.redis.layout import shard_of
from bide.model.commands import Cancel, Put
from bide.model.errors import OutcomeUnknown
from bide.model.message import Item
from bide.testing.conformance import EngineConformance
from bide.testing.conformance.batches import BatchCases
from bide.testing.conformance.claiming import ClaimCases
from bide.testing.conformance.driver import done
from bide.testing.conformance.repeating import RepeatingSender, of
from bide.testing.conformance.scripts import EXAMPLES, ScriptCases
from tests.cluster import RedisCluster, eventually
from tests.contract.conformance.shards import (
    Apart,
    Forgetting,
    ShardedCases,
    ShardedConformance,
)
from tests.effort import effort
from tests.servers import RedisServer, valkey_program


class TestRedis(EngineConformance):
    examples = EXAMPLES // effort(5, 1)

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


class OnShards:
    """Stores whose queues have several shards."""

    @pytest.fixture
    def urls(self) -> dict[Engine, str]:
        return {}

    @pytest.fixture
    def make_engine(
        self, urls: dict[Engine, str], redis_url: Callable[[], str]
    ) -> Callable[[], Engine]:
        def make() -> Engine:
            url = f"{redis_url()}&shards={ShardedCases.SHARDS}"
            engine = Forgetting(from_url(urlsplit(url))())
            urls[engine] = url
            return engine

        return make

    @pytest.fixture
    def reopen(self, urls: dict[Engine, str]) -> Callable[[Engine], Engine]:
        return lambda engine: Forgetting(from_url(urlsplit(urls[engine]))())


class TestRedisShards(OnShards, ShardedCases):
    """A part of the suite."""


@pytest.mark.full
class TestAllOfRedisShards(OnShards, ShardedConformance):
    """The whole suite; a message is in one shard, as in a queue of one."""


class OnCluster:
    """Stores on one cluster, kept apart by the names of their queues."""

    @pytest.fixture
    def cluster(self, redis_cluster: RedisCluster) -> RedisCluster:
        return redis_cluster

    @pytest.fixture
    def prefixes(self) -> dict[Engine, str]:
        return {}

    @pytest.fixture
    def make_engine(
        self, prefixes: dict[Engine, str], cluster: RedisCluster
    ) -> Callable[[], Engine]:
        def make() -> Engine:
            prefix = f"{next(_numbers)}/"
            url = f"{cluster.url}?shards={ShardedConformance.SHARDS}"
            engine = Apart(from_url(urlsplit(url))(), prefix)
            prefixes[engine] = prefix
            return engine

        return make

    @pytest.fixture
    def reopen(
        self, prefixes: dict[Engine, str], cluster: RedisCluster
    ) -> Callable[[Engine], Engine]:
        return lambda engine: Apart(from_url(urlsplit(cluster.url))(), prefixes[engine])


_numbers = itertools.count()


@pytest.mark.full
class TestRedisCluster(OnCluster, ShardedConformance):
    """The whole suite again; of the random scripts, which meet nothing new here, a few."""

    examples = EXAMPLES // 20

    def test_what_was_not_executed_is_executed_by_its_repetition(
        self, sends: RepeatingSender
    ) -> None:
        """Only where the shard knows the sender: elsewhere nothing is executed."""
        assert done(sends(Put("q", [Item("a", b"1")]), of(1)).outcomes) == [True]
        cancel = Cancel("q", ["a"])
        for _ in range(2):
            assert done(sends(cancel, of(2, repeated=True)).outcomes) == [True]
        other = next(
            id for id in "bcdefgh" if shard_of(id, self.SHARDS) != shard_of("a", self.SHARDS)
        )
        with pytest.raises(OutcomeUnknown):
            sends(Put("q", [Item(other, b"1")]), of(3, repeated=True))
        assert sends.driver.scan() == []


@pytest.fixture(scope="module")
def bereft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Provide a cluster of which a master has died; its replica has taken its place."""
    cluster = RedisCluster(tmp_path_factory.mktemp("bereft"), replicas=1)
    dead = cluster.masters[0]
    dead.stop()
    eventually(lambda: cluster.owner(0) is not dead)
    yield cluster
    cluster.stop()


@pytest.mark.full
class TestWhatIsLeftOfACluster(OnCluster, ScriptCases, BatchCases, ClaimCases):
    """A part of the suite, after the death of a master."""

    driver, bare = EngineConformance.driver, EngineConformance.bare

    examples, script = EXAMPLES // 20, ShardedConformance.script
    # A queue of several shards refuses limits.
    test_any_script_of_limited_queues_is_answered_as_the_memory_engine_answers = None  # type: ignore[assignment]

    test_one_claim_ranks_a_limited_number = ShardedConformance.test_one_claim_ranks_a_limited_number
    test_one_claim_collects_a_limited_number_of_lapses = (
        ShardedConformance.test_one_claim_collects_a_limited_number_of_lapses
    )
    test_a_put_forgets_a_limited_number_before_it_stores = (
        ShardedConformance.test_a_put_forgets_a_limited_number_before_it_stores
    )

    @pytest.fixture
    def cluster(self, bereft: RedisCluster) -> RedisCluster:
        return bereft


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


@pytest.mark.full
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
