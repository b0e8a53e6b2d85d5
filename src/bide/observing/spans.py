"""OpenTelemetry spans: one for each put, with its context in the headers of the messages.

Only the API is used, and only if the program has imported it and set a provider; otherwise the cost
of a put is one dictionary lookup and one clock reading. The context travels in the headers of the
message, as the global propagator writes it: by default W3C Trace Context and baggage.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec

from bide.model.commands import Put

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

API = "opentelemetry.trace"
"""Until this module is loaded, no provider can be set."""

PARENT = "traceparent"

LOOK_AGAIN = 1.0
"""Seconds between two looks for who wants spans of puts; a look costs a tenth of a put."""

Sender = Callable[[Put], AbstractContextManager[Put]]

SENDERS: list[Sender] = []
"""Spans that an integration such as `bide.contrib.sentry` opens around each put of the process;
they yield the put as it is to be sent."""

library = API
"""Until this module is loaded, puts have no spans. An integration sets its own."""

none_until = -1.0
"""Until this time, by the monotonic clock, puts do not look for a tracer: there was none."""


def are_possible() -> bool:
    """Tell whether a put may have spans; `sending` finds out."""
    return library in sys.modules and time.monotonic() > none_until


def tracer() -> "Tracer | None":
    """Return the tracer; `None` if no provider is set."""
    api: Any = sys.modules.get(API)
    if api is None or isinstance(provider := api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return _tracer_of(provider)


@lru_cache(maxsize=8)
def _tracer_of(provider: "TracerProvider") -> "Tracer":
    from importlib.metadata import version

    return provider.get_tracer("bide", version("bide"))


@contextmanager
def sending(command: Put) -> Iterator[Put]:
    """Open the spans of a put; yield the command with their context in the messages' headers.

    A provider that a program sets while it puts messages is found within `LOOK_AGAIN` seconds.
    """
    global none_until
    made = tracer()
    senders: list[Sender] = SENDERS if made is None else [partial(_sending, made), *SENDERS]
    if not senders:
        none_until = time.monotonic() + LOOK_AGAIN
    with ExitStack() as opened:
        for sender in senders:
            command = opened.enter_context(sender(command))
        yield command


def stamped(command: Put, context: Mapping[str, str], mark: str) -> Put:
    """Return a put with this context in the headers of its messages.

    A message that has the header `mark` keeps its own; no header of a message is replaced.
    """
    items = [
        item
        if mark in (item.headers or {})
        else msgspec.structs.replace(item, headers={**context, **(item.headers or {})})
        for item in command.items
    ]
    return msgspec.structs.replace(command, items=items)


@contextmanager
def _sending(made: "Tracer", command: Put) -> Iterator[Put]:
    from opentelemetry.propagate import inject
    from opentelemetry.trace import SpanKind

    items = command.items
    attributes = messaging_attributes("put", "send", command.queue)
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
        yield stamped(command, carrier, PARENT)


def messaging_attributes(verb: str, kind: str, queue: str) -> dict[str, Any]:
    """Return what the spans of puts and handlings tell of a queue."""
    return {
        "messaging.system": "bide",
        "messaging.destination.name": queue,
        "messaging.operation.name": verb,
        "messaging.operation.type": kind,
    }
