"""Subscriptions: made, looked at, changed by two, and what is refused, over HTTP and by Python."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

import bide
from bide.clock import SYSTEM_CLOCK
from bide.lane.shared import close_lane, open_lane
from bide.model.errors import AccessDenied, InvalidArgument, StoreUnavailable
from bide.server.settings import Quota
from bide.targets.http.records import Records
from bide.targets.http.subscription import Subscription, new_secret
from tests.servers import free_port
from tests.system.server.client import Client, Reply
from tests.system.server.conftest import Serve

ONE = "/v1/subscriptions/shop"
URL = "https://shop.example/hook?key=hush-hush"
GIVEN = {"queue": "orders", "url": URL}


def made(client: Client, **fields: Any) -> Reply:
    reply = client.put(ONE, {**GIVEN, **fields})
    assert reply.status == 201, reply
    return reply


@pytest.fixture
def client(serve: Serve) -> Client:
    return serve(push=False)


def test_a_subscription_is_made_once_and_its_secret_told_once(client: Client) -> None:
    first = made(client, headers={"authorization": "Bearer hush"})
    secret = first.json["secret"]
    Webhook(secret)  # which takes nothing else
    assert first.headers["cache-control"] == "no-store"
    assert (first.json["state"], first.json["headers"]) == ("active", ["authorization"])
    again = client.put(ONE, {**GIVEN, "headers": {"authorization": "Bearer hush"}})
    assert (again.status, again.headers["etag"]) == (200, first.headers["etag"])
    changed = client.put(ONE, {**GIVEN, "concurrency": 3})
    assert (changed.status, changed.json["concurrency"]) == (200, 3)
    assert changed.json["secrets"] == first.json["secrets"]
    told = [again, changed, client.get(ONE), client.get("/v1/subscriptions")]
    for reply in told:
        assert secret not in reply.data.decode()
        assert b"Bearer hush" not in reply.data


def test_it_says_how_it_is_set_and_how_it_fares(client: Client) -> None:
    made(client, rate=2.5, timeout="5s", first=1, ceiling="1m", attempts=4, failures=7, probe="10s")
    client.put("/v1/queues/orders/messages/m", {"body": 1})
    told = client.get(ONE).json
    names = ("rate", "timeout", "first", "ceiling", "attempts", "failures", "probe")
    assert [told[name] for name in names] == [2.5, 5_000, 1_000, 60_000, 4, 7, 10_000]
    assert told["circuit"] == {"state": "closed"}
    assert told["messages"]["sizes"]["ready"] == 1
    assert (told["name"], told["queue"], told["url"]) == ("shop", "orders", URL)
    (listed,) = client.get("/v1/subscriptions").json["subscriptions"]
    assert listed["name"] == "shop"


def test_of_two_who_change_one_the_second_is_told(client: Client) -> None:
    tag = made(client).headers["etag"]
    mine = client.send("PATCH", ONE, {"rate": 5}, if_match=tag)
    assert (mine.status, mine.json["rate"]) == (200, 5)
    for method, path, content in (
        ("PATCH", ONE, {"rate": 6}),
        ("PUT", ONE, GIVEN),
        ("DELETE", ONE, None),
        ("POST", f"{ONE}/pause", {}),
        ("POST", f"{ONE}/resume", {}),
        ("POST", f"{ONE}/rotate", {}),
    ):
        late = client.send(method, path, content, if_match=tag)
        assert (late.status, late.headers["etag"]) == (412, mine.headers["etag"])
        assert "look again" in late.problem["detail"]
    assert client.put(ONE, GIVEN, if_none_match="*").status == 412
    other = "/v1/subscriptions/other"
    assert client.put(other, GIVEN, if_match="*").problem["detail"].endswith("without if-match")
    assert client.put(other, GIVEN, if_none_match="*").status == 201
    assert client.send("PATCH", ONE, {"rate": None}, if_match="*").json.get("rate") is None
    assert client.get(ONE).headers["etag"] != mine.headers["etag"]


def test_no_change_of_many_at_a_time_is_lost(client: Client) -> None:
    made(client)
    statuses: list[int] = []

    def raise_by_one(number: int) -> None:
        with Client(client.port, client.app) as mine:
            for _ in range(5):
                while True:
                    seen = mine.get(ONE)
                    concurrency = seen.json["concurrency"] + 1
                    tag = seen.headers["etag"]
                    reply = mine.send("PATCH", ONE, {"concurrency": concurrency}, if_match=tag)
                    if reply.status == 200:
                        break
                    statuses.append(reply.status)

    threads = [threading.Thread(target=raise_by_one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.get(ONE).json["concurrency"] == 10 + 4 * 5
    assert set(statuses) <= {412}


def test_one_that_was_deleted_and_made_anew_is_another(client: Client) -> None:
    tag = made(client).headers["etag"]
    gone = client.send("DELETE", ONE)
    assert (gone.status, gone.data) == (204, b"")
    assert client.send("DELETE", ONE).status == 404
    assert client.get(ONE).status == 404
    assert client.get("/v1/subscriptions").json == {"subscriptions": []}
    assert client.send("PATCH", ONE, {"rate": 1}, if_match=tag).status == 412
    again = made(client)
    assert "secret" in again.json
    assert client.send("PATCH", ONE, {"rate": 1}, if_match=tag).status == 412


def test_pause_and_resume(client: Client) -> None:
    made(client)
    paused = client.post(f"{ONE}/pause", {"reason": "their release"}).json
    assert (paused["state"], paused["reason"]) == ("paused", "their release")
    assert client.put(ONE, {**GIVEN, "rate": 1}).json["state"] == "paused"
    assert client.post(f"{ONE}/resume").json["state"] == "active"


def test_secrets_rotate_with_overlap(client: Client) -> None:
    first = made(client).json["secret"]
    second = client.post(f"{ONE}/rotate", {"overlap": "1h"}).json
    assert second["secret"] != first
    new, old = second["secrets"]
    assert ("until" in new, old["until"] - new["created"]) == (False, 3_600_000)
    mine = new_secret()
    third = client.post(f"{ONE}/rotate", {"overlap": 0, "secret": mine})
    assert mine not in third.data.decode()
    assert len(third.json["secrets"]) == 1
    brought = client.put("/v1/subscriptions/other", {**GIVEN, "secret": new_secret()})
    assert (brought.status, "secret" in brought.json) == (201, False)


def test_what_is_not_there(client: Client) -> None:
    for verb in ("pause", "resume", "rotate", "ping"):
        reply = client.post(f"{ONE}/{verb}", {})
        assert reply.status == 404
        assert "/v1/subscriptions" in reply.problem["detail"]
    assert client.send("PATCH", ONE, {"rate": 1}).status == 404


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"url": "ftp://shop.example"}, "url"),
    ({"url": "https://user:hush@shop.example"}, "url"),
    ({"url": "https://"}, "url"),
    ({"url": 5}, "url"),
    ({"queue": "no way"}, "queue"),
    ({"queue": "a/b"}, "queue"),
    ({"concurrency": 0}, "concurrency"),
    ({"rate": -1}, "rate"),
    ({"timeout": "soon"}, "timeout"),
    ({"timeout": "6m"}, "timeout"),
    ({"attempts": 0}, "attempts"),
    ({"first": "2h"}, "ceiling"),
    ({"failures": 0}, "failures"),
    ({"probe": "2h"}, "probe"),
    ({"headers": {"Webhook-Id": "x"}}, "headers"),
    ({"headers": {"a": "x\r\ny: z"}}, "headers"),
    ({"secret": "whsec_hush"}, "secret"),
    ({"nonsense": 1}, "nonsense"),
]


def test_the_problem_names_the_field(client: Client) -> None:
    for fields, field in WRONG:
        reply = client.put("/v1/subscriptions/new", {**GIVEN, **fields})
        assert (reply.status, reply.problem["field"]) == (400, field)
        assert "hush" not in reply.problem["detail"]
    made(client)
    for fields, _ in WRONG:
        change = {"secret": "x"} if "secret" in fields else fields
        assert client.send("PATCH", ONE, change).status == 400


def test_another_receiver_gets_no_headers_that_were_given_for_the_first(client: Client) -> None:
    headers = {"authorization": "Bearer hush"}
    given = {**GIVEN, "url": "https://erp.example/in", "headers": headers}
    assert client.put(ONE, given).status == 201
    same = {"url": "https://ERP.example:443/other"}
    assert client.send("PATCH", ONE, same).json["headers"] == ["authorization"]
    for url in ("https://mine.example/in", "http://erp.example/in", "https://erp.example:8443/"):
        refused = client.send("PATCH", ONE, {"url": url})
        assert (refused.status, refused.problem["field"]) == (400, "url")
        assert "give headers again" in refused.problem["detail"]
        assert "hush" not in refused.problem["detail"]
    assert client.get(ONE).json["url"] == same["url"]
    for again in ({}, headers):
        moved = client.send("PATCH", ONE, {"url": "https://mine.example/in", "headers": again})
        assert (moved.status, moved.json.get("headers", [])) == (200, sorted(again))


def test_a_name_that_cannot_be(client: Client) -> None:
    for name in ("-x", "a%20b", "n" * 200, "%FF", "a%2Fb%2Fc", "bide.server%2Fx"):
        reply = client.put(f"/v1/subscriptions/{name}", GIVEN)
        assert (reply.status, reply.problem["field"]) == (400, "name")


def test_addresses_that_are_not_public_are_refused_unless_allowed(serve: Serve) -> None:
    networks = ["127.0.0.0/8", "::1/128", "10.0.0.0/8", "169.254.0.0/16", "fe80::/10"]
    client, allowing = serve(push=False), serve(push=False, push_networks=networks)
    made(client)
    for host in ("127.0.0.1", "localhost", "[::1]", "10.0.0.1", "169.254.169.254", "[fe80::1]"):
        url = f"http://{host}:9000/"
        refused = client.put("/v1/subscriptions/new", {**GIVEN, "url": url})
        assert (refused.status, refused.problem["field"]) == (400, "url")
        assert "--allow-network" in refused.problem["detail"]
        assert client.send("PATCH", ONE, {"url": url}).status == 400
        assert allowing.send("PATCH", ONE, {"url": url}).status == 200


def test_namespaces_do_not_see_each_others_subscriptions(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", push=False)
    shop, mail = (server.with_token(make_token(name, "admin")) for name in ("shop", "mail"))
    root = server.with_token(make_token(None, "admin"))
    assert shop.put("/v1/subscriptions/hooks", GIVEN).status == 201
    theirs = "/v1/subscriptions/hooks"
    assert mail.get("/v1/subscriptions").json == {"subscriptions": []}
    for method, path, content in (
        ("GET", theirs, None),
        ("PATCH", theirs, {"rate": 1}),
        ("DELETE", theirs, None),
        ("POST", f"{theirs}/pause", {}),
        ("POST", f"{theirs}/resume", {}),
        ("POST", f"{theirs}/rotate", {}),
        ("POST", f"{theirs}/ping", {}),
    ):
        assert mail.send(method, path, content).status == 404
        wrong = path.replace("hooks", "shop%2Fhooks")
        assert mail.send(method, wrong, content).status == 400
    assert mail.put(theirs, GIVEN).status == 201  # its own one
    told = root.get("/v1/subscriptions").json["subscriptions"]
    assert [one["name"] for one in told] == ["mail/hooks", "shop/hooks"]
    assert root.get("/v1/subscriptions/shop%2Fhooks").json["queue"] == "shop/orders"
    moved = {"queue": "shop/other"}
    assert root.send("PATCH", "/v1/subscriptions/shop%2Fhooks", moved).status == 200
    assert shop.get(theirs).json["queue"] == "other"
    strange = root.send("PATCH", "/v1/subscriptions/shop%2Fhooks", {"queue": "mail/other"})
    assert strange.problem["field"] == "queue"
    batch = {"commands": [{"command": "scan", "queue": "bide.server/subscriptions"}]}
    assert root.post("/v1/batch", batch).status == 400


def test_who_only_looks_sees_no_keys(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", push=False)
    admin = server.with_token(make_token("shop", "admin"))
    reader = server.with_token(make_token("shop", "read"))
    secret = made(admin).json["secret"]
    assert admin.get(ONE).json["url"] == URL
    for reply in (reader.get(ONE), reader.get("/v1/subscriptions")):
        text = reply.data.decode()
        assert '"https://shop.example/***"' in text
        assert "hook" not in text
        assert "hush-hush" not in text
        assert secret not in text
    for url in ("https://shop.example/?hush-hush", "https://shop.example/services/hush-hush"):
        assert admin.send("PATCH", ONE, {"url": url}).status == 200
        assert admin.get(ONE).json["url"] == url
        assert reader.get(ONE).json["url"] == "https://shop.example/***"
    assert admin.send("PATCH", ONE, {"url": "https://shop.example/"}).status == 200
    assert reader.get(ONE).json["url"] == "https://shop.example/"


def test_quotas_of_subscriptions(serve: Serve, make_token: Any) -> None:
    quota = Quota(subscriptions=2, push_concurrency=25)
    server = serve(auth="required", push=False, quotas={"shop": quota})
    client = server.with_token(make_token("shop", "admin"))
    made(client)
    much = client.put("/v1/subscriptions/b", {**GIVEN, "concurrency": 16})
    assert (much.status, much.problem["field"]) == (507, "concurrency")
    assert client.put("/v1/subscriptions/b", {**GIVEN, "concurrency": 15}).status == 201
    many = client.put("/v1/subscriptions/c", GIVEN)
    assert (many.status, many.problem["title"]) == (507, "The namespace is full")
    assert client.send("PATCH", ONE, {"concurrency": 11}).status == 507
    assert client.put(ONE, {**GIVEN, "concurrency": 9}).status == 200
    other = server.with_token(make_token("mail", "admin"))
    assert other.put("/v1/subscriptions/a", {**GIVEN, "concurrency": 100}).status == 201


def test_what_is_logged_has_no_secret_in_it(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG"):
        secret = made(client, headers={"authorization": "Bearer abcdefgh"}).json["secret"]
        other = client.post(f"{ONE}/rotate", {}).json["secret"]
        client.get(ONE)
    told = json.dumps([str(vars(record)) for record in caplog.records])
    assert "PUT /v1/subscriptions/shop 201" in caplog.text
    for hidden in (secret, other, "abcdefgh", "hush-hush"):
        assert hidden not in told


SHOP = "https://shop.example/hooks"
OPTIONS: dict[str, Any] = {
    "headers": {"a": "b"},
    "concurrency": 7,
    "rate": 2.5,
    "timeout": "1500ms",
    "attempts": 3,
    "first": 2,
    "ceiling": "1h",
    "failures": 4,
    "probe": 9,
}


@pytest.fixture(params=["store", "server"])
def url(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/bide.db" if request.param == "store" else serve().url


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[], list[Subscription]]:
    """Provide a function that reads the subscriptions in the store."""

    def read() -> list[Subscription]:
        lane = open_lane(f"sqlite:///{tmp_path}/bide.db")
        try:
            return asyncio.run(Records(lane, SYSTEM_CLOCK).listed())
        finally:
            close_lane(lane)

    return read


def test_a_subscription_is_made_replaced_and_deleted(url: str, stored: Any) -> None:
    secret = bide.subscribe("shop/orders", SHOP, url=url)
    assert secret is not None
    assert bide.subscribe("shop/orders", SHOP, url=url, **OPTIONS) is None
    (kept,) = stored()
    assert (kept.name, kept.queue, kept.secrets[0].text) == ("shop/orders", "shop/orders", secret)
    told = [getattr(kept, name) for name in OPTIONS]
    assert told == [{"a": "b"}, 7, 2.5, 1_500, 3, 2_000, 3_600_000, 4, 9_000]
    assert bide.unsubscribe("shop/orders", url=url)
    assert not bide.unsubscribe("shop/orders", url=url)
    assert stored() == []


def test_one_to_rabbitmq_has_no_secret_and_may_have_a_name(url: str, stored: Any) -> None:
    assert bide.subscribe("orders", "amqp://app@mq/?exchange=shop", name="mq", url=url) is None
    assert [(one.name, one.queue, one.concurrency) for one in stored()] == [("mq", "orders", 500)]
    assert bide.unsubscribe("mq", url=url)


def test_a_wrong_value_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="attempts"):
        bide.subscribe("orders", SHOP, url=url, attempts=0)


def test_a_server_may_refuse_or_be_away(serve: Serve, make_token: Any) -> None:
    url = serve(auth="required").url.replace("://", f"://:{make_token('shop', 'read')}@")
    for act in (
        lambda: bide.subscribe("orders", SHOP, url=url),
        lambda: bide.unsubscribe("orders", url=url),
    ):
        with pytest.raises(AccessDenied):
            act()
    with pytest.raises(StoreUnavailable):
        bide.unsubscribe("orders", url=f"http://127.0.0.1:{free_port()}")


def test_a_token_of_a_namespace_names_queues_with_theirs_or_without(
    serve: Serve, make_token: Any, stored: Any
) -> None:
    url = serve(auth="required").url.replace("://", f"://:{make_token('shop', 'admin')}@")
    secret = bide.subscribe("shop/orders", SHOP, url=url)
    assert secret is not None
    assert bide.subscribe("orders", SHOP, url=url, attempts=3) is None
    assert [(one.name, one.attempts) for one in stored()] == [("shop/orders", 3)]
    with pytest.raises(InvalidArgument, match="not that of the token"):
        bide.subscribe("other/orders", SHOP, url=url)
    assert bide.unsubscribe("shop/orders", url=url)
    assert not bide.unsubscribe("orders", url=url)
