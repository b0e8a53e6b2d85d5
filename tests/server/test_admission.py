"""A server that asks for no tokens until somebody makes one."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from bide.server.access.admission import LOOK, RECHECK
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing import FakeClock
from tests.server.client import Client, Q
from tests.server.conftest import Serve
from tests.server.process import ServerProcess
from tests.server.test_processes import run


@pytest.fixture
def clock() -> FakeClock:
    """Provide the clock of `client`."""
    return FakeClock()


@pytest.fixture
def client(serve: Serve, tmp_path: Path, clock: FakeClock) -> Client:
    """Provide a client of a server that is open at first."""
    return serve(ServerApp(Settings(store=f"sqlite:///{tmp_path}/bide.db"), clock))


def test_a_first_token_is_noticed_within_a_second(
    client: Client, clock: FakeClock, make_token: Any
) -> None:
    assert client.get("/v1/queues").status == 200
    text = make_token("shop", "admin")
    assert client.get("/v1/queues").status == 200
    clock.advance(LOOK)
    refused = client.get("/v1/queues")
    assert refused.status == 401
    assert "asks for a token" in refused.problem["detail"]
    assert client.get("/healthz").status == 200
    shop = client.with_token(text)
    assert shop.put(f"{Q}/messages/m", {"body": 1}).status == 201
    assert shop.get("/v1").json["namespace"] == "shop"


def test_it_goes_on_asking_when_all_tokens_are_revoked(
    client: Client, clock: FakeClock, make_token: Any
) -> None:
    text = make_token("shop", "admin")
    clock.advance(LOOK)
    assert client.get("/v1/queues").status == 401
    assert client.app.service.tokens.revoke(text.split("_")[1])
    clock.advance(10 * LOOK)
    assert client.get("/v1/queues").status == 401
    assert client.with_token(text).get("/v1/queues").status == 401


def test_a_token_counts_from_the_request_on_that_carries_it(
    client: Client, make_token: Any
) -> None:
    client.put(f"{Q}/messages/m", {"body": 1})
    shop = client.with_token(make_token("shop", "read"))
    assert shop.get("/v1/queues", host="queue.example").json == {"queues": []}
    assert shop.put(f"{Q}/messages/m", {"body": 1}).status == 403
    assert client.get("/v1/queues").status == 401


def test_an_unknown_token_is_refused_while_it_is_open(client: Client) -> None:
    for text in ("wrong", "bide_4be0643f1d98_wrong"):
        refused = client.with_token(text).get("/v1/queues")
        assert refused.status == 401
        assert "the token is unknown" in refused.problem["detail"]
        assert "invalid_token" in refused.headers["www-authenticate"]
    assert client.get("/v1/queues").status == 200
    assert client.with_token("wrong").get("/healthz").status == 200


def test_who_is_told_not_to_ask_does_not_look(serve: Serve, make_token: Any) -> None:
    make_token("shop", "read")
    off = serve(auth="off")
    assert off.get("/v1/queues").status == 200
    assert off.with_token("wrong").get("/v1/queues").status == 200
    behind = serve(store=off.url)
    assert behind.with_token("wrong").get("/v1/queues").status == 200


def test_a_stream_that_began_before_ends(client: Client, clock: FakeClock, make_token: Any) -> None:
    request = urllib.request.Request(f"{client.url}/v1/events?counts=0.2")
    with urllib.request.urlopen(request, timeout=60) as stream:
        assert stream.readline() == b": bide\n"
        make_token("shop", "read")
        clock.advance(RECHECK)
        text = stream.read().decode()
    assert "event: problem" in text
    assert "asks for a token" in text


def test_all_processes_of_a_server_notice(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--workers", "2") as server:
        assert "no tokens: all who can connect may do anything" in server.text
        assert _status(server.url) == 200
        made = run(tmp_path, "token", "create", "--scope", "read", "--json")
        assert made.returncode == 0, made.stderr
        deadline = time.monotonic() + 60
        while server.text.count("requests need one from now on") < 2:
            assert time.monotonic() < deadline, server.text
            _status(server.url)
        assert {_status(server.url) for _ in range(20)} == {401}
        assert _status(server.url, json.loads(made.stdout)["token"]) == 200
    with ServerProcess(tmp_path) as server:
        assert "; requests need a token" in server.text
        assert _status(server.url) == 401


def test_nothing_listens_for_others_without_tokens(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bide", "serve", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "make one with bide token create, or listen" in done.stderr
    assert "listening" not in done.stderr


def _status(url: str, token: str | None = None) -> int:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/v1/queues", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            status: int = reply.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_claim_whose_token_was_revoked_while_it_waited_gets_nothing(
    serve: Serve, make_token: Any
) -> None:
    client, text = serve(auth="required"), make_token("shop", "consume")
    service, waiting = client.app.service, client.with_token(text)
    admin = client.with_token(make_token("shop", "admin"))
    with ThreadPoolExecutor(1) as pool:
        claimed = pool.submit(waiting.post, f"{Q}/claim", {"wait": "1m"})
        until(lambda: service.claimers.waiting)
        assert service.tokens.revoke(text.split("_")[1])
        assert admin.put(f"{Q}/messages/m", {"body": 1}).status == 201
        assert claimed.result(60).status == 401
    assert [m["id"] for m in admin.post(f"{Q}/claim").json["messages"]] == ["m"]


@pytest.mark.parametrize("ends", ["revoked", "expired"])
def test_a_claim_that_waits_ends_when_its_token_does(
    serve: Serve, tmp_path: Path, make_token: Any, ends: str
) -> None:
    clock = FakeClock()
    url = f"sqlite:///{tmp_path}/bide.db"
    client = serve(ServerApp(Settings(store=url, auth="required"), clock))
    left = round(clock.now() + 1_000 - time.time() * 1_000)
    text = make_token("shop", "consume", expires_ms=left if ends == "expired" else None)
    waiting, service = client.with_token(text), client.app.service
    with ThreadPoolExecutor(1) as pool:
        claimed = pool.submit(waiting.post, f"{Q}/claim", {"wait": "1m"})
        until(lambda: service.claimers.waiting)
        if ends == "revoked":
            assert service.tokens.revoke(text.split("_")[1])
        for _ in range(10):  # the check may begin to sleep behind a step
            clock.advance(RECHECK)
            if wait([claimed], timeout=1).done:
                break
        assert claimed.result(0).status == 401


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
