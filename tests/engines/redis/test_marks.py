"""What a lane is told again after its connection was lost: where that stands, and for how long."""

from urllib.parse import urlsplit

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine, marks
from bide.engines.redis.link import Link
from bide.engines.redis.marks import Marks
from bide.engines.redis.settings import read_url
from bide.model.commands import Cancel, Claim, Command, Count, Put
from bide.model.message import Item
from tests.engines.redis.conftest import Open

HOUR = 3_600_000


def put(*ids: str, delay: int = HOUR) -> Put:
    return Put("q", [Item(id, b"1", delay=delay) for id in ids])


def lives(server: "client_library.Redis") -> list[int]:
    """For how many seconds the answers of each lane live on."""
    return [server.ttl(key) for key in server.scan_iter("bide:{q#0}:try:*")]


@pytest.mark.parametrize(
    "first",
    [put("a"), put("a", "b"), Claim("q", 1, 1000, "w"), Cancel("q", ["a"]), put("a", delay=0)],
    ids=["lone put", "put", "claim of nothing", "cancel", "put at once"],
)
def test_answers_never_live_for_ever(
    open_engine: Open, server: "client_library.Redis", first: Command
) -> None:
    engine = open_engine()
    engine.execute([first])
    for command in (put("c"), Cancel("q", ["c"]), put("d", "e"), Claim("q", 1, 1000, "w")):
        engine.execute([command])
        assert all(90 < seconds <= 160 for seconds in lives(server))
    assert len(lives(server)) == 1


def test_answers_live_on_with_their_lane(
    open_engine: Open, server: "client_library.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    engine.execute([put("a")])
    (key,) = server.scan_iter("bide:{q#0}:try:*")
    server.expire(key, 5)
    engine.execute([put("b")])
    assert lives(server) == [5]
    monkeypatch.setattr(marks, "REFRESH", 0.0)
    for command in (put("c"), Cancel("q", ["c"]), put("d", "e")):
        server.expire(key, 5)
        engine.execute([command])
        assert lives(server)[0] > 100


@pytest.mark.parametrize("after", [put("b"), put("c", "d"), put("e", delay=0)], ids=["b", "c", "e"])
def test_answers_in_a_store_that_was_wiped_do_not_live_for_ever(
    open_engine: Open, server: "client_library.Redis", after: Command
) -> None:
    engine = open_engine()
    engine.execute([put("a")])
    server.flushdb()
    engine.execute([after])
    assert [0 < seconds <= 3600 for seconds in lives(server)] == [True]


def test_what_is_sent_next_takes_the_place_of_answers(
    open_engine: Open, server: "client_library.Redis"
) -> None:
    engine = open_engine()
    for number in range(50):
        engine.execute([put(f"{number}")])
        engine.execute([put(f"{number}a", f"{number}b"), Cancel("q", [f"{number}a"])])
    (key,) = server.scan_iter("bide:{q#0}:try:*")
    assert server.hlen(key) == 3  # whose it is, and two that travelled together


def test_marks_tell_calls_apart() -> None:
    mine = Marks(10.0)
    first = mine.reserve(2)
    told = [mine.text(first + i, i, "q", writes=True, again=False) for i in range(2)]
    assert told == ["!160!0/0", "1/1"]
    assert mine.text(mine.reserve(1), 0, "q", writes=True, again=False) == "2/0"
    assert mine.text(2, 0, "q", writes=True, again=True) == "?!160!2/0"
    assert mine.text(3, 0, "p", writes=False, again=False) == "3/0"
    assert mine.text(4, 0, "p", writes=True, again=False) == "!160!4/0"


def test_an_answer_that_does_not_come_soon_is_waited_for(
    url: str, server: "client_library.Redis"
) -> None:
    link = Link(read_url(urlsplit(url)))
    for _ in range(12):
        server.client_pause(5)  # longer than it is looked for
        assert link.exchange_one(("INCR", "n"), soon=True)
    for _ in range(300):
        link.exchange_one(("INCR", "n"), soon=True)
    assert server.get("n") == b"312"
    link.close()


def test_counters_tell_of_lone_puts_too(open_engine: Open, server: "client_library.Redis") -> None:
    engine = open_engine()
    engine.execute([put("first")])
    for number in range(600):
        engine.execute([put(f"{number}")])
        (counts,) = engine.execute([Count("q", recount=number % 60 == 0)])
        assert counts.flow.put == number + 2  # type: ignore[union-attr]
        assert not counts.strays  # type: ignore[union-attr]
    assert server.zcard("bide:{q#0}:order") == 2
    assert isinstance(engine, RedisEngine)
