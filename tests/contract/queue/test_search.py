"""`bide.search` and `bide.queues`: all queues of a store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.engines.memory import MemoryEngine
from bide.lane.steps import run_steps
from bide.model.commands import BuryCommand, Command, Put, Revive, Scan
from bide.model.message import Failure, Item
from bide.model.replies import Outcomes, Reply
from bide.queue import search as searching
from tests.start import START

FAILED = (Failure(1, START, "w", "no"),)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Without ids in order, and with."""
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    return f"sqlite:///{tmp_path}/bide.db"


@pytest.fixture(autouse=True)
def shop(url: str) -> Iterator[bide.Queue]:
    """Provide a queue of three, of which one is dead."""
    with bide.Queue("orders", url) as orders, bide.Queue("shop/mail", url) as mail:
        orders.put({"n": 1, "to": "Müller"}, id="order-1", at=4e9, group="g", headers={"t": "ab"})
        orders.put({"n": 2}, id="order-10", at=4e9 + 60)
        orders.put(b"raw text", id="other", at=4e9 + 120, group="g")
        mail.put("to Ann", id="order-1", at=4e9 + 180, headers={"t": "b"})
        orders.put("bad", id="dead")
        orders.claim()[0].bury("Timeout: no answer")
        yield orders


def found(url: str, **query: Any) -> list[tuple[str, str]]:
    """Return all that a search finds, a message or two at a time; the async form finds the same."""
    pages, cursor = [], None
    while True:
        page = bide.search(url, **query, limit=1, read=2, cursor=cursor)
        assert len(page.messages) <= 1
        pages += [(message.queue, message.id) for message in page.messages]
        if page.cursor is None:
            break
        assert page.cursor != cursor
        cursor = page.cursor
    whole = bide.search(url, **query)
    assert whole.cursor is None
    assert pages == [(message.queue, message.id) for message in whole.messages]
    assert asyncio.run(bide.asearch(url, **query)) == whole
    return sorted(pages)


ONE, TEN, OTHER = ("orders", "order-1"), ("orders", "order-10"), ("orders", "other")
MAIL, DEAD = ("shop/mail", "order-1"), ("orders", "dead")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"id": "order-1"}, [ONE, TEN, MAIL]),
        ({"id": "order-10"}, [TEN]),
        ({"id": "o%"}, []),
        ({"id": "order-1", "queue": "shop/"}, [MAIL]),
        ({"group": "g"}, [ONE, OTHER]),
        ({"group": "g", "id": "order"}, [ONE]),
        ({"group": "g", "after": 4e9 + 1}, [OTHER]),
        ({"after": 4e9 + 60, "before": 4e9 + 180}, [TEN, OTHER]),
        ({"before": 3e9}, [DEAD]),
        ({"state": "dead"}, [DEAD]),
        ({"state": "delayed", "before": 4e9 + 1}, [ONE]),
        ({"error": "Timeout"}, [DEAD]),
        ({"error": "timeout"}, []),
        ({"body": "Müller"}, [ONE]),
        ({"body": "raw"}, [OTHER]),
        ({"body": '"n":2'}, [TEN]),
        ({"header": "t"}, [ONE, MAIL]),
        ({"header": "t=a"}, [ONE]),
        ({"header": "t=b", "body": "Ann"}, [MAIL]),
        ({"header": "x"}, []),
    ],
)
def test_a_search_finds_what_matches(url: str, query: Any, expected: Any) -> None:
    assert found(url, **query) == sorted(expected)


def test_a_search_finds_messages_that_repeat(url: str, shop: bide.Queue) -> None:
    shop.configure(keep="1h")
    shop.put(1, id="daily", repeat=bide.Every("1d"))
    shop.put(1, id="held", repeat=bide.Every("1d"))
    shop.hold("held")
    shop.put(1, id="over", repeat=bide.Every("1d", times=1), delay=0)
    shop.claim()[0].ack()
    assert shop.get("over").state == "acked"  # type: ignore[union-attr]
    daily, held = ("orders", "daily"), ("orders", "held")
    assert found(url, repeats=True) == [daily, held]
    assert found(url, repeats=True, id="d") == [daily]
    assert found(url, repeats=True, state="delayed", queue="orders") == [daily, held]
    assert found(url, repeats=True, queue="shop/") == []
    assert found(url, repeats=False, id="order-10") == [TEN]
    with pytest.raises(bide.InvalidArgument, match="repeats='yes' is neither True nor False"):
        bide.search(url, repeats="yes")  # type: ignore[arg-type]
    with pytest.raises(bide.InvalidArgument, match="needs a condition"):
        bide.search(url, repeats=False)


def test_a_search_by_error_finds_what_failed_before_it_was_done(url: str, shop: bide.Queue) -> None:
    shop.configure(keep="1h")
    shop.put(4, id="late")
    shop.retry(shop.claim(), reason="Timeout: once")
    shop.ack(shop.claim())
    assert found(url, error="Timeout") == [DEAD, ("orders", "late")]
    assert found(url, error="Timeout", id="l") == [("orders", "late")]
    page = bide.search(url, error="Timeout", queue="orders")
    assert (page.searched, page.total) == (5, 5)


