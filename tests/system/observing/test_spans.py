"""OpenTelemetry spans, as the SDK's own exporter sees them: from the put to the handler."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import bide
from bide.queue import spans
from bide.worker.process.runner import Runner

PATIENCE = 60


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A provider for this test alone: the API lets a program set one only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(spans, "no_look_until", -1.0)
    monkeypatch.setattr(spans, "SENDERS", [])
    yield exporter
    provider.shutdown()


def test_a_provider_is_looked_for_again_after_a_while(
    url: str, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = trace.get_tracer_provider()
    monkeypatch.setattr(spans, "LOOK_AGAIN", 3600.0)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    with bide.Queue("orders", url) as queue:
        queue.put(1)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        queue.put(2)
        assert named(exported, "put orders") == []
        monkeypatch.setattr(spans, "no_look_until", -1.0)
        queue.put(3)
        assert len(named(exported, "put orders")) == 1


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bide.db'}"


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@asynccontextmanager
async def at_work(app: bide.App) -> AsyncIterator[bide.AsyncQueue]:
    ready = asyncio.Event()
    runner = Runner(app, ready=ready.set)
    task = asyncio.create_task(runner.run())
    await asyncio.wait_for(ready.wait(), PATIENCE)
    async with bide.AsyncQueue("orders", app.url) as queue:
        yield queue
    runner.stop(hurry=True)
    await task


async def until_gone(queue: bide.AsyncQueue, acked: int = 0, dead: int = 0) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            counts = await queue.counts()
            if counts.flow.acked == acked and counts.sizes.dead == dead:
                return
            await asyncio.sleep(0.005)


def test_a_put_has_a_span_of_its_producer(exported: InMemorySpanExporter, url: str) -> None:
    with bide.Queue("orders", url) as queue:
        queue.put({"order": 1}, id="order-1", delay="1h")
        message = queue.get("order-1")
    (span,) = exported.get_finished_spans()
    assert (span.name, span.kind) == ("put orders", SpanKind.PRODUCER)
    assert facts(span) == {
        "messaging.system": "bide",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "put",
        "messaging.operation.type": "send",
        "messaging.message.id": "order-1",
        "messaging.message.body.size": 11,
    }
    assert message is not None
    assert message.headers is not None
    assert message.headers["traceparent"].split("-")[1:3] == [
        f"{span.context.trace_id:032x}",
        f"{span.context.span_id:016x}",
    ]


def test_many_puts_share_a_span(exported: InMemorySpanExporter, url: str) -> None:
    own = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

    async def story() -> list[bide.Message]:
        async with bide.AsyncQueue("orders", url) as queue:
            await queue.put_many(
                [bide.NewMessage(1, headers={"a": "b"}), bide.NewMessage(2, headers=own)]
            )
            return await queue.peek()

    first, second = asyncio.run(story())
    (span,) = exported.get_finished_spans()
    assert facts(span)["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in facts(span)
    assert first.headers is not None
    assert set(first.headers) == {"a", "traceparent"}
    assert second.headers == own


def test_a_put_that_fails_says_so_in_its_span(exported: InMemorySpanExporter) -> None:
    with bide.Queue("orders", "sqlite:////no/such/folder/bide.db") as queue:
        with pytest.raises(bide.StoreUnavailable):
            queue.put(1)
    (span,) = exported.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.events[0].name == "exception"


def test_a_put_that_the_store_answers_with_no_is_no_failed_span(
    exported: InMemorySpanExporter, url: str
) -> None:
    async def put_twice() -> None:
        async with bide.AsyncQueue("orders", url) as queue:
            with pytest.raises(bide.AlreadyExists):
                await queue.put(1, id="order-1", on_conflict="raise")

    with bide.Queue("orders", url) as queue:
        queue.put(1, id="order-1", on_conflict="raise")
        with pytest.raises(bide.AlreadyExists):
            queue.put(1, id="order-1", on_conflict="raise")
        queue.close_group("order:2", keep="1d")
        with pytest.raises(bide.GroupClosed):
            queue.put(1, id="order-2", group="order:2", on_conflict="raise")
    asyncio.run(put_twice())
    all_spans = exported.get_finished_spans()
    assert [(span.status.status_code, span.events) for span in all_spans] == [
        (StatusCode.UNSET, ())
    ] * 4


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_handler_goes_on_in_the_trace_of_the_put(
    exported: InMemorySpanExporter, url: str, kind: str
) -> None:
    app = bide.App(url)
    inside: list[trace.SpanContext] = []

    async def handle(body: int) -> None:
        inside.append(trace.get_current_span().get_span_context())

    def handle_plainly(body: int) -> None:
        inside.append(trace.get_current_span().get_span_context())

    app.handler("orders")(handle if kind == "async" else handle_plainly)

    async def story() -> None:
        async with at_work(app) as queue:
            await queue.put(1, id="order-1")
            await until_gone(queue, acked=1)

    asyncio.run(story())
    (put,), (handled,) = named(exported, "put orders"), named(exported, "handle orders")
    assert handled.kind is SpanKind.CONSUMER
    assert handled.parent is not None
    assert handled.parent.span_id == put.context.span_id
    assert [link.context.span_id for link in handled.links] == [put.context.span_id]
    assert inside == [handled.context]
    assert handled.context.trace_id == put.context.trace_id
    told = facts(handled)
    assert told["messaging.operation.type"] == "process"
    assert (told["messaging.message.id"], told["bide.message.attempt"]) == ("order-1", 1)
    assert told["bide.message.lateness"] >= 0
    assert told["code.function.name"].endswith("handle" if kind == "async" else "handle_plainly")
    assert handled.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("error", "status", "event", "dead"),
    [
        (ValueError("odd"), StatusCode.ERROR, "exception", 1),
        (bide.Bury("forged"), StatusCode.ERROR, "exception", 1),
        (bide.Discard("paid"), StatusCode.UNSET, "discard", 0),
        (bide.Retry("closed", delay=0), StatusCode.UNSET, "retry", 1),
    ],
)
def test_what_comes_out_of_a_handler_is_told(
    exported: InMemorySpanExporter,
    url: str,
    error: Exception,
    status: StatusCode,
    event: str,
    dead: int,
) -> None:
    app = bide.App(url)

    @app.handler("orders", retry=bide.Backoff(attempts=1))
    async def handle(body: int) -> None:
        raise error

    async def story() -> None:
        async with at_work(app) as queue:
            await queue.put(1)
            await until_gone(queue, acked=1 - dead, dead=dead)

    asyncio.run(story())
    (handled,) = named(exported, "handle orders")
    assert handled.status.status_code is status
    assert [one.name for one in handled.events] == [event]
    if status is StatusCode.ERROR:
        assert facts(handled)["error.type"] == type(error).__qualname__


def told_of_a_timeout(exported: InMemorySpanExporter, app: bide.App) -> None:
    """Let a handler run into its timeout, and look at its span."""

    async def story() -> None:
        async with at_work(app) as queue:
            await queue.put(1)
            await until_gone(queue, dead=1)

    asyncio.run(story())
    (handled,) = named(exported, "handle orders")
    assert handled.status.status_code is StatusCode.ERROR
    assert facts(handled)["error.type"] == "TimeoutError"


def test_a_timeout_is_an_error(exported: InMemorySpanExporter, url: str) -> None:
    app = bide.App(url)

    @app.handler("orders", timeout=0.05, retry=bide.Backoff(attempts=1))
    async def handle(body: int) -> None:
        await asyncio.sleep(60)

    told_of_a_timeout(exported, app)


@pytest.mark.parametrize("late", [None, bide.Discard("late"), bide.Retry("late")])
def test_a_timeout_is_an_error_whatever_the_handler_does_later(
    exported: InMemorySpanExporter, url: str, late: Exception | None
) -> None:
    app = bide.App(url)

    @app.handler("orders", timeout=0.05, retry=bide.Backoff(attempts=1))
    def handle(delivery: bide.Handling) -> None:
        assert delivery.lost.wait(PATIENCE)
        if late is not None:
            raise late

    told_of_a_timeout(exported, app)


def test_a_message_without_a_trace_begins_one(exported: InMemorySpanExporter, url: str) -> None:
    app = bide.App(url)

    @app.handler("orders")
    async def handle(body: int) -> None: ...

    async def story() -> None:
        async with at_work(app) as queue:
            header = {"traceparent": "of no use"}
            await queue.put_many([bide.NewMessage(1, headers=header)])
            await until_gone(queue, acked=1)

    asyncio.run(story())
    (handled,) = named(exported, "handle orders")
    assert (handled.parent, list(handled.links)) == (None, [])


def test_whoever_claims_by_hand_finds_the_context(exported: InMemorySpanExporter, url: str) -> None:
    with bide.Queue("orders", url) as queue:
        queue.put(1)
        (delivery,) = queue.claim()
        context = propagate.extract(delivery.message.headers or {})
        origin = trace.get_current_span(context).get_span_context()
        delivery.ack()
    (put,) = named(exported, "put orders")
    assert origin.span_id == put.context.span_id


def test_nothing_is_written_while_nobody_collects(url: str) -> None:
    assert not spans.is_traced()
    with bide.Queue("orders", url) as queue:
        queue.put(1, id="order-1")
        message = queue.get("order-1")
    assert message is not None
    assert message.headers is None


def test_nothing_is_imported_where_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, spans.API)
    assert not spans.is_traced()
    assert spans.API not in sys.modules
