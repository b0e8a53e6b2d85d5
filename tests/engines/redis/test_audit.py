"""The audit on Redis: what half a change or a stranger left is found, in sets of any size."""

from collections.abc import Callable

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.model.commands import Count
from bide.model.replies import Counts
from tests.engines.redis.claims import LEASE, MANY, NOW, claim, key, put, sound

Server = client_library.Redis
Break = Callable[[Server, bytes], object]  # gets a member of "ready"

# What it adds to the strays: its places, and one for each pair of totals that no longer agree.
BROKEN: dict[str, tuple[Break, int]] = {
    "a place without a record": (lambda s, member: s.hdel(key("records"), member[12:]), 2),
    "one message in two places": (lambda s, member: s.zadd(key("dead"), {member: NOW}), 3),
    "a lease of a message that waits": (lambda s, m: s.hset(key("leases"), m[12:], "x"), 3),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("place", [0, 210, 299])
def test_what_does_not_fit_together_is_counted(
    engine: RedisEngine, server: Server, broken: str, place: int
) -> None:
    put(engine, MANY + 1)
    claim(engine, 1)  # moves the others from delayed to ready
    claim(engine, 1, NOW + LEASE)
    sound(engine, NOW + LEASE)
    spoil, strays = BROKEN[broken]
    (member,) = server.zrange(key("ready"), place, place)
    assert isinstance(member, bytes)
    spoil(server, member)
    (counts,) = engine.execute([Count("q", recount=True)], NOW + LEASE)
    assert isinstance(counts, Counts)
    assert counts.strays == strays
