"""`examine`: messages on real servers that cannot be read."""

import re
from collections.abc import Callable
from contextlib import closing
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

import bide
from bide.engines.findings import EXAMPLES, examine
from bide.engines.postgres.settings import read_url
from bide.engines.redis.layout import records_key, shard_of, slot_of
from bide.model.errors import StoreUnavailable
from tests.cluster import RedisCluster
from tests.engines.test_doctor import level, told
from tests.servers import RedisServer

REDIS_DOCS = Path(__file__).parents[2] / "docs" / "redis.md"


def fill(url: str) -> None:
    with bide.Queue("orders", url) as orders, bide.Queue("eu/mails", url) as mails:
        orders.put_many(
            bide.NewMessage(body=n, id=f"m{n:04}", delay=n % 2 * 60, headers={"to": "a"})
            for n in range(1_200)
        )
        mails.put("x" * 200_000, id="large", headers={"to": "b"})


def damage_redis(url: str, ids: list[str]) -> None:
    with closing(redis.Redis.from_url(url)) as client:
        for id in ids:
            assert client.hset("bide:{orders#0}:records", id, b"something else") == 0


def damage_postgres(url: str, ids: list[str]) -> None:
    settings = read_url(urlsplit(url))
    text = f"UPDATE \"{settings.schema}\".message SET failures = '[[7]]' WHERE id = ANY(%s)"
    with psycopg.connect(settings.url) as connection:
        assert connection.execute(text.encode(), (ids,)).rowcount == len(ids)


DAMAGE: dict[str, Callable[[str, list[str]], None]] = {
    "redis": damage_redis,
    "postgres": damage_postgres,
}


@pytest.fixture(params=DAMAGE)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> str:
    """Provide the URL of a store on a server."""
    url: str = request.getfixturevalue(f"{kind}_url")()
    fill(url)
    return url


def test_messages_on_a_server_that_cannot_be_read(kind: str, server: str) -> None:
    assert level(told(server), "cannot be read") is None
    DAMAGE[kind](server, ["m0008", "m0901"])
    what = "cannot be read: 'm0008' in queue 'orders', 'm0901' in queue 'orders'"
    assert level(told(server), what) == "warning"
    with bide.Queue("orders", server) as orders:
        assert len(orders.claim(1_000)) == 599  # the first is a dead letter now
        orders.purge(state="dead")
    found = told(server)
    assert level(found, "'m0008'") is None
    assert level(found, "cannot be read: 'm0901' in queue 'orders'") == "warning"


def test_some_of_many_messages_that_cannot_be_read_are_named(kind: str, server: str) -> None:
    DAMAGE[kind](server, [f"m{n:04}" for n in range(1_000)])
    (what,) = [what for what in told(server) if "cannot be read" in what]
    assert what.count("in queue 'orders'") == EXAMPLES


def test_a_server_with_too_many_messages_to_be_checked(server: str) -> None:
    assert level(told(server, -1), "is too large to be checked for damage") == "warning"
    assert level(told(server, inf), "is too large to be checked for damage") is None


def test_a_server_without_a_store_stays_without_one(redis_url: Callable[[], str]) -> None:
    url = redis_url()
    told(url)
    with closing(redis.Redis.from_url(url)) as client:
        assert client.keys() == []


def test_messages_on_redis_that_may_not_be_looked_at(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    fill(server.url)
    with closing(server.client()) as client:
        client.execute_command("ACL", "SETUSER", "default", "-hscan")  # type: ignore[no-untyped-call]
    found = told(server.url)
    server.stop()
    assert level(found, "the messages could not be looked at (") == "warning"


@pytest.mark.full
def test_messages_in_a_cluster_that_cannot_be_read(redis_cluster: RedisCluster) -> None:
    url = f"{redis_cluster.url}?shards=4"
    with bide.Queue("doctored", url) as queue:
        queue.put_many(bide.NewMessage(body=n, id=f"m{n}") for n in range(40))
        assert level(told(url), "in queue 'doctored'") is None
        for shard in range(4):
            id = next(f"m{n}" for n in range(40) if shard_of(f"m{n}", 4) == shard)
            owner = redis_cluster.owner(slot_of(records_key("doctored", shard)))
            with closing(owner.client()) as client:
                assert client.hset(records_key("doctored", shard), id, b"something else") == 0
        (what,) = [what for what in told(url) if "cannot be read" in what]
        assert what.count("in queue 'doctored'") == EXAMPLES
        assert len(queue.claim(40)) == 36
        assert level(told(url), "in queue 'doctored'") is None
        queue.purge(state="dead")


@pytest.mark.full
def test_a_cluster_is_looked_at_with_the_rights_of_the_documentation(
    redis_cluster: RedisCluster,
) -> None:
    rights = re.search(r"^user bide on >password (.*)$", REDIS_DOCS.read_text(), re.MULTILINE)
    assert rights is not None
    for server in redis_cluster.servers:
        with closing(server.client()) as client:
            client.execute_command("ACL", "SETUSER", "bide", "on", ">s3cret", *rights[1].split())  # type: ignore[no-untyped-call]
    found = told(redis_cluster.url.replace("://", "://bide:s3cret@"))
    assert level(found, "the settings cannot be read (") == "warning"
    assert level(found, "the messages could not be looked at (") is None


def test_a_cluster_of_which_no_node_answers() -> None:
    with pytest.raises(StoreUnavailable, match=r"no connection to 127\.0\.0\.1:1, 127\.0\.0\.1:2 "):
        examine("redis+cluster://127.0.0.1:1,127.0.0.1:2", 1)
