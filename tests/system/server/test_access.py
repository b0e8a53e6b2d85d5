"""Whom a server lets in: without tokens, by tokens and leases with secrets, from which address."""

import base64
import hmac
import itertools
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Cancel, Find
from bide.model.limits import MAX_FAILED_LOGINS
from bide.model.replies import Found
from bide.server.access.admission import LOOK_EVERY, RECHECK_EVERY
from bide.server.access.tokens import KEY_ID, KEYS_QUEUE
from bide.server.app import ServerApp
from bide.server.http.client_address import ClientAddress
from bide.server.operation import Operation
from bide.server.settings import Quota, Settings
from bide.server.shared_state import LOGIN_WINDOW
from bide.testing import FakeClock
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve
from tests.system.server.process import ServerProcess
from tests.system.server.test_processes import run_process
from tests.system.server.test_refusals import every_guarded, path_of
from tests.waiting import until


@pytest.fixture
def clock() -> FakeClock:
    """Provide the clock of `client`."""
    return FakeClock()


@pytest.fixture
def visitor(serve: Serve, tmp_path: Path, clock: FakeClock) -> Client:
    """Provide a client of a server that is open at first."""
    return serve(ServerApp(Settings(store=f"sqlite:///{tmp_path}/bide.db"), clock))


def test_a_first_token_is_noticed_within_a_second(
    visitor: Client, clock: FakeClock, make_token: Any
) -> None:
    assert visitor.get("/v1/queues").status == 200
    text = make_token("shop", "admin")
    assert visitor.get("/v1/queues").status == 200
    clock.advance(LOOK_EVERY)
    refused = visitor.get("/v1/queues")
    assert refused.status == 401
    assert "asks for a token" in refused.problem["detail"]
    assert visitor.get("/healthz").status == 200
    shop = visitor.with_token(text)
    assert shop.put(f"{Q}/messages/m", {"body": 1}).status == 201
    assert shop.get("/v1").json["namespace"] == "shop"


def test_it_goes_on_asking_when_all_tokens_are_revoked(
    visitor: Client, clock: FakeClock, make_token: Any
) -> None:
    text = make_token("shop", "admin")
    clock.advance(LOOK_EVERY)
    assert visitor.get("/v1/queues").status == 401
    assert visitor.app.service.tokens.revoke(text.split("_")[1])
    clock.advance(10 * LOOK_EVERY)
    assert visitor.get("/v1/queues").status == 401
    assert visitor.with_token(text).get("/v1/queues").status == 401


def test_a_token_counts_from_the_request_on_that_carries_it(
    visitor: Client, make_token: Any
) -> None:
    visitor.put(f"{Q}/messages/m", {"body": 1})
    shop = visitor.with_token(make_token("shop", "read"))
    assert shop.get("/v1/queues", host="queue.example").json == {"queues": []}
    assert shop.put(f"{Q}/messages/m", {"body": 1}).status == 403
    assert visitor.get("/v1/queues").status == 401


def test_an_unknown_token_is_refused_while_it_is_open(visitor: Client) -> None:
    for text in ("wrong", "bide_4be0643f1d98_wrong"):
        refused = visitor.with_token(text).get("/v1/queues")
        assert refused.status == 401
        assert "the token is unknown" in refused.problem["detail"]
        assert "invalid_token" in refused.headers["www-authenticate"]
    assert visitor.get("/v1/queues").status == 200
    assert visitor.with_token("wrong").get("/healthz").status == 200


def test_who_is_told_not_to_ask_does_not_look(serve: Serve, make_token: Any) -> None:
    make_token("shop", "read")
    off = serve(auth="off")
    assert off.get("/v1/queues").status == 200
    assert off.with_token("wrong").get("/v1/queues").status == 200
    behind = serve(store=off.url)
    assert behind.with_token("wrong").get("/v1/queues").status == 200


def test_a_stream_that_began_before_ends(
    visitor: Client, clock: FakeClock, make_token: Any
) -> None:
    request = urllib.request.Request(f"{visitor.url}/v1/events?counts=0.2")
    with urllib.request.urlopen(request, timeout=60) as stream:
        assert stream.readline() == b": bide\n"
        make_token("shop", "read")
        clock.advance(RECHECK_EVERY)
        text = stream.read().decode()
    assert "event: problem" in text
    assert "asks for a token" in text


