"""Groups are closed, listed and opened over HTTP."""

from typing import Any

import pytest

from bide.server.settings import Quota
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve


@pytest.fixture
def client(serve: Serve) -> Client:
    return serve()


def test_a_group_is_closed_listed_and_opened(client: Client) -> None:
    client.put(f"{Q}/messages/a", {"body": 1, "delay": "1h", "group": "g"})
    reply = client.post(f"{Q}/close-group", {"group": "g", "keep": "2d"})
    assert reply.status == 200
    assert {**reply.json, "until": 0} == {"group": "g", "until": 0, "count": 1}
    refused = client.put(f"{Q}/messages/b", {"body": 1, "group": "g"})
    assert (refused.status, refused.json["state"]) == (200, "closed")
    client.post(f"{Q}/close-group", {"group": "g2", "keep": "1d"})
    first = client.get(f"{Q}/closed-groups?limit=1").json
    assert [closed["group"] for closed in first["groups"]] == ["g2"]
    second = client.get(f"{Q}/closed-groups?limit=1&cursor={first['cursor']}").json
    assert [closed["group"] for closed in second["groups"]] == ["g"]
    assert second["cursor"] is None
    assert client.get(Q).json["closed"] == 2
    assert client.post(f"{Q}/reopen-group", {"group": "g"}).json == {"group": "g", "reopened": True}
    assert not client.post(f"{Q}/reopen-group", {"group": "g"}).json["reopened"]
    assert client.put(f"{Q}/messages/b", {"body": 1, "group": "g"}).status == 201


def test_what_cannot_be_is_refused(client: Client) -> None:
    assert client.post(f"{Q}/close-group", {"group": ""}).status == 400
    assert client.post(f"{Q}/close-group", {"group": "g", "keep": 0}).status == 400
    assert client.get(f"{Q}/closed-groups?cursor=x").status == 400
    for command in ("close_group", "reopen_group"):
        sent = {"command": command, "queue": "orders", "group": "", "keep": 1}
        if command == "reopen_group":
            del sent["keep"]
        assert client.post("/v1/batch", {"commands": [sent]}).status == 400


def test_a_closed_group_counts_as_a_message(serve: Serve, make_token: Any) -> None:
    client = serve(auth="required", quotas={"shop": Quota(pending=2)})
    client = client.with_token(make_token("shop", "admin"))
    assert client.post(f"{Q}/close-group", {"group": "g"}).status == 200
    assert client.put(f"{Q}/messages/a", {"body": 1}).status == 201
    assert client.put(f"{Q}/messages/b", {"body": 1}).status == 507
    assert client.post(f"{Q}/close-group", {"group": "g2"}).status == 507


@pytest.mark.parametrize("queue", ["bide:declared", "bide:workers", "bide:move"])
def test_no_group_is_closed_where_quotas_do_not_count(
    serve: Serve, make_token: Any, queue: str
) -> None:
    client = serve(auth="required").with_token(make_token("shop", "admin"))
    command = {"command": "close_group", "queue": queue, "group": "g", "keep": 1_000}
    reply = client.post("/v1/batch", {"commands": [command]})
    assert (reply.status, "in no groups" in reply.json["detail"]) == (400, True)
    reply = client.post(f"/v1/queues/{queue}/close-group", {"group": "g"})
    assert (reply.status, "in no groups" in reply.json["detail"]) == (400, True)


def test_who_may_only_put_closes_no_group(serve: Serve, make_token: Any) -> None:
    client = serve(auth="required").with_token(make_token("shop", "consume"))
    assert client.post(f"{Q}/close-group", {"group": "g"}).status == 403
    assert client.get(f"{Q}/closed-groups").status == 403
