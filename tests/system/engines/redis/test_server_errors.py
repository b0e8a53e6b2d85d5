"""What a server may answer instead: each has its own error, with the cause and the fix."""

import ast
import logging
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bide
import bide.engines.redis
from bide.engines.findings import examine
from bide.engines.redis import RedisEngine
from bide.engines.redis.calls import LIBRARY
from bide.engines.redis.layout import LAYOUT, LAYOUTS
from bide.model.commands import Ack, Cancel, Claim, Configure, Count, Lease, Put, Queues, Scan
from bide.model.errors import (
    NotAStore,
    OutcomeUnknown,
    SchemaTooNew,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
)
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Names, Outcomes
from tests.proxy import Proxy
from tests.servers import PATIENCE, RedisServer, free_port
from tests.system.engines.redis.conftest import Open
from tests.waiting import until

Start = Callable[..., RedisServer]
HOUR = 3_600_000
NOW = 1_700_000_000_000

DOCS = Path(__file__).parents[4] / "docs" / "redis.md"


def put(*ids: str, size: int = 1) -> Put:
    return Put("q", [Item(id, b"x" * size, json=False) for id in ids])


def ask(engine: RedisEngine, *commands: Any) -> Any:
    return engine.execute(commands)[0]


def test_a_server_that_ends_connections_with_large_answers_is_refused(
    open_engine: Open, start: Start
) -> None:
    server = start()
    limit = "client-output-buffer-limit"
    engine = open_engine(server.url)
    engine.execute([put(id, size=900_000) for id in "abc"])
    server.client().config_set(limit, "normal 1048576 0 0")
    refusal = re.escape(f"{limit} normal is 1048576 bytes, and bide needs 16777216 or no limit")
    with pytest.raises(OutcomeUnknown, match=refusal):  # it ends the connection: messages or not
        ask(engine, Claim("q", 3, HOUR, "w"))
    with pytest.raises(StoreUnavailable, match=refusal) as raised:
        ask(engine, put("d"))
    assert not isinstance(raised.value, OutcomeUnknown)
    with pytest.raises(StoreUnavailable, match=refusal):
        open_engine(server.url)
    server.client().config_set(limit, "normal 16777216 0 0")
    ask(engine, put("d"))
    assert ask(engine, Count("q")).sizes.total == 4


def test_functions_that_were_forgotten_are_loaded_again(open_engine: Open, start: Start) -> None:
    server = start()
    engine = open_engine(server.url)
    ask(engine, put("a"))
    server.client().function_flush()
    replies = engine.execute([put("b"), Claim("q", 5, HOUR, "w"), Cancel("q", ["b"])])
    assert [message.id for message in replies[1].messages] == ["a", "b"]  # type: ignore[union-attr]


