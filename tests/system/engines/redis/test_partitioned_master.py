"""A master that is cut off from its group, and goes on answering us: we leave it by ourselves."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bide.engines.redis import RedisEngine, nodes, sentinel
from bide.engines.registry import opener
from bide.lane.lane import Lane
from bide.model.commands import Claim, Put
from bide.model.message import Item
from bide.model.replies import Claimed
from tests.sentinels import NAME, SentinelGroup
from tests.servers import PATIENCE, RedisServer
from tests.system.engines.redis.conftest import Open

pytestmark = pytest.mark.process

# We come as one user and the group as another, so that the group can be locked out.
PASSWORD = "s3cret"
CONFIG = {
    "requirepass": PASSWORD,
    "masteruser": "peer",
    "masterauth": PASSWORD,
    "user": f"peer on >{PASSWORD} ~* &* +@all",
}
WATCHER = f"sentinel auth-user {NAME} peer\nsentinel auth-pass {NAME} {PASSWORD}"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    group = SentinelGroup(tmp_path, config=CONFIG, sentinel_config=WATCHER, server_auth=PASSWORD)
    yield group
    group.stop()


def url(group: SentinelGroup) -> str:
    return group.url.replace("://", f"://:{PASSWORD}@")


def admin(server: RedisServer, *command: str | int) -> None:
    with server.client(password=PASSWORD) as client:
        client.execute_command(*command)


def cut_off(server: RedisServer) -> None:
    """Let neither sentinels nor replicas reach a server any more."""
    admin(server, "ACL", "SETUSER", "peer", "off")
    admin(server, "CLIENT", "KILL", "USER", "peer")


def put(engine: RedisEngine, id: str) -> None:
    engine.execute([Put("q", [Item(id, b"1")])])


def has(server: RedisServer, id: str) -> bool:
    with server.client(password=PASSWORD) as client:
        return bool(client.hexists("bide:{q#0}:records", id))


def put_until_it_is_at(server: RedisServer, engine: RedisEngine, name: str = "m") -> str:
    """Put one after the other until one of them is at a server; return its id."""
    deadline = time.monotonic() + PATIENCE
    number = 0
    while not has(server, f"{name}{number}"):
        assert time.monotonic() < deadline, "it does not notice"
        number += 1
        put(engine, f"{name}{number}")
        time.sleep(0.01)
    return f"{name}{number}"


@pytest.mark.full
def test_who_only_puts_leaves_a_master_that_was_cut_off(
    group: SentinelGroup, open_engine: Open
) -> None:
    engine = open_engine(url(group))
    put(engine, "a")
    old = group.master()
    group.wait_for_replica()
    cut_off(old)
    put(engine, "cut")
    assert has(old, "cut")
    new = group.wait_for_another(old)
    moved = put_until_it_is_at(new, engine)
    put(engine, "b")
    admin(old, "ACL", "SETUSER", "peer", "on")
    group.wait_for_replica()  # it is back, as a replica, and what only it had is gone
    put(engine, "c")
    assert [has(new, id) for id in ("a", "cut", moved, "b", "c")] == [True, False, True, True, True]
    # Sentinels that are set up anew begin to count fail-overs anew, and are believed all the same.
    for number in range(3):
        group.ask(number, "SENTINEL", "REMOVE", NAME)
        group.ask(number, "SENTINEL", "MONITOR", NAME, "127.0.0.1", new.port, 2)
        for what in (("auth-user", "peer"), ("auth-pass", PASSWORD)):
            group.ask(number, "SENTINEL", "SET", NAME, *what)
    admin(new, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    put(engine, "d")
    assert has(new, "d")


def test_what_a_master_that_was_cut_off_refuses_is_done_by_the_new_one(
    group: SentinelGroup, open_engine: Open
) -> None:
    engine = open_engine(f"{url(group)}?reconnect={PATIENCE}")
    put(engine, "a")
    old = group.master()
    admin(old, "CONFIG", "SET", "min-replicas-to-write", 1)
    cut_off(old)
    put(engine, "b")
    assert not has(old, "b")
    assert has(group.wait_for_another(old), "b")


@pytest.mark.full
def test_a_sentinel_that_was_cut_off_as_well_is_not_believed(
    group: SentinelGroup, open_engine: Open
) -> None:
    """The first of the URL still believes in the old master: it hears nothing of the others."""
    old = group.master()
    admin(old, "ACL", "SETUSER", "loner", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    group.ask(0, "SENTINEL", "SET", NAME, "auth-user", "loner")
    group.ask(0, "ACL", "SETUSER", "default", "-publish")
    engine = open_engine(url(group))
    put(engine, "a")
    cut_off(old)
    for server in group.servers:
        if server is not old:
            admin(server, "CLIENT", "KILL", "USER", "peer")
    new = group.wait_for_another(old)
    put_until_it_is_at(new, engine)
    told = group.ask(0, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
    assert int(told[1]) == old.port
    put(engine, "b")
    assert has(new, "b")
    late = open_engine(url(group))  # it asks the first one, and hears of the others in a moment
    put_until_it_is_at(new, late, "late")


def test_who_waits_leaves_a_master_that_was_cut_off(
    group: SentinelGroup, open_engine: Open
) -> None:
    got: list[str] = []
    lane = Lane(opener(url(group)))

    def wait() -> None:
        reply = lane.call(Claim("q", 1, 60_000, "w"), wait=PATIENCE)
        assert isinstance(reply, Claimed)
        got.extend(message.id for message in reply.messages)

    thread = threading.Thread(target=wait)
    thread.start()
    old = group.master()
    cut_off(old)
    new = group.wait_for_another(old)
    put(open_engine(f"redis://:{PASSWORD}@127.0.0.1:{new.port}"), "there")
    thread.join(PATIENCE)
    assert got == ["there"]
    lane.close()


def test_sentinels_that_are_all_gone_are_missed(
    group: SentinelGroup,
    open_engine: Open,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "CHECK", 0.01)
    monkeypatch.setattr(sentinel, "SILENT", 2)
    engine = open_engine(url(group))
    for number in range(3):
        group.kill_sentinel(number)
    deadline = time.monotonic() + PATIENCE
    while not any("no sentinel answers" in record.getMessage() for record in caplog.records):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    put(engine, "a")  # the master itself is there
    assert PASSWORD not in caplog.text
