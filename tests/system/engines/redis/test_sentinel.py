"""Sentinel: the master is found, and followed when it is another; nobody waits at a dead one."""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis import Redis
from redis import exceptions as redis_errors

import bide
from bide.engines.redis import RedisEngine, nodes
from bide.engines.redis.sentinel import Address, Sentinels
from bide.engines.redis.settings import read_url
from bide.engines.registry import opener
from bide.lane.lane import Lane
from bide.model.commands import Claim, Count, Put
from bide.model.errors import InvalidArgument, StoreError, StoreUnavailable
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Outcomes
from bide.model.runs import run_id
from bide.model.times import unix
from bide.testing.engine_hooks import redis_sender
from tests.effort import one_in
from tests.sentinels import NAME, SentinelGroup
from tests.servers import PATIENCE, RedisServer
from tests.system.engines.redis.conftest import Open

pytestmark = pytest.mark.process

DOCS = Path(__file__).parents[4] / "docs" / "redis.md"
RIGHTS = re.compile(r"^- An ACL for the sentinels themselves needs (.*)$", re.MULTILINE)

Group = Callable[..., SentinelGroup]
NOW = 1_700_000_000_000


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    group = SentinelGroup(tmp_path)
    yield group
    group.stop()


def put(engine: RedisEngine, id: str, now: int | None = None) -> None:
    (reply,) = engine.execute([Put("q", [Item(id, b"1")])], now)
    assert isinstance(reply, Outcomes)
    assert reply.outcomes[0].state == "ready"  # done now, or by a put of which nobody knew


def size(engine: RedisEngine) -> int:
    (counts,) = engine.execute([Count("q")])
    assert isinstance(counts, Counts)
    return counts.sizes.total


def claim(engine: RedisEngine, now: int) -> None:
    (reply,) = engine.execute([Claim("q", 1, 60_000, "w")], now)
    assert isinstance(reply, Claimed)
    assert reply.messages == []


def test_a_master_that_is_killed_is_followed_by_another(
    group: SentinelGroup, open_engine: Open
) -> None:
    engine = open_engine(f"{group.url}?reconnect={PATIENCE}&wait_replicas=1&timeout=2s")
    put(engine, "a")
    old = group.master()
    old.stop()
    with pytest.raises(StoreError):  # it is stored, but the replica that was is the master now
        put(engine, "b")
    assert group.master() is not old
    with pytest.raises(StoreError, match=r"only 0 of the 1 replicas .* nothing was changed"):
        put(engine, "c")
    assert size(engine) == 2
    old.start()
    group.wait_for_replica()
    put(engine, "b")
    put(engine, "c")
    assert size(engine) == 3
    assert old.client().hlen("bide:{q#0}:records") == 3


@pytest.mark.full
def test_rules_of_times_go_on_at_another_master(group: SentinelGroup) -> None:
    url = f"{group.url}?reconnect={PATIENCE}&wait_replicas=1&timeout=2s"
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    rule = bide.Every("1h", start=begin, missed="all")
    with bide.Queue("reminders", url) as reminders:
        reminders.put("x", id="ann", repeat=rule, at=begin, attempts=1)
        reminders.put("x", id="date", at="2097-07-01 09:00", timezone="Europe/Paris")
        reminders.claim()[0].ack()
        (held,) = reminders.claim()
        held_run = run_id("ann", unix(begin + timedelta(hours=1)))
        old = group.master()
        old.stop()
        group.wait_for_another(old)
        old.start()
        group.wait_for_replica()
        held.bury("no")  # the dead letter of this run is put there, and the next run is planned
        (third,) = reminders.claim(wait=PATIENCE)
        assert third.message.run_at == begin + timedelta(hours=2)
        third.ack()
        assert [letter.id for letter in reminders.dead()] == [held_run]
        message, dated = reminders.get("ann"), reminders.get("date")
        assert message is not None
        assert dated is not None
        assert (message.state, message.repeat) == ("ready", rule)
        assert str(dated.local_date) == "2097-07-01 09:00 Europe/Paris"
        assert reminders.reschedule("date", at="2097-07-02 09:00", timezone="Europe/Paris")
        assert reminders.audit()


