"""Log deliveries, each with the same fields for machines."""

import logging
from collections.abc import Sequence
from typing import Any

from bide.consuming.handling import Handling
from bide.consuming.unknown_work import UNKNOWN
from bide.consuming.verdict import Verdict
from bide.logs import logger
from bide.model.replies import Outcome
from bide.model.times import format_duration
from bide.observing.tally import OUTCOMES, Tally

SUMMARY = 10.0
"""Seconds between two summaries of a queue."""

QUIET = frozenset({"acked", "discarded", "released"})
"""Outcomes that need no attention: logged one by one at debug only."""

_log = logger("bide.worker.delivery")


def log_settled(pairs: Sequence[tuple[Handling, Verdict]], outcomes: Sequence[Outcome]) -> None:
    """Log the outcomes of messages after the store confirmed them."""
    detailed = _log.isEnabledFor(logging.DEBUG)
    for (handling, verdict), outcome in zip(pairs, outcomes, strict=True):
        first_line = verdict.reason.partition("\n")[0]
        is_unknown = handling.outcome == "released" and first_line.startswith(UNKNOWN)
        if not detailed and handling.outcome in QUIET and not is_unknown:
            continue
        level, text = {
            "lost": (logging.WARNING, f"handled, but its lease was over: {outcome}"),
            "dead": (logging.ERROR, f"it is dead now: {first_line}"),
            "retried": (
                logging.WARNING,
                f"failed, again in {format_duration(verdict.delay)}: {first_line}",
            ),
            "cancelled": (logging.INFO, "cancelled while it ran"),
            "discarded": (logging.DEBUG, f"discarded: {first_line}"),
            "released": (
                (
                    logging.WARNING,
                    f"released, again in {format_duration(verdict.delay)}: {first_line}",
                )
                if is_unknown
                else (logging.DEBUG, "released")
            ),
            "acked": (logging.DEBUG, f"done in {handling.took * 1000:.1f} ms"),
        }[handling.outcome]
        fields = _fields(handling, handling.outcome) | (
            {"reason": verdict.reason} if verdict.reason else {}
        )
        _log.log(level, "%s: %s", handling, text, extra=fields)


class DeliverySummary:
    """Logs in one line what was done on a queue since the last summary, if anything.

    Args:
        queue: its name.
        now: in seconds of the monotonic clock.
    """

    def __init__(self, queue: str, now: float) -> None:
        self._queue = queue
        self._since = now
        """When the last summary was made, by the monotonic clock."""
        self._outcomes: dict[str, int] = {}
        """How often each outcome had come until then."""

    def log(self, tally: Tally, now: float) -> None:
        """Log what was done since the last summary."""
        earlier, seconds = self._outcomes, now - self._since
        self._outcomes, self._since = dict(tally.outcomes), now
        changes = {name: tally.outcomes.get(name, 0) - earlier.get(name, 0) for name in OUTCOMES}
        counts = {name: count for name, count in changes.items() if count}
        if not counts:
            return
        text = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        _log.info(
            "%s: %s in %.0f s; %d running",
            self._queue,
            text,
            seconds,
            tally.running,
            extra={"queue": self._queue, "counts": counts, "running": tally.running},
        )


def log(level: int, handling: Handling, outcome: str, text: str, *arguments: object) -> None:
    """Log something about one delivery; `text` follows its id, queue and attempt.

    Args:
        level: of `logging`.
        handling: the delivery.
        outcome: the field of this name.
        text: a format of `logging`.
        arguments: of the format.
    """
    _log.log(level, f"%s: {text}", handling, *arguments, extra=_fields(handling, outcome))


def _fields(handling: Handling, outcome: str) -> dict[str, Any]:
    """Return the fields that each line about a delivery has, for logs as JSON."""
    return {
        "queue": handling.message.queue,
        "id": handling.id,
        "attempt": handling.attempt,
        "outcome": outcome,
        "lateness": round(handling.lateness, 3),
        "duration": round(handling.took, 6),
        "handler": handling.handler.name,
    }
