"""Home-made delay queues are taken over: once, whole, and without a message that nobody meant."""

import itertools
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import bide
from bide.importing.foreign_redis import SortedSet
from bide.lane.lane import Lane
from bide.model.commands import Put
from bide.model.limits import MAX_BYTES
from tests.servers import RedisServer

DOCS = Path(__file__).parents[3] / "docs" / "howto" / "sorted-set.md"
KEY = "delayed"
MOMENT = 1_900_000_000  # Unix seconds, in 2030
_numbers = itertools.count()


@pytest.fixture
def url(redis_url: Callable[[], str]) -> str:
    return redis_url()


@pytest.fixture
def theirs(redis_server: RedisServer, url: str) -> Iterator["redis.Redis"]:
    with redis_server.client(db=int(url.rpartition("=")[2])) as client:
        yield client


@pytest.fixture
def orders() -> Iterator[bide.Queue]:
    with bide.Queue("orders", f"memory://set{next(_numbers)}") as orders:
        yield orders


def dues(orders: bide.Queue) -> dict[str, int]:
    return {message.id: message.due for message in orders.scan()}


@pytest.mark.parametrize(
    ("score", "scores", "due"),
    [
        (MOMENT, "auto", MOMENT * 1000),
        (MOMENT + 0.25, "auto", MOMENT * 1000 + 250),
        (MOMENT * 1000 + 7, "auto", MOMENT * 1000 + 7),
        (0, "auto", 0),
        (1000, "s", 1_000_000),
        (1000, "ms", 1000),
        (1000.4, "ms", 1000),
    ],
)
def test_the_score_is_the_moment(
    theirs: "redis.Redis", url: str, orders: bide.Queue, score: float, scores: Any, due: int
) -> None:
    theirs.zadd(KEY, {"a": score})
    assert bide.load_sorted_set(orders, url, KEY, scores=scores)
    assert dues(orders) == {"a": due}


@pytest.mark.parametrize(
    ("member", "body", "becomes"),
    [
        (b'{"order": 42}', "auto", {"order": 42}),
        (b"42", "auto", 42),
        (b"order-42", "auto", "order-42"),
        ("größer".encode(), "auto", "größer"),
        (b"\xff\x00", "auto", b"\xff\x00"),
        (b"42", "text", "42"),
        (b"42", "bytes", b"42"),
        (b'["a"]', "json", ["a"]),
    ],
)
def test_the_member_is_the_body(
    theirs: "redis.Redis", url: str, orders: bide.Queue, member: bytes, body: Any, becomes: object
) -> None:
    theirs.zadd(KEY, {member: MOMENT})
    assert bide.load_sorted_set(orders, url, KEY, body=body)
    assert [message.body for message in orders.scan()] == [becomes]


def test_plain_words_are_ids_and_others_have_one_that_stays(
    theirs: "redis.Redis", url: str, orders: bide.Queue
) -> None:
    theirs.zadd(KEY, {"order-42": MOMENT, '{"order": 42}': MOMENT, "x" * 600: 5})
    theirs.zadd(KEY, {b"\xff": MOMENT})
    theirs.zadd("other", {'{"order": 42}': MOMENT})
    bide.load_sorted_set(orders, url, KEY)
    ids = sorted(dues(orders))
    assert ids[0] == "order-42"
    assert [len(id) for id in ids[1:]] == [37, 37, 37]
    assert bide.load_sorted_set(orders, url, KEY).kept == 4
    assert bide.load_sorted_set(orders, url, "other").stored == 1
    assert orders.cancel("order-42")


def test_a_field_can_be_the_id(theirs: "redis.Redis", url: str, orders: bide.Queue) -> None:
    members = ('{"order": 42}', '{"order": "a", "n": 1}', '{"order": "a", "n": 2}', "{}", "[1]")
    theirs.zadd(KEY, dict.fromkeys(members, MOMENT))
    loaded = bide.load_sorted_set(orders, url, KEY, id_field="order", remove=True)
    assert sorted(dues(orders)) == ["42", "a"]
    assert (loaded.stored, loaded.removed, loaded.refused, loaded.left) == (2, 2, 3, 3)
    assert not loaded
    assert loaded.reasons == {
        "[1]": "it has no field 'order' that could be an id",
        '{"order": "a", "n": 2}': "the queue has another message of the id 'a'",
        "{}": "it has no field 'order' that could be an id",
    }