def test_settings_that_lose_changes_are_warned_of_once(
    group: SentinelGroup, open_engine: Open, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{group.url}?wait_replicas=1"
    open_engine(url)
    told = [record.getMessage() for record in caplog.records]
    (timeout,) = [text for text in told if "failover-timeout 2000" in text]
    assert f"SENTINEL SET {NAME} failover-timeout 180000" in timeout
    assert any("min-replicas-to-write 0" in text for text in told)
    assert not any("quorum" in text for text in told)
    caplog.clear()
    for number in range(3):
        group.ask(number, "SENTINEL", "SET", NAME, "failover-timeout", 20_000, "quorum", 1)
    group.master().client().config_set("min-replicas-to-write", 1)
    put(open_engine(url), "a")
    told = [record.getMessage() for record in caplog.records]
    assert ["1 of 3 sentinels are enough" in text for text in told] == [True], told
    caplog.clear()
    for number in range(3):
        group.ask(number, "SENTINEL", "SET", NAME, "down-after-milliseconds", 31_000, "quorum", 2)
    open_engine(url)
    (slow,) = [record.getMessage() for record in caplog.records]
    assert "the store stops for more than 31 s" in slow


def test_who_waits_is_told_by_the_new_master(group: SentinelGroup, open_engine: Open) -> None:
    url = f"{group.url}?reconnect={PATIENCE}"
    waiter, putter = open_engine(url), open_engine(url)
    notifier = waiter.notifier()
    assert notifier is not None
    claim(waiter, NOW)
    old = group.master()
    old.stop()
    told: list[tuple[str, int]] = []
    thread = threading.Thread(target=lambda: told.extend(notifier.listen()))
    thread.start()
    moment, deadline = NOW, time.monotonic() + PATIENCE
    while thread.is_alive():  # what is put before it listens at the new master is lost
        assert time.monotonic() < deadline
        moment -= 1
        claim(waiter, moment)
        put(putter, f"m{NOW - moment}", moment)
        thread.join(0.1)
    assert told == [("q", moment)]
    group.wait_for_another(old)  # most sentinels may hear of it later


@pytest.mark.parametrize("stop", one_in(2, [signal.SIGSTOP, signal.SIGKILL]))
def test_a_worker_that_waits_at_a_silent_or_dead_master_gets_what_is_put_at_the_new_one(
    group: SentinelGroup, open_engine: Open, stop: signal.Signals
) -> None:
    got: list[str] = []
    lane = Lane(opener(f"{group.url}?timeout=500ms&reconnect={PATIENCE}"))

    def wait() -> None:
        reply = lane.call(Claim("q", 1, 60_000, "w"), wait=PATIENCE)
        assert isinstance(reply, Claimed)
        got.extend(message.id for message in reply.messages)

    thread = threading.Thread(target=wait)
    thread.start()
    old = group.master()
    with old.client() as client:
        while not client.zcard("bide:{q#0}:waiters"):
            time.sleep(0.002)
    assert old.process is not None
    old.process.send_signal(stop)
    try:
        group.wait_for_another(old)
        put(open_engine(group.url), "a")
        thread.join(PATIENCE)
        assert got == ["a"]
    finally:
        if stop == signal.SIGSTOP:
            old.process.send_signal(signal.SIGCONT)
        lane.close()
    if stop == signal.SIGSTOP:  # it comes back as a replica, and has what it missed
        group.wait_for_replica()
        assert old.client().info("replication")["role"] == "slave"


def test_a_planned_fail_over_loses_no_caller(group: SentinelGroup, open_engine: Open) -> None:
    engine = open_engine(f"{group.url}?reconnect={PATIENCE}")
    put(engine, "a")
    old = group.master()
    group.ask(0, "SENTINEL", "FAILOVER", NAME)
    deadline = time.monotonic() + PATIENCE
    count = 1
    while group.master() is old:
        assert time.monotonic() < deadline
        put(engine, f"m{count}")
        count += 1
    group.wait_for_replica()
    put(engine, "last")
    # Without wait_replicas what the old master got in its last moment may be missing.
    assert old.client().info("replication")["role"] == "slave"
    with group.master().client() as client:
        assert client.hexists("bide:{q#0}:records", "last")


def test_a_planned_fail_over_is_followed_before_all_replicas_follow(
    tmp_path: Path, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where they take minutes to copy everything from the new master."""
    monkeypatch.setattr(nodes, "CHECK", 0.05)
    group = SentinelGroup(tmp_path, replicas=2)
    try:
        engine = open_engine(f"{group.url}?reconnect={PATIENCE}")
        put(engine, "a")
        for server in group.servers:  # none can follow another one from now on
            server.client().acl_setuser("default", enabled=True, commands=["-psync", "-sync"])
        for number in range(3):  # and no sentinel puts the old master right by itself
            group.ask(number, "SENTINEL", "SET", NAME, "failover-timeout", 600_000)
            group.ask(number, "SENTINEL", "DEBUG", "publish-period", 600_000)
        old = group.master()
        group.ask(0, "SENTINEL", "FAILOVER", NAME)
        new = group.wait_for_another(old)
        deadline = time.monotonic() + PATIENCE
        count = 0
        while new.client().hlen("bide:{q#0}:records") < 2:
            assert time.monotonic() < deadline
            count += 1
            put(engine, f"m{count}")
    finally:
        group.stop()


def test_a_master_that_does_not_know_that_it_is_none_is_left(
    tmp_path: Path, group: SentinelGroup, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "CHECK", 0.05)
    (tmp_path / "elsewhere").mkdir()
    elsewhere = RedisServer(tmp_path / "elsewhere", port=group.free_port())
    group.servers.append(elsewhere)
    engine = open_engine(group.url)
    put(engine, "here")
    for number in range(3):
        group.ask(number, "SENTINEL", "REMOVE", NAME)
        group.ask(number, "SENTINEL", "MONITOR", NAME, "127.0.0.1", elsewhere.port, 2)
    deadline = time.monotonic() + PATIENCE
    while not elsewhere.client().exists("bide:{q#0}:records"):
        assert time.monotonic() < deadline
        put(engine, "there")
    assert elsewhere.client().hkeys("bide:{q#0}:records") == [b"there"]


def test_one_sentinel_is_enough_and_one_that_is_behind_is_not_believed(
    group: SentinelGroup, open_engine: Open
) -> None:
    master, replica = group.servers
    group.kill_sentinel(0)
    group.ask(1, "SENTINEL", "REMOVE", NAME)
    group.ask(1, "SENTINEL", "MONITOR", NAME, "127.0.0.1", replica.port, 3)
    put(open_engine(group.url), "a")
    assert master.client().hexists("bide:{q#0}:records", "a")


def test_a_sentinel_that_forgets_the_group_between_two_questions_is_no_error(
    group: SentinelGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the thread that watches them would end."""
    sentinels = read_url(urlsplit(group.url)).sentinels
    assert sentinels is not None
    ask = Redis.sentinel_master

    def forget(client: Redis, name: str) -> object:
        facts = ask(client, name)
        port = client.connection_pool.connection_kwargs["port"]
        with Redis(port=port) as another:
            another.execute_command("SENTINEL", "REMOVE", NAME)
        return facts

    monkeypatch.setattr(Redis, "sentinel_master", forget)
    assert sentinels.look() == {("127.0.0.1", group.servers[0].port)}
    sentinels.close()


def test_a_batch_asks_the_sentinels_once_at_each_attempt(
    group: SentinelGroup, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(f"{group.url}?reconnect=10ms")
    puts = [Put(f"q{number}", [Item("a", b"1")]) for number in range(100)]
    engine.execute(puts)
    asked = []

    def none_answers(sentinels: Sentinels) -> Address:  # each may take a second
        asked.append(1)
        raise StoreUnavailable("no sentinel answers") from redis_errors.ConnectionError()

    monkeypatch.setattr(Sentinels, "master", none_answers)
    redis_sender(engine).nodes.doubt_sentinels()
    with pytest.raises(StoreUnavailable, match="no sentinel answers"):
        engine.execute(puts)
    assert len(asked) < 20


def test_passwords_of_servers_and_of_sentinels(tmp_path: Path, open_engine: Open) -> None:
    group = SentinelGroup(
        tmp_path,
        config={"requirepass": "of-the-servers", "masterauth": "of-the-servers"},
        sentinel_config=f"requirepass s3cret\nsentinel auth-pass {NAME} of-the-servers",
        auth="s3cret",
        server_auth="of-the-servers",
    )
    try:
        ours = f"redis+sentinel://:of-the-servers@{group.hosts}/{NAME}"
        put(open_engine(f"{ours}?sentinel_password=s3cret"), "a")
        put(open_engine(f"{ours}/3?sentinel_user=default&sentinel_password=s3cret"), "in 3")
        rights = RIGHTS.search(DOCS.read_text())
        assert rights is not None
        for number in range(3):
            user = ("bide", "on", ">pw", "-@all", *re.findall(r"`([^`]+)`", rights[1]))
            group.ask(number, "ACL", "SETUSER", *user)
        put(open_engine(f"{ours}?sentinel_user=bide&sentinel_password=pw"), "by a user")
        with pytest.raises(StoreUnavailable, match="sentinels want one of their own"):
            open_engine(ours)
        with pytest.raises(StoreUnavailable, match="the password in the URL is wrong") as raised:
            open_engine(f"{ours}?sentinel_password=wr0ng")
        assert "wr0ng" not in str(raised.value)
        assert "of-the-servers" not in str(raised.value)
        with pytest.raises(StoreUnavailable, match="the server wants a password"):
            open_engine(f"{group.url}?sentinel_password=s3cret")
        with group.master().client(db=3, password="of-the-servers") as client:
            assert client.hexists("bide:{q#0}:records", "in 3")
    finally:
        group.stop()


def test_what_else_may_be_wrong_is_said(group: SentinelGroup, open_engine: Open) -> None:
    with pytest.raises(StoreUnavailable, match=r"change the URL.*No such master"):
        open_engine(f"redis+sentinel://{group.hosts}/others")
    with pytest.raises(StoreUnavailable, match=r"no sentinel names a master .*are the sentinels"):
        open_engine(f"redis+sentinel://127.0.0.1:1,127.0.0.1:2/{NAME}?reconnect=50ms")
    with pytest.raises(StoreUnavailable, match="or not a sentinel"):
        open_engine(f"redis+sentinel://127.0.0.1:{group.master().port}/{NAME}")
    first = group.hosts.partition(",")[0]
    for scheme in ("redis", "redis+cluster"):
        with pytest.raises(StoreUnavailable, match=r"this is a sentinel: write redis\+sentinel://"):
            open_engine(f"{scheme}://{first}")


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("redis+sentinel://a:26379", "must name the master as the sentinels know it"),
        ("redis+sentinel://a:26379/m/0/x", "must name the master"),
        ("redis+sentinel://a:x/m", "'a:x' is not host:port"),
        ("redis+sentinel://a:1,,b:1/m", "'' is not host:port"),
        ("redis+sentinel://:s3cret@a:x/m?sentinel_password=s3cret", r"\*\*\*@a:x"),
        ("redis+sentinel://a/m/x", "db='x' must be a number"),
        ("redis+sentinel://a/m?sentinel_tls=yes", "sentinel_tls='yes' must be yes or no, and yes"),
        ("redis+sentinel://a/m?ca=/ca.pem", "sentinel:// has no option 'ca'"),
        ("redis+sentinel://a/m?reconnect=0", "reconnect must be longer than 0"),
        ("redis://a?sentinel_password=x", "has no option 'sentinel_password'"),
    ],
)
def test_urls_that_are_wrong(url: str, match: str) -> None:
    with pytest.raises(InvalidArgument, match=match) as raised:
        opener(url)
    assert "s3cret" not in str(raised.value)
