"""What the worker's log says about deliveries, each with the same fields for machines."""

import logging
from collections.abc import Sequence
from typing import Any

from bide.model.moments import format_duration
from bide.model.replies import Outcome
from bide.worker.delivery import Handling
from bide.worker.desk import ACK, Verdict

__all__ = ["lost", "overrun", "settled", "too_late", "unusual"]

_log = logging.getLogger("bide.worker.delivery")


def settled(pairs: Sequence[tuple[Handling, Verdict]], outcomes: Sequence[Outcome]) -> None:
    """Say what became of messages, once the store has it."""
    informed = _log.isEnabledFor(logging.INFO)
    if not informed and all(
        outcome.done and verdict is ACK
        for (_, verdict), outcome in zip(pairs, outcomes, strict=True)
    ):
        return
    for (one, verdict), outcome in zip(pairs, outcomes, strict=True):
        if not outcome.done:
            _log.warning(
                "%s: handled, but its lease was over: %s", one, outcome,
                extra=_fields(one, "lost"),
            )  # fmt: skip
            continue
        first = verdict.reason.partition("\n")[0]
        if verdict.verb == "bury" or outcome.state == "dead":
            _log.error("%s: it is dead now: %s", one, first, extra=_fields(one, "dead", verdict))
        elif verdict.verb == "retry":
            _log.warning(
                "%s: failed, again in %s: %s", one, format_duration(verdict.delay), first,
                extra=_fields(one, "retried", verdict),
            )  # fmt: skip
        elif informed and verdict.verb == "release":
            _log.info("%s: handed back", one, extra=_fields(one, "released"))
        elif informed and verdict.discarded:
            _log.info("%s: discarded: %s", one, first, extra=_fields(one, "discarded"))
        elif informed:
            _log.info(
                "%s: done in %.1f ms", one, one.took * 1000,
                extra=_fields(one, "acked"),
            )  # fmt: skip


def lost(one: Handling, why: str) -> None:
    """Say that a lease was lost under a running handler."""
    _log.warning(
        "%s: the lease was lost while %s ran: %s", one, one.handler.name, why,
        extra=_fields(one, "lost"),
    )  # fmt: skip


def overrun(one: Handling, stuck: int, places: int) -> None:
    """Say that a plain handler did not end in its time, and goes on in its thread."""
    _log.error(
        "%s: %s goes on past its timeout and keeps its thread; %d of %d places are taken like "
        "that. Let it look at delivery.lost, or make it async",
        one, one.handler.name, stuck, places, extra=_fields(one, "timeout"),
    )  # fmt: skip


def unusual(one: Handling, error: BaseException) -> None:
    """Say that something came out of a handler that usually ends a program."""
    _log.error(
        "%s: %s raised %r; the worker goes on, and the attempt has failed",
        one, one.handler.name, error, extra=_fields(one, "failed"),
    )  # fmt: skip


def too_late(one: Handling, error: BaseException | None) -> None:
    """Say that a handler has ended whose outcome no longer counts."""
    _log.info(
        "%s: %s has ended (%s), which no longer counts", one, one.handler.name,
        "well" if error is None else type(error).__name__, extra=_fields(one, "late"),
    )  # fmt: skip


def _fields(one: Handling, outcome: str, verdict: Verdict | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "queue": one.message.queue, "id": one.id, "attempt": one.attempt, "outcome": outcome,
        "lateness": round(one.lateness, 3), "handler": one.handler.name,
    }  # fmt: skip
    if one.took:
        fields["duration"] = round(one.took, 6)
    if verdict is not None:
        fields["reason"] = verdict.reason
    return fields
