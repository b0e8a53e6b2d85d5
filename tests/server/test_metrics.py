"""`/metrics`: the names of a worker's metrics, and figures of the server's own."""

import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bide.lane.lane_thread import LaneThread
from bide.model.errors import StoreUnavailable
from bide.model.replies import Counts, Flow, Sizes
from bide.observing.families import claim_metrics
from bide.observing.metrics import registry_of
from bide.server.access.rights import OPEN, Caller
from bide.server.app import ServerApp
from bide.server.limits.gate import Visit
from bide.server.routes import monitoring
from bide.server.settings import Settings
from bide.server.shared_state import ServerStats
from bide.targets.http.receiver import Circuit
from bide.targets.http.stats import IntakeStats, Known, PushStats
from bide.targets.http.subscription import Subscription
from tests.docs.test_pages import ROOT
from tests.server.client import Client, Q
from tests.server.conftest import Serve
from tests.server.test_clients import until


def scrape(client: Client) -> dict[tuple[str, ...], float]:
    """Return the samples by name and labels, those sorted by their names."""
    reply = client.get("/metrics")
    assert reply.status == 200
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in parse(reply.data.decode())
        for sample in family.samples
    }


def test_the_queues_are_told_of_as_a_worker_does(client: Client) -> None:
    client.post(f"{Q}/put", {"messages": [{"body": n} for n in range(3)]})
    client.post(f"{Q}/claim", {"count": 2})
    found = scrape(client)
    assert found["bide_store_up",] == 1
    assert found["bide_queue_messages", "orders", "ready"] == 1
    assert found["bide_queue_messages", "orders", "leased"] == 2
    assert found["bide_messages_put_total", "orders"] == 3
    assert found["bide_queue_paused", "orders"] == 0
    assert found["bide_claims_total", "orders"] == 1
    assert found["bide_messages_claimed_total", "orders"] == 2
    assert found["bide_delivery_lateness_seconds_count", "orders"] == 2
    assert found["bide_http_requests_total", "claim", "200"] == 1
    assert found["bide_http_request_seconds_total", "claim"] > 0
    assert found["bide_http_claims_waiting",] == 0
    assert found["bide_http_processes",] == 1
    of_queues = registry_of(lambda: {"orders": Counts(Sizes(), Flow())})
    same = {family.name for family in of_queues.collect()}
    same |= {metric.family.name for metric in claim_metrics({})}
    told = {family.name for family in parse(client.get("/metrics").data.decode())}
    assert same <= told
    own = ("bide_http_", "bide_push_", "bide_quota_", "bide_thread_")
    assert {name for name in told - same if not name.startswith(own)} == set()


def test_a_thread_that_died_is_counted_and_shown_as_ready(client: Client) -> None:
    def fail(_: None) -> NoReturn:
        raise RuntimeError("a fault of ours")

    assert client.post(f"{Q}/claim", {"wait": 0.001}).status == 200
    lane = client.app.service.lane
    lane._notes.append((fail, None))
    lane._signal.set()
    until(lambda: "thread_restarts" in client.get("/readyz").json)
    readiness = client.get("/readyz")
    assert readiness.status == 200
    assert readiness.json == {"status": "ready", "thread_restarts": {"bide-lane": 1}}
    assert scrape(client)["bide_thread_restarts_total", "bide-lane"] == 1
    assert client.put(f"{Q}/messages/m", {"body": 1}).status == 201
    assert client.post(f"{Q}/claim", {"wait": 60}).json["messages"][0]["id"] == "m"


