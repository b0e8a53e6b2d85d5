"""The past over HTTP: each token sees that of its own queues; nobody reads the record itself."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.cli.store import CommandStore
from bide.model.past import past_command
from bide.observing.past import PAST, reading_past
from bide.observing.recorder import PastRecorder
from bide.server.app import ServerApp
from bide.server.settings import Settings
from bide.testing.clock import FakeClock
from tests.start import START
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve

MINUTE = 60_000


class Scene:
    """A server whose clock is moved by hand, and which records when it is told."""

    def __init__(self, serve: Serve, folder: Path, **settings: Any) -> None:
        self.clock = FakeClock(START - START % MINUTE)
        self.app = ServerApp(
            Settings(store=f"sqlite:///{folder}/bide.db", **settings), clock=self.clock
        )
        self.client: Client = serve(self.app)

    def record(self) -> None:
        """Let a minute pass, and record, unless the server was first."""
        self.clock.advance(60)
        asyncio.run(PastRecorder(self.app.service.lane.acall, self.clock).record())

    def put(self, queue: str, count: int = 1) -> None:
        """Put messages into a queue of the store."""
        with bide.Queue(queue, self.app.service.settings.store, clock=self.clock) as messages:
            messages.put_many(range(count))


@pytest.fixture
def make_scene(serve: Serve, tmp_path: Path) -> Any:
    return lambda **settings: Scene(serve, tmp_path, **settings)


def last(reply: Any) -> Any:
    slots = [slot for slot in reply.json["slots"] if slot is not None]
    return slots[-1] if slots else None


def test_the_past_of_a_queue(make_scene: Any) -> None:
    scene = make_scene()
    path = f"{Q}/past?for=1h"
    empty = scene.client.get(path)
    assert empty.status == 200
    assert set(empty.json["slots"]) == {None}
    assert empty.json["reason"] is not None
    scene.put("orders")
    scene.record()
    scene.put("orders", 3)
    scene.record()
    reply = scene.client.get(path)
    assert (reply.json["slot"], reply.json["reason"]) == (MINUTE, None)
    assert len(reply.json["slots"]) == 60
    assert (last(reply)["put"], last(reply)["done"]) == (3, 0)
    assert len(scene.client.get(f"{Q}/past").json["slots"]) == 24
    assert len(scene.client.get(f"{Q}/past?for=24h&by=minute").json["slots"]) == 1_440
    for query, text in (("for=31d", "for=31d is longer than the 30d"), ("by=day", "by")):
        refused = scene.client.get(f"{Q}/past?{query}")
        assert refused.status == 400
        assert text in refused.problem["detail"]


def test_a_token_sees_its_own_queues(make_scene: Any, make_token: Any) -> None:
    scene = make_scene(auth="required")
    shop, other = make_token("shop", "read"), make_token("other", "admin")
    some, whole = make_token("shop", "read", queues=["m*"]), make_token(None, "admin")
    producer = make_token("shop", rights=["put"])
    for queue in ("shop/orders", "shop/mail", "other/orders", "orders"):
        scene.put(queue)
    scene.record()
    for number, queue in enumerate(("shop/orders", "shop/mail", "other/orders", "orders"), 1):
        scene.put(queue, number)
    scene.record()
    path = f"{Q}/past?for=1h"
    for token, put in ((shop, 1), (other, 3), (whole, 4)):
        assert last(scene.client.with_token(token).get(path))["put"] == put
    assert scene.client.with_token(some).get(path).status == 403
    assert scene.client.with_token(producer).get(path).status == 403

    def together(token: str, prefix: str = "") -> int:
        url = f"http://:{token}@127.0.0.1:{scene.client.port}"
        with CommandStore(url) as store:
            command = past_command(prefix, "1h", together=True)
            past = store.run(
                reading_past(
                    command,
                    lambda name: False,
                    has_server=lambda: store.lane.capabilities.has_server,
                )
            )
        return next(slot.put for slot in reversed(past.slots) if slot is not None)

    assert [together(token) for token in (shop, other, some, whole)] == [3, 3, 2, 10]
    assert together(whole, "shop/m") == 2
    with bide.Queue("orders", f"http://:{shop}@127.0.0.1:{scene.client.port}") as orders:
        slot = orders.past("1h").slots[-1]
        assert slot is not None
        assert slot.put == 1


def test_no_caller_reads_or_writes_the_record(make_scene: Any, make_token: Any) -> None:
    scene = make_scene(auth="required")
    scene.record()
    token = make_token(None, "admin")
    with bide.Queue(PAST, f"http://:{token}@127.0.0.1:{scene.client.port}") as record:
        for call in (lambda: record.put(1), lambda: record.peek(), lambda: record.counts()):
            with pytest.raises(bide.AccessDenied, match="and no caller reads or writes"):
                call()


def test_it_is_listed_among_the_queues_of_nobody(make_scene: Any) -> None:
    scene = make_scene()
    scene.record()
    own = set(scene.client.get("/v1/queues?prefix=bide:").json["queues"])
    assert own <= {"bide:zones"}  # a server may look after local dates


def test_it_counts_for_no_quota(make_scene: Any) -> None:
    scene = make_scene()
    scene.record()
    scene.record()
    scene.put("orders")
    assert scene.client.get("/v1/usage").json["messages"] == 1


def test_a_server_on_a_store_in_memory_records_itself(serve: Serve) -> None:
    clock = FakeClock(START - START % MINUTE)
    client = serve(ServerApp(Settings(store="memory://server-past"), clock=clock))
    for number in range(2):
        while not client.get(f"{Q}/past?for=1h").json["reason"].startswith("recording has"):
            pass  # its first record is made while it answers
        client.put(f"{Q}/messages/{number}", {"body": 1})
    claimed = client.post(f"{Q}/claim", {"count": 1, "holder": "w"}).json["messages"]
    assert len(claimed) == 1
    clock.advance(66)
    while (slot := last(client.get(f"{Q}/past?for=1h"))) is None:
        pass
    assert (slot["put"], slot["delivered"]) == (2, 1)
