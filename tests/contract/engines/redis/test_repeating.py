"""How messages that repeat are stored, and what that costs those that do not."""

from collections.abc import Callable
from math import inf

import pytest
import redis as client_library

from bide.engines.findings import examine
from bide.engines.redis import RedisEngine, connection
from bide.engines.redis.layout import LAYOUT, RULED_LAYOUT
from bide.model.commands import (
    Ack,
    Cancel,
    Command,
    Edit,
    Extend,
    Lease,
    NextRun,
    Put,
    Renew,
)
from bide.model.errors import SchemaTooNew, StoreFull
from bide.model.message import Failure, Item
from tests.contract.engines.redis.claims import LEASE, NOW, claim, key, of, settle, sound
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open

Server = client_library.Redis

RULE = '{"every":60000}'
PLAIN = Item("plain", b"1", delay=5)
FULL = Item(
    "full",
    b"\x00\xff",
    json=False,
    at=NOW,
    priority=7,
    attempts=3,
    expires=60_000,
    group="g",
    headers={"k": "v"},
    attempt=1,
    failures=(Failure(1, NOW - 5, "w", "no", NOW - 9),),
)
SERIES = Item("series", b"1", rule=RULE, run="1")

NOW_BYTES = b"\xcf" + NOW.to_bytes(8)

RECORDS = {
    b"plain": b"\xdc\x00\x10\xac000000000000\xcf"
    + (NOW + 5).to_bytes(8)
    + NOW_BYTES
    + b"\xc3\x00\x00\n\xc0\xc0\xc0\xc0\xc0\xa0\xa0\x90\xc6\x00\x00\x00\x011",
    b"full": b"\xdc\x00\x10\xac000000000001"
    + NOW_BYTES * 2
    + b'\xc2\x07\x01\x03\xcd\xea`\xc0\xc0\xc0\xc0\xa1g\xa9{"k":"v"}\x91\x95\x01\xcf'
    + (NOW - 5).to_bytes(8)
    + b"\xa1w\xa2no\xcf"
    + (NOW - 9).to_bytes(8)
    + b"\xc6\x00\x00\x00\x02\x00\xff",
}
"""As the first release has written them."""


def run(engine: RedisEngine, *commands: Command, now: int = NOW) -> None:
    for command in commands:
        assert all(outcome.done for outcome in settle(engine, command, now))


def layout_of(server: Server) -> bytes:
    version = server.get("bide:version")
    assert isinstance(version, bytes)
    return version


def calls(server: Server, name: str) -> int:
    return int(server.info("commandstats").get(f"cmdstat_{name}", {"calls": 0})["calls"])


def test_a_message_that_does_not_repeat_is_stored_as_ever(
    engine: RedisEngine, server: Server
) -> None:
    run(engine, Put("q", [PLAIN, FULL]))
    assert server.hgetall(key("records")) == RECORDS
    run(engine, Edit("q", ["plain"], rule=RULE, run="1"), Edit("q", ["plain"], rule=None, run=None))
    assert server.hgetall(key("records")) == RECORDS
    held = claim(engine)
    lease = server.hget(key("leases"), "full")
    assert isinstance(lease, bytes)
    assert lease.startswith(b"\x97\xac000000000001")
    assert lease.endswith(b"\x00\xc0")
    run(engine, Extend("q", of(held), LEASE))
    extended = server.hget(key("leases"), "full")
    assert isinstance(extended, bytes)
    assert extended.endswith(b"\x01\xc0")


def test_an_ack_reads_the_records_only_of_messages_that_repeat(
    engine: RedisEngine, server: Server
) -> None:
    run(engine, Put("q", [Item(id, b"1") for id in "abc"]), Put("q", [SERIES]))
    held = claim(engine)
    before = calls(server, "hget")
    run(engine, Ack("q", of(held, *"ab")))
    assert calls(server, "hget") == before
    run(engine, Ack("q", of(held, "c", "series")))
    assert calls(server, "hget") > before
    assert sound(engine).sizes.ready == 1


def test_a_run_that_was_cancelled_is_acked_as_any_message(
    engine: RedisEngine, server: Server
) -> None:
    run(engine, Put("q", [SERIES]))
    held = claim(engine)
    assert settle(engine, Cancel("q", ["series"]))[0].state == "ending"
    before = calls(server, "hget")
    run(engine, Ack("q", of(held)))
    assert calls(server, "hget") == before
    assert server.exists(key("records"), key("leases"), key("leased")) == 0


