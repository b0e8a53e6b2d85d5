"""Two servers: on one Redis, or one behind the other."""

import json
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bide.model.errors import InvalidArgument
from bide.server.settings import Settings
from tests.system.server.client import Q
from tests.system.server.conftest import Serve
from tests.system.server.process import ServerProcess
from tests.system.server.test_processes import run_process

LEASE = 4
PATIENCE = 60.0


def ask(port: int, method: str, path: str, content: Any = None) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=90)
    try:
        data = None if content is None else json.dumps(content)
        connection.request(method, path, data, {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


@pytest.mark.process
def test_a_put_on_one_wakes_who_waits_at_the_other(
    tmp_path: Path, redis_url: Callable[[], str]
) -> None:
    url = redis_url()
    with (
        ServerProcess(tmp_path, "--store", url) as one,
        ServerProcess(tmp_path, "--store", url) as two,
    ):
        got: list[object] = []

        def claim() -> None:
            _, claimed = ask(two.port, "POST", f"{Q}/claim", {"wait": "1m"})
            got.extend(message["body"] for message in claimed["messages"])

        for _ in range(2):
            thread = threading.Thread(target=claim)
            thread.start()
            while not _waits(two.port):
                time.sleep(0.01)
            assert ask(one.port, "POST", f"{Q}/messages", {"body": 1})[0] == 201
            thread.join()
            assert got.pop() == 1


def _waits(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    waiting = [line for line in text.splitlines() if line.startswith("bide_http_claims_waiting ")]
    return waiting[0].endswith(" 1.0")


class Work:
    """Producers and consumers at two servers, and what each of them was told."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.asked: set[str] = set()
        self.confirmed: set[str] = set()
        self.claims: list[tuple[str, int, int, int]] = []
        """id, token, from when, until when, by the store's clock."""
        self.acked: set[str] = set()
        self.cut = 0
        """How many requests were broken off."""
        self.producing = True

    def produce(self, number: int) -> None:
        count = 0
        while self.producing:
            id, count = f"{number}-{count}", count + 1
            self.asked.add(id)
            try:
                port = self.ports[number % 2]
                status, _ = ask(port, "PUT", f"{Q}/messages/{id}", {"body": id})
            except (OSError, HTTPException):
                self.cut += 1
                continue
            if status in (200, 201):
                self.confirmed.add(id)

    def consume(self, number: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.producing or not self.confirmed <= self.acked:
            assert time.monotonic() < deadline, self.confirmed - self.acked
            port = self.ports[number % 2]
            try:
                wanted = {"count": 5, "wait": "500ms", "lease": LEASE, "holder": f"c{number}"}
                status, claimed = ask(port, "POST", f"{Q}/claim", wanted)
            except (OSError, HTTPException):
                self.cut += 1
                continue
            for message in claimed["messages"] if status == 200 else ():
                token, until = message["token"], message["until"]
                self.claims.append((message["id"], token, claimed["now"], until))
                self._ack(message["id"], token)

    def rest(self, port: int) -> None:
        """Take what nobody knows to be there: put and claimed just when the server was killed."""
        deadline = time.monotonic() + PATIENCE
        while any(ask(port, "GET", Q)[1]["sizes"].values()):
            assert time.monotonic() < deadline
            _, claimed = ask(port, "POST", f"{Q}/claim", {"count": 9, "wait": "500ms"})
            for message in claimed["messages"]:
                self.claims.append(
                    (message["id"], message["token"], claimed["now"], message["until"])
                )
                self._ack(message["id"], message["token"])

    def _ack(self, id: str, token: int) -> None:
        for port in (*self.ports, *self.ports):
            try:
                lease = {"leases": [{"id": id, "token": token}]}
                status, told = ask(port, "POST", f"{Q}/ack", lease)
            except (OSError, HTTPException):
                self.cut += 1
                continue  # whether it was done nobody knows, and asking again does no harm
            if status == 200 or (status == 409 and "state" not in told["outcomes"][0]):
                self.acked.add(id)  # 409 without a state: the first of two acks was heard
                return


@pytest.mark.full
@pytest.mark.process
def test_one_that_is_killed_under_load_loses_nothing(
    tmp_path: Path, redis_url: Callable[[], str]
) -> None:
    url = redis_url()
    with ServerProcess(tmp_path, "--store", url) as one:
        with ServerProcess(tmp_path, "--store", url) as two:
            work = Work([one.port, two.port])
            threads = [threading.Thread(target=work.produce, args=(n,)) for n in range(4)]
            threads += [threading.Thread(target=work.consume, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            _reach(work, 80)
            two.kill()
            port = work.ports[1]
        _reach(work, len(work.confirmed) + 30)  # the other one goes on
        with ServerProcess(tmp_path, "--store", url, "--port", str(port)):
            _reach(work, len(work.confirmed) + 50)
            work.producing = False
            for thread in threads:
                thread.join()
        work.rest(one.port)
        assert work.cut > 0
        assert work.confirmed <= work.acked <= work.asked
        _, audit = ask(one.port, "GET", f"{Q}/audit")
        assert audit["balanced"], audit
        sizes, flow = audit["counts"]["sizes"], audit["counts"]["flow"]
        assert sizes == {"delayed": 0, "ready": 0, "leased": 0, "dead": 0}
        assert len(work.confirmed) <= flow["put"] <= len(work.asked)
        assert flow["acked"] == flow["put"]
    _never_two_at_a_time(work.claims)


def _reach(work: Work, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(work.confirmed) < count:
        assert time.monotonic() < deadline, len(work.confirmed)
        time.sleep(0.01)


def _never_two_at_a_time(claims: list[tuple[str, int, int, int]]) -> None:
    by_id: dict[str, list[tuple[int, int, int]]] = {}
    for id, token, begins, until in claims:
        by_id.setdefault(id, []).append((begins, until, token))
    for id, held in by_id.items():
        held.sort()
        for (_, until, token), (begins, _, later) in pairwise(held):
            assert until <= begins, f"{id} was held twice: {held}"
            assert token < later


def test_it_is_ready_and_works(serve: Serve) -> None:
    client = serve(store=serve().url)
    assert client.get("/readyz").json == {"status": "ready"}
    assert client.put(f"{Q}/messages/m", {"body": 1}).status == 201
    assert client.post(f"{Q}/claim").json["messages"][0]["id"] == "m"
    told = client.get("/metrics").data.decode()
    assert "bide_store_up 1.0" in told
    assert 'bide_queue_messages{queue="orders",state="leased"} 1.0' in told


def test_it_is_not_ready_while_the_other_refuses_it(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = serve(auth="required")
    monkeypatch.setenv("BIDE_TOKEN", make_token("shop", "produce"))
    told = serve(store=behind.url).get("/readyz")
    assert told.status == 503
    assert "no right 'read'" in told.json["reason"]
    monkeypatch.setenv("BIDE_TOKEN", make_token("shop", "read"))
    assert serve(store=f"{behind.url}/?timeout=9").get("/readyz").json == {"status": "ready"}


def test_subscriptions_and_tokens_are_kept_by_the_other(serve: Serve, tmp_path: Path) -> None:
    behind = serve()
    client = serve(store=behind.url)
    assert "at its own /v1/subscriptions" in client.get("/v1/subscriptions").problem["detail"]
    done = run_process(tmp_path, "token", "create", "--scope", "read", "--url", behind.url)
    assert done.returncode == 2
    assert "use the URL of the store that it serves" in done.stderr


@pytest.mark.parametrize("more", [{"auth": "required"}, {"host": "0.0.0.0"}])
def test_it_cannot_ask_for_tokens(more: dict[str, Any]) -> None:
    settings = Settings(store="http://:secret@127.0.0.1:8642", **more)
    with pytest.raises(InvalidArgument, match="behind another server") as refused:
        settings.check()
    assert "secret" not in str(refused.value)


def test_check_finds_it_fit(serve: Serve, tmp_path: Path) -> None:
    done = run_process(tmp_path, "serve", "--check", "--port", "0", "--store", serve().url)
    assert (done.returncode, done.stderr) == (0, "")
