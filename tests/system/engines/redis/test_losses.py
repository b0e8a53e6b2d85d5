"""A store that comes back without changes that it had confirmed: clients notice."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest

from bide.engines import bounded_dict, losses
from bide.engines.redis import RedisEngine
from bide.engines.redis.layout import shard_of
from bide.model.commands import (
    Ack,
    BuryCommand,
    Cancel,
    Claim,
    CloseGroup,
    Command,
    Configure,
    Count,
    Delete,
    Edit,
    Lease,
    Postpone,
    Purge,
    Put,
    Queues,
    Release,
    ReopenGroup,
    Reschedule,
    RetryCommand,
    Revive,
    Scan,
    Where,
)
from bide.model.message import Item
from bide.model.replies import Names
from bide.observing.metrics import registry_of
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open

HOUR = 3_600_000
WEEK = 7 * 24 * HOUR
NOW = 1_700_000_000_000


def put(queue: str, *ids: str) -> Put:
    return Put(queue, [Item(id, b"1") for id in ids])


def ask(engine: RedisEngine, command: Any) -> Any:
    return engine.execute([command])[0]


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "has lost at least" in r.getMessage()]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_server_that_restarts_from_an_older_copy_is_found_out(
    open_engine: Open,
    start: Callable[..., RedisServer],
    caplog: pytest.LogCaptureFixture,
    shards: int,
) -> None:
    server = start(save="3600 1000000")
    engine = open_engine(f"{server.url}?shards={shards}")
    queue = f"lost{shards}"
    told: list[str] = []
    ask(engine, put(queue, "a"))
    server.client().save()
    for id in ("a1", "a2", "a3", "a4"):
        ask(engine, put(queue, id, "a"))  # "a" decides in which shard there are changes
    before = losses.counted().get(queue, 0)
    server.stop()
    server.start()
    with losses.listening(lambda: told.append("lost")):
        assert ask(engine, Count(queue)).sizes.ready == 1
        assert ask(engine, Count(queue)).sizes.ready == 1
    count = losses.counted()[queue] - before
    assert count >= 4
    assert len(told) == len(lost(caplog)) >= 1  # once for each shard
    assert "sources are asked again now" in lost(caplog)[0]
    assert (
        f'bide_store_changes_lost_total{{queue="{queue}"}}'
        in generate_latest(registry_of(dict)).decode()
    )


def test_a_change_on_a_store_that_lost_one_change_is_found_out(
    open_engine: Open, start: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = start(save="3600 1000000")
    engine = open_engine(server.url)
    ask(engine, put("q", "a"))
    server.client().save()
    ask(engine, put("q", "b"))
    server.stop()
    server.start()
    ask(engine, put("q", "c"))  # its number is that of the change which is lost
    assert ["at least 1 changes" in text for text in lost(caplog)] == [True]


def test_a_queue_in_use_stays_known_among_many_others(
    open_engine: Open,
    server: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(bounded_dict, "MOST", 3)
    engine = open_engine()
    for number in range(6):
        ask(engine, put("used", f"{number}"))
        ask(engine, put(f"other{number}", "a"))
    server.hincrby("bide:{used#0}:meta", "change", -2)
    ask(engine, Count("used"))
    assert len(lost(caplog)) == 1


CHANGES: dict[str, Callable[[Lease], Command]] = {
    "put": lambda lease: put("q", "b"),
    "claim": lambda lease: Claim("q", 1, HOUR, "w"),
    "cancel": lambda lease: Cancel("q", ["a"]),
    "cancel by a rule": lambda lease: Cancel("q", where=Where(group="g")),
    "stop": lambda lease: Cancel("q", ["held"], running=True),
    "stop by a rule": lambda lease: Cancel("q", where=Where(group="held"), running=True),
    "reschedule": lambda lease: Reschedule("q", ["a"], delay=HOUR),
    "postpone": lambda lease: Postpone("q", ["a"], dues=[NOW]),
    "edit": lambda lease: Edit("q", ["a"], data=b"2"),
    "set aside": lambda lease: BuryCommand("q", ids=["a"]),
    "revive": lambda lease: Revive("q", ["dead"]),
    "purge": lambda lease: Purge("q", "dead"),
    "release": lambda lease: Release("q", ["held"]),
    "ack": lambda lease: Ack("q", [lease]),
    "retry": lambda lease: RetryCommand("q", [lease]),
    "bury": lambda lease: BuryCommand("q", [lease]),
    "close a group": lambda lease: CloseGroup("q", "h", HOUR),
    "reopen a group": lambda lease: ReopenGroup("q", "shut"),
    "configure": lambda lease: Configure("q", keep=HOUR),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_each_change_has_a_number(open_engine: Open, server: Any, kind: str) -> None:
    engine = open_engine()

    def number() -> int:
        return int(server.hget("bide:{q#0}:meta", "change"))

    ask(engine, Put("q", [Item("held", b"1", group="held")]))
    token = ask(engine, Claim("q", 1, HOUR, "w")).token
    ask(engine, put("q", "dead"))
    ask(engine, BuryCommand("q", ids=["dead"]))
    ask(engine, Put("q", [Item("a", b"1", group="g")]))
    ask(engine, CloseGroup("q", "shut", HOUR))
    before = number()
    ask(engine, CHANGES[kind](Lease("held", token)))
    steps = 2 if kind == "stop by a rule" else 1  # first what waits, then what is leased
    assert number() >= before + steps
    before = number()
    ask(engine, Count("q"))
    assert number() == before


def test_an_empty_server_has_lost_all_and_is_used_again(
    open_engine: Open, start: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    engine = open_engine(server.url)
    ask(engine, put("q", "a"))
    ask(engine, put("q", "b"))
    server.client().flushall()
    ask(engine, put("q", "c"))
    assert ["at least 2 changes" in text for text in lost(caplog)] == [True]
    assert ask(engine, Queues("")) == Names(["q"])


@pytest.mark.parametrize("shards", [1, 3])
def test_no_loss_is_seen_where_there_is_none(
    open_engine: Open, url: str, caplog: pytest.LogCaptureFixture, shards: int
) -> None:
    engine, other = (open_engine(f"{url}&shards={shards}") for _ in range(2))
    for _ in range(3):
        for each in (engine, other):
            ask(each, put("q", "a", "b", "c"))
            claimed = ask(each, Claim("q", 3, HOUR, "w"))
            leases = [Lease(message.id, claimed.token) for message in claimed.messages]
            each.execute([put("q", "d"), Ack("q", leases)])
            last = ask(each, Claim("q", 3, HOUR, "w"))
            ask(each, Ack("q", [Lease(m.id, last.token) for m in last.messages]))
        assert ask(engine, Delete("q")).done
        assert ask(other, Count("q")).sizes.total == 0
        for each in (engine, other):
            each.execute([Cancel("q", ["a", "b"]), Ack("q", [Lease("c", 1)])])
        ask(other, Configure("q"))
    assert lost(caplog) == []


def test_a_worker_that_waits_for_a_deleted_queue_sees_no_loss_after_a_week(
    open_engine: Open, server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = open_engine()
    engine.notifier()
    ask(engine, put("q", "a"))
    ask(engine, Cancel("q", ["a"]))
    assert ask(engine, Delete("q")).done
    assert server.expire("bide:{q#0}:meta", 60)  # the week is nearly over
    ask(engine, Claim("q", 1, HOUR, "w"))
    assert server.ttl("bide:{q#0}:meta") > 6 * 86_400
    assert ask(engine, Count("q")).sizes.total == 0
    assert lost(caplog) == []


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("reads", [False, True])
def test_a_queue_that_is_used_again_long_after_it_was_deleted_has_lost_nothing(
    open_engine: Open,
    url: str,
    server: Any,
    caplog: pytest.LogCaptureFixture,
    shards: int,
    reads: bool,
) -> None:
    engine, other = (open_engine(f"{url}&shards={shards}") for _ in range(2))
    for each in (engine, other):
        ask(each, put("q", "a", "b", "c"))
        ask(each, Cancel("q", ["a", "b", "c"]))
    assert ask(engine, Delete("q")).done
    assert ask(other, Count("q")).sizes.total == 0
    server.delete(*[f"bide:{{q#{shard}}}:meta" for shard in range(shards)])  # a week is over
    for each in (engine, other):
        if reads:
            assert ask(each, Count("q")).sizes.total == 0
    for each in (engine, other):
        assert ask(each, put("q", "d")) is not None
        assert ask(each, Count("q")).sizes.ready == 1
    assert lost(caplog) == []


@pytest.mark.parametrize(("later", "is_loss"), [(WEEK - 1, True), (WEEK, False)])
@pytest.mark.parametrize("verb", ["put", "count"])
def test_what_is_gone_is_a_loss_unless_it_may_have_been_deleted_a_week_ago(
    open_engine: Open,
    server: Any,
    caplog: pytest.LogCaptureFixture,
    verb: str,
    later: int,
    is_loss: bool,
) -> None:
    """By another process, of which this one knows nothing."""
    engine = open_engine()
    engine.execute([put("q", "a")], NOW)
    engine.execute([put("q", "b")], NOW)
    server.delete(*server.keys("bide:{q#0}:*"))
    engine.execute([put("q", "c") if verb == "put" else Count("q")], NOW + later)
    assert bool(lost(caplog)) == is_loss


def test_a_scan_goes_on_if_a_shard_is_deleted(open_engine: Open, url: str, server: Any) -> None:
    engine = open_engine(f"{url}&shards=2")
    ids = [id for id in "abcdefghij" if shard_of(id, 2) == 0]
    ask(engine, put("q", *ids))
    server.hdel("bide:{q#1}:meta", "shards")  # as a delete leaves it that fails half-way
    where = Where(after=0)
    page = ask(engine, Scan("q", where=where, limit=1))
    rest = ask(engine, Scan("q", where=where, cursor=page.cursor))
    assert [message.id for message in (*page.messages, *rest.messages)] == ids


def test_a_queue_that_is_there_never_expires(open_engine: Open, server: Any) -> None:
    engine = open_engine()
    engine.notifier()
    ask(engine, put("q", "a"))
    ask(engine, Cancel("q", ["a"]))
    assert ask(engine, Delete("q")).done
    ask(engine, Configure("q", keep=HOUR))  # it is there again, and empty
    assert ask(engine, Claim("q", 1, HOUR, "w")).messages == []
    assert server.ttl("bide:{q#0}:meta") == -1