def test_renewals_of_one_kind_are_one_call(engine: RedisEngine, server: Server) -> None:
    run(engine, Put("q", [Item(id, b"1", rule=RULE, run="1") for id in "abcd"]))
    token = claim(engine).token
    following: list[NextRun | None] = [NextRun(NOW + 5, "2")]
    renewals = [
        *(Renew("q", [Lease(id, token)], following) for id in "ab"),
        *(Renew("q", [Lease(id, token)], following, "ended") for id in "cd"),
    ]
    before = calls(server, "fcall")
    assert len(engine.execute(renewals, NOW)) == 4
    assert calls(server, "fcall") - before == 2
    assert sound(engine).sizes.delayed == 4


@pytest.mark.parametrize(
    "begin",
    [Put("q", [PLAIN, SERIES]), Edit("q", ["there"], rule=RULE, run="1")],
    ids=["put", "edit"],
)
def test_an_older_bide_refuses_a_store_from_the_first_rule_on(
    engine: RedisEngine,
    open_engine: Open,
    server: Server,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    begin: Command,
) -> None:
    run(engine, Put("q", [Item("there", b"1", delay=LEASE)]))
    assert layout_of(server) == b"%d" % LAYOUT
    run(engine, begin)
    assert layout_of(server) == b"%d" % RULED_LAYOUT
    later = open_engine()
    run(later, Cancel("q", ["there"]))
    assert layout_of(server) == b"%d" % RULED_LAYOUT
    with monkeypatch.context() as older:
        older.setattr(connection, "LAYOUTS", (LAYOUT,))
        with pytest.raises(SchemaTooNew, match=f"layout {RULED_LAYOUT}, this one reads 5"):
            open_engine()


def test_the_layout_is_noted_once(engine: RedisEngine, server: Server) -> None:
    run(engine, Put("q", [SERIES]))
    server.set("bide:version", LAYOUT)  # to see that it is not written again
    run(engine, Put("q", [Item("other", b"1", rule=RULE, run="1")]))
    assert layout_of(server) == b"%d" % LAYOUT


def test_it_is_noted_again_after_a_loss(engine: RedisEngine, server: Server) -> None:
    run(engine, Put("q", [SERIES]), Put("q", [PLAIN]))
    server.flushdb()
    for id in "abc":
        run(engine, Put("q", [Item(id, b"1", rule=RULE, run="1")]))
    assert layout_of(server) == b"%d" % RULED_LAYOUT


def test_a_full_server_stores_no_rule_and_renews_all(
    open_engine: Open, start: Callable[..., RedisServer]
) -> None:
    server = start()
    engine = open_engine(server.url)
    run(engine, Put("q", [SERIES]))
    held = claim(engine)
    server.client().config_set("maxmemory", "1mb")
    with pytest.raises(StoreFull):
        open_engine(server.url).execute([Put("q", [Item("b", b"1", rule=RULE, run="1")])], NOW)
    run(engine, Renew("q", of(held), [NextRun(NOW + 5, "2")]))
    assert sound(engine).sizes.delayed == 1


def test_the_doctor_looks_into_a_store_with_rules(
    engine: RedisEngine, server: Server, url: str
) -> None:
    run(engine, Put("q", [SERIES]))
    assert not any("series" in finding.what for finding in examine(url, inf))
    record = server.hget(key("records"), "series")
    assert isinstance(record, bytes)
    server.hset(key("records"), "series", record.replace(b'{"every', b"\xff"))
    assert any("'series'" in finding.what for finding in examine(url, inf))


def test_a_series_whose_successor_cannot_be_read_ends_as_a_dead_letter(
    engine: RedisEngine, server: Server
) -> None:
    run(engine, Put("q", [SERIES]))
    held = claim(engine)
    run(engine, Put("q", [Item("series", b"2", latest=5)], "replace"))
    lease = server.hget(key("leases"), "series")
    assert isinstance(lease, bytes)
    at = lease.index(b"\xdc\x00\x10")
    server.hset(key("leases"), "series", lease[:at] + b"nothing")
    run(engine, Renew("q", of(held), [NextRun(NOW + 5, "2")]))
    assert sound(engine).sizes.dead == 1