def test_all_processes_of_a_server_notice(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--workers", "2") as server:
        assert "no tokens: all who can connect may do anything" in server.text
        assert _status(server.url) == 200
        made = run_process(tmp_path, "token", "create", "--scope", "read", "--json")
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
            clock.advance(RECHECK_EVERY)
            if wait([claimed], timeout=1).done:
                break
        assert claimed.result(0).status == 401


# Tokens.


@every_guarded
def test_every_route_needs_a_good_token(
    serve: Serve, make_token: Any, operation: Operation
) -> None:
    good = make_token("shop", "admin")
    client = serve()
    other = make_token(None, "read", expires_ms=0)
    id, secret = good.split("_", 2)[1:]
    wrong = [None, "nonsense", good[:-1], good + "x", f"bide_{id[::-1]}_{secret}", other, "bide__x"]
    for token in wrong:
        client.token = token
        reply = client.send(operation.method, path_of(operation))
        assert reply.status == 401, token
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert good not in json.dumps(reply.problem)


@pytest.mark.parametrize(
    "command",
    [
        {"command": "put", "queue": "orders", "items": [], "on_conflict": "revive"},
        {"command": "bury", "queue": "orders", "ids": ["a"]},
        {"command": "purge", "queue": "orders", "state": "dead", "ids": ["a"]},
    ],
)
def test_what_a_move_is_made_of_is_for_admins(
    serve: Serve, make_token: Any, command: dict[str, Any]
) -> None:
    server = serve(auth="required")
    for scope, status in (("produce", 403), ("consume", 403), ("admin", 200)):
        client = server.with_token(make_token("shop", scope))
        assert client.post("/v1/batch", {"commands": [command]}).status == status


def test_namespaces_do_not_see_each_other(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    shop, mail = (server.with_token(make_token(name, "admin")) for name in ("shop", "mail"))
    root = server.with_token(make_token(None, "admin"))
    assert shop.put(f"{Q}/messages/m", {"body": "shop"}).status == 201
    assert mail.get(f"{Q}/messages/m").status == 404
    assert mail.get("/v1/queues").json["queues"] == []
    assert mail.post(f"{Q}/claim").json["messages"] == []
    assert mail.get("/v1/queues/shop%2Forders").status == 400
    assert mail.send("DELETE", f"{Q}/messages/m").status == 404
    find = {"commands": [{"command": "find", "queue": "shop/orders", "ids": ["m"]}]}
    assert mail.post("/v1/batch", find).status == 400
    assert root.post("/v1/batch", find).json["replies"][0]["messages"][0]["id"] == "m"
    assert root.get("/v1/queues").json["queues"] == ["shop/orders"]
    tokens = {"commands": [{"command": "scan", "queue": "bide.server/tokens"}]}
    assert root.post("/v1/batch", tokens).status == 400
    (claimed,) = shop.post(f"{Q}/claim").json["messages"]
    assert claimed["queue"] == "orders"
    lease = {"leases": [{"id": "m", "token": claimed["token"]}]}
    assert mail.post(f"{Q}/ack", lease).status == 409
    assert shop.post(f"{Q}/ack", lease).status == 200


def test_a_revoked_token_is_refused_by_the_next_request(
    serve: Serve, make_token: Any, tmp_path: Any
) -> None:
    one, two = serve(auth="required"), serve(auth="required")
    text = make_token("shop", "read")
    clients = [server.with_token(text) for server in (one, two)]
    assert [client.get("/v1").json["namespace"] for client in clients] == ["shop"] * 2
    assert one.app.service.tokens.revoke(text.split("_")[1])
    assert [client.get("/v1").status for client in clients] == [401, 401]


def test_without_tokens_no_page_of_another_site_is_served(client: Client) -> None:
    rebound = client.get("/v1/queues", host="evil.example")
    assert (rebound.status, rebound.problem["field"]) == (403, "host")
    foreign = client.post(f"{Q}/messages", {"body": 1}, origin="https://evil.example")
    assert (foreign.status, foreign.problem["field"]) == (403, "origin")
    assert client.get("/v1/queues", origin="http://localhost:3000").status == 200


# Quotas.


def test_quotas_of_a_namespace(serve: Serve, make_token: Any) -> None:
    quota = Quota(rate=5, pending=7, max_body=100, longest_delay="1d")
    client = serve(auth="required", quotas={"shop": quota}).with_token(make_token("shop", "admin"))
    large = client.post(f"{Q}/messages", {"body": "x" * 200})
    assert (large.status, large.problem["field"]) == (413, "body")
    far = client.post(f"{Q}/messages", {"body": 1, "delay": "2d"})
    assert (far.status, far.problem["field"]) == (400, "delay")
    client.put(f"{Q}/messages/m", {"body": 1})
    assert client.send("PATCH", f"{Q}/messages/m", {"delay": "2d"}).status == 400
    assert client.post(f"{Q}/put", {"messages": [{"body": 1}] * 4}).status == 200
    fast = client.post(f"{Q}/put", {"messages": [{"body": 1}] * 2})
    assert (fast.status, fast.headers["retry-after"]) == (429, "1")
    full = client.post(f"{Q}/put", {"messages": [{"body": 1}] * 3})
    assert (full.status, full.problem["title"]) == (507, "The namespace is full")
    items = [{"id": "far", "data": "MQ==", "delay": 200_000_000}]
    batch = {"commands": [{"command": "put", "queue": "orders", "items": items}]}
    assert client.post("/v1/batch", batch).status == 400


PROXY = "127.0.0.1"


def resolved(peer: str | None, trusted: list[str], *headers: tuple[str, str]) -> str:
    fields = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"client": None if peer is None else (peer, 1), "headers": fields}
    return ClientAddress(trusted).of(scope)


XFF, FWD = "x-forwarded-for", "forwarded"


@pytest.mark.parametrize(
    ("peer", "trusted", "headers", "found"),
    [
        ("192.0.2.9", [], [(XFF, "198.51.100.1")], "192.0.2.9"),
        ("192.0.2.9", ["10.0.0.0/8"], [(XFF, "198.51.100.1")], "192.0.2.9"),
        ("10.0.0.1", ["10.0.0.0/8"], [], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "198.51.100.1")], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "6.6.6.6, 198.51.100.1")], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "6.6.6.6, 198.51.100.1, 10.0.0.2")], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "6.6.6.6"), (XFF, "198.51.100.1")], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "10.0.0.3, 10.0.0.2")], "10.0.0.3"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "6.6.6.6, unknown")], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "6.6.6.6, <script>")], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "198.51.100.1:4711")], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "[2001:DB8::1]:4711")], "2001:db8::1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "::ffff:198.51.100.1")], "198.51.100.1"),
        ("::ffff:10.0.0.1", ["10.0.0.0/8"], [(XFF, "198.51.100.1")], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(FWD, "for=198.51.100.1;proto=https")], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(FWD, 'For="[2001:db8::1]:47"')], "2001:db8::1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(FWD, 'for="x, for=198.51.100.1')], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(FWD, "for=6.6.6.6, for=_hidden")], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "1.1.1.1"), (FWD, "for=1.1.1.1")], "1.1.1.1"),
        ("10.0.0.1", ["10.0.0.0/8"], [(XFF, "1.1.1.1"), (FWD, "for=6.6.6.6")], "10.0.0.1"),
        (None, [], [(XFF, "198.51.100.1")], ""),
        (None, ["unix"], [(XFF, "198.51.100.1")], "198.51.100.1"),
        (None, ["unix"], [], ""),
        (None, ["unix"], [(XFF, "198.51.100.1"), (FWD, "for=6.6.6.6")], "unix"),
        (None, ["unix"], [(XFF, "198.51.100.1"), (FWD, "for=6.6.6.7")], "unix"),
        ("10.0.0.1", ["unix"], [(XFF, "198.51.100.1")], "10.0.0.1"),
    ],
)
def test_spoofed_headers_do_not_count(
    peer: str | None, trusted: list[str], headers: list[tuple[str, str]], found: str
) -> None:
    assert resolved(peer, trusted, *headers) == found


