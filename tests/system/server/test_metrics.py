"""Metrics: names, figures of the server's own, and those of all of its processes."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bide.engines import losses
from bide.lane.lane_thread import LaneThread
from bide.model.commands import Claim
from bide.model.errors import StoreUnavailable
from bide.model.limits import MAX_TALLIES
from bide.model.message import Message
from bide.model.replies import Claimed, Counts, Flow, Sizes
from bide.observing.families import claim_metrics
from bide.observing.metrics import registry_of
from bide.observing.tally import OUTCOMES, Tally
from bide.server.access.rights import OPEN, Caller
from bide.server.app import ServerApp
from bide.server.limits.gate import Visit
from bide.server.routes import monitoring
from bide.server.service import Service
from bide.server.settings import Settings
from bide.server.shared_state import ServerStats, SharedStats, make_file
from bide.targets.http.receiver import Circuit
from bide.targets.http.stats import Deliveries, IntakeStats, Known, PushStats
from bide.targets.http.subscription import Subscription
from bide.testing.hooks import call_in_thread, is_listening
from tests.docs.test_pages import ROOT
from tests.system.server.client import Client, Q
from tests.system.server.conftest import Serve
from tests.system.server.process import ServerProcess
from tests.waiting import until


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
    def fail() -> NoReturn:
        raise RuntimeError("a fault of ours")

    assert client.post(f"{Q}/claim", {"wait": 0.001}).status == 200
    call_in_thread(client.app.service.lane, fail)
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
    until(lambda: is_listening(client.app.service.lane))
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


def test_lost_changes_are_shown_under_the_names_of_the_token_and_of_its_queues_alone(
    serve: Serve, make_token: Any
) -> None:
    seen = {"shop/orders": 5, "shop/gone": 2, "mail/lossy": 1}
    for queue, count in seen.items():
        losses.report("a store", queue, count)
    server = serve(auth="required")
    shop = server.with_token(make_token("shop", "admin"))
    for queue in ("orders", "well"):
        shop.put(f"/v1/queues/{queue}/messages/m", {"body": 1})

    def lost(client: Client) -> dict[str, float]:
        name = "bide_store_changes_lost_total"
        return {key[1]: count for key, count in scrape(client).items() if key[0] == name}

    assert lost(shop) == {"orders": 5, "gone": 2, "well": 0}
    everything = lost(server.with_token(make_token(None, "read")))
    assert everything == {**everything, **seen, "shop/well": 0}
    some = server.with_token(make_token("shop", "read", queues=["go*"]))
    assert lost(some) == {"gone": 2}


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


@pytest.mark.parametrize("auth", ["auto", "required"])
@pytest.mark.parametrize("hangs", [False, True])
def test_a_store_that_does_not_know_the_token_is_told_as_down(
    serve: Serve, make_token: Any, monkeypatch: pytest.MonkeyPatch, auth: str, hangs: bool
) -> None:
    monkeypatch.setattr("bide.server.access.admission.LOOK_EVERY", 0.0)
    client = serve(auth=auth)
    reader = client if auth == "auto" else client.with_token(make_token(None, "read"))
    assert scrape(reader)["bide_store_up",] == 1

    async def away(*_: object) -> NoReturn:
        if hangs:
            await asyncio.Event().wait()
        raise StoreUnavailable("it is away")

    monkeypatch.setattr("bide.server.app.STORE_PATIENCE", 0.01 if hangs else None)
    for look in ("caller", "exist"):
        monkeypatch.setattr(client.app.service.tokens, look, away)
    assert scrape(reader) == {("bide_store_up",): 0}
    if not hangs:
        assert reader.get(Q).status == 503


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
    outcomes = ", ".join(f"`{outcome}`" for outcome in OUTCOMES)
    assert f"| `bide_deliveries_total{{queue,outcome}}` | results: {outcomes} |" in page


def some(count: int, late: float = 0.0) -> ServerStats:
    """Return figures in which everything has happened so often, and so late."""
    tally = Tally(claims=count, claimed=count, running=count)
    tally.lateness.observe(late)
    told = Deliveries({"2xx": count}, running=count, taken_at=count)
    sent = PushStats({"shop": tally}, {"shop": told})
    figures = {("put", 201): count}, {"put": late}, {"orders": tally}
    return ServerStats(*figures, sent, count, lost={"orders": count})


def ended(descriptor: int) -> SharedStats:
    """Return the board of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: process.pid)
        return SharedStats(os.dup(descriptor))


def test_the_figures_of_all_are_added_up_and_of_the_dead_what_stays_true() -> None:
    descriptor = make_file()
    boards = [SharedStats(os.dup(descriptor)), SharedStats(os.dup(descriptor)), ended(descriptor)]
    for number, board in enumerate(boards, 2):
        board.post(some(number, 0.5))
    boards[0].post(some(5, 0.5))
    found = boards[1].together(some(5, 0.5))
    assert found.requests == {("put", 201): 14}
    assert found.seconds == {"put": 1.5}
    assert (found.waiting, found.processes) == (10, 2)
    tally, told = found.tallies["orders"], found.sent.deliveries["shop"]
    assert (tally.claims, tally.running, tally.lateness.count) == (14, 10, 3)
    assert (told.answers, told.running, told.taken_at) == ({"2xx": 14}, 10, 5)
    assert found.sent.tallies["shop"].claims == 14
    assert found.lost == {"orders": 5}  # all see the same loss
    for board in boards:
        board.close()
    os.close(descriptor)


