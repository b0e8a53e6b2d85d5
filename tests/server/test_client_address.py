"""Whose address a request counts for: its own connection's, unless a named proxy says otherwise."""

import socket
import time
from typing import Any

import pytest

from bide.model.limits import MAX_FAILED_LOGINS
from bide.server.app import ServerApp
from bide.server.http.client_address import ClientAddress
from bide.server.settings import Settings
from bide.server.shared_state import WINDOW
from bide.testing import FakeClock
from tests.server.client import Client
from tests.server.conftest import Serve
from tests.server.test_clients import until

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
    clock.advance(WINDOW)
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
