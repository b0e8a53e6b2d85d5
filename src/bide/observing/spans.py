"""OpenTelemetry spans: one for what is put, one for each handling, and the context between them.

Only the API is used, and only when the program has imported it and set a provider; who has not,
pays a look into a dictionary and at the time. The context travels in the headers of the message as
W3C Trace Context, whatever the global propagator writes.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from bide.model.commands import Put
from bide.model.message import Message

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

__all__ = ["API", "handling", "sending", "tracer"]

API = "opentelemetry.trace"
"""While this module is not loaded, nobody can have set a provider."""

PARENT = "traceparent"

LOOK_AGAIN = 0.05
"""After how many seconds a provider is looked for again; that costs a tenth of a put."""

_looked = -LOOK_AGAIN
"""When there was none, by the monotonic clock."""


def tracer(*, anew: bool = False) -> "Tracer | None":
    """Return what makes spans; `None` when nobody collects them.

    A provider that a program sets while it puts messages is found within `LOOK_AGAIN` seconds.

    Args:
        anew: look for one, however short ago there was none.
    """
    global _looked
    api: Any = sys.modules.get(API)
    if api is None or (not anew and time.monotonic() < _looked + LOOK_AGAIN):
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider):
        _looked = time.monotonic()
        return None
    return _tracer_of(provider)


@lru_cache(maxsize=8)
def _tracer_of(provider: "TracerProvider") -> "Tracer":
    from importlib.metadata import version

    return provider.get_tracer("bide", version("bide"))


@contextmanager
def sending(made: "Tracer", command: Put) -> Iterator[Put]:
    """Be within the span of a put; what it gives is to be put, with the context in its headers.

    A message that has a `traceparent` of its own keeps it.

    Args:
        made: see `tracer`.
        command: as the caller made it.
    """
    from opentelemetry.propagate import inject
    from opentelemetry.trace import SpanKind

    items = command.items
    attributes = _attributes("put", "send", command.queue)
    if len(items) == 1:
        attributes |= {
            "messaging.message.id": items[0].id,
            "messaging.message.body.size": len(items[0].data),
        }
    else:
        attributes["messaging.batch.message_count"] = len(items)
    name = f"put {command.queue}"
    with made.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes):
        carrier: dict[str, str] = {}
        inject(carrier)
        stamped = [
            item
            if item.headers is not None and PARENT in item.headers
            else msgspec.structs.replace(item, headers={**(item.headers or {}), **carrier})
            for item in items
        ]
        yield msgspec.structs.replace(command, items=stamped)


@contextmanager
def handling(made: "Tracer", message: Message, lateness: float) -> Iterator["Span"]:
    """Be within the span of one handling: a child of the put, and linked to it.

    Args:
        made: see `tracer`.
        message: what is handled.
        lateness: in seconds.
    """
    from opentelemetry.propagate import extract
    from opentelemetry.trace import Link, SpanKind, get_current_span

    context = extract(_text(message.headers))
    origin = get_current_span(context).get_span_context()
    attributes = _attributes("handle", "process", message.queue) | {
        "messaging.message.id": message.id,
        "messaging.message.body.size": len(message.data),
        "bide.message.attempt": message.attempt,
        "bide.message.lateness": round(lateness, 3),
    }
    with made.start_as_current_span(
        f"handle {message.queue}",
        context=context,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(origin)] if origin.is_valid else None,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield span


def _attributes(verb: str, kind: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": "bide",
        "messaging.destination.name": queue,
        "messaging.operation.name": verb,
        "messaging.operation.type": kind,
    }


def _text(headers: Mapping[str, str] | None) -> dict[str, str]:
    return dict(headers or {})