def test_a_server_whose_disk_fails_says_so(open_engine: Open, start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    server = start(save="3600 1000000", dir=str(data))
    engine = open_engine(server.url)
    ask(engine, put("a"))
    client = server.client()
    shutil.rmtree(data)
    client.bgsave()
    deadline = time.monotonic() + 60
    while client.info("persistence")["rdb_last_bgsave_status"] == "ok":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(StoreReadOnly, match="cannot write its snapshot"):
        ask(engine, put("b"))


@pytest.mark.full
def test_a_replica_is_no_place_to_put(open_engine: Open, start: Start) -> None:
    server = start()
    server.client().replicaof("127.0.0.1", "1")
    engine = open_engine(server.url)
    with pytest.raises(StoreReadOnly, match="this server is a replica: name the master"):
        ask(engine, put("b"))


def test_a_password_is_needed_and_never_shown(open_engine: Open, start: Start) -> None:
    server = start(requirepass="s3cret")
    with pytest.raises(StoreUnavailable, match="wants a password"):
        open_engine(server.url)
    with pytest.raises(StoreUnavailable, match="is wrong") as raised:
        open_engine(f"unix://default:wr0ng@{server.path}")
    assert "wr0ng" not in str(raised.value)
    engine = open_engine(f"unix://default:s3cret@{server.path}")
    assert ask(engine, put("a")).outcomes[0]


def test_the_acl_of_the_documentation_is_just_enough(open_engine: Open, start: Start) -> None:
    server = start()
    admin: Any = server.client()
    told = re.search(r"^user bide on >password (.*)$", DOCS.read_text(), re.MULTILINE)
    assert told is not None
    admin.execute_command("ACL", "SETUSER", "bide", "on", ">s3cret", *told[1].split())
    engine = open_engine(f"unix://bide:s3cret@{server.path}")
    notifier = engine.notifier()
    ask(engine, Put("q", [Item("a", b"1", group="g", priority=3, expires=0, at=5)]))
    ask(engine, put("b"))
    claimed = ask(engine, Claim("q", 5, HOUR, "w"))
    ask(engine, Ack("q", [Lease("b", claimed.token)]))
    ask(engine, Scan("q"))
    ask(engine, Count("q", recount=True))
    assert ask(engine, Queues("")) == Names(["q"])
    assert notifier is not None
    admin.execute_command("ACL", "SETUSER", "bide", "-zadd")
    with pytest.raises(StoreError, match="its ACL needs"):
        ask(engine, put("c"))


def test_who_lacks_rights_is_told_which_before_a_function_ends_halfway(
    open_engine: Open, start: Start
) -> None:
    server = start()
    admin: Any = server.client()
    rules = "on", ">s3cret", "~bide:*", "&bide:*", "+@all"
    admin.execute_command("ACL", "SETUSER", "bide", *rules)
    url = f"unix://bide:s3cret@{server.path}"
    engine = open_engine(url)
    ask(engine, put("a"))
    admin.execute_command("ACL", "SETUSER", "bide", "-zrem", "-hdel")
    claimed = ask(engine, Claim("q", 1, HOUR, "w"))
    with pytest.raises(StoreError, match="its ACL needs"):  # one that was connected before
        ask(engine, Ack("q", [Lease("a", claimed.token)]))
    for use in (lambda: ask(engine, put("b")), lambda: open_engine(url)):
        with pytest.raises(StoreUnavailable, match=r"this user lacks \+hdel \+zrem"):
            use()
    keys = "&bide:wake:*", "resetkeys", "~bide:{q#*", "~bide:queues*", "~bide:version"
    admin.execute_command("ACL", "SETUSER", "bide", "+zrem", "+hdel", *keys)  # enough for 'q'
    for user in (engine, open_engine(url)):
        assert ask(user, put("b", "c")).outcomes


@pytest.mark.parametrize("command", ["FUNCTION", "HSCAN"])
def test_a_server_that_has_renamed_a_command_says_so(
    open_engine: Open, start: Start, command: str
) -> None:
    server = start(**{"rename-command": f'{command} ""'})
    with pytest.raises(StoreUnavailable, match="set to rename a command that bide needs"):
        ask(open_engine(server.url), Scan("q"))


def test_the_acl_of_the_documentation_names_what_scripts_call() -> None:
    told = re.search(r"^user bide on >password (.*)$", DOCS.read_text(), re.MULTILINE)
    assert told is not None
    called = {name.lower() for name in re.findall(r"'([A-Z]{3,})'", LIBRARY.text)}
    options = {"count", "limit", "withscores"}
    assert called - options <= {word.lstrip("+") for word in told[1].split()}


def test_a_key_that_is_somebody_elses_is_left_alone(open_engine: Open, start: Start) -> None:
    server = start()
    server.client().set("bide:{q#0}:delayed", "mine")
    engine = open_engine(server.url)
    with pytest.raises(NotAStore, match="something that bide did not store"):
        ask(engine, put("a"))
    assert server.client().get("bide:{q#0}:delayed") == b"mine"


def test_half_a_change_that_a_dead_server_left_stops_nobody(
    open_engine: Open, start: Start
) -> None:
    server = start()
    engine = open_engine(server.url)
    engine.execute([put("half", "whole", "held")], NOW)
    client = server.client()
    client.hdel("bide:{q#0}:records", "half")
    (claimed,) = engine.execute([Claim("q", 2, 1000, "w")], NOW + 1)
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["whole", "held"]
    client.hdel("bide:{q#0}:records", "held")
    (claimed,) = engine.execute([Claim("q", 2, 1000, "w")], NOW + 1002)
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["whole"]
    assert client.zcard("bide:{q#0}:leased") == 1
    assert client.zcard("bide:{q#0}:delayed") == 0


def test_a_store_of_a_newer_bide_is_refused(open_engine: Open, start: Start) -> None:
    server = start()
    server.client().set("bide:version", max(LAYOUTS) + 1)
    with pytest.raises(SchemaTooNew, match="upgrade bide"):
        open_engine(server.url)


def test_a_store_of_the_previous_layout_is_refused_and_left_alone(
    open_engine: Open, start: Start
) -> None:
    server = start()
    server.client().set("bide:version", LAYOUT - 1)
    server.client().zadd("bide:{q}:delayed", {"a": 1})
    with pytest.raises(SchemaTooNew, match=rf"layout {LAYOUT - 1}.*bide export.*bide import"):
        open_engine(server.url)
    assert sorted(server.client().keys("*")) == [b"bide:version", b"bide:{q}:delayed"]
    assert server.client().get("bide:version") == b"%d" % (LAYOUT - 1)


def test_a_server_too_old_is_refused(open_engine: Open, start: Start) -> None:
    proxy = Proxy(start().path)
    proxy.rewrite = lambda data: data.replace(b"redis_version:7.", b"redis_version:6.")
    with pytest.raises(StoreUnavailable, match=r"this is Redis 6\..*needs 7.0"):
        open_engine(proxy.url)
    proxy.close()


@pytest.mark.parametrize(("version", "old"), [(b"6.2.", True), (b"10.0", False)])
def test_the_doctor_compares_versions_as_numbers(
    start: Start, version: bytes, *, old: bool
) -> None:
    proxy = Proxy(start().path)
    proxy.rewrite = lambda data: re.sub(rb"(redis_version:)\d\.\d\.", rb"\g<1>" + version, data)
    assert any("the server is Redis" in each.what for each in examine(proxy.url, 1)) is old
    proxy.close()


def test_a_server_that_loads_is_waited_for(open_engine: Open, start: Start) -> None:
    server = start(appendonly="yes", **{"key-load-delay": "2000"})
    engine = open_engine(server.url)
    for number in range(100):
        ask(engine, put(f"m{number}"))
    server.stop()
    server.start(wait_for_data=False)
    again = open_engine(server.url)
    assert ask(again, Count("q")).sizes.total == 100
    assert ask(engine, put("more")).outcomes[0]


def test_a_store_that_was_wiped_is_used_again(open_engine: Open, start: Start) -> None:
    server = start()
    engine = open_engine(server.url)
    ask(engine, put("a"))
    server.client().flushall()
    reply = ask(engine, put("a"))
    assert isinstance(reply, Outcomes)
    assert reply.outcomes[0]
    assert ask(engine, Queues("")) == Names(["q"])


def test_a_bad_place_for_messages_is_warned_of_once(
    open_engine: Open, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(**{"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"})
    with caplog.at_level(logging.WARNING, "bide.redis"):
        open_engine(server.url)
        open_engine(server.url)
    evicts, loses = [record.getMessage() for record in caplog.records]
    assert "maxmemory-policy volatile-lru: the server deletes messages" in evicts
    assert "maxmemory-policy noeviction" in evicts
    assert "a restart loses all messages; CONFIG SET appendonly yes" in loses


def test_a_good_place_for_messages_is_not(
    open_engine: Open, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(appendonly="yes")
    with caplog.at_level(logging.WARNING, "bide.redis"):
        open_engine(server.url)
    assert caplog.records == []


def test_what_replicas_do_not_have_is_not_confirmed(open_engine: Open, start: Start) -> None:
    master = start(port=free_port(), **{"repl-diskless-sync-delay": "0"})
    ask(open_engine(master.url), Configure("q"))
    engine = open_engine(f"{master.url}?wait_replicas=1&timeout=1s")
    with pytest.raises(OutcomeUnknown, match="the server has it, but only 0 of the 1 replicas"):
        ask(engine, put("a"))
    for _ in range(2):  # from now on it is refused before it is done
        with pytest.raises(StoreReadOnly, match=r"only 0 of the 1 replicas.*nothing was changed"):
            ask(engine, Claim("q", 1, HOUR, "w"))
    (counts,) = engine.execute([Count("q")])
    assert isinstance(counts, Counts)
    assert (counts.sizes.ready, counts.sizes.leased) == (1, 0)
    replica = start(replicaof=f"127.0.0.1 {master.port}")
    deadline = time.monotonic() + 60
    while replica.client().info("replication")["master_link_status"] != "up":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    slow = open_engine(f"{master.url}?wait_replicas=1&timeout=10s")
    assert ask(slow, put("b")).outcomes[0]
    assert ask(slow, put("c")).outcomes[0]  # it follows step by step, no longer by a whole copy
    assert replica.client().hexists("bide:{q#0}:records", "b")
    assert ask(engine, Claim("q", 1, HOUR, "w")).messages  # the one that was refused goes on


def test_a_master_that_becomes_a_replica_while_it_waits_for_one_has_not_confirmed(
    open_engine: Open, start: Start
) -> None:
    master = start(port=free_port(), **{"repl-diskless-sync-delay": "0"})
    replica = start(replicaof=f"127.0.0.1 {master.port}")
    engine = open_engine(f"{master.url}?wait_replicas=1&timeout={PATIENCE}&reconnect={PATIENCE}")
    ask(engine, put("a"))
    process, admin = replica.process, master.client()
    assert process is not None
    process.send_signal(signal.SIGSTOP)

    def demote() -> None:
        until(lambda: admin.info("clients")["blocked_clients"])
        admin.replicaof("127.0.0.1", "1")
        admin.replicaof("NO", "ONE")
        process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=demote)
    thread.start()
    assert ask(engine, put("b")).outcomes[0].done
    thread.join()
    until(lambda: replica.client().hexists("bide:{q#0}:records", "b"))


def test_the_words_by_which_the_documentation_finds_an_outage_are_those_that_are_said() -> None:
    page = DOCS.read_text().partition("## In an outage")[2].partition("\n###")[0]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")][1:]
    quoted = [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row)]
    said = "\n".join(
        node.value
        for file in Path(bide.engines.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    unsaid = [
        phrase
        for phrase in quoted
        if not all(part.strip() in said or hasattr(bide, part) for part in phrase.split("…"))
    ]
    assert len(quoted) > 20
    assert unsaid == []


def test_the_names_of_many_queues_take_few_round_trips(open_engine: Open, start: Start) -> None:
    proxy = Proxy(start().path)
    engine = open_engine(proxy.url)
    names = [f"q{number:03}" for number in range(400)]
    engine.execute([Put(name, [Item("a", b"1")]) for name in names])
    replies: list[bytes] = []

    def note(data: bytes) -> bytes:
        replies.append(data)
        return data

    proxy.rewrite = note
    assert ask(engine, Queues("")) == Names(names)
    assert len(replies) < 40
    proxy.close()
