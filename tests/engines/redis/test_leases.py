"""Leases: what a claim gets is held together, and leaves nothing behind."""

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.model.commands import (
    Ack,
    Claim,
    Command,
    Count,
    Extend,
    Find,
    Lease,
    Put,
    Retry,
    Scan,
)
from bide.model.message import Item, Message
from bide.model.replies import Claimed, Counts, Found, Outcomes, Page

NOW = 1_700_000_000_000
LEASE = 60_000


def put(engine: RedisEngine, total: int) -> list[str]:
    ids = [f"m{number:04}" for number in range(total)]
    engine.execute([Put("q", [Item(id, b"1") for id in ids])], NOW)
    return ids


def claim(engine: RedisEngine, count: int, now: int = NOW) -> Claimed:
    (reply,) = engine.execute([Claim("q", count, LEASE, "w")], now)
    assert isinstance(reply, Claimed)
    return reply


def settle(engine: RedisEngine, command: Command, now: int = NOW) -> list[bool]:
    (reply,) = engine.execute([command], now)
    assert isinstance(reply, Outcomes)
    return [outcome.done for outcome in reply.outcomes]


def of(claimed: Claimed, *ids: str) -> list[Lease]:
    return [Lease(id, claimed.token) for id in ids or [m.id for m in claimed.messages]]


def listed(engine: RedisEngine, limit: int = 3, now: int = NOW) -> list[Message]:
    found: list[Message] = []
    cursor: str | None = None
    while True:
        (page,) = engine.execute([Scan("q", "leased", cursor=cursor, limit=limit)], now)
        assert isinstance(page, Page)
        found += page.messages
        cursor = page.cursor
        if cursor is None:
            return found


def audit(engine: RedisEngine, now: int = NOW) -> Counts:
    (counts,) = engine.execute([Count("q", recount=True)], now)
    assert isinstance(counts, Counts)
    return counts


def key(part: str) -> str:
    return f"bide:{{q#0}}:{part}"


def kept(server: "client_library.Redis") -> tuple[int, int, int]:
    """How many leases there are, fields that tell of them, and messages that are held."""
    return server.zcard(key("leased")), server.hlen(key("leases")), server.hlen(key("held"))


