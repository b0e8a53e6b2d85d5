"""Events and traces as the SDK of Sentry sends them."""

import asyncio
import gzip
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pydantic
import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

import bide
from bide.contrib.sentry import BideIntegration
from bide.engines.registry import opener
from bide.lane.lane import Lane
from bide.model.commands import Claim, Put
from bide.model.message import Item
from bide.testing import FakeClock
from tests.system.contrib.serving import wait_until
from tests.system.worker.processes import worker

SECRET = "4111-1111"
ONCE = bide.Backoff(attempts=1)


class Collector(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.sent += [item.payload.json for item in envelope.items if item.payload.json is not None]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.sent if one.get("type", "event") == kind]

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.of("event")


Start = Callable[..., Collector]


def stop() -> None:
    sentry_sdk.init(default_integrations=False, auto_enabling_integrations=False)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start the SDK as a program does, without what it would patch in other libraries."""

    def init(integration: BideIntegration | None = None, **options: Any) -> Collector:
        collector = Collector()
        sentry_sdk.init(
            dsn="http://key@sentry.invalid/1",
            transport=collector,
            default_integrations=False,
            auto_enabling_integrations=False,
            shutdown_timeout=0,
            integrations=[integration or BideIntegration(), LoggingIntegration()],
            **options,
        )
        return collector

    yield init
    stop()


class Card(pydantic.BaseModel):
    number: str
    amount: int = 0


def play(app: bide.App, *bodies: Any, ended: Callable[[bide.Counts], bool], **options: Any) -> None:
    """Put messages within a transaction of Sentry, and run the app until they have ended."""

    async def story() -> None:
        async with app.running(), bide.AsyncQueue("cards", app.url) as queue:
            with sentry_sdk.isolation_scope(), sentry_sdk.start_transaction(name="request"):
                for body in bodies:
                    await queue.put(body, **options)
            while True:
                if ended(await queue.counts()):
                    return
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(story(), 60))


def dead(count: int) -> Callable[[bide.Counts], bool]:
    return lambda counts: counts.sizes.dead == count


def acked(count: int) -> Callable[[bide.Counts], bool]:
    return lambda counts: counts.flow.acked == count


@pytest.fixture
def app(tmp_path: Path) -> bide.App:
    return bide.App(f"sqlite:///{tmp_path}/bide.db?durability=normal")


def charge(card: Card) -> None:
    number = card.number
    raise ConnectionError(f"the bank does not answer for {len(number)} digits")


async def charge_async(card: Card) -> None:
    charge(card)


@pytest.mark.parametrize("handler", [charge, charge_async])
def test_a_message_that_dies_is_one_event_without_its_body(
    app: bide.App, start: Start, handler: Any
) -> None:
    collector = start()
    app.handler("cards", retry=bide.Backoff(attempts=3, first="1ms", jitter=0))(handler)
    play(app, Card(number=SECRET), ended=dead(1), id="card-1", group="order:42")
    (event,) = collector.events
    (value,) = event["exception"]["values"]
    assert value["type"] == "ConnectionError"
    assert value["value"] == "the bank does not answer for 9 digits"
    assert value["mechanism"] == {"type": "bide", "handled": False}
    assert event["transaction"] == f"{__name__}.{handler.__name__}"
    assert event["tags"] == {"bide.queue": "cards"}
    about = event["contexts"]["bide"]
    assert (about["queue"], about["id"], about["group"]) == ("cards", "card-1", "order:42")
    assert (about["attempt"], about["attempts"]) == (3, 10)
    assert value["stacktrace"]["frames"][-1]["function"] == "charge"
    assert SECRET not in json.dumps(collector.sent)


def test_every_failure_is_an_event_where_that_is_asked_for(app: bide.App, start: Start) -> None:
    collector = start(BideIntegration("failed"))
    app.handler("cards", retry=bide.Backoff(attempts=3, first="1ms", jitter=0))(charge)
    play(app, Card(number=SECRET), ended=dead(1))
    assert [event["contexts"]["bide"]["attempt"] for event in collector.events] == [1, 2, 3]


def test_a_batch_that_failed_is_no_failure_of_each_of_its_messages(
    app: bide.App, start: Start
) -> None:
    collector = start(BideIntegration("failed"))

    @app.handler("cards", batch=3, linger="1m", retry=ONCE)
    def charge_all(bodies: list[int]) -> None:
        if 3 in bodies:
            raise ValueError("no card")

    play(app, 1, 2, 3, ended=lambda c: (c.flow.acked, c.sizes.dead) == (2, 1))
    (event,) = collector.events
    assert event["exception"]["values"][0]["value"] == "no card"


def test_each_failure_of_a_source_is_an_event(app: bide.App, start: Start) -> None:
    """It never dies: without this, one that fails for ever would be seen by nobody."""
    collector = start()

    @app.source("cards", every="1m", window="10m", retry=bide.Backoff(first="1ms", jitter=0))
    def unpaid(after: Any, before: Any) -> list[bide.NewMessage]:
        raise ConnectionError("the database does not answer")

    play(app, ended=lambda _: len(collector.events) >= 2)
    assert collector.events[0]["transaction"].endswith("unpaid")


def test_the_body_is_sent_where_that_is_asked_for(app: bide.App, start: Start) -> None:
    collector = start(BideIntegration(send_bodies=True))
    app.handler("cards", retry=ONCE)(charge)
    play(app, Card(number=SECRET), ended=dead(1))
    (event,) = collector.events
    assert event["contexts"]["bide"]["body"] == {"number": SECRET, "amount": 0}
    assert SECRET in event["exception"]["values"][0]["stacktrace"]["frames"][-1]["vars"]["number"]


def test_an_error_that_quotes_the_body_has_no_text(app: bide.App, start: Start) -> None:
    collector = start()
    app.handler("cards")(charge)
    play(app, {"number": [SECRET]}, ended=dead(1))
    (event,) = collector.events
    assert {value["type"] for value in event["exception"]["values"]} == {"ValidationError", "Unfit"}
    assert {value["value"] for value in event["exception"]["values"]} == {"[Filtered]"}
    assert SECRET not in json.dumps(collector.sent)


def test_outcomes_that_a_handler_chooses(app: bide.App, start: Start) -> None:
    """Retries and discards are no failures; what was buried is dead, and has to be looked at."""
    collector = start(BideIntegration("failed"))

    @app.handler("cards", retry=bide.Backoff(first="1ms", jitter=0))
    async def handle(body: str, delivery: bide.Handling) -> None:
        if body == "retry" and delivery.attempt < 3:
            raise bide.Retry("later", delay="1ms")
        if body == "discard":
            raise bide.Discard("too old")
        if body == "bury":
            raise bide.Bury("the card is expired")

    play(app, "retry", "discard", "bury", ended=lambda c: (c.flow.acked, c.sizes.dead) == (2, 1))
    (event,) = collector.events
    assert event["exception"]["values"][0]["value"] == "the card is expired"


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (None, None),
        (bide.Retry("later", delay="1ms"), "ok"),
        (bide.Discard("too old"), "ok"),
        (bide.Bury("the card is expired"), "internal_error"),
        (ValueError("no luck"), "internal_error"),
    ],
)
def test_the_transaction_of_a_chosen_outcome_is_no_error(
    app: bide.App, start: Start, raised: Exception | None, status: str | None
) -> None:
    collector = start(traces_sample_rate=1.0)

    @app.handler("cards", retry=ONCE)
    async def handle(delivery: bide.Handling) -> None:
        if raised is not None and delivery.attempt == 1:
            raise raised

    play(app, "x", ended=lambda c: c.flow.acked + c.sizes.dead == 1)
    ended = [one["contexts"]["trace"] for one in collector.of("transaction")]
    assert [one.get("status") for one in ended if one["op"] == "queue.process"] == [status]


def test_the_transaction_of_a_handler_that_is_stopped_is_no_error(
    app: bide.App, start: Start
) -> None:
    collector = start(traces_sample_rate=1.0)

    @app.handler("cards")
    async def handle(body: str) -> None:
        async with bide.AsyncQueue("cards", app.url) as queue:
            await queue.cancel("x", running=True)
        await asyncio.Event().wait()

    play(app, "x", id="x", ended=lambda counts: counts.flow.cancelled == 1)
    ended = [one["contexts"]["trace"] for one in collector.of("transaction")]
    assert [one["status"] for one in ended if one["op"] == "queue.process"] == ["ok"]


def test_a_timeout_is_an_event(app: bide.App, start: Start) -> None:
    collector = start()

    @app.handler("cards", timeout="10ms", retry=ONCE)
    async def wait(body: str) -> None:
        await asyncio.Event().wait()

    play(app, "x", ended=lambda _: bool(collector.events))
    (event,) = collector.events
    assert event["exception"]["values"][-1]["type"] == "TimeoutError"


@pytest.mark.parametrize(
    "raised", [None, bide.Bury("late"), bide.Discard("late"), KeyError("late")]
)
def test_a_timeout_is_the_only_event_whatever_the_handler_does_later(
    app: bide.App, start: Start, raised: Exception | None
) -> None:
    collector, release = start(), threading.Event()

    @app.handler("cards", timeout="10ms", retry=ONCE)
    def block(body: str) -> None:
        assert release.wait(60)
        if raised is not None:
            raise raised

    def died(counts: bide.Counts) -> bool:
        if counts.sizes.dead:
            release.set()
        return bool(collector.events)

    play(app, "x", ended=died)
    (event,) = collector.events
    assert event["exception"]["values"][-1]["type"] == "TimeoutError"


def test_an_attempt_that_buries_after_its_timeout_is_retried_and_no_event(
    app: bide.App, start: Start
) -> None:
    collector, release = start(), threading.Event()

    @app.handler("cards", timeout="10ms", retry=bide.Backoff(attempts=50, first="1ms", jitter=0))
    def handle(delivery: bide.Handling) -> None:
        if delivery.attempt == 1:
            assert release.wait(60)
            raise bide.Bury("late")

    def ended(counts: bide.Counts) -> bool:
        if counts.flow.retried:
            release.set()
        return counts.flow.acked == 1

    play(app, "x", ended=ended)
    assert collector.events == []


def test_death_by_lapse_is_an_event(tmp_path: Path, start: Start) -> None:
    """No handler raised anything: the log tells it."""
    collector, clock = start(), FakeClock()
    lane = Lane(opener("memory://"), clock)
    lane.call(Put("cards", [Item("card-1", b"1", attempts=1)]))
    lane.call(Claim("cards", 1, 1_000, "web1:4711"))
    clock.advance(2)
    lane.call(Claim("cards", 1, 1_000, "web1:4712"))
    lane.close()
    (event,) = collector.events
    assert "card-1" in json.dumps(event["logentry"])


def test_the_trace_goes_on_from_the_put_to_the_handler(app: bide.App, start: Start) -> None:
    collector = start(traces_sample_rate=1.0)
    seen: list[Any] = []

    @app.handler("cards")
    async def handle(delivery: bide.Delivery) -> None:
        seen.append(delivery.message.headers)

    play(app, "x", ended=acked(1), id="card-1", headers={"own": "1"})
    wait_until(lambda: len(collector.of("transaction")) == 2)
    request, process = sorted(collector.of("transaction"), key=lambda one: one["start_timestamp"])
    (publish,) = request["spans"]
    trace = process["contexts"]["trace"]
    assert trace["trace_id"] == request["contexts"]["trace"]["trace_id"]
    assert trace["parent_span_id"] == publish["span_id"]
    assert (publish["op"], trace["op"]) == ("queue.publish", "queue.process")
    assert publish["data"]["messaging.message.id"] == "card-1"
    assert trace["data"]["messaging.destination.name"] == "cards"
    assert trace["data"]["messaging.message.retry.count"] == 0
    assert trace["data"]["messaging.message.receive.latency"] >= 0
    assert seen[0]["own"] == "1"


def test_a_put_that_the_store_answers_with_no_is_no_failed_span(start: Start) -> None:
    collector = start(traces_sample_rate=1.0)
    with bide.Queue("cards", "memory://") as queue, sentry_sdk.start_transaction(name="shop"):
        queue.put(1, id="one", on_conflict="raise")
        with pytest.raises(bide.AlreadyExists):
            queue.put(1, id="one", on_conflict="raise")
    (shop,) = collector.of("transaction")
    assert [span.get("status") for span in shop["spans"]] == [None, None]


def test_plain_queues_carry_the_trace_unless_told_not_to(start: Start) -> None:
    start(traces_sample_rate=1.0)
    with bide.Queue("cards", "memory://") as queue:
        queue.put(1, id="one", delay="1h")
        queue.put(1, id="own", delay="1h", headers={"sentry-trace": "mine"})
        queue.put_many([2, 3], delay="1h")
        assert all("sentry-trace" in (message.headers or {}) for message in queue.scan())
        own = queue.get("own")
        assert own is not None
        assert own.headers == {"sentry-trace": "mine"}
        stop()
        queue.put(1, id="two", delay="1h")
        found = queue.get("two")
        assert found is not None
        assert not found.headers


def test_events_of_one_delivery_do_not_leak_into_another(app: bide.App, start: Start) -> None:
    collector = start()

    @app.handler("cards", retry=ONCE)
    async def handle(body: str) -> None:
        sentry_sdk.set_tag("body", body)
        raise ValueError(body)

    play(app, "a", "b", ended=dead(2))
    assert sorted(event["tags"]["body"] for event in collector.events) == ["a", "b"]
    for event in collector.events:
        assert event["exception"]["values"][0]["value"] == event["tags"]["body"]


def test_an_unknown_report_is_refused() -> None:
    with pytest.raises(bide.InvalidArgument, match="must be 'dead' or 'failed'"):
        BideIntegration("all")


class Sentry(BaseHTTPRequestHandler):
    """A server that takes envelopes."""

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            data = gzip.decompress(data)
        self.server.taken.append(data.decode())  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


JOBS = """
import bide, sentry_sdk
from bide.contrib.sentry import BideIntegration

sentry_sdk.init(
    dsn="http://key@127.0.0.1:{port}/1", integrations=[BideIntegration()],
    auto_enabling_integrations=False, shutdown_timeout=60,
)
app = bide.App()

@app.handler("q", retry=bide.Backoff(attempts=1))
def handle(body):
    raise ValueError("no luck")
"""


@pytest.mark.full
@pytest.mark.process
def test_a_real_worker_reports_once(tmp_path: Path) -> None:
    """With the integrations that the SDK has by default; one of them collects the log."""
    server = HTTPServer(("127.0.0.1", 0), Sentry)
    server.taken = []  # type: ignore[attr-defined]
    taken: list[str] = server.taken  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with worker(tmp_path, JOBS.replace("{port}", str(server.server_port))):
            with bide.Queue("q", f"sqlite:///{tmp_path / 'bide.db'}") as queue:
                queue.put({"number": SECRET})
                wait_until(lambda: queue.counts().sizes.dead == 1)
            wait_until(lambda: any("no luck" in one for one in taken))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert sum('"type":"event"' in one for one in taken) == 1
    assert SECRET not in "".join(taken)
