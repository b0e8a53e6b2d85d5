"""Spans of OpenTelemetry: its tracer, and the spans of puts. Imported once a provider is set."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from opentelemetry.propagate import inject
from opentelemetry.trace import SpanKind, Tracer, TracerProvider, get_tracer_provider

from bide.model.commands import Put
from bide.observing.trace_context import PARENT, stamped


def tracer() -> Tracer:
    """Return the tracer of bide."""
    return _tracer_of(get_tracer_provider())


@lru_cache(maxsize=8)
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("bide", version("bide"))


@contextmanager
def sending_span(command: Put) -> Iterator[Put]:
    """Open the span of a put, and yield the put with its context in the messages' headers."""
    items = command.items
    attributes = messaging_attributes("put", "send", command.queue)
    if len(items) == 1:
        (item,) = items
        attributes |= {
            "messaging.message.id": item.id,
            "messaging.message.body.size": len(item.data),
        }
    else:
        attributes["messaging.batch.message_count"] = len(items)
    name = f"put {command.queue}"
    with tracer().start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes):
        carrier: dict[str, str] = {}
        inject(carrier)
        yield stamped(command, carrier, PARENT)


def messaging_attributes(verb: str, kind: str, queue: str) -> dict[str, Any]:
    """Return what the spans of puts and handlings tell of a queue."""
    return {
        "messaging.system": "bide",
        "messaging.destination.name": queue,
        "messaging.operation.name": verb,
        "messaging.operation.type": kind,
    }
