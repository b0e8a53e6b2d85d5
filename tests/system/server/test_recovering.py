"""What is overdue, over HTTP: routes, rights, namespaces, and plans that the server applies."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

import bide
from bide.cli import main
from bide.consuming.overdue import GAP
from bide.model.internal_queues import InternalQueue
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve

HOUR = 3_600
COUNT = 10


def put_late(client: Client, seconds: float = 2 * HOUR, **fields: Any) -> None:
    at = time.time() - seconds
    messages = [{"body": n, "id": f"m{n}", "at": at + n, **fields} for n in range(COUNT)]
    assert client.post(f"{Q}/put", {"messages": messages}).status == 200


def test_overdue_messages_are_shown_spread_and_taken_back(client: Client) -> None:
    put_late(client, group="g")
    shown = client.get(f"{Q}/overdue").json
    assert (shown["queue"], shown["messages"]) == (Q.rpartition("/")[2], COUNT)
    assert (shown["late"], shown["groups"]) == ([0, 0, 0, COUNT, 0], {"g": COUNT})
    plan = {"drop_later_than": "7196s", "spread": "10m"}
    would = client.post(f"{Q}/recover", {**plan, "dry_run": True}).json
    assert would["undo"] == ""
    done = client.post(f"{Q}/recover", plan).json
    assert would["overdue"] == done["overdue"] == COUNT
    assert would["dropped"] + would["moved"] == done["dropped"] + done["moved"] == COUNT
    assert done["dropped"] > 0
    message = client.get(f"{Q}/messages/m9").json
    assert message["due"] == done["last"]
    assert client.post(f"{Q}/undo", {"undo": done["undo"]}).json["restored"] == COUNT
    assert client.get(f"{Q}/overdue").json["messages"] == COUNT


def test_what_is_no_plan_is_refused(client: Client) -> None:
    put_late(client)
    for content, why in (
        ({}, "a plan needs to know what to do"),
        ({"spread": "10m", "rate": "5/s"}, "give spread= or rate=, not both"),
        ({"spread": "soon"}, "is not a valid duration"),
    ):
        reply = client.post(f"{Q}/recover", content)
        assert why in reply.problem["detail"]
    reply = client.send("PATCH", Q, {"overdue": "soon"})
    assert "is not a plan" in reply.problem["detail"]
    assert client.send("PATCH", Q, {"overdue": "drop 6h,  rate 5/s"}).json["overdue"] == (
        "drop 6h, rate 5/s"
    )
    assert client.get(Q).json["overdue"] == "drop 6h, rate 5/s"
    assert client.send("PATCH", Q, {"overdue": ""}).json["overdue"] == ""


def test_a_token_needs_the_rights(serve: Serve, make_token: Callable[..., str]) -> None:
    server = serve()
    admin = server.with_token(make_token("shop", "admin"))
    put_late(admin)
    plan = {"spread": "10m"}
    reader = server.with_token(make_token("shop", rights=["read"]))
    assert reader.get(f"{Q}/overdue").json["messages"] == COUNT
    assert reader.post(f"{Q}/recover", plan).status == 403
    changer = server.with_token(make_token("shop", rights=["change"]))
    assert changer.get(f"{Q}/overdue").status == 403
    assert changer.post(f"{Q}/recover", {**plan, "dry_run": True}).json["moved"] == COUNT
    elsewhere = server.with_token(make_token("other", "admin"))
    assert elsewhere.get(f"{Q}/overdue").json["messages"] == 0
    done = changer.post(f"{Q}/recover", plan).json
    assert done["moved"] == COUNT
    assert elsewhere.post(f"{Q}/undo", {"undo": done["undo"]}).status == 404
    assert changer.post(f"{Q}/undo", {"undo": done["undo"]}).json["restored"] == COUNT
    lock = f"/v1/queues/{InternalQueue.RECOVERY.value}"
    assert admin.post(f"{lock}/messages", {"body": 1}).status == 403


def test_a_queue_behind_a_server_recovers_with_a_token_that_sees_no_bodies(
    serve: Serve, make_token: Callable[..., str]
) -> None:
    server = serve()
    admin = server.with_token(make_token("shop", "admin"))
    put_late(admin)
    url = server.url.replace("://", f"://:{make_token('shop', rights=['read', 'change'])}@")
    with bide.Queue(Q.rpartition("/")[2], url) as orders:
        done = orders.recover(bide.Recovery(drop_later_than=2 * HOUR - 4, rate="1/d"))
        assert (done.moved + done.dropped, done.dropped > 0) == (COUNT, True)
        assert orders.undo(done.undo).restored == COUNT


def test_the_server_applies_the_plan_before_the_first_claim(client: Client) -> None:
    put_late(client)
    client.send("PATCH", Q, {"overdue": "spread 10h"})
    claimed: list[list[Any]] = []

    def claim() -> None:
        with Client(client.port, client.app) as own:
            claimed.append(own.post(f"{Q}/claim", {"count": COUNT}).json["messages"])

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(map(len, claimed)) <= 1  # the first place is now
    assert client.get(Q).json["sizes"]["delayed"] >= COUNT - 1


def test_a_client_of_bide_finds_the_plan_applied(client: Client) -> None:
    put_late(client)
    client.send("PATCH", Q, {"overdue": "drop 1h"})
    with bide.Queue(Q.rpartition("/")[2], client.url) as orders:
        assert orders.claim(COUNT) == []
        assert orders.counts().flow.cancelled == COUNT


@pytest.mark.parametrize("namespace", ["shop", None])
def test_the_internal_queues_can_be_listed_and_searched_after_a_recovery(
    serve: Serve, make_token: Callable[..., str], namespace: str | None
) -> None:
    server = serve(auth="required")
    admin = server.with_token(make_token(namespace, "admin"))
    put_late(admin)
    admin.send("PATCH", Q, {"overdue": "drop 1h"})
    assert admin.post(f"{Q}/claim", {}).json["messages"] == []
    listed = admin.get("/v1/queues?prefix=bide:").json["queues"]
    assert InternalQueue.RECOVERY.value not in listed
    assert admin.get("/v1/search?queue=bide:&id=x").json["messages"] == []
    url = server.url.replace("://", f"://:{admin.token}@")
    shown = CliRunner().invoke(main, ["queues", "--url", url, "--all"])
    assert (shown.exit_code, "orders" in shown.output) == (0, True), shown.output


def test_claims_go_on_while_there_is_no_gap(client: Client) -> None:
    assert client.post(f"{Q}/claim", {}).json["messages"] == []
    client.send("PATCH", Q, {"overdue": "spread 10h"})
    put_late(client, GAP / 1000 + 20)
    assert len(client.post(f"{Q}/claim", {"count": COUNT}).json["messages"]) == COUNT
