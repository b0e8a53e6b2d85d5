"""What runs around each delivery, outside of the app's middleware: spans, and integrations."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bide.consuming.handler import Middleware, Unwanted
from bide.consuming.handling import Handling
from bide.consuming.outcomes import Discard, Retry
from bide.observing.spans import handling, tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

INTEGRATIONS: list[Middleware] = []
"""Middleware that an integration such as `bide.contrib.sentry` adds to every app of the process."""


def traced(around: tuple[Middleware, ...]) -> tuple[Middleware, ...]:
    """Return the middleware with integrations around it, and a span if spans are collected."""
    made = tracer()
    spans = () if made is None else (_middleware(made),)
    return (*spans, *INTEGRATIONS, *around)


def _middleware(made: "Tracer") -> Middleware:
    async def trace(one: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
        with handling(made, one.message, one.lateness) as span:
            span.set_attribute("code.function.name", one.handler.name)
            try:
                await go_on()
            except BaseException as error:
                _tell(span, one, error)
                raise
            if one.timed_out:  # a plain handler, which was not interrupted
                _failed(span, "TimeoutError")

    return trace


def _tell(span: "Span", one: Handling, error: BaseException) -> None:
    """Record in the span what the handler raised; an outcome that it chose is not an error."""
    match error:
        case Discard() | Unwanted():
            span.add_event("discard", {"reason": str(error)})
        case Retry():
            span.add_event("retry", {"reason": error.reason})
        case asyncio.CancelledError() if not one.timed_out:
            span.add_event("interrupted")  # the worker stops, or its lease was lost
        case _:
            span.record_exception(error)
            _failed(span, "TimeoutError" if one.timed_out else type(error).__qualname__)


def _failed(span: "Span", name: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", name)
    span.set_status(StatusCode.ERROR, name)
