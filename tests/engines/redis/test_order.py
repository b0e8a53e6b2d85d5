"""The order of puts: chunks that are written with the messages and go with them."""

from collections.abc import Sequence

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine
from bide.model.commands import Ack, Cancel, Claim, Command, Configure, Count, Lease, Put, Scan
from bide.model.identity import new_ids
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Outcomes, Page

HOUR = 3_600_000


def put(ids: Sequence[str], delay: int = HOUR) -> Put:
    return Put("q", [Item(id, b"1", delay=delay) for id in ids])


def listed(engine: RedisEngine, limit: int = 70) -> list[str]:
    """Scan all, page by page."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        (page,) = engine.execute([Scan("q", cursor=cursor, limit=limit)])
        assert isinstance(page, Page)
        found += [message.id for message in page.messages]
        cursor = page.cursor
        if cursor is None:
            return found


def do(engine: RedisEngine, *commands: Command) -> None:
    for command in commands:
        engine.execute([command])


def key(part: str) -> str:
    return f"bide:{{q#0}}:{part}"


def told(server: "client_library.Redis") -> int:
    """How many ids the chunks tell of."""
    texts: list[bytes] = server.zrange(key("order"), 0, -1)  # type: ignore[assignment]
    lines = [line for text in texts for line in text.split(b"\n")[2:-1]]
    return sum(not line.startswith(b"\1") for line in lines)


@pytest.mark.parametrize(
    "sizes", [[1] * 260, [500, 1, 500], [63, 63, 1, 64, 5, 200], [63] * 9, [1, 500, 1]]
)
def test_few_and_many_are_listed_as_they_were_put(engine: RedisEngine, sizes: list[int]) -> None:
    ids = iter(new_ids(sum(sizes)))
    lots = [[next(ids) for _ in range(size)] for size in sizes]
    do(engine, *map(put, lots))
    assert listed(engine) == [id for lot in lots for id in lot]


def test_ids_of_all_kinds_come_back_as_they_were(engine: RedisEngine) -> None:
    odd = ["order", "order-", "order-1", "ö", "öl", "2", "日本", "a" * 512, " ", "order-1 2"]
    do(engine, put(odd), put([f"日{number}" for number in range(64)]), put(["x"] * 3))
    assert listed(engine, 3) == [*odd, *[f"日{number}" for number in range(64)], "x"]


def test_those_that_are_there_already_keep_their_place(engine: RedisEngine) -> None:
    first = [f"a{number}" for number in range(0, 200, 2)]
    do(engine, put(first), put([f"a{number}" for number in range(200)]), put([*first, "z"]))
    rest = [f"a{number}" for number in range(1, 200, 2)]
    assert listed(engine) == [*first, *rest, "z"]


def test_an_id_that_comes_again_stands_where_it_came_again(engine: RedisEngine) -> None:
    for sizes in ((3, 3), (100, 100)):
        lots = [[f"{size}-{lot}-{number}" for number in range(size)]
                for lot, size in enumerate(sizes)]  # fmt: skip
        first, second = lots
        do(engine, put(first), put(second), Cancel("q", first[1:]), put(first))
        assert listed(engine) == [first[0], *second, *first[1:]]
        do(engine, Cancel("q", [*first, *second]))


def test_the_order_goes_with_the_messages(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    lots = [[f"{lot}-{number}" for number in range(100)] for lot in range(5)]
    do(engine, *[put(lot, delay=0) for lot in lots])
    (claimed,) = engine.execute([Claim("q", 500, HOUR, "w")])
    assert isinstance(claimed, Claimed)
    leases = [Lease(message.id, claimed.token) for message in claimed.messages]
    do(engine, Ack("q", leases[::2]), Ack("q", leases[1::2]))
    assert not server.exists(key("order"), key("alive"), key("tail"))
    assert server.hget(key("meta"), "listed") == b"0"


def test_of_chunks_that_are_almost_gone_only_the_rest_is_kept(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    lots = [[f"{lot}-{number}" for number in range(100)] for lot in range(40)]
    do(engine, *map(put, lots))
    left = [id for lot in lots for id in lot[::20]]
    for start in range(20):
        if start:
            do(engine, *[Cancel("q", lot[start::20]) for lot in lots])
    assert listed(engine) == left
    assert told(server) <= 2 * len(left) + 1024
    do(engine, *[put([f"single-{number}"]) for number in range(256)])
    assert listed(engine) == [*left, *[f"single-{number}" for number in range(256)]]
    for id in left:
        do(engine, Cancel("q", [id]))
    assert told(server) == 256
    (counts,) = engine.execute([Count("q", recount=True)])
    assert isinstance(counts, Counts)
    assert counts.strays == 0


def test_one_at_a_time_is_as_many_at_a_time(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    ids = [f"m{number}" for number in range(200)]
    for id in ids:
        do(engine, put([id]))
    (again,) = engine.execute([put(["m7"])])
    assert isinstance(again, Outcomes)
    assert not again.outcomes[0]
    assert listed(engine) == ids
    for id in ids[::2]:
        (gone,) = engine.execute([Cancel("q", [id])])
        assert isinstance(gone, Outcomes)
        assert gone.outcomes[0]
        assert gone.outcomes[0].state is None
    (gone,) = engine.execute([Cancel("q", [ids[0]])])
    assert isinstance(gone, Outcomes)
    assert not gone.outcomes[0]
    assert listed(engine) == ids[1::2]
    for id in ids[1::2]:
        do(engine, Cancel("q", [id]))
    do(engine, *[put([f"n{number}"]) for number in range(256)])
    assert told(server) == 256
    (counts,) = engine.execute([Count("q", recount=True)])
    assert isinstance(counts, Counts)
    assert (counts.flow.put, counts.flow.cancelled, counts.strays) == (456, 200, 0)


def test_where_there_is_more_to_do_it_is_done(engine: RedisEngine) -> None:
    do(engine, put(["plain"]), Put("q", [Item("weighed", b"1", delay=HOUR, priority=9)]))
    do(engine, Put("q", [Item("grouped", b"1", delay=HOUR, group="g")]), Configure("q", keep=HOUR))
    do(engine, put(["kept"]), put(["due"], delay=0))
    assert listed(engine) == ["plain", "weighed", "grouped", "kept", "due"]
    (claimed,) = engine.execute([Claim("q", 5, HOUR, "w")])
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["due"]
    for id, done in (("due", False), ("grouped", True), ("weighed", True), ("kept", True)):
        (gone,) = engine.execute([Cancel("q", [id])])
        assert isinstance(gone, Outcomes)
        assert bool(gone.outcomes[0]) is done
    assert listed(engine) == ["plain", "due"]


def test_an_order_of_which_a_part_was_lost_stops_nobody(
    engine: RedisEngine, server: "client_library.Redis"
) -> None:
    do(engine, put(["a"]), put(["b"]))
    server.delete(key("tail"))
    lots = [[f"{lot}-{number}" for number in range(100)] for lot in range(40)]
    do(engine, *map(put, lots))
    assert listed(engine) == [id for lot in lots for id in lot]
    names: list[bytes] = server.hkeys(key("alive"))  # type: ignore[assignment]
    server.hdel(key("alive"), *[name for name in names if name[:1] not in b"~@"][:20])
    for lot in lots:
        (reply,) = engine.execute([Cancel("q", lot[1:])])
        assert isinstance(reply, Outcomes)
        assert all(reply.outcomes)
    (counts,) = engine.execute([Count("q")])
    assert isinstance(counts, Counts)
    assert (counts.flow.cancelled, counts.sizes.delayed) == (40 * 99, 42)
