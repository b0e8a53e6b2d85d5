"""The stream of events: what is told to whom, and when it ends."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Command, Count, Put
from bide.model.errors import AccessDenied, StoreCorrupt, StoreError, StoreUnavailable
from bide.model.message import Item
from bide.model.replies import Counts
from bide.observing.heartbeat import Report, put_report
from bide.observing.tally import Histogram
from bide.server.access import admission
from bide.server.limits.open_calls import EventFanout
from bide.server.routes import events
from bide.server.service import FailedLook
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve
from tests.system.server.test_clients import claiming
from tests.waiting import until


class Stream:
    """Reads the events of one connection."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def next(self) -> tuple[str, Any]:
        kind = ""
        for line in self._lines:
            if line.startswith("event: "):
                kind = line[7:].strip()
            elif line.startswith("data: "):
                return kind, json.loads(line[6:])
        return "end", None

    def look(self) -> tuple[str, Any]:
        """Return the next event of a look at the store; a hint may come between any two."""
        kind, data = self.next()
        while kind == "hint":
            kind, data = self.next()
        return kind, data

    def is_alive(self) -> bool:
        return any(line == ": alive\n" for line in self._lines)

    def until(self, kind: str, fits: Callable[[Any], object] = lambda data: True) -> Any:
        for _ in range(1_000):
            found, data = self.next()
            assert found != "end", f"no {kind}"
            if found == kind and fits(data):
                return data
        raise AssertionError(f"no {kind}, the last was {data}")


@contextmanager
def listening(client: Client, query: str) -> Iterator[Stream]:
    token = f"Authorization: Bearer {client.token}\r\n" if client.token else ""
    head = f"GET /v1/events?{query} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{token}\r\n"
    with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
        connection.sendall(head.encode())
        with connection.makefile() as lines:
            assert " 200 " in next(lines)
            yield Stream(lines)


def say(url: str, holder: str, *queues: str, late: float = 0.004, register: str = "") -> None:
    """Have a worker say in the store that it is there."""
    lateness = Histogram()
    lateness.observe(late)
    put = put_report(holder, Report({holder: list(queues)}, dict.fromkeys(queues, lateness)))
    lane = open_lane(url)
    lane.call(put)
    close_lane(lane)


def test_a_tick_follows_all_that_has_changed(client: Client) -> None:
    client.put(f"{Q}/messages/a", {"body": 1, "delay": "1h"})
    client.put("/v1/queues/mail/messages/a", {"body": 1, "delay": "1h"})
    with listening(client, "counts=0.02") as stream:
        assert {stream.look()[1]["queue"], stream.look()[1]["queue"]} == {"orders", "mail"}
        kind, data = stream.look()
        assert (kind, data["now"] > 1_700_000_000_000) == ("tick", True)
        assert stream.look()[0] == "tick"
        client.send("DELETE", f"{Q}/messages/a")
        assert stream.until("counts")["counts"]["sizes"]["delayed"] == 0


@pytest.mark.parametrize("workers", ["false", "true"])
def test_what_is_deleted_is_told_and_forgotten(client: Client, workers: str) -> None:
    subscription = {"queue": "orders", "url": "https://shop.example/hook"}
    for queue in ("orders", "typo"):
        client.put(f"/v1/queues/{queue}/messages/a", {"body": 1, "delay": "1h"})
    assert client.put("/v1/subscriptions/shop", subscription).status == 201
    with listening(client, f"counts=0.02&workers={workers}") as stream:
        assert stream.until("subscription")["subscription"] == "shop"
        client.send("DELETE", "/v1/queues/typo/messages/a")
        assert client.send("DELETE", "/v1/queues/typo").status < 300
        assert stream.until("gone") == {"queue": "typo"}
        assert client.send("DELETE", "/v1/subscriptions/shop").status == 204
        assert stream.until("gone") == {"subscription": "shop"}
        stream.until("tick")
        assert stream.look()[0] == "tick"  # each is told once
        client.put("/v1/queues/typo/messages/a", {"body": 1, "delay": "1h"})
        assert stream.until("counts")["queue"] == "typo"


