"""Batches that are sent again because no answer came."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bide.engines.constants import MAX_SENDERS
from bide.engines.memory import MemoryEngine
from bide.server.access.rights import Caller
from bide.server.access.senders import sender_of
from bide.server.limits.request_bodies import LARGE
from tests.system.server.client import Client, Reply
from tests.system.server.conftest import Serve


def put(*ids: str) -> dict[str, Any]:
    items = [{"id": id, "data": "MQ==", "delay": 60_000} for id in ids]
    return {"command": "put", "queue": "q", "items": items}


def cancel(*ids: str) -> dict[str, Any]:
    return {"command": "cancel", "queue": "q", "ids": list(ids)}


FIND = {"command": "find", "queue": "q", "ids": ["a"]}


def sent(client: Client, /, *commands: dict[str, Any], number: int = 1, **more: Any) -> list[Any]:
    """Send a batch of the client "c"; return its replies."""
    reply = post(client, *commands, number=number, **more)
    assert reply.status == 200, reply.json
    replies: list[Any] = reply.json["replies"]
    return replies


def post(client: Client, /, *commands: dict[str, Any], **more: Any) -> Reply:
    return client.post("/v1/batch", {"commands": commands, "client": "c", **more})


def done(reply: Any) -> list[bool]:
    return [outcome["done"] for outcome in reply["outcomes"]]


def test_a_batch_that_is_sent_again_gets_its_answers_again(client: Client) -> None:
    first = sent(client, put("a", "b"), FIND, cancel("a"))
    again = sent(client, put("a", "b"), FIND, cancel("a"), repeated=True)
    assert (done(first[0]), done(first[2])) == ([True, True], [True])
    assert (again[0], again[2]) == (first[0], first[2])
    assert again[1]["messages"] == [None]  # what reads is executed again
    (counts,) = sent(client, {"command": "count", "queue": "q"}, number=2)
    assert (counts["flow"]["put"], counts["flow"]["cancelled"]) == (2, 1)


def test_a_part_of_a_batch_is_sent_again_with_its_places(client: Client) -> None:
    first = sent(client, put("a"), put("a"), cancel("a"))
    assert [done(reply) for reply in first] == [[True], [False], [True]]
    again = sent(client, cancel("a"), put("a"), places=[2, 0], repeated=True)
    assert again == [first[2], first[0]]


def test_a_batch_that_never_came_is_executed_once(client: Client) -> None:
    sent(client, put("a"))
    for _ in range(2):
        (reply,) = sent(client, cancel("a"), number=2, repeated=True)
        assert done(reply) == [True]


def test_what_the_store_does_not_know_is_unknown(client: Client) -> None:
    (reply,) = sent(client, put("a"), repeated=True)
    assert (reply["type"], reply["error"]) == ("failed", "OutcomeUnknown")
    sent(client, put("a"), number=2)
    (late,) = sent(client, cancel("a"), number=1)
    assert (late["type"], late["error"]) == ("failed", "OutcomeUnknown")
    assert "given up on it" in late["detail"]


def test_a_bulk_change_that_is_sent_again_is_unknown(client: Client) -> None:
    sent(client, put("a"))
    undo = "01kb2n8m7dzz4r6y0t5v9x3h1q"
    bulk = {"command": "bulk", "queue": "q", "verb": "cancel", "undo": undo, "ids": ["a"]}
    (first,) = sent(client, bulk, number=2)
    assert first["count"] == 1
    (again,) = sent(client, bulk, number=2, repeated=True)
    assert (again["type"], again["error"]) == ("failed", "OutcomeUnknown")


def test_no_token_reads_what_another_was_answered(
    serve: Serve, make_token: Callable[..., str]
) -> None:
    client = serve()
    mine, other = (client.with_token(make_token("shop", "produce", "admin")) for _ in range(2))
    foreign = client.with_token(make_token("bank", "produce", "admin"))
    (first,) = sent(mine, put("a"))
    for stranger in (other, foreign):
        (reply,) = sent(stranger, put("a"), repeated=True)
        assert reply["error"] == "OutcomeUnknown"
    assert sent(mine, put("a"), repeated=True) == [first]


def test_a_token_cannot_fill_the_store_with_clients(
    serve: Serve, make_token: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.engines.sqlite.senders.MAX_SENDERS", 3)
    client = serve()
    hostile, good = (client.with_token(make_token("shop", "produce")) for _ in range(2))
    (first,) = sent(good, put("a"))
    for number in range(6):
        sent(hostile, put("b"), client=f"c{number}")
    assert sent(good, put("a"), repeated=True) == [first]
    with closing(sqlite3.connect(tmp_path / "bide.db")) as store:
        assert store.execute("SELECT count(*) FROM bide_sender").fetchone() == (4,)
    assert MAX_SENDERS == 1_000


def test_the_sender_is_of_the_token_and_the_client() -> None:
    callers = [
        Caller(None, frozenset()),
        Caller("shop", frozenset(), token="t"),
        Caller("shop", frozenset(), token="u"),
        Caller("bank", frozenset(), token="t"),
    ]
    senders = [sender_of(caller, client) for caller in callers for client in ("a", "b" * 64)]
    assert len(set(senders)) == 8
    assert all(len(sender) <= 64 for sender in senders)
    owners = [sender.partition(":")[0] for sender in senders]
    assert (len(set(owners)), owners[0]) == (4, owners[1])


def test_two_servers_on_one_store_remember_together(serve: Serve) -> None:
    one, two = serve(), serve()
    (first,) = sent(one, put("a"))
    assert sent(two, put("a"), repeated=True) == [first]


def test_a_large_batch_is_no_different(client: Client) -> None:
    sent(client, put("a"))
    items = [{"id": "large", "data": b"1" + b" " * LARGE, "json": True}]
    batch = {
        "commands": [{"command": "put", "queue": "q", "items": items}],
        "client": "c",
        "number": 2,
        "repeated": True,
    }
    packed, kind = msgspec.msgpack.encode(batch), "application/msgpack"
    first, again = (
        client.send("POST", "/v1/batch", data=packed, content_type=kind) for _ in range(2)
    )
    replies = [msgspec.msgpack.decode(reply.data)["replies"] for reply in (first, again)]
    assert replies[0] == replies[1]
    assert done(replies[0][0]) == [True]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"places": [0, 1]}, "places are 2 and commands 1"),
        ({"places": [-1]}, "places"),
        ({"client": ""}, "client"),
        ({"client": "x" * 65}, "client"),
        ({"client": "ü"}, "client"),
        ({"number": 0}, "number"),
        ({"repeated": "yes"}, "repeated"),
    ],
)
def test_an_identity_that_cannot_be_is_refused(
    client: Client, more: dict[str, Any], said: str
) -> None:
    reply = post(client, put("a"), **more)
    assert reply.status == 400
    assert said in reply.problem["detail"]


def test_a_store_that_remembers_nothing_says_so(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgetful = msgspec.structs.replace(MemoryEngine.capabilities, remembers=False)
    monkeypatch.setattr(MemoryEngine, "capabilities", forgetful)
    reply = post(serve(store="memory://"), put("a"))
    assert reply.status == 400
    assert "does not remember answers" in reply.problem["detail"]