def test_a_process_that_begins_knows_what_others_have_seen_to_be_lost() -> None:
    """Else its first loss is less than what was known, and does not show."""
    descriptor = make_file()
    gone = ended(descriptor)
    gone.post(ServerStats(lost={"orders": 5}))
    board = SharedStats(os.dup(descriptor))
    assert board.lost_before == {"orders": 5}
    for one in (gone, board):
        one.close()
    os.close(descriptor)


def test_a_board_of_one_process_needs_no_file_of_others() -> None:
    board = SharedStats()
    assert board.together(some(2)).requests == {("put", 201): 2}
    assert board.together(some(3)).requests == {("put", 201): 3}
    board.close()


def test_a_board_that_shrinks_and_grows_is_read_as_it_is() -> None:
    descriptor = make_file()
    board, other = SharedStats(os.dup(descriptor)), SharedStats(os.dup(descriptor))
    for count in (1, 500, 3, 2_000, 0, 70):
        board.post(ServerStats(dict.fromkeys([("put", n) for n in range(count)], 1)))
        assert len(other.together(ServerStats()).requests) == count
    assert os.fstat(descriptor).st_size < 200_000
    for one in (board, other):
        one.close()
    os.close(descriptor)


def test_claims_are_counted_for_so_many_queues() -> None:
    """A tenant may make, empty and delete queues without end."""
    service = Service(Settings(store="memory://tallies"))
    for number in (0, *range(1, MAX_TALLIES), 0, MAX_TALLIES):
        queue = f"q{number}"
        message = Message("m", queue, b"1", True, 0, 0, 1, 10, "leased")
        service.handed_out(Claim(queue, 1, 30_000, "w"), Claimed([message], 1, 0))
    assert len(service.tallies) == MAX_TALLIES
    assert service.tallies.keys() >= {"q0", f"q{MAX_TALLIES}"}
    assert service.tallies["q0"].claims == 2
    assert "q1" not in service.tallies


def test_of_processes_that_have_ended_so_many_queues_are_counted() -> None:
    descriptor = make_file()
    boards = [SharedStats(os.dup(descriptor)), ended(descriptor)]
    many = {f"q{number}": Tally(claims=1) for number in range(MAX_TALLIES + 1)}
    boards[1].post(ServerStats(tallies=many))
    gone = boards[0].together(ServerStats()).tallies
    assert (len(gone), "q0" in gone) == (MAX_TALLIES, False)
    for board in boards:
        board.close()
    os.close(descriptor)


DYING = """
import os, signal, sys
from bide.server.shared_state import SharedStats, ServerStats
SharedStats(int(sys.argv[1])).post(ServerStats({("put", 201): 7}, {"put": 0.1}, waiting=3))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_what_a_killed_process_has_posted_is_kept_to_the_hair() -> None:
    descriptor = make_file()
    board, sums = SharedStats(os.dup(descriptor)), []
    for number in range(1, 4):
        words = [sys.executable, "-c", DYING, str(descriptor)]
        dying = subprocess.Popen(words, pass_fds=[descriptor])
        assert dying.wait(60) == -signal.SIGKILL
        found = board.together(ServerStats({("put", 201): 1}, {"put": 0.7}))
        assert found.requests == {("put", 201): 1 + 7 * number}
        assert (found.waiting, found.processes) == (0, 1)
        sums.append(found.seconds["put"])
    assert sums == sorted(sums)
    assert sums[-1] == pytest.approx(1.0, abs=1e-5)
    board.close()
    os.close(descriptor)


def scraped(server: ServerProcess) -> dict[str, float]:
    """Return the samples of one scrape, which comes to any of the processes."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    samples = re.findall(r"^(bide_\S+?(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in samples}


@pytest.mark.full
@pytest.mark.process
def test_a_scrape_tells_of_all_processes_and_no_counter_ever_goes_back(tmp_path: Path) -> None:
    puts = 'bide_http_requests_total{operation="put",status="201"}'
    with ServerProcess(tmp_path, "--workers", "3") as server:
        last: dict[str, float] = {}
        sent = 0

        def scrape() -> dict[str, float]:
            found = scraped(server)
            for name, value in last.items():
                if "_total" in name or "_bucket" in name or "_count" in name or "_sum" in name:
                    assert found[name] >= value, name
            last.update(found)
            return found

        def put(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
                try:
                    kind = {"content-type": "application/json"}
                    path = "/v1/queues/orders/messages"
                    connection.request("POST", path, '{"body": 1}', kind)
                    sent += connection.getresponse().status == 201
                except (OSError, HTTPException):
                    pass  # it was with the process that was killed
                connection.close()

        put(30)
        until(lambda: scrape().get(puts) == 30)
        until(lambda: scrape()["bide_http_processes"] == 3)
        first = set(server.workers())
        server.process.send_signal(signal.SIGHUP)
        until(lambda: not first & set(server.workers()) and len(server.workers()) == 3)
        assert scrape()[puts] == sent  # those that were replaced have told all
        put(10)
        until(lambda: scrape()[puts] == sent)
        victim = server.workers()[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: victim not in server.workers() and len(server.workers()) == 3)
        before = scrape()[puts]
        put(10)
        until(lambda: scrape()[puts] >= before + 9)
        until(lambda: scrape()["bide_http_processes"] == 3)
