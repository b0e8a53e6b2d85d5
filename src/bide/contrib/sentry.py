"""Sentry: an event for each message that dies, with its handler, queue and attempt.

    sentry_sdk.init(dsn=..., integrations=[BideIntegration()])

Call it where the module of the app is imported, so that each worker process does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import sentry_sdk
from sentry_sdk.consts import OP
from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.tracing import Span, Transaction, TransactionSource
from sentry_sdk.utils import event_from_exception

from bide.consuming import settling
from bide.consuming.handler import Unfit
from bide.consuming.handling import Handling
from bide.consuming.outcomes import Discard, Retry
from bide.consuming.run import INTEGRATIONS
from bide.model.commands import Put
from bide.model.errors import InvalidArgument, UnreadableBody
from bide.model.message import MAX_ATTEMPTS
from bide.observing.trace_context import stamped
from bide.queue import spans

ORIGIN = "auto.queue.bide"
"""What has made a span or a transaction, in Sentry's terms."""

TRACE = ("sentry-trace", "baggage")
"""The headers of a message that continue the trace of its put."""

FILTERED = "[Filtered]"


class BideIntegration(Integration):
    """Reports failures of handlers to Sentry, and continues traces from a put to its handler.

    A failure that is retried is no event by default; the death of the message is. A message that
    dies because its leases expired is reported through the log, which the SDK collects.
    Bodies are not sent: events of handlers have no local variables, and an error that quotes a body
    has no text.

    Args:
        report: "dead" reports a failure if it makes the message a dead letter; "failed" reports
            every failed attempt.
        send_bodies: send the body of the message, local variables and all texts, too.
        propagate_traces: put the trace into the headers of messages.

    Raises:
        InvalidArgument: `report` is something else.
    """

    identifier = "bide"
    origin = ORIGIN

    def __init__(
        self, report: str = "dead", *, send_bodies: bool = False, propagate_traces: bool = True
    ) -> None:
        if report not in ("dead", "failed"):
            raise InvalidArgument(f"report={report!r} must be 'dead' or 'failed'")
        self.report = report
        self.send_bodies = send_bodies
        self.propagate_traces = propagate_traces

    @staticmethod
    def setup_once() -> None:
        """Hook into the worker and the queues of this process. The SDK calls it once."""
        ignore_logger("bide.worker.delivery")  # its errors are the failures reported here
        INTEGRATIONS.append(_watch)
        spans.SENDERS.append(_publishing)
        # Puts ask their senders from now on, also where they had found no tracer before.
        spans.library, spans.no_look_until = sentry_sdk.__name__, -1.0


def _active() -> BideIntegration | None:
    """Return the integration of the current client; `None`: it has none."""
    integration = sentry_sdk.get_client().get_integration(BideIntegration)
    return integration if isinstance(integration, BideIntegration) else None


async def _watch(handling: Handling, go_on: Callable[[], Awaitable[None]]) -> None:
    """Run around each delivery, in a scope and a transaction of its own."""
    integration = _active()
    if integration is None:
        return await go_on()
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        scope.set_tag("bide.queue", handling.message.queue)
        scope.set_context("bide", _about(handling, integration))
        if not integration.send_bodies:
            scope.add_event_processor(_without_bodies)
        headers = handling.message.headers or {}
        transaction = sentry_sdk.continue_trace(
            {name: headers[name] for name in TRACE if name in headers},
            op=OP.QUEUE_PROCESS,
            name=handling.handler.name,
            source=TransactionSource.TASK,
            origin=ORIGIN,
        )
        with _started(transaction) as span:
            for name, value in _span_data(handling).items():
                span.set_data(name, value)
            try:
                await go_on()
            except BaseException as error:
                failure = _failure(handling, error)
                is_chosen = failure is None or isinstance(failure, Retry)
                span.set_status("ok" if is_chosen else "internal_error")
                if failure is not None and _is_reported(integration, handling, failure):
                    _capture(failure)
                raise
            if handling.overran:  # a plain handler, which was not interrupted
                overtime = settling.overtime(handling.handler)
                span.set_status("deadline_exceeded")
                if _is_reported(integration, handling, overtime):
                    _capture(overtime)