def test_large_members_go_in_several_commands(
    theirs: "redis.Redis", url: str, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs.zadd(KEY, {f"{number}" + "x" * 900_000: MOMENT for number in range(12)})
    sizes: list[int] = []
    do = Lane.call

    def note(self: Any, command: Any, *more: Any, **options: Any) -> Any:
        if type(command) is Put:
            sizes.append(sum(len(item.data) for item in command.items))
        return do(self, command, *more, **options)

    monkeypatch.setattr(Lane, "call", note)
    assert bide.load_sorted_set(orders, url, KEY, body="text").stored == 12
    assert len(sizes) == 2
    assert max(sizes) < MAX_BYTES


def test_many_members_of_few_moments_go_in_batches(
    theirs: "redis.Redis", url: str, orders: bide.Queue
) -> None:
    members = {f"m{n}": MOMENT + n // 700 for n in range(1500)}
    theirs.zadd(KEY, members)
    steps: list[int] = []
    loaded = bide.load_sorted_set(orders, url, KEY, batch=200, progress=steps.append)
    assert (loaded.stored, loaded.kept, loaded.left, sum(steps)) == (1500, 0, 1500, 1500)
    assert dues(orders) == {id: score * 1000 for id, score in members.items()}
    theirs.zadd(KEY, {"\xff" * 600: MOMENT, "no moment": -1})
    again = bide.load_sorted_set(orders, url, KEY, batch=200, remove=True)
    assert (again.kept, again.stored, again.removed, again.refused) == (1500, 1, 1501, 1)
    assert theirs.zrange(KEY, 0, -1) == [b"no moment"]


def test_how_many_there_are_is_told_first_however_many_come_and_go(
    theirs: "redis.Redis", url: str, orders: bide.Queue
) -> None:
    theirs.zadd(KEY, {f"m{n}": MOMENT + n for n in range(10)})
    told: list[tuple[str, int]] = []

    def progress(count: int) -> None:
        if len(told) == 1:
            theirs.zrem(KEY, "m9")
            theirs.zadd(KEY, {f"late{n}": MOMENT + n for n in range(5, 9)})
        told.append(("gone through", count))

    bide.load_sorted_set(
        orders,
        url,
        KEY,
        batch=5,
        remove=True,
        found=lambda count: told.append(("there", count)),
        progress=progress,
    )
    assert told[0] == ("there", 10)
    assert sum(count for what, count in told if what == "gone through") == 13
    assert not theirs.exists(KEY)
    told.clear()
    bide.load_sorted_set(orders, url, KEY, found=lambda count: told.append(("there", count)))
    assert told == [("there", 0)]


def test_a_score_that_has_changed_moves_the_message(
    theirs: "redis.Redis", url: str, orders: bide.Queue
) -> None:
    theirs.zadd(KEY, {"a": MOMENT, "b": MOMENT, "held": 1})
    bide.load_sorted_set(orders, url, KEY)
    assert [delivery.id for delivery in orders.claim()] == ["held"]
    theirs.zadd(KEY, {"a": MOMENT + 60, "held": MOMENT})
    loaded = bide.load_sorted_set(orders, url, KEY, remove=True)
    assert (loaded.kept, loaded.rescheduled, loaded.removed, loaded.refused) == (2, 1, 2, 1)
    assert loaded.reasons == {"held": "its message is leased, with another due time"}
    assert theirs.zrange(KEY, 0, -1) == [b"held"]
    assert dues(orders)["a"] == (MOMENT + 60) * 1000


def test_a_producer_that_changes_the_score_meanwhile_keeps_its_member(
    theirs: "redis.Redis", url: str, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs.zadd(KEY, {"a": MOMENT, "b": MOMENT, "popped": MOMENT})
    remove = SortedSet.remove

    def late(self: SortedSet, entries: Any) -> int:
        theirs.zadd(KEY, {"a": MOMENT + 60})
        theirs.zrem(KEY, "popped")
        return remove(self, entries)

    monkeypatch.setattr(SortedSet, "remove", late)
    first = bide.load_sorted_set(orders, url, KEY, remove=True, batch=3)
    assert (first.stored, first.removed, first.left) == (3, 2, 0)
    assert dues(orders)["a"] == (MOMENT + 60) * 1000  # seen again further on in the same run


def test_a_producer_at_work_loses_nothing(
    theirs: "redis.Redis", url: str, orders: bide.Queue, redis_server: RedisServer
) -> None:
    done = threading.Event()

    def produce() -> None:
        with redis_server.client(db=int(url.rpartition("=")[2])) as client:
            for number in range(2000):
                client.zadd(KEY, {f"m{number}": MOMENT + number % 7})
        done.set()

    thread = threading.Thread(target=produce)
    thread.start()
    stored = 0
    while not done.is_set() or theirs.zcard(KEY):
        stored += bide.load_sorted_set(orders, url, KEY, remove=True, batch=50).stored
    thread.join()
    assert stored == 2000
    assert dues(orders) == {f"m{n}": (MOMENT + n % 7) * 1000 for n in range(2000)}


def test_a_dry_run_changes_nothing(theirs: "redis.Redis", url: str, orders: bide.Queue) -> None:
    theirs.zadd(KEY, {"a": MOMENT, "b": MOMENT, "c": -5})
    orders.put("a", id="a", at=MOMENT + 1)
    loaded = bide.load_sorted_set(orders, url, KEY, remove=True, dry_run=True)
    assert (loaded.stored, loaded.kept, loaded.rescheduled, loaded.refused) == (1, 1, 1, 1)
    assert (loaded.removed, loaded.left) == (0, 3)
    assert dues(orders) == {"a": (MOMENT + 1) * 1000}


def test_a_dry_run_counts_two_members_of_one_id_as_a_run_does(
    theirs: "redis.Redis", url: str, orders: bide.Queue
) -> None:
    theirs.zadd(KEY, {f'{{"id": "a", "n": {n}}}': MOMENT + n for n in range(3)})
    for dry_run in (True, False):
        loaded = bide.load_sorted_set(orders, url, KEY, id_field="id", dry_run=dry_run, batch=2)
        assert (loaded.stored, loaded.kept, loaded.refused) == (1, 0, 2)
        assert set(loaded.reasons.values()) == {"the queue has another message of the id 'a'"}


@pytest.mark.parametrize(
    ("score", "body", "reason"),
    [
        (-1, "auto", "its score -1 is not a time in Unix seconds"),
        (float("inf"), "auto", "its score inf is not a time"),
        (1e15, "auto", "is not a time in Unix milliseconds"),
        (MOMENT, "json", "it is no json"),
    ],
)
def test_what_cannot_be_a_message_is_named_and_stays(
    theirs: "redis.Redis", url: str, orders: bide.Queue, score: float, body: Any, reason: str
) -> None:
    theirs.zadd(KEY, {"{a": score})
    theirs.zadd(KEY, {"1": MOMENT})
    loaded = bide.load_sorted_set(orders, url, KEY, body=body, remove=True)
    assert reason in loaded.reasons["{a"]
    assert (loaded.stored, loaded.removed, loaded.left) == (1, 1, 1)


def test_bytes_that_are_no_text_and_bodies_too_large(
    theirs: "redis.Redis", url: str, redis_url: Callable[[], str]
) -> None:
    theirs.zadd(KEY, {b"\xff": MOMENT})
    theirs.zadd(KEY, {"x" * 50: MOMENT})
    with bide.Queue("small", "memory://small", max_body=20) as small:
        loaded = bide.load_sorted_set(small, url, KEY, body="text")
    assert sorted(reason.partition(" (")[0] for reason in loaded.reasons.values()) == [
        "it has 50 bytes, more than a body may have",
        "it is no text",
    ]


def test_a_key_that_holds_something_else(
    theirs: "redis.Redis", url: str, orders: bide.Queue
) -> None:
    theirs.rpush(KEY, "a")
    with pytest.raises(bide.NotAStore, match="'delayed' is a list, not a sorted set"):
        bide.load_sorted_set(orders, url, KEY)
    assert bide.load_sorted_set(orders, url, "nobody's").left == 0


@pytest.mark.parametrize(
    ("url", "options", "match"),
    [
        ("sqlite:///x.db", {}, "is no Redis"),
        ("redis://h?nothing=1", {}, "has no option 'nothing'"),
        ("redis://h", {"scores": "minutes"}, "scores='minutes' must be one of auto, s, ms"),
        ("redis://h", {"body": "xml"}, "body='xml' must be one of auto, json, text, bytes"),
        ("redis://h", {"batch": 0}, "batch=0 must be a whole number from 1 to 10,000"),
        ("redis://h", {"batch": "5"}, "batch='5' must be a whole number"),
        (None, {}, "url=None must be a str"),
        ("redis+cluster://h", {}, "names a cluster"),
    ],
)
def test_what_cannot_be_asked(
    orders: bide.Queue, url: Any, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(bide.InvalidArgument, match=match):
        bide.load_sorted_set(orders, url, KEY, **options)


def test_a_queue_of_another_form_is_refused() -> None:
    queue: Any = bide.AsyncQueue("orders", "memory://another-form")
    with pytest.raises(bide.InvalidArgument, match=r"takes a bide\.Queue, not AsyncQueue"):
        bide.load_sorted_set(queue, "redis://h", KEY)


def test_a_member_that_is_nested_too_deeply_stays(
    theirs: "redis.Redis", url: str, orders: bide.Queue
) -> None:
    theirs.zadd(KEY, {"[" * 5_000 + "]" * 5_000: MOMENT, "[" * 501 + "]" * 501: MOMENT})
    loaded = bide.load_sorted_set(orders, url, KEY)
    assert (loaded.stored, loaded.refused) == (0, 2)
    assert "nested too deeply: 501 levels" in loaded.reasons[("[" * 501)[:200]]


def test_text_with_many_brackets_is_text(
    theirs: "redis.Redis", url: str, orders: bide.Queue
) -> None:
    told = "".join(f"step {n}: [ok {{\n" for n in range(600))
    theirs.zadd(KEY, {told: MOMENT})
    assert bide.load_sorted_set(orders, url, KEY)
    assert [message.body for message in orders.scan()] == [told]


def test_the_rights_of_the_documentation_are_just_enough(
    orders: bide.Queue, tmp_path: Path
) -> None:
    told = re.search(r"^A Redis user with restricted rights needs (.*)$", DOCS.read_text(), re.M)
    assert told is not None
    rights = re.findall(r"`(\+[^`]+)`", told[1])
    server = RedisServer(tmp_path)
    admin: Any = server.client()
    admin.zadd(KEY, {"a": MOMENT})
    url = f"unix://some:pw@{server.path}"
    try:
        admin.execute_command("ACL", "SETUSER", "some", "on", ">pw", f"~{KEY}", "-@all", *rights)
        assert bide.load_sorted_set(orders, url, KEY, remove=True).removed == 1
        admin.execute_command("ACL", "SETUSER", "some", "-zcard")
        with pytest.raises(bide.StoreUnavailable, match="this user may not do that"):
            bide.load_sorted_set(orders, url, KEY)
    finally:
        admin.close()
        server.stop()


def test_a_server_that_is_away_or_refuses(orders: bide.Queue, tmp_path: Any) -> None:
    with pytest.raises(bide.StoreUnavailable, match=r"no connection to 127.0.0.1:1"):
        bide.load_sorted_set(orders, "redis://:s3cret@127.0.0.1:1", KEY)
    server = RedisServer(tmp_path, requirepass="s3cret")
    try:
        with pytest.raises(bide.StoreUnavailable, match="wants a password"):
            bide.load_sorted_set(orders, server.url, KEY)
    finally:
        server.stop()
