"""Claims of many: their leases are whole until somebody asks for one of their messages."""

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.model.commands import (
    Ack,
    Cancel,
    Extend,
    Find,
    Lease,
    Put,
    Retry,
    Scan,
    Where,
)
from bide.model.message import Item
from bide.model.replies import Affected, Claimed, Found, Page
from tests.engines.redis.claims import (
    LEASE,
    MANY,
    NOW,
    claim,
    key,
    of,
    put,
    settle,
    sound,
)
from tests.engines.redis.conftest import Open


def whole(server: "client_library.Redis") -> list[bytes]:
    """Which leases are whole, and see that what tells of them agrees with that."""
    lines: bytes | None = server.hget(key("leases"), "whole")  # type: ignore[assignment]
    flags: bytes = server.hget(key("meta"), "flags")  # type: ignore[assignment]
    leases = lines.split(b"\n") if lines else []
    assert (b"h" in flags) == bool(leases)
    for lease in leases:
        assert server.hexists(key("leases"), lease + b" marks")
    return leases


def held(server: "client_library.Redis") -> int:
    return server.hlen(key("held"))


def test_what_is_claimed_and_acked_together_is_written_nowhere_one_by_one(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = put(engine, MANY)
    claimed = claim(engine)
    assert [message.id for message in claimed.messages] == ids
    assert [message.body for message in claimed.messages] == ids
    assert {(m.state, m.holder, m.until, m.attempt) for m in claimed.messages} == {
        ("leased", "w", NOW + LEASE, 1)
    }
    assert (len(whole(server)), held(server)) == (1, 0)
    assert sound(engine).sizes.leased == MANY
    assert all(settle(engine, Ack("q", of(claimed))))
    assert (whole(server), held(server), server.exists(key("leases"), key("records"))) == ([], 0, 0)
    assert sound(engine).flow.acked == MANY


def test_of_few_the_lease_is_not_whole(engine: RedisEngine, server: "client_library.Redis") -> None:
    put(engine, 255)
    assert len(claim(engine).messages) == 255
    assert (whole(server), held(server)) == ([], 255)


def test_who_looks_sees_what_is_held(engine: RedisEngine, server: "client_library.Redis") -> None:
    ids = put(engine, MANY + 3, group="g")
    token = claim(engine).token
    found, all_of_them, leased, grouped = engine.execute(
        [
            Find("q", [ids[0], ids[MANY - 1], ids[MANY], "nobody"]),
            Scan("q", limit=500),
            Scan("q", "leased", limit=500),
            Scan("q", where=Where("g"), limit=500),
        ],
        NOW,
    )
    assert isinstance(found, Found)
    assert [m and (m.state, m.holder, m.until) for m in found.messages] == [
        ("leased", "w", NOW + LEASE), ("leased", "w", NOW + LEASE), ("ready", None, None), None,
    ]  # fmt: skip
    for page, total in ((all_of_them, MANY + 3), (leased, MANY), (grouped, MANY + 3)):
        assert isinstance(page, Page)
        assert [m.id for m in page.messages] == ids[:total]
        assert [m.state for m in page.messages] == ["leased"] * MANY + ["ready"] * (total - MANY)
    assert whole(server) == [f"{token} {NOW + LEASE}".encode()]
    assert sound(engine).sizes.leased == MANY


@pytest.mark.parametrize("end", ["ack one", "ack turned round", "retry", "extend", "find a stale"])
def test_who_settles_a_part_finds_it_as_any_lease(
    engine: RedisEngine, server: "client_library.Redis", end: str
) -> None:
    ids = put(engine, MANY)
    claimed = claim(engine)
    left = MANY
    match end:
        case "ack one":
            assert all(settle(engine, Ack("q", of(claimed, ids[7]))))
            left -= 1
        case "ack turned round":
            assert all(settle(engine, Ack("q", of(claimed)[::-1])))
            left = 0
        case "retry":
            assert all(settle(engine, Retry("q", of(claimed, *ids[:2]), 5000, "later")))
            left -= 2
        case "extend":
            assert all(settle(engine, Extend("q", of(claimed, ids[3]), 90_000)))
        case _:
            (outcome,) = settle(engine, Ack("q", [Lease(ids[4], claimed.token - 1)]))
            assert (bool(outcome), outcome.state, outcome.holder) == (False, "leased", "w")
    assert (whole(server), held(server)) == ([], left)
    assert sound(engine).sizes.leased == left
    rest = [lease for lease in of(claimed) if server.hexists(key("held"), lease.id)]
    assert len(rest) == left
    assert all(settle(engine, Ack("q", rest))) if rest else True
    assert held(server) == 0
    sound(engine)


def test_what_is_held_cannot_be_cancelled(engine: RedisEngine) -> None:
    ids = put(engine, MANY + 2, group="g")
    claimed = claim(engine)
    outcomes = settle(engine, Cancel("q", [ids[0], ids[MANY]]))
    assert [(bool(o), o.state) for o in outcomes] == [(False, "leased"), (True, None)]
    assert all(settle(engine, Ack("q", of(claimed))))
    assert sound(engine).sizes.total == 1


def test_a_group_is_cancelled_around_what_is_held(engine: RedisEngine) -> None:
    put(engine, MANY + 2, group="g")
    claimed = claim(engine)
    (reply,) = engine.execute([Cancel("q", where=Where("g"))], NOW)
    assert isinstance(reply, Affected)
    assert reply.count == 2
    assert all(settle(engine, Ack("q", of(claimed))))
    assert sound(engine).sizes.total == 0


def test_an_id_that_is_held_is_not_put_again(engine: RedisEngine) -> None:
    ids = put(engine, MANY)
    claim(engine)
    (outcome,) = settle(engine, Put("q", [Item(ids[5], b"2")]))
    assert (bool(outcome), outcome.state, outcome.until) == (False, "leased", NOW + LEASE)
    sound(engine)


def test_a_whole_lease_lapses_and_its_token_is_good_for_nothing(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = put(engine, MANY)
    first = claim(engine)
    later = NOW + LEASE
    assert not any(settle(engine, Ack("q", of(first)), later))
    assert sound(engine, later).flow.lapsed == MANY
    second = claim(engine, now=later, holder="v")
    assert [(m.id, m.attempt) for m in second.messages] == [(id, 2) for id in ids]
    assert not any(settle(engine, Ack("q", of(first)), later))
    assert all(settle(engine, Ack("q", of(second)), later))
    assert sound(engine, later).sizes.total == 0


def test_a_whole_lease_that_nobody_asks_for_is_taken_back_by_claims(engine: RedisEngine) -> None:
    ids = put(engine, MANY)
    claim(engine)
    again = claim(engine, now=NOW + LEASE, holder="v")
    assert [(m.id, m.attempt, m.failures[0].holder) for m in again.messages] == [
        (id, 2, "w") for id in ids
    ]
    assert sound(engine, NOW + LEASE).sizes.leased == MANY


def test_only_a_few_leases_are_whole(engine: RedisEngine, server: "client_library.Redis") -> None:
    put(engine, 5 * MANY)
    claims = [claim(engine, now=NOW + number) for number in range(4)]
    tokens = [f"{c.token} {NOW + number + LEASE}".encode() for number, c in enumerate(claims)]
    assert whole(server) == tokens[1::-1]
    assert held(server) == 2 * MANY
    now = NOW + 10
    assert sound(engine, now).sizes.leased == 4 * MANY
    for claimed in (claims[0], claims[3]):
        assert all(settle(engine, Ack("q", of(claimed)), now))
        sound(engine, now)
    assert whole(server) == [tokens[1]]
    assert all(settle(engine, Ack("q", of(claims[2], claims[2].messages[0].id)), now))
    assert (len(whole(server)), held(server)) == (1, MANY - 1)
    last = claim(engine, now=now)
    assert len(whole(server)) == 2
    assert all(settle(engine, Ack("q", of(last, last.messages[0].id)), now))
    assert (whole(server), held(server)) == ([], 3 * MANY - 2)
    assert sound(engine, now).sizes.leased == 3 * MANY - 2


def test_what_is_extended_into_a_whole_lease_is_held_by_it(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = put(engine, MANY + 5)
    first = claim(engine)
    server.hset(key("meta"), "token", first.token - 1)  # as of a later slice of the same claim
    second = claim(engine, 5, NOW + 7)
    assert second.token == first.token
    assert all(settle(engine, Extend("q", of(second, ids[-1]), LEASE)))
    assert all(settle(engine, Ack("q", of(first))))
    assert [m.id for m in claim(engine, now=NOW + LEASE).messages] == ids[-1:]
    assert sound(engine, NOW + LEASE).flow.lapsed == 1


def test_claims_of_one_moment_that_make_one_lease(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = put(engine, 1200)
    claimed = claim(engine, 1200)  # three slices with one token, at one moment
    assert [m.id for m in claimed.messages] == ids
    assert (whole(server), held(server)) == ([], 1200)
    assert sound(engine).sizes.leased == 1200
    assert all(settle(engine, Ack("q", of(claimed))))
    assert sound(engine).sizes.total == 0


def test_what_nobody_has_a_record_of_is_left_out(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = put(engine, MANY)
    server.hdel(key("records"), *ids[:10])  # halves of changes, of a server that died
    claimed = claim(engine)
    assert [m.id for m in claimed.messages] == ids[10:]
    assert all(settle(engine, Ack("q", of(claimed))))
    assert held(server) == 10
    assert claim(engine, now=NOW + LEASE).messages == []
    assert held(server) == 0


def test_where_nothing_has_a_record_it_looks_on(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = put(engine, MANY)
    server.hdel(key("records"), *ids)
    more = put(engine, 3, "n")
    assert [m.id for m in claim(engine, MANY).messages] == more


@pytest.mark.parametrize("due", [500, 1000])
def test_a_claim_of_more_than_is_there_ends(engine: RedisEngine, due: int) -> None:
    ids = put(engine, due)
    assert [m.id for m in claim(engine, due + 100).messages] == ids


def test_who_finds_nothing_but_halves_of_changes_waits(
    open_engine: Open, server: "client_library.Redis"
) -> None:
    engine, other = open_engine(), open_engine()
    engine.doorbell()
    ids = put(other, MANY)
    server.hdel(key("records"), *ids)
    assert claim(engine).messages == []
    flags: bytes = server.hget(key("meta"), "flags")  # type: ignore[assignment]
    assert b"l" in flags
    assert server.zcard(key("delayed")) == 0


def half_claim(
    engine: RedisEngine, server: "client_library.Redis", count: int = MANY, now: int = NOW
) -> Claimed:
    """Claim, of which the end was not written: the messages still stand where they did."""
    before: bytes = server.dump(key("delayed"))  # type: ignore[assignment]
    claimed = claim(engine, count, now)
    server.restore(key("delayed"), 0, before, replace=True)
    return claimed


@pytest.mark.parametrize("count", [200, MANY])
@pytest.mark.parametrize("order", [1, -1])
def test_what_half_a_claim_holds_is_the_later_ones(
    engine: RedisEngine, server: "client_library.Redis", count: int, order: int
) -> None:
    put(engine, MANY)
    first = half_claim(engine, server, count)
    second = claim(engine, now=NOW + LEASE - 10, holder="v")
    assert claim(engine, now=NOW + LEASE, holder="z").messages == []
    assert not any(settle(engine, Ack("q", of(first)), NOW + LEASE))
    assert all(settle(engine, Ack("q", of(second)[::order]), NOW + LEASE))
    assert server.exists(*map(key, ("held", "records"))) == 0


def test_half_a_claim_says_nothing_of_those_who_come_after(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = put(engine, MANY)
    half_claim(engine, server)
    assert all(settle(engine, Ack("q", of(claim(engine, now=NOW + 1))), NOW + 2))
    later = [Item(id, b"2", delay=3_600_000) for id in ids[:5]]
    assert all(settle(engine, Put("q", later), NOW + 3))
    (found,) = engine.execute([Find("q", ids[:1])], NOW + 4)
    assert isinstance(found, Found)
    assert found.messages[0] is not None
    assert found.messages[0].state == "delayed"
    assert claim(engine, now=NOW + LEASE + 5).messages == []


def test_of_half_a_claim_the_later_one_counts(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = put(engine, MANY)
    first = half_claim(engine, server)
    second = claim(engine, now=NOW + 1, holder="v")
    assert [m.id for m in second.messages] == ids
    (found,) = engine.execute([Find("q", ids[:1])], NOW + 1)
    assert isinstance(found, Found)
    assert found.messages[0] is not None
    assert found.messages[0].holder == "v"
    assert all(settle(engine, Extend("q", of(second, ids[0]), 90_000), NOW + 1))
    assert (whole(server), held(server)) == ([], MANY)
    assert not any(settle(engine, Ack("q", of(first)), NOW + 2))
    assert all(settle(engine, Ack("q", of(second)), NOW + 2))
    assert sound(engine, NOW + 2).sizes.total == 0