def test_a_search_says_how_much_it_has_read(url: str, shop: bide.Queue) -> None:
    shop.put_many([{"n": n} for n in range(1_000)], at=4e9)
    page = bide.search(url, body="Müller", read=300, queue="orders")
    assert (page.searched, page.total) == (300, 1_004)
    assert str(page).endswith("searched 300 of 1,004 messages")
    seen = [page]
    while (cursor := seen[-1].cursor) is not None:
        seen.append(bide.search(url, body="Müller", read=300, queue="orders", cursor=cursor))
    assert [page.searched for page in seen] == [300, 600, 900, 1_004]
    assert [len(page.messages) for page in seen].count(1) == 1


def test_a_search_in_an_order_of_the_store_reads_only_what_matches(
    url: str, shop: bide.Queue
) -> None:
    shop.put_many([{"n": n} for n in range(1_000)], at=4.05e9)
    for query, read in (({"group": "g"}, 2), ({"state": "delayed", "before": 4.01e9}, 4)):
        page = bide.search(url, **query)
        assert (page.searched, page.total) == (read, None)
    if url.startswith("sqlite"):
        assert bide.search(url, id="order-1").searched == 3


def test_a_search_over_many_queues_stops_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(searching, "MOST_COMMANDS", 3)
    for n in range(7):
        with bide.Queue(f"q{n}", url) as queue:
            queue.put(n, id="x")
    pages = [bide.search(url, id="x")]
    while (cursor := pages[-1].cursor) is not None:
        pages.append(bide.search(url, id="x", cursor=cursor))
    assert len(pages) > 2
    queues = [message.queue for page in pages for message in page.messages]
    assert queues == [f"q{n}" for n in range(7)]


def test_a_search_reads_a_bounded_number_of_bytes(url: str, shop: bide.Queue) -> None:
    shop.put_many(["x" * 900_000] * 20, at=4e9)
    seen = [bide.search(url, body="xxx", queue="orders")]
    while (cursor := seen[-1].cursor) is not None:
        seen.append(bide.search(url, body="xxx", queue="orders", cursor=cursor))
    assert sum(len(page.messages) for page in seen) == 20
    assert max(len(page.messages) for page in seen) <= 12


def test_what_moves_meanwhile_is_found_once() -> None:
    engine = MemoryEngine()
    engine.execute([Put("q", [Item("a", b"1", failures=FAILED, died=START)])], START)
    steps = searching.search_steps(
        [("q", "q")], searching.query_of(error="no"), None, 10, 100, ids_ordered=False
    )
    states = []

    def ask(command: Command) -> Reply:
        (reply,) = engine.execute([command], START)
        if isinstance(command, Scan):  # between two orders it dies, or is revived
            states.append(command.state)
            _fail_or_revive(engine)
        return reply

    page = run_steps(steps, ask)
    assert states == ["dead", "leased", "ready", "delayed", "acked", "expired"]
    assert [message.id for message in page.messages] == ["a"]


def _fail_or_revive(engine: MemoryEngine) -> None:
    (reply,) = engine.execute([Revive("q", ["a"])], START)
    assert isinstance(reply, Outcomes)
    if not reply.outcomes[0]:
        engine.execute([BuryCommand("q", reason="no", ids=["a"])], START)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({}, "search needs a condition"),
        ({"error": ""}, 'error="" is in every message'),
        ({"id": ""}, "id is 0 bytes long"),
        ({"state": "x"}, "state='x' must be one of"),
        ({"id": "a", "limit": 0}, "limit=0 must be a whole number from 1"),
        ({"id": "a", "read": 1e9}, "read=1000000000.0 must be a whole number"),
        ({"id": "a", "cursor": "x"}, "cursor='x' is not from a search"),
        ({"id": "a", "cursor": "WyIiXQé"}, "is not from a search"),
        ({"id": "a", "cursor": "WyIiLC01XQ"}, "is not from a search"),  # ["",-5]
        ({"id": "a", "cursor": 5}, "cursor=5 is not from a search"),
        ({"body": 5}, "body=5 is not text"),
        ({"error": b"x"}, "error=b'x' is not text"),
        ({"header": {"a": "b"}}, "header={'a': 'b'} is not text"),
        ({"body": "caf\udce9"}, r"body='caf.udce9' is not text"),
    ],
)
def test_wrong_questions_are_refused(url: str, query: Any, told: str) -> None:
    with pytest.raises(bide.InvalidArgument, match=told):
        bide.search(url, **query)


def test_a_path_is_no_url_of_a_store() -> None:
    for ask in (bide.queues, bide.workers):
        with pytest.raises(bide.InvalidArgument, match="url=5 must be a str; for a file write"):
            ask(5)  # type: ignore[arg-type]


def test_queues_lists_queues_with_their_counts(url: str) -> None:
    listed = bide.queues(url)
    assert list(listed) == ["orders", "shop/mail"]
    assert (listed["orders"].sizes.delayed, listed["orders"].sizes.dead) == (3, 1)
    assert bide.queues(url, "shop/") == {"shop/mail": listed["shop/mail"]}
    assert asyncio.run(bide.aqueues(url)) == listed
