"""GET /v1/search: a caller's queues, and no others."""

from typing import Any

import pytest

from tests.server.client import Client
from tests.server.conftest import Serve

FAR = 2_000_000_000


def ids(client: Client, query: str) -> list[tuple[str, str]]:
    """Return what a search finds, two messages a page."""
    found: list[tuple[str, str]] = []
    cursor = ""
    while True:
        page = client.get(f"/v1/search?limit=2&{query}{cursor}")
        assert page.status == 200, page.data
        found += [(message["queue"], message["id"]) for message in page.json["messages"]]
        if "cursor" not in page.json:
            return sorted(found)
        cursor = f"&cursor={page.json['cursor']}"


def put(client: Client, queue: str, id: str, body: Any, **more: Any) -> None:
    given = {"body": body, "id": id, "at": FAR, **more}
    assert client.post(f"/v1/queues/{queue}/messages", given).status == 201


def test_a_search_over_all_queues(client: Client) -> None:
    for n in range(3):
        put(client, "orders", f"order-{n}", {"n": n}, group="g")
        put(client, "mail", f"order-{n}", "to Ann" if n else "to Bob", headers={"t": f"x{n}"})
    put(client, "mail", "other", 1, at=FAR + 60)
    assert len(ids(client, "id=order-")) == 6
    assert ids(client, "id=order-1&queue=mail") == [("mail", "order-1")]
    assert len(ids(client, "group=g")) == 3
    assert ids(client, f"after={FAR + 1}") == [("mail", "other")]
    assert ids(client, "body=Bob") == ids(client, "header=t=x0") == [("mail", "order-0")]
    page = client.get("/v1/search?body=nothing&read=3").json
    assert (page["messages"], page["searched"], page["total"]) == ([], 3, 7)
    assert page["cursor"]
    claimed = client.get("/v1/search?state=delayed&id=order-2&queue=orders").json["messages"][0]
    assert (claimed["body"], claimed["group"]) == ({"n": 2}, "g")


@pytest.mark.parametrize(
    "query", ["", "id=", "state=x", "read=20000", "limit=0", "id=a&cursor=x", "error=", "foo=1"]
)
def test_wrong_searches_are_refused(client: Client, query: str) -> None:
    assert client.get(f"/v1/search?{query}").status == 400


def test_a_tenant_searches_its_own_queues(serve: Serve, make_token: Any) -> None:
    client = serve()
    shop, other = (
        client.with_token(make_token(name, "produce", "read", name=name))
        for name in ("shop", "other")
    )
    put(shop, "orders", "a", {"card": 1})
    put(shop, "mail", "a", 2)
    put(other, "orders", "a", 3)
    assert ids(shop, "id=a") == [("mail", "a"), ("orders", "a")]
    assert ids(other, "state=delayed") == [("orders", "a")]
    assert ids(shop, "body=3") == []
    cursor = shop.get("/v1/search?state=delayed&limit=1").json["cursor"]
    stolen = other.get(f"/v1/search?state=delayed&cursor={cursor}").json
    assert {message["body"] for message in stolen["messages"]} <= {3}
    some = make_token("shop", rights=["read"], queues=["mail"], name="some")
    reader = client.with_token(some)
    (found,) = reader.get("/v1/search?id=a").json["messages"]
    assert (found["queue"], "body" in found) == ("mail", False)
    assert reader.get("/v1/search?body=2").status == 403
    assert reader.get("/v1/search?header=x").status == 403
    writer = client.with_token(make_token("shop", "produce", name="writer"))
    assert writer.get("/v1/search?id=a").status == 403