@contextmanager
def _started(transaction: Transaction) -> Iterator[Span]:
    """Start a transaction, and finish it with the status that was set.

    Its own end would count each exception as an error.
    """
    span = sentry_sdk.start_transaction(transaction)
    span.__enter__()
    try:
        yield span
    finally:
        span.__exit__(None, None, None)


def _failure(handling: Handling, error: BaseException) -> BaseException | None:
    """Return the error of an attempt; `None` if it was discarded, or its handler was stopped.

    A `Retry` is returned too: if this was the last attempt, it is why the message died.
    """
    if handling.overran:
        return settling.overtime(handling.handler)
    match error:
        case Discard():
            return None
        case asyncio.CancelledError():
            return settling.overtime(handling.handler) if handling.timed_out else None
    return error


def _is_reported(integration: BideIntegration, handling: Handling, error: BaseException) -> bool:
    """Tell whether to report a failure: at the end, or each one if there is no end."""
    is_endless = handling.handler.retry.attempts >= MAX_ATTEMPTS  # as sources have
    reports_all = is_endless or integration.report == "failed"
    chance = 0.5  # for the jitter of a delay, which does not matter here
    verdict = settling.judge(handling.message, error, handling.handler.retry, chance)
    # A `Retry` is no failure: the handler has chosen to run again. Neither is a message of a batch
    # that failed: it is released, and delivered again alone.
    is_failure = verdict.outcome == "retried" and not isinstance(error, Retry)
    return verdict.outcome == "dead" or (reports_all and is_failure)


def _capture(error: BaseException) -> None:
    """Send an error to Sentry."""
    event, hint = event_from_exception(
        (type(error), error, error.__traceback__),
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": "bide", "handled": False},
    )
    sentry_sdk.capture_event(event, hint=hint)


def _about(handling: Handling, integration: BideIntegration) -> dict[str, Any]:
    """Return what an event says of the message."""
    message = handling.message
    about: dict[str, Any] = {
        "queue": message.queue,
        "id": message.id,
        "attempt": message.attempt,
        "attempts": message.attempts,
        "group": message.group,
        "lateness": round(handling.lateness, 3),
    }
    if integration.send_bodies and message.json:
        with suppress(UnreadableBody):  # the error of the handler says so
            about["body"] = message.body
    return about


def _span_data(handling: Handling) -> dict[str, Any]:
    """Return what a span says of the message, by the names that Sentry has for queues."""
    return {
        "messaging.system": "bide",
        "messaging.destination.name": handling.message.queue,
        "messaging.message.id": handling.message.id,
        "messaging.message.body.size": len(handling.message.data),
        "messaging.message.retry.count": handling.message.attempt - 1,
        "messaging.message.receive.latency": round(handling.lateness * 1000, 3),
    }


def _without_bodies(event: Any, hint: Mapping[str, Any]) -> Any:
    """Take from an event what may quote the body of the message."""
    _, error, _ = hint.get("exc_info") or (None, None, None)
    quotes_body = isinstance(error, Unfit)
    for value in (event.get("exception") or {}).get("values") or ():
        if quotes_body:
            value["value"] = FILTERED
        for frame in (value.get("stacktrace") or {}).get("frames") or ():
            frame.pop("vars", None)
    return event


@contextmanager
def _publishing(command: Put) -> Iterator[Put]:
    """Yield a put that carries the trace, within a span if there is a transaction."""
    integration = _active()
    if integration is None or not integration.propagate_traces:
        yield command
        return
    with ExitStack() as stack:
        if sentry_sdk.get_current_span() is not None:
            span = stack.enter_context(
                sentry_sdk.start_span(op=OP.QUEUE_PUBLISH, name=command.queue, origin=ORIGIN)
            )
            span.set_data("messaging.system", "bide")
            span.set_data("messaging.destination.name", command.queue)
            if len(command.items) == 1:
                span.set_data("messaging.message.id", command.items[0].id)
                span.set_data("messaging.message.body.size", len(command.items[0].data))
        trace = dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers())
        yield stamped(command, trace, TRACE[0])
