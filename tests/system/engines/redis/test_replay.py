"""Replies that a lane may ask for again after its connection was lost: where they are, how long."""

import pytest
import redis as client_library

from bide.model.commands import Cancel, Claim, Command, Put
from bide.model.message import Item
from tests.system.engines.redis.conftest import Open

HOUR = 3_600_000


def put(*ids: str, delay: int = HOUR) -> Put:
    return Put("q", [Item(id, b"1", delay=delay) for id in ids])


def lives(server: "client_library.Redis") -> list[int]:
    """For how many seconds the replies of each lane live on."""
    return [server.ttl(key) for key in server.scan_iter("bide:{q#0}:try:*")]


@pytest.mark.parametrize(
    "command",
    [put("a"), put("a", "b"), Claim("q", 1, 1000, "w"), Cancel("q", ["a"]), put("a", delay=0)],
    ids=["one put", "put", "claim of nothing", "cancel", "put at once"],
)
def test_replies_never_live_for_ever(
    open_engine: Open, server: "client_library.Redis", command: Command
) -> None:
    engine = open_engine()
    for each in (put("first"), command, put("last")):
        engine.execute([each])
        assert [90 < seconds <= 160 for seconds in lives(server)] == [True]


def test_the_next_pipeline_takes_the_place_of_replies(
    open_engine: Open, server: "client_library.Redis"
) -> None:
    engine = open_engine()
    for number in range(50):
        engine.execute([put(f"{number}")])
        engine.execute([put(f"{number}a", f"{number}b"), Cancel("q", [f"{number}a"])])
    keys = list(server.scan_iter("bide:{q#0}:try:*"))
    assert len(keys) == 2  # one for each call of the longest pipeline
