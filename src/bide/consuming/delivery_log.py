"""Log deliveries, each with the same fields for machines."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bide.consuming.handling import Handling
from bide.model.replies import Outcome
from bide.model.times import format_duration
from bide.observing.tally import OUTCOMES, Tally

if TYPE_CHECKING:
    from bide.consuming.settling import Verdict

SUMMARY = 10.0
"""Seconds between two summaries of a queue."""

QUIET = frozenset({"acked", "discarded", "released"})
"""Outcomes that need no attention: logged one by one at debug only."""

_log = logging.getLogger("bide.worker.delivery")


def settled(
    pairs: Sequence[tuple[Handling, "Verdict"]], outcomes: Sequence[Outcome], results: Sequence[str]
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
                level, text = logging.WARNING, f"handled, but its lease was over: {outcome}"
            case "dead":
                level, text = logging.ERROR, f"it is dead now: {first}"
            case "retried":
                level = logging.WARNING
                text = f"failed, again in {format_duration(verdict.delay)}: {first}"
            case "discarded":
                level, text = logging.DEBUG, f"discarded: {first}"
            case "released":
                level, text = logging.DEBUG, "handed back"
            case _:
                level, text = logging.DEBUG, f"done in {one.took * 1000:.1f} ms"
        fields = _fields(one, result, verdict if verdict.reason else None)
        _log.log(level, "%s: %s", one, text, extra=fields)


def lasting(one: Handling, seconds: float) -> None:
    """Warn of a handler that has run for longer than its `warn_after`."""
    tell(
        logging.WARNING, one, "running", "%s has run for %s, and goes on",
        one.handler.name, format_duration(seconds * 1000),
    )  # fmt: skip


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


def tell(
    level: int, one: Handling, outcome: str, text: str, *arguments: object, **more: Any
) -> None:
    """Log something about one delivery; `text` follows its id, queue and attempt.

    Args:
        level: of `logging`.
        one: the delivery.
        outcome: the field of this name.
        text: a format of `logging`.
        arguments: of the format.
        more: passed on to `logging`.
    """
    _log.log(level, f"%s: {text}", one, *arguments, extra=_fields(one, outcome), **more)


def overrun(one: Handling, stuck: int, places: int) -> None:
    """Log that a handler continues past its timeout."""
    what, fix = "keeps its thread", "Let it look at delivery.lost, or make it async"
    if one.handler.is_async:
        what, fix = "swallows its cancellation", "Let it raise asyncio.CancelledError again"
    tell(
        logging.ERROR, one, "timeout",
        "%s goes on past its timeout and %s; %d of %d places are taken like that. %s",
        one.handler.name, what, stuck, places, fix,
    )  # fmt: skip


def _fields(one: Handling, outcome: str, verdict: "Verdict | None" = None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "queue": one.message.queue, "id": one.id, "attempt": one.attempt, "outcome": outcome,
        "lateness": round(one.lateness, 3), "duration": round(one.took, 6),
        "handler": one.handler.name,
    }  # fmt: skip
    if verdict is not None:
        fields["reason"] = verdict.reason
    return fields


def raised(one: Handling, error: BaseException) -> None:
    """Log that a handler raised what is no exception of a program, such as `SystemExit`."""
    text = "%s raised %s; the worker goes on, and the attempt has failed"
    tell(logging.ERROR, one, "failed", text, one.handler.name, type(error).__name__)


def misjudged(one: Handling, error: BaseException, mistake: Exception) -> None:
    """Log that the exception of a handler has failed itself."""
    text, how = "%s raised a %s whose own code failed", (one.handler.name, type(error).__name__)
    tell(logging.ERROR, one, "failed", text, *how, exc_info=mistake)
