"""Cancel what workers are at work on, over HTTP, and what they report of it."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bide
from bide.model.errors import StopRequested
from tests.system.server.client import Client, Q, Reply
from tests.system.server.conftest import Serve
from tests.waiting import until

ONE = f"{Q}/messages/order-42"


@pytest.fixture
def client(serve: Serve) -> Client:
    return serve()


def held(client: Client, id: str = "order-42", **more: Any) -> dict[str, Any]:
    """Put and claim a message; return its lease."""
    client.put(f"{Q}/messages/{id}", {"body": 1, **more})
    (message,) = client.post(f"{Q}/claim", {"holder": "w1", "lease": "10m"}).json["messages"]
    assert message["id"] == id
    return {"id": message["id"], "token": message["token"]}


def stop(client: Client, query: str = "") -> Reply:
    return client.send("DELETE", f"{ONE}?running=true{query}")


# Cancel.


def test_its_worker_is_asked_to_stop(client: Client) -> None:
    lease = held(client)
    assert client.send("DELETE", ONE).status == 409
    assert "stopping" not in client.get(ONE).json
    reply = stop(client)
    assert reply.status == 202
    assert {**reply.json, "until": 0, "due": 0} == {
        "id": "order-42",
        "done": False,
        "state": "stopping",
        "holder": "w1",
        "until": 0,
        "due": 0,
    }
    message = client.get(ONE).json
    assert (message["state"], message["stopping"]) == ("leased", "127.0.0.1")
    explanation = client.get(f"{ONE}/explanation").json
    assert explanation["facts"]["stopping"] == "127.0.0.1"
    assert "stopping" in explanation["reasons"]
    (outcome,) = client.post(f"{Q}/extend", {"leases": [lease]}).json["outcomes"]
    assert (outcome["done"], outcome["state"]) == (True, "stopping")
    client.post(f"{Q}/retry", {"leases": [lease]})
    assert client.get(ONE).status == 404
    (end,) = client.get(f"{ONE}/history").json["ends"]
    assert (end["how"], end["by"]) == ("cancelled", "127.0.0.1")


def test_what_waits_is_cancelled_at_once(client: Client) -> None:
    client.put(ONE, {"body": 1})
    assert stop(client, "&wait=30").status == 200
    assert stop(client).status == 404


def test_the_etag_is_a_condition_of_stopping_too(client: Client) -> None:
    held(client)
    etag = client.get(ONE).headers["etag"]
    assert client.send("DELETE", f"{ONE}?running=true", if_match='"0"').status == 412
    assert "stopping" not in client.get(ONE).json
    assert client.send("DELETE", f"{ONE}?running=true", if_match=etag).status == 202


@pytest.mark.parametrize(("end", "status"), [("release", 200), ("bury", 200), ("ack", 409)])
def test_a_cancel_waits_for_the_end(client: Client, end: str, status: int) -> None:
    lease = held(client)
    replies: list[Reply] = []
    with Client(client.port, client.app) as other:
        waits = threading.Thread(target=lambda: replies.append(stop(other, "&wait=60")))
        waits.start()
        until(lambda: "stopping" in client.get(ONE).json)
        assert client.post(f"{Q}/{end}", {"leases": [lease]}).status == 200
        waits.join()
    (reply,) = replies
    assert reply.status == status
    if end == "ack":
        assert "order-42 is acked" in reply.problem["detail"]
        assert reply.json["outcomes"][0]["state"] == "acked"
    else:
        assert reply.json["done"]


def test_a_wait_ends_while_it_is_still_stopping(client: Client) -> None:
    held(client)
    reply = stop(client, "&wait=10ms")
    assert (reply.status, reply.json["state"]) == (202, "stopping")


def test_a_wait_sees_the_end_of_a_lease(client: Client) -> None:
    """Though nobody claims: the only worker has died."""
    lease = held(client)
    assert stop(client).status == 202
    client.post(f"{Q}/extend", {"leases": [lease], "lease": "50ms"})
    reply = stop(client, "&wait=100ms")
    assert (reply.status, reply.json["done"]) == (200, True)


def test_a_group(client: Client) -> None:
    for id in ("a", "b"):
        held(client, id, group="g")
    held(client, "c")
    client.put(f"{Q}/messages/d", {"body": 1, "group": "g"})
    by_group = f"{Q}/messages?group=g&running=true"
    assert client.send("DELETE", f"{by_group}&dry_run=true").json == {"count": 3, "more": False}
    reply = client.send("DELETE", by_group).json
    assert reply == {"count": 1, "more": False, "stopping": ["a", "b"]}
    assert client.send("DELETE", by_group).json == {"count": 0, "more": False}
    assert "stopping" not in client.get(f"{Q}/messages/c").json


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{ONE}?wait=30", "running=True"),
        (f"{ONE}?running=true&wait=soon", "wait='soon' is not a valid duration"),
        (f"{ONE}?running=maybe", "running"),
        (f"{Q}/messages?group=g&running=true&undo=true", "cannot go on"),
    ],
)
def test_what_cannot_be_asked_is_refused(client: Client, path: str, text: str) -> None:
    reply = client.send("DELETE", path)
    assert reply.status == 400
    assert text in reply.problem["detail"]


def test_to_cancel_and_to_report_need_the_rights_of_their_kind(
    serve: Serve, make_token: Any
) -> None:
    server = serve(auth="required")
    shop, admin, worker = (
        server.with_token(make_token("shop", scope)) for scope in ("produce", "admin", "consume")
    )
    lease = held(admin)
    report = {"leases": [{**lease, "done": 1}]}
    assert worker.post(f"{Q}/report", report).status == 200
    assert shop.post(f"{Q}/report", report).status == 403
    assert worker.send("DELETE", f"{ONE}?running=true").status == 403
    assert shop.send("DELETE", f"{ONE}?running=true").status == 202
    with bide.Queue("orders", shop.url.replace("://", f"://{shop.token}@")) as orders:
        assert orders.cancel("order-42", running=True).state == "stopping"


# Reports.


def test_progress_is_shown(client: Client) -> None:
    lease = held(client)
    until_before = client.get(ONE).json["until"]
    assert client.get(f"{ONE}/result").json == {"id": "order-42", "how": None, "state": "leased"}
    report = {"leases": [{**lease, "done": 40, "of": 100, "text": "rows"}]}
    (outcome,) = client.post(f"{Q}/report", report).json["outcomes"]
    assert (outcome["done"], outcome["state"], outcome["until"]) == (True, "leased", until_before)
    message = client.get(ONE).json
    moment = message["progress"].pop("moment")
    assert message["progress"] == {"done": 40.0, "of": 100.0, "text": "rows"}
    assert moment > message["due"] - 60_000
    for shown in (
        client.get(f"{ONE}/result").json,
        client.get(f"{ONE}/explanation").json["facts"],
        client.get(f"{Q}/messages?state=leased").json["messages"][0],
    ):
        assert shown["progress"]["done"] == 40.0
    client.post(f"{Q}/report", {**report, "lease": "20m"})
    assert client.get(ONE).json["until"] > until_before
    client.post(f"{Q}/retry", {"leases": [lease]})
    assert "progress" not in client.get(ONE).json
    assert client.post(f"{Q}/report", report).status == 409


def test_a_report_is_answered_that_the_message_was_cancelled(client: Client) -> None:
    lease = held(client)
    stop(client)
    (outcome,) = client.post(f"{Q}/report", {"leases": [{**lease, "done": 1}]}).json["outcomes"]
    assert (outcome["done"], outcome["state"]) == (True, "stopping")


@pytest.mark.parametrize(
    "report",
    [{}, {"done": "1"}, {"done": 1, "text": "x" * 201}, {"done": 1, "of": "all"}, {"done": True}],
)
def test_a_report_that_cannot_be_is_refused(client: Client, report: dict[str, Any]) -> None:
    lease = held(client)
    assert client.post(f"{Q}/report", {"leases": [{**lease, **report}]}).status == 400
    assert "progress" not in client.get(ONE).json


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_packed_report_must_be_finite(client: Client, number: float) -> None:
    lease = held(client)
    for report in ({"done": number}, {"done": 1, "of": number}):
        command = {
            "command": "extend",
            "queue": "orders",
            "leases": [[lease["id"], int(lease["token"])]],
            "lease": None,
            "progress": [report],
        }
        data = msgspec.msgpack.encode({"commands": [command]})
        reply = client.send("POST", "/v1/batch", data=data, content_type="application/msgpack")
        assert reply.status == 400
        assert "must be a finite number" in reply.problem["detail"]


def test_the_action_log_counts_who_was_asked_to_stop(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "acts"
    client = serve(action_log=str(log))
    held(client)
    held(client, "b", group="g")
    stop(client)
    client.send("DELETE", f"{Q}/messages?group=g&running=true")
    until(lambda: b"cancelWhere" in log.read_bytes())  # it is written after the answer
    lines = [msgspec.json.decode(line) for line in log.read_bytes().splitlines()]
    acts = [(line["act"], line["messages"]) for line in lines if "cancel" in line["act"]]
    assert acts == [("cancel", 1), ("cancelWhere", 1)]


# The same in Python, on an http:// store.


def test_a_delivery_hears_it_with_its_next_extend_or_report(client: Client) -> None:
    with bide.Queue("orders", client.url) as orders:
        orders.put(1, id="order-42")
        (delivery,) = orders.claim(lease=600)
        delivery.report(40, of=100, text="rows")
        message = orders.get("order-42")
        assert message is not None
        assert str(message.progress) == "40 of 100 rows (40 %)"
        assert orders.cancel("order-42", running=True).state == "stopping"
        with pytest.raises(StopRequested):
            delivery.extend()
        with pytest.raises(StopRequested):
            delivery.report(100, of=100)
        delivery.release()
        outcome = orders.cancel("order-42", running=True, wait=0)
        assert (bool(outcome), outcome.state) == (False, None)


def listens(client: Client) -> bool:
    """Return whether the worker of a client has opened its stream of events."""
    return len(client.app.service.events) > 0


class WorkerOfClient:
    """A worker on an `http://` store, whose lease is so long that a hint alone can stop it."""

    def __init__(self, url: str, *, is_async: bool) -> None:
        self.running: set[int] = set()
        self.stopped: list[str] = []
        self._app = bide.App(url)
        self._done = asyncio.Event()
        self._loop = asyncio.new_event_loop()

        @self._app.handler("orders", lease="10m", concurrency=2)
        async def handle(body: int) -> None:
            self.running.add(body)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.stopped.append("async")
                raise

        def handle_in_thread(delivery: bide.Handling) -> None:
            self.running.add(delivery.body)
            delivery.lost.wait()
            self.stopped.append("plain")
            delivery.report(1)

        if not is_async:
            self._app = bide.App(url)
            self._app.handler("orders", lease="10m", concurrency=2)(handle_in_thread)
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))

    async def _run(self) -> None:
        async with self._app.running():
            await self._done.wait()

    def __enter__(self) -> "WorkerOfClient":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()
        self._loop.close()


@pytest.mark.parametrize("is_async", [True, False])
def test_a_worker_stops_at_once(client: Client, is_async: bool) -> None:
    with WorkerOfClient(client.url, is_async=is_async) as worker:
        client.put(ONE, {"body": 1})
        until(lambda: worker.running and listens(client))
        assert stop(client, "&wait=60").status == 200
        assert worker.stopped == ["async" if is_async else "plain"]
        with bide.Queue("orders", client.url) as orders:
            orders.put(2, id="b", group="g")
            until(lambda: 2 in worker.running)
            assert orders.cancel(group="g", running=True).stopping == 1
            until(lambda: len(worker.stopped) == 2)


def test_a_worker_that_is_full_stops_at_once(client: Client) -> None:
    for number in range(3):
        client.put(f"{Q}/messages/m{number}", {"body": number})
    with WorkerOfClient(client.url, is_async=True) as worker:
        until(lambda: len(worker.running) == 2 and listens(client))
        with bide.Queue("orders", client.url) as orders:
            for number in range(3):
                assert orders.cancel(f"m{number}", running=True, wait=60)


def test_a_cancel_past_the_server_reaches_its_workers(client: Client) -> None:
    """Another process on the same file: its hint comes through the pipe of the server."""
    store = client.app.service.settings.store
    with WorkerOfClient(client.url, is_async=True) as worker:
        client.put(ONE, {"body": 1})
        until(lambda: worker.running and listens(client))
        program = f"""if True:
            import bide
            outcome = bide.Queue("orders", {store!r}).cancel("order-42", running=True, wait=60)
            print(bool(outcome))
            """
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert ran.stdout == "True\n"
        assert worker.stopped == ["async"]
