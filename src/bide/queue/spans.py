"""OpenTelemetry spans: one for each put, with its context in the headers of the messages.

Only the API is used, and only if the program has imported it and set a provider; otherwise the cost
of a put is one dictionary lookup and one clock reading. The context travels in the headers of the
message, as the global propagator writes it: by default W3C Trace Context and baggage.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from bide.model.commands import Put

API = "opentelemetry.trace"
"""Until this module is loaded, no provider can be set."""

LOOK_AGAIN = 1.0
"""Seconds between two looks for who wants spans of puts; a look costs a tenth of a put."""

Sender = Callable[[Put], AbstractContextManager[Put]]

SENDERS: list[Sender] = []
"""Spans that an integration such as `bide.contrib.sentry` opens around each put of the process;
they yield the put as it is to be sent."""

library = API
"""Until this module is loaded, puts have no spans. An integration sets its own."""

no_look_until = -1.0
"""Until this time, by the monotonic clock, puts do not look for a tracer: there was none."""


def are_possible() -> bool:
    """Tell whether a put may have spans; `sending` finds out."""
    return library in sys.modules and time.monotonic() > no_look_until


def is_traced() -> bool:
    """Tell whether the program has set a provider of spans."""
    api: Any = sys.modules.get(API)
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


@contextmanager
def sending(command: Put) -> Iterator[Put]:
    """Open the spans of a put; yield the command with their context in the messages' headers.

    If nothing opens spans, puts do not look again for `LOOK_AGAIN` seconds. A provider of tracers
    that the program sets meanwhile is found after that.
    """
    global no_look_until
    senders = SENDERS
    if is_traced():
        from bide.observing.opentelemetry import sending_span  # here: the package may be missing

        senders = [sending_span, *SENDERS]
    if not senders:
        no_look_until = time.monotonic() + LOOK_AGAIN
    with ExitStack() as open_spans:
        for sender in senders:
            command = open_spans.enter_context(sender(command))
        yield command