def test_logs_tell_of_the_client_behind_the_proxy(serve: Serve, caplog: Any) -> None:
    caplog.set_level("INFO", "bide.access")
    serve().get("/v1/queues", x_forwarded_for="198.51.100.1")
    serve(trusted_proxies=[PROXY]).get("/v1/queues", x_forwarded_for="6.6.6.6, 198.51.100.2")
    until(lambda: len(caplog.records) == 2)  # the line comes after the answer
    assert [record.__dict__["client"] for record in caplog.records] == [PROXY, "198.51.100.2"]


def guess(client: Client, times: int, **headers: str) -> list[int]:
    wrong = client.with_token("bide_4be0643f1d98_wrong")
    return [wrong.get("/v1/queues", **headers).status for _ in range(times)]


def test_failed_logins_are_throttled_until_the_minute_is_over(
    serve: Serve, make_token: Any, tmp_path: Any
) -> None:
    clock = FakeClock(round(time.time() * 1_000))
    settings = Settings(store=f"sqlite:///{tmp_path}/bide.db", auth="required")
    client = serve(ServerApp(settings, clock))
    known = client.with_token(make_token("shop", "read"))
    assert known.get("/v1/queues").status == 200
    assert guess(client, MAX_FAILED_LOGINS) == [401] * MAX_FAILED_LOGINS
    refused = client.with_token("bide_4be0643f1d98_wrong").get("/v1/queues")
    assert (refused.status, refused.headers["retry-after"]) == (429, "60")
    assert "has sent 20 wrong tokens" in refused.problem["detail"]
    assert known.get("/v1/queues").status == 200  # it was valid before
    assert client.get("/healthz").status == 200
    unknown = client.with_token(make_token("shop", "read"))
    clock.advance(0.8)
    again = unknown.get("/v1/queues")
    assert (again.status, again.headers["retry-after"]) == (429, "60")
    assert "try again in 60 s" in again.problem["detail"]
    clock.advance(LOGIN_WINDOW)
    assert unknown.get("/v1/queues").status == 200
    assert guess(client, 1) == [401]


