"""Replies under way have a limited size, whoever asks, leaves, or does not read."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from bide.model import commands as cmd
from bide.model.ended import Ended
from bide.model.limits import (
    MAX_BODY,
    MAX_BYTES,
    MAX_HEADERS,
    MAX_REPLIES,
    MAX_REPLIES_OF_NAMESPACE,
    WAITING_BYTES,
)
from bide.model.message import Message
from bide.model.replies import EndedPage, Found, Names, Outcomes
from bide.server.limits import reply_budget
from bide.server.limits.reply_budget import Present, ReplyBudget, room_for, size_of_reply
from bide.server.limits.request_bodies import ClientGone
from bide.server.problem import Problem
from bide.server.settings import Quota
from tests.system.server.client import Client
from tests.system.server.conftest import SERVERS, Serve
from tests.system.server.raw import request
from tests.waiting import until

Q = "/v1/queues/q"

LARGEST = MAX_BODY + MAX_HEADERS


@pytest.mark.parametrize(
    ("command", "room"),
    [
        (cmd.Find("q", ["a"]), LARGEST),
        (cmd.Find("q", ["a"] * 1_000), MAX_BYTES),
        (cmd.Find("q", ["a"] * 1_000, max_bytes=1), LARGEST),
        (cmd.Scan("q", limit=1_000), MAX_BYTES),
        (cmd.Claim("q", 100, 1_000, "w"), MAX_BYTES),
        (cmd.History("q", "a"), MAX_BYTES),
        (cmd.ListEnded("q"), MAX_BYTES),
        (cmd.Explain("q", "a"), 64 * 1024),
        (cmd.Queues(""), 256 * 1024),
        (cmd.ForecastCommand("q", 1_000, 10_000), 480_000),
        (cmd.Count("q"), 0),
        (cmd.Cancel("q", ["a"] * 1_000), 0),
    ],
)
def test_room_is_for_the_largest_reply(command: cmd.Command, room: int) -> None:
    assert room_for(command, LARGEST) == room


def test_what_a_reply_does_not_need_is_given_back() -> None:
    message = Message("a", "q", b"x" * 1_000, False, 0, 0, 1, 3, "ready")
    assert size_of_reply(Found([message, None])) == 1_001 + 512
    assert size_of_reply(Names(["orders"])) == 6
    ended = Ended(id="abc", how="acked", moment=0, by="w1", due=0, attempt=1)
    assert size_of_reply(EndedPage([ended, ended], None)) == 210
    assert size_of_reply(Outcomes([])) is None


def test_namespaces_get_room_in_turn_and_each_its_share_at_most() -> None:
    async def run() -> None:
        budget, order = ReplyBudget(100, 40), list[str]()

        async def ask(namespace: str, size: int) -> None:
            taken = await budget.take(namespace, size, Present())
            order.append(f"{namespace}{taken}")

        async def settle() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        sizes = [("a", 30), ("a", 30), ("a", 10), ("b", 99), ("c", 30), ("c", 10), ("b", 1)]
        tasks = [asyncio.create_task(ask(*size)) for size in sizes]
        await settle()
        assert order == ["a30", "b40", "c30"]  # "a" waits for its own share
        assert budget.taken == 100
        budget.give_back("a", 30)
        await settle()
        assert order[3:] == ["a30"]  # "a" has waited for longer than "c" and "b"
        budget.give_back("b", 40)
        await settle()
        assert order[4:] == ["c10", "b1", "a10"]
        assert budget.taken == 81
        await asyncio.gather(*tasks)

    asyncio.run(run())


@pytest.mark.parametrize("why", ["the client goes", "it takes too long", "it is cancelled"])
def test_who_waits_no_more_holds_nothing(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "it takes too long":
        monkeypatch.setattr(reply_budget, "PATIENCE", 0.0)

    async def run() -> None:
        budget, client = ReplyBudget(100, 100), Present()
        await budget.take(None, 60, client)
        waits = asyncio.create_task(budget.take(None, 60, client))
        small = asyncio.create_task(budget.take(None, 40, Present()))
        await asyncio.sleep(0)
        if why == "the client goes":
            client.leave()
        elif why == "it is cancelled":
            waits.cancel()
        kinds = {"the client goes": ClientGone, "it takes too long": Problem}
        with pytest.raises(kinds.get(why, asyncio.CancelledError)):
            await waits
        if why == "it takes too long":
            with pytest.raises(Problem, match="answers under way"):
                await small
            assert budget.taken == 60
        else:  # it was behind the one that has left
            assert await small == 40
            assert budget.taken == 100
        budget.give_back(None, budget.taken)
        assert await budget.take(None, 100, client) == 100

    asyncio.run(run())


class Reads:
    """Holds what a tenant reads of the store, and counts it."""

    def __init__(self, client: Client, *kinds: type[cmd.Command]) -> None:
        assert client.app is not None
        self.service = client.app.service
        self.under_way = self.most = 0
        self._kinds = kinds
        self._acall = self.service.lane.acall
        self._go_on = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def acall(self, command: cmd.Command, *more: Any, **named: Any) -> Any:
        if not isinstance(command, self._kinds) or not command.queue.startswith("a/"):
            return await self._acall(command, *more, **named)
        self._loop = asyncio.get_running_loop()
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self._go_on.wait()
            return await self._acall(command, *more, **named)
        finally:
            self.under_way -= 1

    def go_on(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._go_on.set)

    def is_at(self, number: int) -> bool:
        return self.under_way == number

    @property
    def waiting(self) -> int:
        return sum(map(len, self.service.gate.replies.waiting.values()))


@contextmanager
def held(client: Client, *kinds: type[cmd.Command]) -> Iterator[Reads]:
    """Hold the reads of a server while the block runs."""
    reads = Reads(client, *kinds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads.service.lane, "acall", reads.acall)
        patch.setattr(reply_budget, "PATIENCE", 600.0)  # on a busy machine, too, requests wait
        try:
            yield reads
        finally:
            reads.go_on()
            until(lambda: reads.service.gate.replies.taken == 0)


ASKS = {
    "list": request("GET", f"{Q}/messages?limit=1000", connection="keep-alive"),
    "scans": request(
        "POST",
        "/v1/batch",
        b'{"commands": [%b]}' % b",".join([b'{"command": "scan", "queue": "q"}'] * 100),
        connection="keep-alive",
    ),
    "finds": request(
        "POST",
        "/v1/batch",
        b'{"commands": [{"command": "find", "queue": "q", "ids": ["a","b","c","d","e","f","g"]}]}',
        connection="keep-alive",
    ),
    "explains": request(
        "POST",
        "/v1/batch",
        b'{"commands": [%b]}'
        % b",".join([b'{"command": "explain", "queue": "q", "id": "a"}'] * 1_000),
        connection="keep-alive",
    ),
    "claims": request(
        "POST",
        f"{Q}/claim",
        b'{"count": 100}',
        connection="keep-alive",
    ),
    "search": request("GET", "/v1/search?body=x", connection="keep-alive"),
}


@pytest.mark.parametrize("kind", ASKS)
def test_many_requests_read_only_what_has_room(serve: Serve, make_token: Any, kind: str) -> None:
    client = serve(auth="required", max_slow_reads=50)
    token, other = make_token("a", "admin"), make_token("b", "admin")
    assert client.with_token(token).put(f"{Q}/messages/a", {"body": 1}).status == 201
    head, blank, body = ASKS[kind].partition(b"\r\n\r\n")
    data = head + f"\r\nauthorization: Bearer {token}".encode() + blank + body
    kinds = cmd.Scan, cmd.Find, cmd.Claim, cmd.Explain
    begun = 1 if kind == "search" else 2  # it takes the room of a page of the search
    with held(client, *kinds) as reads:
        asking = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(40)]
        server = SERVERS[client.port]
        try:
            for raw in asking:
                raw.sendall(data)
            until(lambda: reads.waiting == 40 - begun and reads.under_way)
            assert reads.service.gate.replies.taken <= MAX_REPLIES_OF_NAMESPACE < MAX_REPLIES
            count = client.with_token(other).get(Q)
            assert count.status == 200  # a neighbour is not behind them
        finally:
            for raw in asking:
                raw.close()
        until(lambda: reads.waiting == 0)  # clients that have gone wait for nothing
        reads.go_on()
        until(lambda: len(server.table.connections) == 2)  # what they had begun has ended
    assert reads.most <= 32


def test_a_client_that_has_gone_counts_as_connected_until_its_request_ends(
    serve: Serve, make_token: Any
) -> None:
    client = serve(auth="required", connections_per_address=3)
    token = make_token("a", "admin")
    with held(client, cmd.Put) as reads:
        put = request(
            "POST",
            f"{Q}/messages",
            b'{"body": 1}',
            authorization=f"Bearer {token}",
            connection="keep-alive",
        )
        for number in range(1, 4):
            with socket.create_connection(("127.0.0.1", client.port)) as raw:
                raw.sendall(put)
                until(partial(reads.is_at, number))
        assert client.get("/healthz").status == 429
    until(lambda: not SERVERS[client.port].table.connections)
    assert client.get("/healthz").status == 200


def test_a_waiting_claim_gets_little_at_a_time(serve: Serve) -> None:
    client = serve()
    for number in range(3):
        client.put(f"{Q}/messages/m{number}", {"body": "x" * (WAITING_BYTES // 2)})
    assert len(client.post(f"{Q}/claim", {"count": 3, "wait": 1}).json["messages"]) == 1
    assert len(client.post(f"{Q}/claim", {"count": 3}).json["messages"]) == 2


def test_what_is_read_for_clients_that_have_gone_counts_as_transferred(
    serve: Serve, make_token: Any
) -> None:
    client = serve(auth="required", quotas={"a": Quota(byte_rate=MAX_BYTES)})
    whole = client.with_token(make_token(None, "admin"))
    mine = client.with_token(make_token("a", "admin"))
    for number in range(90):
        whole.put(f"/v1/queues/a%2Fq/messages/m{number}", {"body": "x" * 90_000})
    with held(client, cmd.Scan) as reads:
        get = request("GET", f"{Q}/messages?limit=1000", authorization=f"Bearer {mine.token}")
        for number in range(1, 3):
            with socket.create_connection(("127.0.0.1", client.port)) as raw:
                raw.sendall(get)
                until(partial(reads.is_at, number))
    assert mine.get(Q).status == 429


def test_what_is_read_in_turn_for_a_client_that_has_gone_counts_before_the_next_read(
    serve: Serve, make_token: Any
) -> None:
    client = serve(auth="required", quotas={"a": Quota(byte_rate=100_000)})
    whole = client.with_token(make_token(None, "admin"))
    mine = client.with_token(make_token("a", "admin"))
    for number in range(20):
        whole.put(f"/v1/queues/a%2Fq/messages/m{number}", {"body": "x" * 90_000})
    path = f"{Q}/messages?limit=1000"
    with held(client, cmd.Scan) as reads:
        get = request("GET", path, authorization=f"Bearer {mine.token}")
        with socket.create_connection(("127.0.0.1", client.port)) as raw:
            raw.sendall(get)
            until(partial(reads.is_at, 1))
    assert mine.get(path).status == 429