def test_workers_are_told_with_or_without_work(client: Client) -> None:
    say(client.app.service.settings.store, "web1:7", "orders", "mail")
    for queue in ("orders", "mail"):
        client.put(f"/v1/queues/{queue}/messages/a", {"body": 1})
    client.post(f"{Q}/claim", {"holder": "by hand", "lease": "1h"})
    with listening(client, "counts=0.02&workers=true") as stream:
        told = stream.until("workers")
        workers = {one["holder"]: one for one in told["workers"]}
        assert workers["web1:7"]["holds"] == {"mail": 0, "orders": 0}
        assert workers["by hand"]["holds"] == {"orders": 1}
        assert workers["by hand"]["until"] > 1_700_000_000_000
        assert told["lateness"]["orders"] == {"p50": 5, "p99": 5, "count": 1}
        with claiming(client, wait="1m", holder="curl"):
            stream.until("workers", lambda data: "curl" in str(data))


def test_wrong_entries_of_workers_are_skipped_and_logged_once(
    serve: Serve, make_token: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bide.worker")
    server = serve(auth="required")
    shop = server.with_token(make_token("shop", "admin"))
    shop.put(f"{Q}/messages/a", {"body": 1})
    fine = [0] * 18
    wrong: list[Any] = [
        {"workers": {}, "lateness": {"orders": [[1], 0]}},
        {"workers": {}, "lateness": {"orders": [[*fine, 1], 0]}},
        {"workers": {}, "lateness": {"orders": [[-1, *fine[1:]], 0]}},
        {"workers": {}, "lateness": {"orders": [[1 << 60, *fine[1:]], 0]}},
        {"workers": {}, "lateness": {"orders": [fine, 1e300]}},
        {"workers": {}, "lateness": {"not a queue": [fine, 0]}},
        {"workers": {"web": ["not a queue"]}},
        {"workers": {"\x1b[2J": ["orders"]}},
        {"workers": {"w" * 1_000: ["orders"]}},
        {"workers": {}, "busy": {"orders": {"places": -1}}},
        {"workers": {}, "busy": {"orders": {"places": 1, "longest": "\x00"}}},
        {"workers": {}, "busy": {"orders": {"places": 1, "since": 1 << 60}}},
    ]
    lane = open_lane(server.app.service.settings.store)
    items = [
        Item(f"bad-{n}", msgspec.json.encode(one), delay=3_600_000) for n, one in enumerate(wrong)
    ]
    lane.call(Put("shop/bide:workers", items))
    close_lane(lane)
    say(server.app.service.settings.store, "web1:7", "shop/orders")
    with listening(shop, "counts=0.02&workers=true") as stream:
        told = stream.until("workers", lambda data: data["lateness"])
        assert [one["holder"] for one in told["workers"]] == ["web1:7"]
        for _ in range(3):
            stream.until("tick")
    logged = [record.getMessage() for record in caplog.records if "bad-" in record.getMessage()]
    assert len(logged) == len(wrong)
    assert all(len(line) < 500 for line in logged)


def test_a_prefix_leaves_out_the_others(client: Client) -> None:
    say(client.app.service.settings.store, "web1:7", "mail")
    with listening(client, "counts=0.02&workers=true&prefix=ord") as stream:
        client.put("/v1/queues/mail/messages/a", {"body": 1})
        client.put(f"{Q}/messages/a", {"body": 1})
        seen = [stream.next()]
        while seen[-1][0] != "counts":
            seen.append(stream.next())
        seen += [stream.next() for _ in range(6)]
        assert {data["queue"] for _, data in seen if "queue" in data} == {"orders"}
        assert not any(data.get("workers") for _, data in seen)


def test_workers_of_another_namespace_are_nobodys_business(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    store = server.app.service.settings.store
    shop, mail, root = (
        server.with_token(make_token(name, "admin")) for name in ("shop", "mail", None)
    )
    for client in (shop, mail):
        client.put(f"{Q}/messages/a", {"body": 1})
    say(store, "web1:7", "shop/orders")
    say(store, "web2:8", "mail/orders", late=9)
    with listening(shop, "counts=0.02&workers=true") as stream:
        told = stream.until("workers", lambda data: data["lateness"])
        assert [one["holds"] for one in told["workers"]] == [{"orders": 0}]
        assert told["lateness"] == {"orders": {"p50": 5, "p99": 5, "count": 1}}
        assert "web2" not in str(told)
    with listening(root, "counts=0.02&workers=true") as stream:
        told = stream.until("workers", lambda data: len(data["workers"]) == 2)
        assert set(told["lateness"]) == {"shop/orders", "mail/orders"}
    assert root.get("/v1/queues").json["queues"] == ["mail/orders", "shop/orders"]


def test_ids_are_told_to_those_who_may_read_or_claim(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    admin = server.with_token(make_token("shop", "admin"))
    admin.put(f"{Q}/messages/patient-4711", {"body": 1})
    admin.post(f"{Q}/claim", {"lease": "1h"})
    for rights, told in ((["put", "change"], False), (["consume"], True), (["read"], True)):
        client = server.with_token(make_token("shop", rights=rights))
        with listening(client, "counts=0") as stream:
            assert admin.send("DELETE", f"{Q}/messages/patient-4711?running=true").status == 202
            admin.put(f"/v1/queues/mail/messages/{rights[0]}", {"body": 1})
            queues = [stream.until("hint")["queue"]]
            while queues[-1] != "mail":
                queues.append(stream.until("hint")["queue"])
            assert ("orders patient-4711" in queues) == told


def test_a_worker_by_http_is_told_of_in_its_namespace(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    consumer = make_token("shop", "consume")
    shop = server.with_token(make_token("shop", "admin"))
    shop.put(f"{Q}/messages/a", {"body": 1})
    say(f"http://:{consumer}@127.0.0.1:{server.port}", "web1:7", "orders")
    with listening(shop, "counts=0.02&workers=true") as stream:
        told = stream.until("workers")
        assert [one["holder"] for one in told["workers"]] == ["web1:7"]
    refused = {"command": "put", "queue": "orders", "items": [{"id": "x", "data": "MQ=="}]}
    client = server.with_token(consumer)
    assert client.post("/v1/batch", {"commands": [refused]}).status == 403


def test_a_token_that_is_revoked_hears_no_more(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "RECHECK_EVERY", 0.05)
    server = serve(auth="required")
    token = make_token("shop", "read")
    with listening(server.with_token(token), "counts=0.02") as stream:
        stream.until("tick")
        assert server.app.service.tokens.revoke(token.split("_")[1])
        assert "was revoked" in stream.until("problem")["detail"]
        assert stream.next() == ("end", None)


def test_a_store_that_is_away_is_told_and_waited_for(client: Client, tmp_path: Any) -> None:
    client.put(f"{Q}/messages/a", {"body": 1})
    with listening(client, "counts=0.02") as stream:
        stream.until("tick")
        for part in ("-wal", "-shm"):
            (tmp_path / f"bide.db{part}").unlink()
        (tmp_path / "garbage").write_bytes(b"no database" * 1_000)
        (tmp_path / "garbage").rename(tmp_path / "bide.db")
        assert stream.until("problem")["error"] == "NotAStore"
        (tmp_path / "bide.db").unlink()
        assert client.put(f"{Q}/messages/b", {"body": 1}).status == 201  # in a new file
        stream.until("tick")


def test_a_stream_that_has_nothing_to_tell_says_that_it_is_alive(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "COMMENT_EVERY", 0.2)
    server = serve(auth="required")
    shop = server.with_token(make_token("shop", "read"))
    mall = server.with_token(make_token("mall", "produce"))
    with listening(shop, "counts=0") as stream, ThreadPoolExecutor(1) as pool:
        alive = pool.submit(stream.is_alive)
        puts = 0
        while not alive.done() and puts < 2_000:  # each is a hint, and none of them is for the shop
            puts += 1
            assert mall.put(f"/v1/queues/q{puts % 50}/messages/{puts}", {"body": 1}).status == 201
        assert alive.done()
        assert alive.result()


def test_workers_are_not_told_without_counts(client: Client) -> None:
    reply = client.get("/v1/events?counts=0&workers=true")
    assert (reply.status, reply.problem["field"]) == (400, "counts")
    until(lambda: len(client.app.service.events) == 0)


def test_all_streams_learn_at_once_that_the_store_is_away(client: Client) -> None:
    service = client.app.service
    error = StoreUnavailable("it does not answer")
    service.failed_look = FailedLook(error, time.monotonic() + 60)
    with listening(client, "counts=0.01") as stream:
        assert "does not answer" in stream.until("problem")["detail"]
        service.failed_look = None
        stream.until("tick")


@pytest.mark.parametrize("error", [AccessDenied("not for you"), StoreCorrupt("one record")])
def test_an_error_about_one_stream_is_not_reported_by_another(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    service = client.app.service
    counts_of = service.counts

    async def counts(queue: str) -> Counts:
        if queue == "mail":
            raise error
        return await counts_of(queue)

    monkeypatch.setattr(service, "counts", counts)
    for queue in ("orders", "mail"):
        client.put(f"/v1/queues/{queue}/messages/a", {"body": 1})
    with (
        listening(client, "counts=0.01&prefix=mail") as refused,
        listening(client, "counts=0.01&prefix=orders") as stream,
    ):
        refused.until("problem")
        for _ in range(3):
            assert stream.next()[0] != "problem"
            assert str(error) in refused.until("problem")["detail"]
        assert service.failed_look is None


def test_streams_share_what_they_count(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hundred streams each count would be made a hundred times a second."""
    asked, execute = [], client.app.service.lane.acall

    def spy(command: Command, *more: Any) -> Any:
        asked.extend([command.queue] * isinstance(command, Count))
        return execute(command, *more)

    monkeypatch.setattr("bide.server.service.COUNTS_AGE", 60.0)
    client.put(f"{Q}/messages/m", {"body": 1})
    monkeypatch.setattr(client.app.service.lane, "acall", spy)
    for _ in range(3):
        with listening(client, "counts=10") as stream:
            assert stream.until("counts")["counts"]["sizes"]["ready"] == 1
            stream.until("tick")
    assert asked == ["orders"]


def test_streams_are_capped_by_namespace_and_by_address(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", max_streams=2)
    shop = server.with_token(make_token("shop", "read"))
    mail = server.with_token(make_token("mail", "read"))
    with listening(shop, "counts=0"), listening(shop, "counts=0"):
        for client, what in ((shop, "the namespace shop"), (mail, "the address 127.0.0.1")):
            reply = client.get("/v1/events?counts=0")
            assert (reply.status, reply.headers["retry-after"]) == (429, "1")
            assert what in reply.problem["detail"]
            assert "max_streams" in reply.problem["detail"]
    until(lambda: len(server.app.service.events) == 0)
    with listening(mail, "counts=0"):
        pass  # there is room again


def test_streams_are_not_capped_without_tokens(serve: Serve) -> None:
    client = serve(max_streams=1)
    with listening(client, "counts=0"), listening(client, "counts=0"):
        pass


def test_a_stream_that_ends_while_it_begins_to_listen_is_forgotten() -> None:
    lane = open_lane("memory://listening")

    async def main() -> None:
        fanout = EventFanout(lane)

        async def listen() -> None:
            async with fanout.listening():
                await asyncio.Event().wait()

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0)
        assert len(fanout) == 1
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        assert len(fanout) == 0

    asyncio.run(main())
    close_lane(lane)


def test_waiting_claims_are_capped(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", max_waiting=1)
    shop = server.with_token(make_token("shop", "admin"))
    with claiming(shop, wait="1m"):
        until(lambda: server.app.service.claimers.waiting == 1)
        reply = shop.post(f"{Q}/claim", {"wait": "1m"})
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        assert "max_waiting" in reply.problem["detail"]
        assert shop.post(f"{Q}/claim").status == 200  # it does not wait
    until(lambda: server.app.service.claimers.waiting == 0)
    assert shop.post(f"{Q}/claim", {"wait": 0.01}).status == 200
