"""Lease tokens have a secret part: the number alone, or a guess, settles nothing."""

import base64
import hmac
import itertools
from pathlib import Path
from typing import Any

import pytest

from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Cancel, Find
from bide.model.replies import Found
from bide.server.access.tokens import KEY, KEYS
from tests.server.client import Client, Q
from tests.server.conftest import Serve

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
    scan = {"commands": [{"command": "scan", "queue": KEYS}]}
    assert root.post("/v1/batch", scan).status == 400
    lane = open_lane(f"sqlite:///{tmp_path}/bide.db")
    reply = lane.call(Find(KEYS, [KEY]))
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
    lane.call(Cancel(KEYS, [KEY]))
    new = serve(auth="required").with_token(token)
    assert old.post(f"{Q}/ack", {"leases": [claimed(new)]}).status == 200
    assert new.post(f"{Q}/ack", {"leases": [claimed(old)]}).status == 200
    lane.call(Cancel(KEYS, [KEY]))  # nobody begins: those that are there keep theirs
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
