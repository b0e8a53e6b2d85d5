"""examine: servers, files and messages that are set up dangerously or cannot be read, and well."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

import bide
from bide.engines.findings import EXAMPLES, Finding, examine
from bide.engines.postgres.settings import read_url
from bide.engines.redis.layout import ended_key, records_key, shard_of, slot_of
from bide.engines.sqlite import doctor as sqlite_doctor
from bide.model.errors import InvalidArgument, NotAStore, StoreUnavailable, Unsupported
from tests.cluster import RedisCluster
from tests.postgres_server import PostgresServer, new_folder, until
from tests.sentinels import SentinelGroup
from tests.servers import RedisServer


def told(url: str, longest: float = inf) -> dict[str, str]:
    """Return what was found, and how bad it is."""
    found = examine(url, longest)
    assert all(one.loss and one.fix for one in found)
    assert [one.level for one in found] == sorted(one.level for one in found)
    return {one.what: one.level for one in found}


def level(found: dict[str, str], what: str) -> str | None:
    return next((level for text, level in found.items() if what in text), None)


# Files.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "bide.db"
    with bide.Queue("q", f"sqlite:///{path}") as queue:
        queue.put(1)
    return path


def test_a_file_in_order(file: Path) -> None:
    found = examine(f"sqlite:///{file}")
    assert [one for one in found if "in memory (tmpfs)" not in one.what] == []


def test_a_store_in_use_is_found_through_a_symbolic_link(tmp_path: Path) -> None:
    """Until the first checkpoint its tables are in the log."""
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "bide.db")
    with bide.Queue("q", f"sqlite:///{tmp_path}/bide.db") as queue:
        queue.put(1)
        found = examine(f"sqlite:///{link}")
        assert [one for one in found if "in memory (tmpfs)" not in one.what] == []


def test_the_locks_of_a_store_that_this_process_has_open_stay(file: Path) -> None:
    """Closing a file ends the locks that a process has on it, whoever took them."""
    change = "import sqlite3; sqlite3.connect('bide.db', 0).execute('PRAGMA journal_mode = DELETE')"
    with bide.Queue("q", f"sqlite:///{file}") as queue:
        queue.put(2)
        examine(f"sqlite:///{file}")
        program = [sys.executable, "-c", change]
        other = subprocess.run(
            program, cwd=file.parent, capture_output=True, text=True, timeout=60, check=False
        )
        assert "database is locked" in other.stderr
        queue.put(3)


def test_a_file_with_two_names(file: Path) -> None:
    file.with_name("copy.db").hardlink_to(file)
    assert level(told(f"sqlite:///{file}"), "has 2 names (hard links)") == "warning"


def test_a_file_that_others_may_change(file: Path) -> None:
    file.chmod(0o646)
    file.parent.chmod(0o777)
    found = told(f"sqlite:///{file}?durability=normal")
    assert level(found, f"{file} is open to all users") == "danger"
    assert level(found, "all users may change the folder") == "danger"
    assert level(found, "durability=normal") == "warning"
    file.chmod(0o644)
    assert level(told(f"sqlite:///{file}"), "open to all users") == "warning"


def test_a_file_that_another_program_changed(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    assert level(told(f"sqlite:///{file}"), "no journal_mode=wal") == "danger"


def test_a_disk_with_little_room(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_doctor, "LITTLE_ROOM", 1 << 60)
    assert level(told(f"sqlite:///{file}"), "MB left") == "danger"


def test_a_file_whose_pages_or_rows_cannot_be_read(file: Path) -> None:
    with bide.Queue("q", f"sqlite:///{file}") as queue:
        queue.put_many(bide.NewMessage(body="x" * 300, id=f"m{n:04}") for n in range(1_000))
        assert not any("damage" in what for what in told(f"sqlite:///{file}"))  # while it is used
        before = sorted(file.parent.iterdir())
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE bide_message SET headers = '[' WHERE id = 'm0007'")
        connection.execute("UPDATE bide_message SET due = 'soon' WHERE id = 'm0008'")
        connection.execute("UPDATE bide_message SET failures = '[[1]]' WHERE id = 'm0009'")
        connection.commit()
    found = told(f"sqlite:///{file}")
    assert level(found, "cannot be read: 'm0007', 'm0008', 'm0009'") == "warning"
    content = bytearray(file.read_bytes())
    for page in range(30, 60):
        content[page * 4096 : page * 4096 + 512] = bytes(512)
    file.write_bytes(content)
    assert level(told(f"sqlite:///{file}"), "is damaged (") == "danger"
    assert sorted(file.parent.iterdir()) == [one for one in before if one.suffix == ".db"]


def test_a_file_that_is_too_large_to_be_checked(file: Path) -> None:
    with bide.Queue("q", f"sqlite:///{file}") as queue:
        queue.put_many(bide.NewMessage(body="x" * 300) for _ in range(2_000))
    assert level(told(f"sqlite:///{file}", -1), "too large to be checked") == "warning"
    assert level(told(f"sqlite:///{file}"), "too large to be checked") is None


def test_what_was_found_in_a_file_before_the_time_ended_is_told(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE bide_message SET due = 'soon'")
        (id,) = connection.execute("SELECT id FROM bide_message").fetchone()
        connection.commit()
    endless = (
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT x FROM n WHERE x > 1"
    )
    monkeypatch.setattr(sqlite_doctor, "UNREADABLE_ENDS", endless)
    looks = count()  # the time goes on each time that it is looked at
    monkeypatch.setattr(sqlite_doctor, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    found = told(f"sqlite:///{file}", 1_000)
    assert level(found, f"cannot be read: {id!r}") == "warning"
    assert level(found, "too large to be checked") == "warning"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system in memory")
def test_a_file_in_memory() -> None:
    with new_folder() as folder:  # under TMPDIR
        place = Path("/dev/shm") / folder.name
        with bide.Queue("q", f"sqlite:///{place}.db") as queue:
            queue.put(1)
        try:
            assert level(told(f"sqlite:///{place}.db"), "in memory (tmpfs)") == "danger"
        finally:
            for part in Path("/dev/shm").glob(f"{folder.name}.db*"):
                part.unlink()


def test_a_file_that_is_not_there_or_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="bide init"):
        examine(f"sqlite:///{tmp_path / 'none.db'}")
    (tmp_path / "text.db").write_text("no database, however long this text may be" * 99)
    with pytest.raises(NotAStore):
        examine(f"sqlite:///{tmp_path / 'text.db'}")


def test_a_file_without_tables_of_bide(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE customer (id)")
        connection.commit()
    with pytest.raises(StoreUnavailable, match="has no tables of bide; make them with bide init"):
        examine(f"sqlite:///{tmp_path / 'shop.db'}")
    assert [one.name for one in tmp_path.iterdir()] == ["shop.db"]


@pytest.mark.parametrize(("version", "how_bad"), [(99, "danger"), (1, "warning")])
def test_a_file_of_another_version(
    file: Path, version: int, how_bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_doctor, "STEPS", ["as version 1", "as version 2"])
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE bide_store SET schema_version = ?", (version,))
        connection.commit()
    assert level(told(f"sqlite:///{file}"), f"is of version {version}, and this bide") == how_bad


# No store, and stores elsewhere.


def test_memory_is_lost_and_a_server_is_examined_where_it_is() -> None:
    assert list(told("memory://").values()) == ["danger"]
    with pytest.raises(Unsupported, match="where the server runs"):
        examine("http://:secret@host:8642")
    with pytest.raises(InvalidArgument):
        examine("nothing://host")


# Redis.


def redis_with(folder: Path, **config: str) -> dict[str, str]:
    settings: dict[str, Any] = {name.replace("_", "-"): to for name, to in config.items()}
    server = RedisServer(folder, **settings)
    try:
        return told(server.url)
    finally:
        server.stop()


def test_redis_that_evicts_and_forgets(tmp_path: Path) -> None:
    found = redis_with(tmp_path, maxmemory="100mb", maxmemory_policy="allkeys-lru", appendonly="no")
    assert level(found, "maxmemory-policy allkeys-lru") == "danger"
    assert level(found, "appendonly no") == "danger"
    assert level(found, "no replica") == "warning"


def test_redis_that_is_safe_but_for_a_replica(tmp_path: Path) -> None:
    found = redis_with(
        tmp_path,
        maxmemory="100mb",
        maxmemory_policy="noeviction",
        appendonly="yes",
        appendfsync="always",
    )
    assert found == {"the server has no replica": "warning"}
    found = redis_with(tmp_path, appendonly="yes", save="60 1", maxmemory_policy="volatile-lru")
    assert level(found, "appendfsync everysec") == "warning"
    assert level(found, "maxmemory-policy volatile-lru") == "warning"


def test_redis_that_ends_clients_with_large_answers(tmp_path: Path) -> None:
    limit = "client_output_buffer_limit"
    found = redis_with(tmp_path, **{limit: "normal 1mb 0 0"})
    assert level(found, "client-output-buffer-limit normal 1048576") == "danger"
    found = redis_with(tmp_path, **{limit: "normal 64mb 0 0"})
    assert not [what for what in found if "buffer" in what]


def test_redis_without_functions_and_settings(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, user="default on nopass ~* +@all -@scripting -config")
    found = told(server.url)
    server.stop()
    assert level(found, "functions are not allowed") == "danger"
    assert level(found, "settings cannot be read") == "warning"


def test_sentinels_replicas_and_a_url_that_names_a_replica(tmp_path: Path) -> None:
    group = SentinelGroup(tmp_path)
    try:
        found = told(group.url)
        assert level(found, "failover-timeout") == "warning"
        assert level(found, "wait_replicas=0") == "warning"
        assert level(found, "min-replicas-to-write 0") == "warning"
        assert level(told(f"{group.url}?reconnect=200ms"), "reconnect=0.2s") == "warning"
        (replica,) = [s for s in group.servers if s is not group.master()]
        assert level(told(replica.url), "is a replica of") == "danger"
    finally:
        group.stop()


# PostgreSQL.


@pytest.fixture
def careless() -> Iterator[PostgresServer]:
    """Provide a server whose settings are all wrong."""
    with new_folder() as folder:
        server = PostgresServer(
            folder,
            fsync="off",
            full_page_writes="off",
            synchronous_commit="off",
            autovacuum="off",
            max_prepared_transactions="2",
        )
        yield server
        server.stop()


def test_postgres_that_is_set_up_dangerously(
    careless: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = told(careless.url)
    for what in (
        "fsync = off",
        "full_page_writes = off",
        "synchronous_commit = off",
        "autovacuum = off",
    ):
        assert level(found, what) == "danger", what
    assert level(found, "no schema 'bide' yet") == "warning"
    assert level(found, "no standby follows") == "warning"
    monkeypatch.setattr("bide.engines.postgres.doctor.LONG_SECONDS", 0)
    monkeypatch.setattr("bide.engines.postgres.doctor.MANY_DEAD_ROWS", 10)
    with bide.Queue("q", careless.url) as queue:
        queue.put_many([bide.NewMessage(body=n) for n in range(50)])
        queue.cancel_many([message.id for message in queue.scan()])
    with careless.client() as client, careless.client() as other:
        client.execute("CREATE ROLE guest LOGIN; ALTER TABLE bide.queue SET UNLOGGED")
        client.execute("SELECT pg_create_physical_replication_slot('forgotten', true)")
        client.execute("BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'left'")
        client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        other.execute("SELECT pg_stat_force_next_flush(); ANALYZE bide.message")
        found = told(careless.url)
        assert level(found, "bide.queue is not logged") == "danger"
        assert level(found, "replication slot forgotten") == "warning"
        assert level(found, "(prepared left)") == "warning"
        assert level(found, f"({client.info.backend_pid})") == "warning"
        assert level(found, "bide.message has") == "warning"
        found = told(careless.url.replace("bide@", "guest@"))
        assert level(found, "may not use the schema 'bide'") == "danger"
        found = told(careless.url.replace("bide@", "guest@") + "&schema=other")
        assert level(found, "no schema 'other' yet") == "danger"
        client.execute("ROLLBACK")
        client.execute("ROLLBACK PREPARED 'left'")
        client.execute("UPDATE bide.store SET version = 99")
        client.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        client.execute("SELECT pg_reload_conf()")
        until(client, "SHOW synchronous_standby_names", [("nobody",)])
        found = told(careless.url)
        assert level(found, "the schema is of version 99") == "danger"
        assert level(found, "none of them is connected") == "danger"


def test_what_a_slot_without_a_reader_means(mine: PostgresServer) -> None:
    def slot(wal: str) -> Finding:
        return next(one for one in examine(mine.url, inf) if f"(WAL: {wal})" in one.what)

    with mine.client() as client:
        client.execute("SELECT pg_create_physical_replication_slot('idle')")
        assert slot("none").loss == "it keeps no WAL yet"
        client.execute("SELECT pg_create_physical_replication_slot('forgotten', true)")
        assert slot("reserved").loss.startswith("the server keeps all WAL for it")
        assert "set max_slot_wal_keep_size" in slot("reserved").fix
        client.execute("ALTER SYSTEM SET max_slot_wal_keep_size = 0")
        client.execute("ALTER SYSTEM SET wal_keep_size = 0")
        client.execute("SELECT pg_reload_conf()")
        until(client, "SHOW max_slot_wal_keep_size", [("0",)])
        assert slot("reserved").loss.endswith("up to max_slot_wal_keep_size")
        for _ in range(2):
            client.execute("CREATE TABLE t (); DROP TABLE t; SELECT pg_switch_wal()")
        assert "is removed at the next checkpoint" in slot("unreserved").loss
        client.execute("CHECKPOINT")
        lost = slot("lost")
        assert (lost.level, "start what reads it" in lost.fix) == ("warning", False)


def test_postgres_that_is_set_up_well(mine: PostgresServer) -> None:
    with bide.Queue("q", mine.url) as queue:
        queue.put(1)
    assert told(mine.url) == {"no standby follows this server": "warning"}
    with mine.client() as client:
        client.execute("CREATE ROLE shop LOGIN")
        client.execute("SELECT bide.allow('shop')")
    unseen = "this user may not see standbys, nor transactions of other users"
    unread = "this user may not read the tables of the schema 'bide'"
    found = told(mine.url.replace("bide@", "shop@"))
    assert found == {unseen: "warning", unread: "warning"}


@pytest.fixture
def mine() -> Iterator[PostgresServer]:
    with new_folder() as folder:
        server = PostgresServer(folder, fsync="on")
        yield server
        server.stop()


REDIS_DOCS = Path(__file__).parents[3] / "docs" / "redis.md"


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


def test_ends_on_redis_that_cannot_be_read(redis_url: Callable[[], str]) -> None:
    url = redis_url()
    with bide.Queue("orders", url, history="1h") as orders:
        orders.put_many(bide.NewMessage(body=1, id=id) for id in ("a", "b"))
        orders.purge(state="ready")
        assert level(told(url), "cannot be read") is None
        with closing(redis.Redis.from_url(url)) as client:
            assert client.hset(ended_key("orders"), "a", b"something else") == 0
        assert [(ended.id, ended.how) for ended in orders.ended()] == [
            ("a", "dead"),
            ("b", "purged"),
        ]
        [(what, degree)] = [
            (what, degree) for what, degree in told(url).items() if "cannot be read" in what
        ]
        assert degree == "warning"
        assert what.startswith("what is remembered of ended messages in ")
        assert what.endswith("cannot be read: 'a' in queue 'orders'")


def test_some_of_many_messages_that_cannot_be_read_are_named(kind: str, server: str) -> None:
    DAMAGE[kind](server, [f"m{n:04}" for n in range(1_000)])
    (what,) = [what for what in told(server) if "cannot be read" in what]
    assert what.count("in queue 'orders'") == EXAMPLES


def test_a_server_with_too_many_messages_to_be_checked(server: str) -> None:
    assert level(told(server, -1), "is too large to be checked for damage") == "warning"
    assert level(told(server), "is too large to be checked for damage") is None


def test_the_time_ends_at_queues_without_messages(redis_url: Callable[[], str]) -> None:
    url = redis_url()
    for name in ("mails", "orders"):
        with bide.Queue(name, url) as queue:
            queue.put(1, id="a")
            queue.cancel("a")
    assert level(told(url, -1), "is too large to be checked for damage") == "warning"
    assert level(told(url), "is too large to be checked for damage") is None


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
