"""Worker processes over HTTP: who sees them, and who may have one replaced."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import bide
from bide.cli import main
from bide.consuming.dead_holders import end_leases_of_dead
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.lane.steps import run_steps
from bide.model.commands import (
    Cancel,
    Claim,
    Command,
    Configure,
    Delete,
    Edit,
    Explain,
    Find,
    Purge,
    Put,
    Reschedule,
    Scan,
    Where,
)
from bide.model.errors import AccessDenied, InvalidArgument, StoreFull
from bide.model.limits import MAX_BYTES, MAX_NAME
from bide.model.message import Item
from bide.model.replies import Affected, Found, Outcomes, expect
from bide.observing.heartbeat import (
    LARGEST,
    REGISTER,
    Busy,
    Report,
    delete_report,
    put_report,
    report_id,
)
from bide.observing.process_origin import UNKNOWN, of_this_process
from bide.observing.workers import STOPS, take_requests
from bide.server.limits import quotas
from bide.server.settings import Quota
from bide.testing.hooks import lane_of
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve


@pytest.fixture
def server(serve: Serve) -> Client:
    """Provide a server that asks for tokens, with workers of the whole store."""
    server = serve(auth="required")
    lane = open_lane(server.app.service.settings.store)
    busy = {"shop/orders": Busy(4, 1, "order-42", 1), "mail/letters": Busy(4)}
    report = Report({"house:1": ["shop/orders", "mail/letters"]}, {}, busy, supervised=True)
    lane.call(put_report("house:1", report))
    close_lane(lane)
    return server


def listed(client: Client) -> dict[str, Any]:
    return {one["holder"]: one for one in client.get("/v1/workers").json["workers"]}


def test_each_tenant_sees_who_serves_its_queues(server: Client, make_token: Any) -> None:
    shop = server.with_token(make_token("shop", "admin"))
    idle = server.with_token(make_token("idle", "admin"))
    shop_lane = open_lane(shop.url.replace("http://", f"http://{shop.token}@"))
    shop_lane.call(put_report("shop:7", Report({"shop:7": ["orders"]}, supervised=True)))
    found = listed(shop)
    assert set(found) == {"house:1", "shop:7"}
    assert found["house:1"]["queues"] == ["orders"]
    assert found["house:1"]["busy"]["orders"]["longest"] == "order-42"
    assert "stops" not in found["house:1"]
    assert found["shop:7"]["stops"] == STOPS
    assert listed(idle) == {}
    assert shop.post("/v1/workers/shop:7/stop", {}).status == 202
    assert shop.post("/v1/workers/house:1/stop", {}).status == 409
    assert idle.post("/v1/workers/shop:7/stop", {}).status == 404
    reply = shop_lane.call(Find(STOPS, ["shop:7"]))
    assert isinstance(reply, Found)
    assert reply.messages[0] is not None
    close_lane(shop_lane)


def test_only_an_admin_asks_and_every_worker_looks(server: Client, make_token: Any) -> None:
    worker = server.with_token(make_token("shop", "consume"))
    lane = open_lane(worker.url.replace("http://", f"http://{worker.token}@"))
    lane.call(Find(STOPS, ["shop:7"]))
    with pytest.raises(AccessDenied):
        lane.call(Put(STOPS, [Item("shop:7", b"1")]))
    close_lane(lane)
    assert worker.post("/v1/workers/shop:7/stop", {}).status == 403
    some = server.with_token(make_token("shop", "admin", queues=["orders"]))
    some_lane = open_lane(some.url.replace("http://", f"http://{some.token}@"))
    some_lane.call(put_report("shop:7", Report({"shop:7": ["orders"]}, supervised=True)))
    some_lane.call(Find(STOPS, ["shop:7"]))
    assert some.post("/v1/workers/shop:7/stop", {}).status == 403
    with pytest.raises(AccessDenied):
        some_lane.call(Put(STOPS, [Item("shop:7", b"1")]))
    close_lane(some_lane)


def test_python_lists_the_workers_of_a_token(server: Client, make_token: Any) -> None:
    shop = server.with_token(make_token("shop", "admin"))
    url = shop.url.replace("http://", f"http://{shop.token}@")
    with bide.Queue("orders", url) as orders:
        lane_of(orders).call(put_report("shop:7", Report({"shop:7": ["orders"]})))
    assert [one.holder for one in bide.workers(url)] == ["shop:7"]
    assert shop.get(f"{Q}/messages").status == 200


def test_the_explanations_of_a_batch_read_the_reports_once(
    server: Client, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = server.with_token(make_token("shop", "admin"))
    for queue in ("orders", "mail"):
        for id in "ab":
            shop.put(f"/v1/queues/{queue}/messages/{id}", {"body": 1})
    lane = server.app.service.lane
    commands: list[Command] = []
    execute = lane.acall

    def spy(command: Command, *more: Any, **options: Any) -> Any:
        commands.append(command)
        return execute(command, *more, **options)

    monkeypatch.setattr(lane, "acall", spy)
    explains = [Explain(queue, id) for queue in ("orders", "mail") for id in "ab"]
    data = msgspec.json.encode({"commands": explains})
    replies = shop.send("POST", "/v1/batch", data=data).json["replies"]
    workers = [[worker["holder"] for worker in reply["workers"]] for reply in replies]
    assert workers == [["house:1"], ["house:1"], [], []]
    assert replies[0]["workers"][0]["longest"] == "order-42"
    assert replies[0]["subscriptions"] == replies[2]["subscriptions"] == []
    scans = [command.queue for command in commands if isinstance(command, Scan)]
    assert sorted(scans) == ["bide.server/subscriptions", "bide:workers", "shop/bide:workers"]


def test_the_explanations_of_a_batch_take_as_much_as_one_reply(
    server: Client, make_token: Any
) -> None:
    shop = server.with_token(make_token("shop", "admin"))
    shop.put(f"{Q}/messages/a", {"body": 1})
    lane = open_lane(shop.url.replace("http://", f"http://{shop.token}@"))
    lane.call(put_report("shop:7", Report({f"w{number}": ["orders"] for number in range(3_000)})))
    close_lane(lane)
    data = msgspec.json.encode({"commands": [Explain("orders", "a")] * 300})
    reply = shop.send("POST", "/v1/batch", data=data)
    kinds = [answer["type"] for answer in reply.json["replies"]]
    assert kinds == sorted(kinds)
    assert set(kinds) == {"explained", "failed"}
    assert MAX_BYTES <= len(reply.data) <= 2 * MAX_BYTES


def test_explanations_are_slow_reads(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required", max_slow_reads=1)
    shop = server.with_token(make_token("shop", "admin"))
    shop.put(f"{Q}/messages/a", {"body": 1})
    data = msgspec.json.encode({"commands": [Explain("orders", "a")] * 2})
    slow_calls = server.app.service.gate.slow_calls
    with slow_calls.counting("shop", "elsewhere"):
        assert shop.get(f"{Q}/messages/a/explanation").status == 429
        replies = shop.send("POST", "/v1/batch", data=data).json["replies"]
        assert [reply["error"] for reply in replies] == ["StoreBusy"] * 2
    assert shop.get(f"{Q}/messages/a/explanation").status == 200
    replies = shop.send("POST", "/v1/batch", data=data).json["replies"]
    assert [reply["state"] for reply in replies] == ["ready"] * 2


def test_a_token_that_may_not_read_the_reports_is_denied_the_list(
    server: Client, make_token: Any
) -> None:
    some = server.with_token(make_token("shop", "read", queues=["ord*"]))
    with pytest.raises(AccessDenied):
        bide.workers(some.url.replace("http://", f"http://{some.token}@"))


def test_a_report_of_another_namespace_hides_nobody(server: Client, make_token: Any) -> None:
    evil = server.with_token(make_token("evil", "admin"))
    lane = open_lane(evil.url.replace("http://", f"http://{evil.token}@"))
    lane.call(put_report("house:1", Report({"house:1": ["nothing"]}, supervised=True)))
    close_lane(lane)
    admin = server.with_token(make_token(None, "admin"))
    found = [(one["queues"], one["stops"]) for one in admin.get("/v1/workers").json["workers"]]
    assert found == [
        (["mail/letters", "shop/orders"], STOPS),
        (["evil/nothing"], f"evil/{STOPS}"),
    ]
    assert admin.post("/v1/workers/house:1/stop", {}).status == 202
    lane = open_lane(server.app.service.settings.store)
    assert expect(Found, lane.call(Find(STOPS, ["house:1"]))).messages != [None]
    lane.call(Cancel(STOPS, ["house:1"]))
    seen = [False]

    def take() -> None:
        while not seen[0]:
            seen[0] = bool(expect(Outcomes, lane.call(Cancel(STOPS, ["house:1"]))).outcomes[0])

    supervisor = threading.Thread(target=take, daemon=True)
    supervisor.start()
    assert bide.stop_worker("house:1", server.app.service.settings.store, wait=60)
    supervisor.join()
    assert expect(Found, lane.call(Find(f"evil/{STOPS}", ["house:1"]))).messages == [None]
    close_lane(lane)


def test_who_claims_at_several_servers_is_one_worker(server: Client, make_token: Any) -> None:
    lane = open_lane(server.app.service.settings.store)
    for process, queue in (("serve:a", "mail/letters"), ("serve:b", "shop/orders")):
        lane.call(put_report(process, Report({"mailer": [queue]})))
    close_lane(lane)
    admin = server.with_token(make_token(None, "admin"))
    assert listed(admin)["mailer"]["queues"] == ["mail/letters", "shop/orders"]


@pytest.mark.full
def test_a_list_says_that_there_are_more_workers_than_it_reads(
    server: Client, make_token: Any
) -> None:
    admin = server.with_token(make_token("shop", "admin"))
    assert "partly" not in admin.get("/v1/workers").json
    lane = open_lane(server.app.service.settings.store)
    for number in range(5):
        report = Report({f"many:{number}": [f"q{at:08}" for at in range(5_000)]})
        put = put_report(f"many:{number}", report)
        lane.call(msgspec.structs.replace(put, queue=f"shop/{put.queue}"))
    close_lane(lane)
    assert admin.get("/v1/workers").json["partly"] is True
    store = server.app.service.settings.store
    told = CliRunner().invoke(main, ["workers", "--url", store])
    assert told.exit_code == 0
    assert "there are more" in told.stderr


@pytest.mark.skipif(of_this_process() == UNKNOWN, reason="only Linux describes processes in /proc")
def test_a_worker_ends_leases_of_the_dead_if_its_token_may(
    server: Client, consumer: Lane, make_token: Any
) -> None:
    admin = open_lane(server.url.replace("http://", f"http://{make_token('shop', 'admin')}@"))
    admin.call(Put("orders", [Item("a", b"1"), Item("b", b"1")]))
    for holder, origin in (
        ("shop:7", f"{of_this_process().rpartition(' ')[0]} 1"),
        ("shop:8", of_this_process()),
    ):
        consumer.call(Claim("orders", 1, 60_000, holder))
        report = Report({holder: ["orders"]}, origin=origin)
        consumer.call(put_report(report_id(holder, origin), report))

    def states() -> list[str | None]:
        found = expect(Found, admin.call(Find("orders", ["a", "b"])))
        return [None if message is None else message.state for message in found.messages]

    asyncio.run(end_leases_of_dead(consumer.acall, ["orders"]))
    assert states() == ["leased", "leased"]
    asyncio.run(end_leases_of_dead(admin.acall, ["orders"]))
    assert states() == ["ready", "leased"]
    close_lane(admin)


ORDERS = Report({"shop:7": ["orders"]}, supervised=True)


@pytest.fixture
def consumer(server: Client, make_token: Any) -> Iterator[Lane]:
    """Provide a lane of a token that may consume `orders` and nothing else."""
    token = make_token("shop", "consume", queues=["orders"])
    lane = open_lane(server.url.replace("http://", f"http://{token}@"))
    yield lane
    close_lane(lane)


def test_a_worker_reports_and_withdraws_its_report(server: Client, consumer: Lane) -> None:
    assert expect(Outcomes, consumer.call(put_report("shop:7", ORDERS))).outcomes[0]
    assert expect(Outcomes, consumer.call(put_report("shop:7", ORDERS))).outcomes[0]
    assert expect(Affected, consumer.call(Purge(REGISTER, "ready"))).count == 0
    assert expect(Outcomes, consumer.call(delete_report("shop:7"))).outcomes[0]


def test_a_supervisor_that_may_only_consume_takes_requests(
    server: Client, make_token: Any, consumer: Lane
) -> None:
    admin = server.with_token(make_token("shop", "admin", name="ann"))
    consumer.call(put_report("shop:7", ORDERS))
    assert admin.post("/v1/workers/shop:7/stop", {}).status == 202
    assert run_steps(take_requests(["shop:7", "shop:8"]), consumer.call) == {"shop:7": "ann"}
    assert run_steps(take_requests(["shop:7"]), consumer.call) == {}


def test_a_worker_writes_nothing_else_to_the_register(server: Client, consumer: Lane) -> None:
    report = put_report("shop:7", ORDERS)
    (item,) = report.items
    change = msgspec.structs.replace
    wrong: list[Any] = [
        Put(REGISTER, [item]),
        change(report, items=[item, change(item, id="shop:8")]),
        change(report, items=[change(item, data=b"1")]),
        change(report, items=[change(item, data=b"x", json=False)]),
        change(report, items=[change(item, delay=10**10)]),
        change(report, items=[change(item, headers={"a": "x" * 60_000})]),
        put_report("shop:7", Report({"shop:7": ["mails"]})),
        put_report("shop:7", Report({"shop:7": [f"q{n}" for n in range(20_000)]})),
        put_report("shop:7", Report({"shop:7": ["orders"]}, origin="x" * 1_000)),
        Purge(REGISTER, "delayed"),
        Purge(REGISTER, "dead", ids=["shop:7"]),
        Cancel(REGISTER, ["shop:7", "shop:8"]),
        Cancel(REGISTER, where=Where(before=10**12)),
        Configure(REGISTER, paused=True),
        Reschedule(REGISTER, ["shop:7"]),
        Edit(REGISTER, ["shop:7"], data=b"1"),
        Delete(REGISTER),
        Claim(REGISTER, 1, 1_000, "w"),
    ]
    consumer.call(report)
    for command in wrong:
        with pytest.raises(AccessDenied):
            consumer.call(command)
    assert expect(Outcomes, consumer.call(delete_report("shop:7"))).outcomes[0]


def test_a_worker_neither_replaces_nor_deletes_the_reports_of_other_queues(
    server: Client, make_token: Any, consumer: Lane
) -> None:
    mailer_token = make_token("shop", "consume", queues=["mail"])
    admin_token = make_token("shop", "admin")
    mailer = open_lane(server.url.replace("http://", f"http://{mailer_token}@"))
    admin = open_lane(server.url.replace("http://", f"http://{admin_token}@"))
    mail = Report({"shop:7": ["mail"]})
    consumer.call(put_report("shop:7", ORDERS))
    for command in (put_report("shop:7", mail), delete_report("shop:7")):
        with pytest.raises(AccessDenied, match="queues that the token is not for"):
            mailer.call(command)
    assert set(listed(server.with_token(admin_token))) == {"house:1", "shop:7"}
    # Its other commands go on, also those of the same request.
    mailer.call(put_report("shop:8", mail))
    data = msgspec.json.encode({"commands": [delete_report("shop:7"), delete_report("shop:8")]})
    replies = server.with_token(mailer_token).send("POST", "/v1/batch", data=data).json["replies"]
    assert replies[0]["error"] == "AccessDenied"
    assert replies[1]["outcomes"][0]["done"] is True
    # What is no report, or is overdue, protects nobody.
    admin.call(Put(REGISTER, [Item("shop:7", b"1", delay=60_000)], "replace"))
    assert expect(Outcomes, mailer.call(put_report("shop:7", mail))).outcomes[0]
    admin.call(
        Put(
            REGISTER,
            [msgspec.structs.replace(put_report("shop:7", ORDERS).items[0], delay=0)],
            "replace",
        )
    )
    assert expect(Outcomes, mailer.call(put_report("shop:7", mail))).outcomes[0]
    close_lane(mailer)
    close_lane(admin)


def test_reports_use_no_quota_and_are_so_many(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "READ_MOST", 3)
    server = serve(auth="required", quotas={"shop": Quota(pending=2, queues=1)})
    shop = server.with_token(make_token("shop", "admin"))
    lane = open_lane(shop.url.replace("http://", f"http://{shop.token}@"))
    for number in range(3):
        lane.call(put_report(f"shop:{number}", ORDERS))
    with pytest.raises(StoreFull, match="3 reports of workers"):
        lane.call(put_report("shop:3", ORDERS))
    lane.call(put_report("shop:0", ORDERS))
    large = [Item("shop:0", b'"' + b"x" * LARGEST + b'"', headers={"a": "x" * MAX_NAME})]
    with pytest.raises(InvalidArgument, match="65,536 bytes at most"):
        lane.call(Put(REGISTER, large, "replace"))
    close_lane(lane)
    assert shop.get("/v1/usage").json["messages"] == 0
    for id in "ab":
        assert shop.put(f"{Q}/messages/{id}", {"body": 1}).status == 201