def test_a_claim_is_one_lease_that_goes_with_the_last_of_its_messages(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = put(engine, 5)
    claimed = claim(engine, 5)
    assert kept(server) == (1, 2, 5)
    assert settle(engine, Ack("q", of(claimed, *ids[:2]))) == [True, True]
    assert settle(engine, Retry("q", of(claimed, ids[2]), 1000)) == [True]
    assert kept(server) == (1, 2, 2)
    assert settle(engine, Ack("q", of(claimed, *ids[3:]))) == [True, True]
    assert kept(server) == (0, 0, 0)
    assert audit(engine).strays == 0


def test_what_is_extended_alone_has_a_lease_of_its_own(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = put(engine, 4)
    claimed = claim(engine, 4)
    assert settle(engine, Extend("q", of(claimed, ids[1], ids[3]), 90_000)) == [True, True]
    assert kept(server) == (2, 4, 4)
    assert [m.until for m in listed(engine)] == [NOW + LEASE] * 2 + [NOW + 90_000] * 2
    assert settle(engine, Extend("q", of(claimed), 90_000)) == [True] * 4
    assert kept(server) == (1, 2, 4)
    assert [m.id for m in listed(engine)] == ids
    again = claim(engine, 4, NOW + LEASE + 1)
    assert again.messages == []
    assert again.next == 30_000 - 1
    again = claim(engine, 4, NOW + 90_000)
    assert [m.id for m in again.messages] == ids
    assert settle(engine, Ack("q", of(claimed)), NOW + 90_000) == [False] * 4
    assert settle(engine, Ack("q", of(again)), NOW + 90_000) == [True] * 4
    assert kept(server) == (0, 0, 0)


def test_an_extension_that_changes_nothing_is_one(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    put(engine, 2)
    claimed = claim(engine, 2)
    assert settle(engine, Extend("q", of(claimed), LEASE)) == [True, True]
    assert kept(server) == (1, 2, 2)
    assert audit(engine).strays == 0


def test_back_and_forth_between_moments_lists_nobody_twice(engine: RedisEngine) -> None:
    ids = put(engine, 2)
    claimed = claim(engine, 2)
    for lease in (90_000, LEASE, 90_000, LEASE):
        assert settle(engine, Extend("q", of(claimed, ids[0]), lease)) == [True]
    assert [m.id for m in listed(engine)] == ids
    assert audit(engine).strays == 0
    assert [m.id for m in claim(engine, 4, NOW + LEASE).messages] == ids


def test_leases_of_one_moment_are_scanned_in_the_order_of_puts(engine: RedisEngine) -> None:
    ids = put(engine, 12)
    claims = [claim(engine, 3) for _ in range(4)]
    for claimed in claims[::2]:  # they stand in their leases in another order
        settle(engine, Extend("q", of(claimed)[::-1], 90_000))
    for claimed in claims:
        settle(engine, Extend("q", of(claimed), 120_000))
    for limit in (1, 2, 5, 12, 20):
        assert [m.id for m in listed(engine, limit)] == ids
    assert {m.until for m in listed(engine)} == {NOW + 120_000}


@pytest.mark.parametrize("total", [199, 200, 201, 700, 1500])
def test_a_lease_of_many_lapses_as_far_as_one_claim_may_take_back(
    engine: RedisEngine, total: int
) -> None:
    ids = put(engine, total)
    first = claim(engine, total)
    assert len(first.messages) == total
    later = NOW + LEASE
    assert [m.id for m in claim(engine, 1, later).messages] == ids[:1]
    counts = audit(engine, later)
    assert counts.strays == 0
    assert counts.flow.lapsed == min(total, 1024)
    while claim(engine, 1000, later).messages:
        assert audit(engine, later).strays == 0
    counts = audit(engine, later)
    assert (counts.sizes.leased, counts.flow.lapsed) == (total, total)
    assert not any(settle(engine, Ack("q", of(first)), later))


def test_a_message_without_its_lease_is_found_and_settled(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    put(engine, 2)
    claimed = claim(engine, 2)
    server.delete(key("leased"), key("leases"))
    (found,) = engine.execute([Find("q", ["m0000"])], NOW)
    assert isinstance(found, Found)
    assert found.messages[0] is not None
    assert (found.messages[0].state, found.messages[0].holder) == ("leased", "w")
    assert settle(engine, Ack("q", of(claimed))) == [True, True]
    assert kept(server) == (0, 0, 0)


def test_a_lease_without_its_messages_goes_when_it_is_over(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    put(engine, 3)
    claim(engine, 3)
    server.delete(key("held"))
    assert audit(engine).strays
    assert claim(engine, 1, NOW + LEASE).messages == []
    assert kept(server) == (0, 0, 0)


def test_a_lease_that_tells_of_too_many_is_a_stray(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    put(engine, 3)
    token = claim(engine, 3).token
    assert audit(engine).strays == 0
    server.hincrby(key("leases"), f"{token} {NOW + LEASE} left", 1)
    assert audit(engine).strays == 1


def test_very_many_leases_are_audited_in_slices(engine: RedisEngine) -> None:
    put(engine, 900)
    claim(engine, 650)
    for _ in range(250):
        claim(engine, 1)
    counts = audit(engine)
    assert (counts.sizes.leased, counts.strays) == (900, 0)


def test_leases_that_hold_little_are_taken_back_a_share_at_a_time(engine: RedisEngine) -> None:
    put(engine, 4000)
    claims = [claim(engine, 20) for _ in range(200)]
    kept = [claimed.messages[7].id for claimed in claims]
    for claimed in claims:
        gone = [m.id for m in claimed.messages if m.id not in kept]
        assert all(settle(engine, Ack("q", of(claimed, *gone))))
    assert [m.id for m in listed(engine, 30)] == kept
    assert audit(engine).strays == 0
    later = NOW + LEASE
    (first,) = claim(engine, 1, later).messages
    assert first.id == kept[0]
    assert audit(engine, later).flow.lapsed == 100
    found = [first.id]
    while messages := claim(engine, 50, later).messages:
        found += [m.id for m in messages]
    assert found == kept
    assert audit(engine, later).strays == 0
