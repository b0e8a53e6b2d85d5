"""Puts, claims and acks of many messages on one queue, at moments that the test says."""

from bide.engines.redis import RedisEngine
from bide.model.commands import Claim, Command, Count, Lease, Put
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Outcome, Outcomes

NOW = 1_700_000_000_000
LEASE = 60_000
MANY = 300


def key(part: str) -> str:
    return f"bide:{{q#0}}:{part}"


def put(engine: RedisEngine, total: int, prefix: str = "m", group: str | None = None) -> list[str]:
    ids = [f"{prefix}{number:04}" for number in range(total)]
    for first in range(0, total, 10):  # so that they stand in several chunks, as they come
        items = [Item(id, b'"%b"' % id.encode(), group=group) for id in ids[first : first + 10]]
        engine.execute([Put("q", items)], NOW)
    return ids


def claim(engine: RedisEngine, count: int = MANY, now: int = NOW, holder: str = "w") -> Claimed:
    (reply,) = engine.execute([Claim("q", count, LEASE, holder)], now)
    assert isinstance(reply, Claimed)
    return reply


def of(claimed: Claimed, *ids: str) -> list[Lease]:
    return [Lease(id, claimed.token) for id in ids or [m.id for m in claimed.messages]]


def settle(engine: RedisEngine, command: Command, now: int = NOW) -> list[Outcome]:
    (reply,) = engine.execute([command], now)
    assert isinstance(reply, Outcomes)
    return reply.outcomes


def sound(engine: RedisEngine, now: int = NOW) -> Counts:
    (counts,) = engine.execute([Count("q", recount=True)], now)
    assert isinstance(counts, Counts)
    assert counts.strays == 0
    assert counts.recount is not None
    assert counts.recount.leased == counts.sizes.leased
    assert counts.flow.put == counts.flow.gone + counts.sizes.total
    return counts
