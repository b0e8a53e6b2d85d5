"""Log deliveries, each with the same fields for machines."""

import logging
from collections.abc import Sequence
from typing import Any

from bide.consuming.handling import Handling
from bide.consuming.policy import Verdict
from bide.model.moments import format_duration
from bide.model.replies import Outcome
from bide.observing.tally import OUTCOMES, Tally

__all__ = [
    "SUMMARY",
    "Summary",
    "apart",
    "lost",
    "overrun",
    "settled",
    "stuck",
    "too_late",
    "unusual",
]  # fmt: skip

SUMMARY = 10.0
"""Seconds between two summaries of a queue."""

QUIET = frozenset({"acked", "discarded", "released"})
"""Outcomes that need no attention: logged one by one at debug only."""

_log = logging.getLogger("bide.worker.delivery")


def settled(
    pairs: Sequence[tuple[Handling, Verdict]], outcomes: Sequence[Outcome], results: Sequence[str]
) -> None:
    """Log the outcomes of messages after the store confirmed them."""
    detailed = _log.isEnabledFor(logging.DEBUG)
    if not detailed and QUIET.issuperset(results):
        return
    for (one, verdict), outcome, result in zip(pairs, outcomes, results, strict=True):
        if not detailed and result in QUIET:
            continue
        first = verdict.reason.partition("\n")[0]
        match result:
            case "lost":
                _log.warning(
                    "%s: handled, but its lease was over: %s", one, outcome,
                    extra=_fields(one, result),
                )  # fmt: skip
            case "dead":
                _log.error(
                    "%s: it is dead now: %s", one, first, extra=_fields(one, result, verdict)
                )
            case "retried":
                _log.warning(
                    "%s: failed, again in %s: %s", one, format_duration(verdict.delay), first,
                    extra=_fields(one, result, verdict),
                )  # fmt: skip
            case "discarded":
                _log.debug("%s: discarded: %s", one, first, extra=_fields(one, result, verdict))
            case "released":
                _log.debug("%s: handed back", one, extra=_fields(one, result))
            case _:
                _log.debug("%s: done in %.1f ms", one, one.took * 1000, extra=_fields(one, result))


class Summary:
    """Logs in one line what was done on a queue since the last summary, if anything.

    Args:
        queue: its name.
        now: in seconds of the monotonic clock.
    """

    def __init__(self, queue: str, now: float) -> None:
        self._queue = queue
        self._since = now
        self._outcomes: dict[str, int] = {}

    def tell(self, tally: Tally, now: float) -> None:
        """Log what was done since the last summary."""
        known, seconds = self._outcomes, now - self._since
        self._outcomes, self._since = dict(tally.outcomes), now
        done = {
            name: count
            for name in OUTCOMES
            if (count := tally.outcomes.get(name, 0) - known.get(name, 0))
        }
        if not done:
            return
        counts = ", ".join(f"{count:,} {name}" for name, count in done.items())
        _log.info(
            "%s: %s in %.0f s; %d running", self._queue, counts, seconds, tally.running,
            extra={"queue": self._queue, "counts": done, "running": tally.running},
        )  # fmt: skip


def lost(one: Handling, why: str) -> None:
    """Log that the lease of a running handler was lost."""
    _log.warning(
        "%s: the lease was lost while %s ran: %s", one, one.handler.name, why,
        extra=_fields(one, "lost"),
    )  # fmt: skip


def apart(one: Handling) -> None:
    """Log that a message is suspected of killing processes."""
    _log.warning(
        "%s: its lease has lapsed too often; it may be what kills its process, and runs without "
        "others like it", one, extra=_fields(one, "suspect"),
    )  # fmt: skip


def overrun(one: Handling, stuck: int, places: int) -> None:
    """Log that a handler continues past its timeout."""
    what, fix = "keeps its thread", "Let it look at delivery.lost, or make it async"
    if one.handler.is_async:
        what, fix = "swallows its cancellation", "Let it raise asyncio.CancelledError again"
    _log.error(
        "%s: %s goes on past its timeout and %s; %d of %d places are taken like that. %s",
        one, one.handler.name, what, stuck, places, fix, extra=_fields(one, "timeout"),
    )  # fmt: skip


def stuck(queue: str) -> None:
    """Log that a queue stands still in this process."""
    _log.error(
        "%s: all its places are taken by handlers that went on past their timeout; nothing more "
        "of it is begun in this process", queue, extra={"queue": queue},
    )  # fmt: skip


def unusual(one: Handling, error: BaseException) -> None:
    """Log that a handler raised an exception that usually ends a program."""
    _log.error(
        "%s: %s raised %r; the worker goes on, and the attempt has failed",
        one, one.handler.name, error, extra=_fields(one, "failed"),
    )  # fmt: skip


def misjudged(one: Handling, error: BaseException, mistake: Exception) -> None:
    """Log that the code of an exception failed itself."""
    _log.error(
        "%s: %s raised a %s whose own code failed", one, one.handler.name, type(error).__name__,
        extra=_fields(one, "failed"), exc_info=mistake,
    )  # fmt: skip


def too_late(one: Handling, error: BaseException | None) -> None:
    """Log that a handler ended whose outcome no longer counts."""
    _log.info(
        "%s: %s has ended (%s), which no longer counts", one, one.handler.name,
        "well" if error is None else type(error).__name__, extra=_fields(one, "late"),
    )  # fmt: skip


def _fields(one: Handling, outcome: str, verdict: Verdict | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "queue": one.message.queue, "id": one.id, "attempt": one.attempt, "outcome": outcome,
        "lateness": round(one.lateness, 3), "duration": round(one.took, 6),
        "handler": one.handler.name,
    }  # fmt: skip
    if verdict is not None:
        fields["reason"] = verdict.reason
    return fields
