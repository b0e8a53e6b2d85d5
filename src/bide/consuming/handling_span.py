"""The span of a handling. Imported once a provider of OpenTelemetry is set."""

import asyncio
from collections.abc import Awaitable, Callable

from opentelemetry.propagate import extract
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, get_current_span

from bide.consuming.handling import Handling
from bide.consuming.outcomes import Discard, Retry
from bide.observing.opentelemetry import messaging_attributes, tracer


async def handling_span(handling: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
    """Run a handler in a span: a child of the span of the put, linked to it."""
    message = handling.message
    context = extract(dict(message.headers or {}))
    origin = get_current_span(context).get_span_context()
    attributes = messaging_attributes("handle", "process", message.queue) | {
        "messaging.message.id": message.id,
        "messaging.message.body.size": len(message.data),
        "bide.message.attempt": message.attempt,
        "bide.message.lateness": round(handling.lateness, 3),
        "code.function.name": handling.handler.name,
    }
    with tracer().start_as_current_span(
        f"handle {message.queue}",
        context=context,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(origin)] if origin.is_valid else None,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            await go_on()
        except BaseException as error:
            _record(span, handling, error)
            raise
        if handling.overran:  # a plain handler, which was not interrupted
            _failed(span, "TimeoutError")


def _record(span: Span, handling: Handling, error: BaseException) -> None:
    """Record in the span what the handler raised; an outcome that it chose is not an error."""
    match error:
        case Discard() if not handling.overran:
            span.add_event("discard", {"reason": str(error)})
        case Retry() if not handling.overran:
            span.add_event("retry", {"reason": error.reason})
        case asyncio.CancelledError() if not handling.timed_out:
            span.add_event("interrupted")  # the worker stops, or its lease was lost
        case _:
            span.record_exception(error)
            _failed(span, "TimeoutError" if handling.timed_out else type(error).__qualname__)


def _failed(span: Span, name: str) -> None:
    """Mark a span as failed with the name of an error."""
    span.set_attribute("error.type", name)
    span.set_status(StatusCode.ERROR, name)