def test_behind_a_trusted_proxy_each_client_is_throttled_by_itself(
    serve: Serve, make_token: Any
) -> None:
    client = serve(auth="required", trusted_proxies=[PROXY], connections_per_address=1)
    text = make_token("shop", "read")
    many = MAX_FAILED_LOGINS + 1
    for n in range(3):  # what the client itself sends before the proxy's word makes no difference
        statuses = guess(client, many // 3, x_forwarded_for=f"6.6.6.{n}, 198.51.100.1")
    statuses = guess(client, 3, x_forwarded_for="198.51.100.1")
    assert statuses[-1] == 429
    good = client.with_token(text)
    assert good.get("/v1/queues", x_forwarded_for="198.51.100.1").status == 429
    assert good.get("/v1/queues", x_forwarded_for="198.51.100.2").status == 200


def test_connections_of_a_trusted_proxy_are_not_limited_as_those_of_one_client(
    serve: Serve,
) -> None:
    for proxies, answered in (([], False), ([PROXY], True)):
        client = serve(auth="required", trusted_proxies=proxies, connections_per_address=1)
        assert client.get("/healthz").status == 200
        with socket.create_connection((PROXY, client.port), timeout=60) as second:
            second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (b" 200 " in second.recv(200)) == answered


def test_a_proxy_that_is_no_network_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trusted_proxies has 'proxy\.example'"):
        Settings(trusted_proxies=["proxy.example"])


VERBS = ("ack", "retry", "extend", "bury", "release")


@pytest.fixture
def shop(serve: Serve, make_token: Any) -> Client:
    """Provide a client with a token that may put and consume."""
    return serve(auth="required").with_token(make_token("shop", "produce", "consume"))


def claimed(client: Client, id: str = "m") -> dict[str, Any]:
    client.put(f"{Q}/messages/{id}", {"body": 1})
    (message,) = client.post(f"{Q}/claim", {"lease": "10m"}).json["messages"]
    return {"id": id, "token": message["token"]}


@pytest.mark.parametrize("verb", VERBS)
def test_the_whole_token_settles_and_its_number_alone_does_not(shop: Client, verb: str) -> None:
    lease = claimed(shop)
    number = lease["token"].partition(".")[0]
    for token in (number, int(number)):
        refused = shop.post(f"{Q}/{verb}", {"leases": [{**lease, "token": token}]})
        assert (refused.status, refused.problem["error"]) == (409, "LeaseLost")
        assert "has no secret part; settle with the whole token" in refused.problem["detail"]
    for token in ("", "x", f"{number}.", f"{number}.\n", f"-1.{number}", "9" * 40):
        wrong = shop.post(f"{Q}/{verb}", {"leases": [{**lease, "token": token}]})
        assert (wrong.status, wrong.problem["field"]) == (400, "token"), token
    assert shop.post(f"{Q}/{verb}", {"leases": [lease]}).status == 200


@pytest.mark.parametrize("verb", VERBS)
def test_a_secret_of_another_lease_settles_nothing(
    serve: Serve, make_token: Any, shop: Client, verb: str
) -> None:
    lease = claimed(shop)
    number, _, secret = lease["token"].partition(".")
    other = claimed(shop, "other")["token"].partition(".")
    mail = claimed(serve(auth="required").with_token(make_token("mail", "produce", "consume")))
    shop.post(f"{Q}/release", {"leases": [lease]})
    (again,) = shop.post(f"{Q}/claim", {"lease": "10m"}).json["messages"]
    newer = again["token"].partition(".")
    assert int(newer[0]) > int(number)
    guesses = (other[2], mail["token"].partition(".")[2], secret, secret[:-1], "A" * 22, "é")
    for guess in guesses:
        for token in (number, newer[0]):
            lost = shop.post(f"{Q}/{verb}", {"leases": [{"id": "m", "token": f"{token}.{guess}"}]})
            assert lost.status in (400, 409), guess
    assert shop.post(f"{Q}/ack", {"leases": [{"id": "m", "token": again["token"]}]}).status == 200


def test_ten_thousand_guesses_in_a_batch_settle_nothing(shop: Client) -> None:
    number = int(claimed(shop)["token"].partition(".")[0])
    near = itertools.chain(range(number - 2_500, number + 2_500))
    leases = [["m", guess, "A" * 22] for guess in near]
    command = {"command": "ack", "queue": "orders", "leases": leases}
    (reply,) = shop.post("/v1/batch", {"commands": [command]}).json["replies"]
    assert not any(outcome["done"] for outcome in reply["outcomes"])
    bare = {**command, "leases": [["m", number]]}
    refused = shop.post("/v1/batch", {"commands": [bare]})
    assert (refused.status, refused.problem["error"]) == (409, "LeaseLost")


def test_admins_and_servers_without_tokens_take_numbers(serve: Serve, make_token: Any) -> None:
    server = serve()
    lease = claimed(server)
    assert lease["token"].isdigit()
    assert server.post(f"{Q}/ack", {"leases": [{**lease, "token": int(lease["token"])}]}).json[
        "outcomes"
    ][0]["done"]
    admin = server.with_token(make_token("shop", "admin"))
    lease = claimed(admin)
    number, dot, _ = lease["token"].partition(".")
    assert dot
    assert admin.post(f"{Q}/ack", {"leases": [{**lease, "token": number}]}).status == 200


def test_all_servers_of_a_store_know_the_secret_and_no_caller_its_key(
    serve: Serve, make_token: Any, tmp_path: Any
) -> None:
    one, two = (serve(auth="required") for _ in range(2))
    text = make_token("shop", "produce", "consume")
    lease = claimed(one.with_token(text))
    assert two.with_token(text).post(f"{Q}/ack", {"leases": [lease]}).status == 200
    root = one.with_token(make_token(None, "admin"))
    scan = {"commands": [{"command": "scan", "queue": KEYS_QUEUE}]}
    assert root.post("/v1/batch", scan).status == 400
    lane = open_lane(f"sqlite:///{tmp_path}/bide.db")
    reply = lane.call(Find(KEYS_QUEUE, [KEY_ID]))
    assert isinstance(reply, Found)
    assert reply.messages[0] is not None
    number, _, secret = lease["token"].partition(".")
    digest = hmac.digest(reply.messages[0].data, f"shop/orders\n{number}\nm".encode(), "sha256")
    assert secret == base64.urlsafe_b64encode(digest[:16]).decode().rstrip("=")
    close_lane(lane)


def test_servers_agree_on_a_key_again_when_the_store_has_lost_it(
    serve: Serve, make_token: Any, tmp_path: Path
) -> None:
    """One of them knows the old key; another began since then, and made a new one."""
    token = make_token("shop", "produce", "consume")
    old = serve(auth="required").with_token(token)
    assert old.post(f"{Q}/ack", {"leases": [claimed(old)]}).status == 200
    lane = open_lane(f"sqlite:///{tmp_path}/bide.db")
    lane.call(Cancel(KEYS_QUEUE, [KEY_ID]))
    new = serve(auth="required").with_token(token)
    assert old.post(f"{Q}/ack", {"leases": [claimed(new)]}).status == 200
    assert new.post(f"{Q}/ack", {"leases": [claimed(old)]}).status == 200
    lane.call(Cancel(KEYS_QUEUE, [KEY_ID]))  # nobody begins: those that are there keep theirs
    wrong = {"id": "m", "token": claimed(old)["token"] + "x"}
    assert old.post(f"{Q}/ack", {"leases": [wrong]}).status == 409
    third = serve(auth="required").with_token(token)
    assert third.post(f"{Q}/ack", {"leases": [claimed(new, "n")]}).status == 200
    close_lane(lane)


def test_a_server_in_front_of_another_passes_secrets_on(serve: Serve, make_token: Any) -> None:
    text = make_token("shop", "produce", "consume")
    store = serve(auth="required")
    relay = serve(store=f"http://:{text}@127.0.0.1:{store.port}")
    lease = claimed(relay)
    assert "." in lease["token"]
    number = lease["token"].partition(".")[0]
    assert relay.post(f"{Q}/ack", {"leases": [{**lease, "token": number}]}).status == 409
    assert relay.post(f"{Q}/ack", {"leases": [lease]}).status == 200