@pytest.fixture(params=["sqlite", "redis", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Provide the URL of a store of each kind that wakes other processes."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/bide.db"
    fixture = {"redis": "redis_url", "postgresql": "postgres_url"}[request.param]
    url: str = request.getfixturevalue(fixture)()
    return url


def test_a_notifier_that_fails_is_restarted_counted_and_shown_on_every_store(
    serve: Serve, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hear, faults = LaneThread._hear, [RuntimeError("a fault of ours")]

    def fail_once(lane: LaneThread) -> None:
        if faults:
            raise faults.pop()
        hear(lane)

    monkeypatch.setattr(LaneThread, "_hear", fail_once)
    client = serve(store=store)
    assert client.post(f"{Q}/claim", {"wait": 0.001}).status == 200
    until(lambda: "thread_restarts" in client.get("/readyz").json)
    until(lambda: client.app.service.lane._listens is True)
    readiness = client.get("/readyz")
    assert readiness.status == 200
    assert readiness.json == {"status": "ready", "thread_restarts": {"bide-notifier": 1}}
    assert scrape(client)["bide_thread_restarts_total", "bide-notifier"] == 1
    assert client.put(f"{Q}/messages/m", {"body": 1}).status == 201
    assert client.post(f"{Q}/claim", {"wait": 60}).json["messages"][0]["id"] == "m"


def test_lost_notifications_are_shown_by_a_server_that_stays_ready(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.engines.sqlite.notifier.CHECK", 0.01)
    assert client.post(f"{Q}/claim", {"wait": 0.001}).status == 200
    assert client.get("/readyz").json == {"status": "ready"}
    pipes = tmp_path / "bide.db-bell"
    shutil.rmtree(pipes)
    pipes.touch()  # else the server makes another pipe
    readiness = client.get("/readyz")
    assert readiness.status == 200
    assert readiness.json == {
        "status": "ready",
        "degraded": "notifications of other processes are lost, so waiting claims poll the store",
    }
    pipes.unlink()
    until(lambda: client.get("/readyz").json == {"status": "ready"})


def test_intakes_are_shown_to_callers_of_the_whole_store_alone() -> None:
    """They belong to the operator; their exchanges are named after the queues of others."""
    stats = ServerStats(sent=PushStats(taken={"mail": IntakeStats(stored=1)}))
    read = frozenset({"read"})
    assert monitoring.seen_by(OPEN, stats).sent.taken
    for caller in (Caller("shop", read), Caller(None, read, ("shop/*",))):
        assert not monitoring.seen_by(caller, stats).sent.taken


def test_a_namespace_reads_its_own_queues_alone(serve: Serve, make_token: Any) -> None:
    server = serve(auth="required")
    shop, mail = (server.with_token(make_token(name, "admin")) for name in ("shop", "mail"))
    for client in (shop, mail):
        client.put(f"{Q}/messages/m", {"body": 1})
        client.post(f"{Q}/claim")
    mail.put("/v1/queues/letters/messages/m", {"body": 1})
    found = scrape(shop)
    assert found["bide_queue_messages", "orders", "leased"] == 1
    assert found["bide_messages_claimed_total", "orders"] == 1
    assert not [key for key in found if "letters" in key or key[0].startswith("bide_http")]
    assert (
        scrape(server.with_token(make_token(None, "read")))[
            "bide_messages_claimed_total", "mail/orders"
        ]
        == 1
    )


def test_a_store_that_is_away_is_told_and_the_rest_as_well(serve: Serve, tmp_path: Any) -> None:
    app = ServerApp(Settings(store=f"sqlite:///{tmp_path}/bide.db"))
    client = serve(app)
    client.put(f"{Q}/messages/m", {"body": 1})
    (tmp_path / "garbage").write_bytes(b"no database" * 1_000)
    for part in ("bide.db-wal", "bide.db-shm"):
        (tmp_path / part).unlink()
    (tmp_path / "garbage").rename(tmp_path / "bide.db")
    found: dict[tuple[str, ...], float] = {}
    until(lambda: found.update(scrape(client)) or found["bide_store_up",] == 0)
    assert found["bide_http_requests_total", "putNamed", "201"] == 1


def test_what_the_server_knows_of_subscriptions_does_not_need_the_store(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def known() -> dict[str, Known]:
        return {
            "shop": Known(Subscription(name="shop", queue="orders", url="http://s/"), Circuit())
        }

    async def away(*_: object) -> NoReturn:
        raise StoreUnavailable("it is away")

    client = serve()
    assert client.app is not None
    service = client.app.service
    monkeypatch.setattr(service.pushing, "known", known)
    with monkeypatch.context() as patch:
        patch.setattr(Visit, "execute", away)
        found = scrape(client)
    assert found["bide_store_up",] == 0
    assert found["bide_push_circuit", "closed", "shop"] == 1
    client.put(f"{Q}/messages/m", {"body": 1})
    monkeypatch.setattr(service.pushing, "known", away)
    assert scrape(client)["bide_queue_messages", "orders", "ready"] == 1


def test_every_metric_stands_in_the_documentation(client: Client) -> None:
    client.put(f"{Q}/messages/m", {"body": 1})
    client.post(f"{Q}/claim")
    page = (ROOT / "docs/howto/metrics.md").read_text()
    for family in parse(client.get("/metrics").data.decode()):
        name = family.name.removeprefix("bide_messages_")
        assert name in page, family.name
