"""A connection cut at any byte, a silent server, one that restarts: what was done is known."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis as client_library

from bide.engines.redis import RedisEngine, from_url
from bide.model.commands import Ack, Cancel, Claim, Command, Count, Lease, Put, Release
from bide.model.errors import OutcomeUnknown, StoreFull, StoreUnavailable
from bide.model.message import Item
from bide.model.replies import Claimed, Counts, Outcomes, Reply
from bide.testing.engine_hooks import redis_sender
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.system.engines.redis.conftest import Open

HOUR = 3_600_000


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    proxy = Proxy(redis_server.path)
    yield proxy
    proxy.close()


@pytest.fixture
def far(proxy: Proxy, url: str, open_engine: Open) -> RedisEngine:
    """An engine on the other side of the proxy."""
    return open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?timeout=2s")


def put(*ids: str) -> Put:
    return Put("q", [Item(id, b'"' + b"x" * 40 + b'"') for id in ids])


def ask(engine: RedisEngine, *commands: Command) -> list[Reply]:
    return engine.execute(commands)


def sound(engine: RedisEngine) -> Counts:
    (counts,) = engine.execute([Count("q", recount=True)])
    assert isinstance(counts, Counts)
    assert counts.strays == 0
    assert counts.flow.put == counts.flow.gone + counts.sizes.total
    return counts


# About 650 bytes go up for each of these commands, and a few dozen come down.
UP = [*range(1, 2_600, 130), 2_600, 2_700]
DOWN = [1, 2, 3, 4, 5, 9, 17, 25, 26, 27, 28, 29, 33, 41, 60, 80, 100, 140, 200, 260, 400, 600]


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(
    ("side", "place"), [("cut_up", n) for n in UP] + [("cut_down", n) for n in DOWN]
)
def test_a_connection_cut_at_any_byte_changes_no_answer(
    proxy: Proxy, url: str, open_engine: Open, side: str, place: int, shards: int
) -> None:
    far = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?timeout=2s&shards={shards}")
    ask(far, put("before"))
    setattr(proxy, side, place)
    first, claimed, third = ask(
        far, put("a", "b"), Claim("q", 2, HOUR, "w"), Cancel("q", ["b", "nobody"])
    )
    assert isinstance(first, Outcomes)
    assert [outcome.done for outcome in first.outcomes] == [True, True]
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["before", "a"]
    assert isinstance(third, Outcomes)
    assert [outcome.done for outcome in third.outcomes] == [True, False]
    (acked,) = ask(
        far, Ack("q", [Lease(message.id, claimed.token) for message in claimed.messages])
    )
    assert isinstance(acked, Outcomes)
    assert all(acked.outcomes)
    counts = sound(far)
    assert (counts.flow.put, counts.flow.acked, counts.flow.cancelled) == (3, 2, 1)
    assert counts.sizes.total == 0


def test_a_claim_whose_reply_was_lost_gets_its_messages(far: RedisEngine, proxy: Proxy) -> None:
    ask(far, put("a"))
    proxy.cut_down = 0
    (claimed,) = ask(far, Claim("q", 5, HOUR, "w"))
    assert isinstance(claimed, Claimed)
    (message,) = claimed.messages
    assert (message.id, message.holder, message.attempt) == ("a", "w", 1)
    assert message.until is not None
    (acked,) = ask(far, Ack("q", [Lease("a", claimed.token)]))
    assert isinstance(acked, Outcomes)
    assert acked.outcomes[0]


def test_a_claim_whose_reply_was_lost_gets_its_messages_in_order(
    far: RedisEngine, proxy: Proxy
) -> None:
    dues = {"the last": 3_000, "% first": 1_000, "zwischen\u2028ü": 2_000, "urgent": 4_000}
    items = [Item(id, b"1", at=due, priority=9 * (id == "urgent")) for id, due in dues.items()]
    ask(far, Put("q", items))
    proxy.cut_down = 1
    (claimed,) = ask(far, Claim("q", 9, HOUR, "w"))
    assert isinstance(claimed, Claimed)
    order = ["urgent", "% first", "zwischen\u2028ü", "the last"]
    assert [message.id for message in claimed.messages] == order


def test_a_claim_whose_reply_was_lost_gets_no_messages_of_another_until_the_same_moment(
    far: RedisEngine, proxy: Proxy, open_engine: Open
) -> None:
    now = 1_700_000_000_000
    far.execute([put("a", "b")], now)
    open_engine().execute([Claim("q", 1, HOUR, "other")], now)
    proxy.cut_down = 0
    (claimed,) = far.execute([Claim("q", 1, HOUR, "w")], now)
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["b"]


def test_a_claim_whose_reply_was_lost_leaves_what_another_has_claimed_meanwhile(
    far: RedisEngine, proxy: Proxy, open_engine: Open
) -> None:
    ask(far, put("a", "b"))
    other = open_engine()

    def claim(data: bytes) -> bytes:  # behind the change
        proxy.rewrite = lambda data: data
        other.execute([Release("q", ["a"]), Claim("q", 1, HOUR, "other")])
        raise OSError

    proxy.rewrite = claim
    (claimed,) = ask(far, Claim("q", 5, HOUR, "w"))
    assert isinstance(claimed, Claimed)
    assert [message.id for message in claimed.messages] == ["b"]


def test_a_put_whose_reply_was_lost_before_the_server_was_full_is_not_said_to_be_refused(
    start: Callable[..., RedisServer], open_engine: Open
) -> None:
    server = start()
    proxy = Proxy(server.path)
    engine = open_engine(proxy.url)
    ask(engine, put("a"))

    def fill(data: bytes) -> bytes:  # its memory, behind the change
        proxy.rewrite = lambda data: data
        server.client().config_set("maxmemory", 1)
        raise OSError

    proxy.rewrite = fill
    with pytest.raises(OutcomeUnknown, match=r"may have been carried out or not.*maxmemory"):
        ask(engine, put("b"))
    assert server.client().hexists("bide:{q#0}:records", "b")
    with pytest.raises(StoreFull):
        ask(engine, put("c"))
    proxy.close()


def test_a_server_that_falls_silent_is_left_for_a_new_connection(
    proxy: Proxy, url: str, open_engine: Open
) -> None:
    engine = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?timeout=300ms")
    ask(engine, put("a"))
    proxy.silent = True
    with pytest.raises(OutcomeUnknown, match="may have been carried out or not"):
        ask(engine, put("b"))
    proxy.silent = False
    proxy.cut_all()
    (reply,) = ask(engine, put("c"))
    assert isinstance(reply, Outcomes)
    assert reply.outcomes[0]
    sound(engine)


def test_a_silent_server_is_tried_once_before_a_store_is_given_up(
    proxy: Proxy, open_engine: Open
) -> None:
    proxy.silent = True
    with pytest.raises(StoreUnavailable):
        open_engine(f"{proxy.url}/0?timeout=300ms&reconnect=100ms")
    assert proxy.connections == 1


def test_who_was_cut_off_while_idle_notices_nothing(far: RedisEngine, proxy: Proxy) -> None:
    ask(far, put("a"))
    proxy.cut_all()
    (reply,) = ask(far, put("b"))
    assert isinstance(reply, Outcomes)
    assert reply.outcomes[0]


@pytest.mark.parametrize("shards", [1, 4])
def test_what_the_network_held_back_of_a_lost_connection_is_not_done_after_its_second_try(
    proxy: Proxy, url: str, open_engine: Open, server: "client_library.Redis", shards: int
) -> None:
    far = open_engine(f"{proxy.url}/{url.rpartition('=')[2]}?timeout=500ms&shards={shards}")
    ask(far, put("a"))
    ask(far, put("b"))
    before = {client["id"] for client in server.client_list()}
    proxy.holds = True
    (claimed,) = ask(far, Claim("q", 1, HOUR, "w"))
    assert isinstance(claimed, Claimed)
    assert len(claimed.messages) == 1
    assert len(before - {client["id"] for client in server.client_list()}) == 1
    proxy.deliver()
    (again,) = ask(open_engine(url), Claim("q", 1, HOUR, "w"))
    assert isinstance(again, Claimed)
    assert {m.id for m in claimed.messages + again.messages} == {"a", "b"}
    sound(far)


def test_a_server_that_tells_no_run_is_not_told_to_end_anything(
    start: Callable[..., RedisServer], open_engine: Open
) -> None:
    server = start()
    proxy = Proxy(server.path)
    proxy.rewrite = lambda data: re.sub(rb"run_id:\w{40}", b"run_ix:" + b"0" * 40, data)
    engine = open_engine(f"{proxy.url}?timeout=2s&reconnect=10s")
    ask(engine, put("a"))
    number = next(iter(redis_sender(engine).nodes.connections.values())).client_id
    assert number is not None
    server.stop()
    server.start()  # which counts its connections anew
    others = [server.client()]
    while others[-1].client_id() < number:
        others.append(server.client())
    ask(engine, put("b"))
    assert number in {int(client["id"]) for client in others[0].client_list()}
    proxy.close()


def test_who_may_not_ask_for_the_number_of_a_connection_gets_one(
    start: Callable[..., RedisServer], open_engine: Open
) -> None:
    server = start()
    rights = "on", ">pw", "~*", "&*", "+@all", "-client|id"
    server.client().execute_command("ACL", "SETUSER", "bide", *rights)  # type: ignore[no-untyped-call]
    ask(open_engine(f"unix://bide:pw@{server.path}"), put("a"))


def test_a_server_that_is_gone_is_said_to_be_gone(proxy: Proxy, open_engine: Open) -> None:
    engine = open_engine(f"{proxy.url}?timeout=200ms")
    ask(engine, put("before"))
    proxy.close()
    with pytest.raises(OutcomeUnknown):
        ask(engine, put("a"))
    with pytest.raises(StoreUnavailable, match="is the server running") as raised:
        ask(engine, put("a"))
    assert not isinstance(raised.value, OutcomeUnknown)


def test_an_address_where_nobody_listens() -> None:
    with pytest.raises(StoreUnavailable, match=r"redis://:\*\*\*@127.0.0.1:1"):
        from_url(urlsplit("redis://:s3cret@127.0.0.1:1?timeout=100ms"))()


def test_a_unix_socket_that_accepts_nobody_is_said_to_be_silent(tmp_path: Path) -> None:
    path = str(tmp_path / "full.sock")
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as stack:
        listener.bind(path)
        listener.listen(0)
        while True:  # until no more fit into its queue
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            try:
                waiting.connect(path)
            except BlockingIOError:
                break
        with pytest.raises(StoreUnavailable, match="no connection to"):
            from_url(urlsplit(f"unix://{path}?timeout=100ms&reconnect=100ms"))()


def test_a_connection_cut_while_it_is_opened_is_opened_again(
    proxy: Proxy, url: str, open_engine: Open, redis_server: RedisServer
) -> None:
    db = url.rpartition("=")[2]
    open_engine(f"{proxy.url}/{db}")
    opened = proxy.told
    for left in (1, 3, 5, 8):  # the last answer is to the version that is written down
        redis_server.client(db=int(db)).flushdb()
        proxy.cut_down = opened - left
        engine = open_engine(f"{proxy.url}/{db}")
        ask(engine, put("a"))
        sound(engine)
