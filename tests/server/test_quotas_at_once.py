"""Quotas hold for requests that come at the same time, and for what small requests store."""

import asyncio
import json
import os
import socket
from collections import Counter
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Put
from bide.model.message import Item
from bide.server.access.rights import Caller
from bide.server.limits.quotas import Quotas
from bide.server.limits.slow_reads import SlowReads
from bide.server.problem import Problem
from bide.server.settings import Quota, Settings
from bide.server.shared_state import SharedState, make_files
from tests.server.client import Client, Q
from tests.server.conftest import Serve
from tests.server.raw import request, status_of

AT_ONCE = 40


def at_once(client: Client, method: str, path: str, content: Any) -> Counter[int]:
    """Send requests for a path with a number in it at the same time; count their statuses."""
    data, headers = json.dumps(content).encode(), {"authorization": f"Bearer {client.token}"}
    with ExitStack() as stack:
        address = "127.0.0.1", client.port
        ends = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(AT_ONCE)]
        for number, end in enumerate(ends):
            end.sendall(request(method, path.format(number), data, **headers))
        return Counter(status_of(end.recv(1 << 16)) for end in ends)


def test_new_queues_that_are_put_to_at_once(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", quotas={"shop": Quota(queues=3)})
    shop = server.with_token(make_token("shop", "admin"))
    for start in "ab":
        path = f"/v1/queues/{start}{{}}/messages/m"
        told = at_once(shop, "PUT", path, {"body": 1})
        assert told == ({201: 3, 507: AT_ONCE - 3} if start == "a" else {507: AT_ONCE})
    assert len(shop.get("/v1/queues").json["queues"]) == 3


def test_queues_that_were_deleted_or_refused_leave_their_room_at_once(
    serve: Serve, make_token: Any
) -> None:
    server = serve(auth="required", quotas={"shop": Quota(queues=1, max_body=100)})
    shop = server.with_token(make_token("shop", "admin"))
    large = shop.put("/v1/queues/a/messages/m", {"body": "x" * 200})
    assert large.problem["type"].endswith("too-large")
    assert shop.put("/v1/queues/b/messages/m", {"body": 1}).status == 201
    assert shop.put("/v1/queues/c/messages/m", {"body": 1}).status == 507
    shop.send("DELETE", "/v1/queues/b/messages/m")
    assert shop.send("DELETE", "/v1/queues/b").status == 204
    assert shop.put("/v1/queues/c/messages/m", {"body": 1}).status == 201


def test_large_answers_that_are_asked_for_at_once_do_not_share_an_allowance(
    serve: Serve, make_token: Any
) -> None:
    # All requests fit into the allowance. The first answer uses it up for 20 seconds.
    server = serve(auth="required", quotas={"shop": Quota(byte_rate=40_000)})
    whole = server.with_token(make_token(None, "admin"))
    path = "/v1/queues/shop%2Fq/messages/m"
    assert whole.put(path, {"body": "x" * 900_000, "delay": "1d"}).status == 201
    shop = server.with_token(make_token("shop", "admin"))
    statuses = at_once(shop, "GET", "/v1/queues/q/messages/m", None)
    assert statuses == {200: 1, 429: AT_ONCE - 1}


def test_bytes_of_other_processes_count_once_they_are_settled() -> None:
    settings = Settings(quotas={"shop": Quota(byte_rate=40_000)})
    lane, files = open_lane("memory://bytes"), make_files()
    states = SharedState(files), SharedState([os.dup(file) for file in files])
    here, there = (Quotas(settings, lane, SlowReads(lane), state) for state in states)
    there.carried("shop", 900_000)
    here.may_carry("shop")  # it does not ask the other process for each request
    here.settle("shop")
    with pytest.raises(Problem, match=r"40,000 bytes a second; try again in \d\d\.\d s"):
        here.may_carry("shop")
    for state in states:
        state.close()
    close_lane(lane)


def test_a_namespace_that_is_full_holds_up_no_other() -> None:
    settings = Settings(quotas={"shop": Quota(queues=0), "inn": Quota(queues=1)})
    lane, usage = open_lane("memory://full"), SharedState()
    quotas = Quotas(settings, lane, SlowReads(lane), usage)
    served: list[str] = []

    async def put(queue: str) -> None:
        caller = Caller(queue.partition("/")[0], frozenset(["put"]))
        with suppress(Problem):
            await quotas.admit(caller, [Put(queue, [Item("m", b"1")])])
        served.append(queue)

    async def story() -> None:
        await asyncio.gather(*(put(f"shop/{n}") for n in range(AT_ONCE)), put("inn/a"))

    asyncio.run(story())
    assert served.index("inn/a") < AT_ONCE / 2
    usage.close()
    close_lane(lane)


def test_subscriptions_that_are_made_at_once(serve: Serve, make_token: Any) -> None:
    quota = Quota(subscriptions=3, push_concurrency=20)
    server = serve(auth="required", push=False, quotas={"shop": quota})
    shop = server.with_token(make_token("shop", "admin"))
    given = {"queue": "orders", "url": "https://shop.example/hook", "concurrency": 1}
    told = at_once(shop, "PUT", "/v1/subscriptions/s{}", given)
    assert told == {201: 3, 507: AT_ONCE - 3}
    names = [one["name"] for one in shop.get("/v1/subscriptions").json["subscriptions"]]
    for name in names:
        assert shop.send("PATCH", f"/v1/subscriptions/{name}", {"concurrency": 6}).status == 200
    assert shop.send("PATCH", f"/v1/subscriptions/{names[0]}", {"concurrency": 9}).status == 507


def test_subscriptions_of_a_namespace_wait_for_none_of_another(
    serve: Serve, make_token: Any
) -> None:
    server = serve(auth="required", push=False)
    inn = server.with_token(make_token("inn", "admin"))
    columns = server.app.service.shared.columns
    held = columns.hold("shop")  # as a request of it does
    given = {"queue": "orders", "url": "https://inn.example/hook"}
    assert inn.put("/v1/subscriptions/s", given).status == 201
    columns.release(held)


def test_settings_make_no_queues_beyond_the_quota(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", quotas={"shop": Quota(queues=1)})
    shop = server.with_token(make_token("shop", "admin"))
    assert shop.send("PATCH", Q, {"keep": "1h"}).status == 200
    for verb in ("pause", "resume"):
        full = shop.post(f"/v1/queues/more/{verb}", {})
        assert (full.status, full.problem["field"]) == (507, "queue")
        assert shop.post(f"{Q}/{verb}", {}).status == 200
    assert shop.send("PATCH", "/v1/queues/more", {"limit": 1}).status == 507
    batch = {"commands": [{"command": "configure", "queue": "more", "paused": True}]}
    assert shop.post("/v1/batch", batch).status == 507
    assert shop.get("/v1/queues").json["queues"] == ["orders"]


def test_what_is_noted_of_changes_needs_room(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", quotas={"shop": Quota(stored=30_000)})
    shop = server.with_token(make_token("shop", "admin"))
    assert shop.get("/v1/usage").json["stored_bytes"] == 0  # counted once, and added to from now on
    for id in "abcde":
        body = {"body": "x" * 2_000, "group": "g", "delay": "1h"}
        assert shop.put(f"{Q}/messages/{id}", body).status == 201
    moves = [
        shop.send("PATCH", f"{Q}/messages?group=g&undo=true", {"delay": "2h"}) for _ in range(4)
    ]
    assert [one.status for one in moves] == [200, 200, 507, 507]
    assert "may take 30,000 bytes" in moves[-1].problem["detail"]
    assert shop.get("/v1/usage").json["queues"] == 1
    undo = {"undo": moves[0].json["undo"]}
    assert shop.post(f"{Q}/undo", undo).json["taken"] == 5  # moved again since
    # What makes room is never refused, and a change without notes needs none.
    assert shop.send("PATCH", f"{Q}/messages?group=g", {"delay": "3h"}).status == 200
    assert shop.send("DELETE", f"{Q}/messages?group=g&undo=true").json["count"] == 5
