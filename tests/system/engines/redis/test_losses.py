"""A store that comes back without changes that it had confirmed: clients notice."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest

from bide.engines import bounded_dict, losses
from bide.engines.redis import RedisEngine
from bide.model.commands import Ack, Cancel, Claim, Configure, Count, Delete, Lease, Put, Queues
from bide.model.message import Item
from bide.model.replies import Names
from bide.observing.metrics import registry_of
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open

HOUR = 3_600_000


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


def test_a_queue_that_is_there_never_expires(open_engine: Open, server: Any) -> None:
    engine = open_engine()
    engine.notifier()
    ask(engine, put("q", "a"))
    ask(engine, Cancel("q", ["a"]))
    assert ask(engine, Delete("q")).done
    ask(engine, Configure("q", keep=HOUR))  # it is there again, and empty
    assert ask(engine, Claim("q", 1, HOUR, "w")).messages == []
    assert server.ttl("bide:{q#0}:meta") == -1
