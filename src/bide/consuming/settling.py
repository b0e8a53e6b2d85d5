"""Settle messages: how each one ends, and in batches all that ended since the last batch.

Only `Settling` waits and uses the store.
"""

import asyncio
import logging
import traceback
from collections.abc import Iterable
from pathlib import Path

from bide.consuming import delivery_log
from bide.consuming import outcomes as signals
from bide.consuming.batching import BatchFailed
from bide.consuming.handler import UNWANTED, NotAwaited, Unfit
from bide.consuming.handling import Handler, Handling
from bide.consuming.outcomes import text_of
from bide.consuming.store_client import StoreClient
from bide.consuming.verdict import ACK, Pairs, Verdict
from bide.model.backoff import Backoff
from bide.model.commands import Ack, BuryCommand, Command, Renew, RetryCommand
from bide.model.ended import encode_result
from bide.model.limits import MAX_BYTES, MAX_RESULT
from bide.model.message import REASON_LENGTH, Message
from bide.model.replies import Outcome, Outcomes
from bide.model.times import format_duration
from bide.observing.tally import Result
from bide.queue.delivery import innermost, next_runs

FIRST_LINE = 1_000
"""The maximum length of the first line of a reason, in characters."""
RESULTS_MOST = MAX_BYTES // MAX_RESULT
"""The maximum number of acks with results in one command: a server takes it in one request."""

HERE = str(Path(__file__).parent)
"""The folder of the worker's own code, whose frames are left out of reasons."""


def to_extend(held: Iterable[Handling], now: float, beat: float) -> list[Handling]:
    """Return the deliveries whose lease to extend at this beat.

    A beat is a third of the lease. A lease that would have less than a beat left at the next one is
    extended now: so one beat may be missed, and messages that were just claimed cost nothing.

    Args:
        held: deliveries whose lease is needed.
        now: by the monotonic clock, in seconds.
        beat: in seconds.
    """
    return [handling for handling in held if handling.expires - now <= 2 * beat]


def judge(message: Message, error: BaseException, retry: Backoff, chance: float) -> Verdict:
    """Return how to settle a message whose handler raised.

    Args:
        message: as it was claimed; its attempt and attempts count.
        error: what the handler raised.
        retry: of the handler.
        chance: 0 to 1, for the jitter.
    """
    is_last_attempt = message.attempt >= min(retry.attempts, message.attempts)
    match error:
        case signals.Discard():
            return Verdict("discarded", reason=text_of(error) or UNWANTED)
        case signals.Bury():
            return Verdict("dead", reason=text_of(error.reason or "buried by its handler"))
        case signals.Retry():
            reason = text_of(error.reason or "its handler asked for another attempt")
            pause = retry.delay(message.attempt, chance)
            if error.delay is not None:
                pause = int(error.delay)
        case BatchFailed():
            return Verdict("released", reason=str(error)[:REASON_LENGTH])
        case Unfit():
            return Verdict("dead", reason=f"Unfit: {error}"[:REASON_LENGTH])
        case NotAwaited():
            return Verdict("dead", reason=describe(error))
        case _:
            reason = describe(error)
            if isinstance(error, Exception) and not retry.covers(error):
                return Verdict("dead", reason=reason)
            pause = retry.delay(message.attempt, chance)
    if is_last_attempt:
        return Verdict("dead", reason=reason)
    return Verdict("retried", pause, reason)


def judge_delivery(handling: Handling, error: BaseException, chance: float) -> Verdict:
    """Return how to settle a delivery whose handler raised, even if the error itself fails."""
    retry = handling.handler.retry
    if isinstance(error, asyncio.CancelledError) and handling.timed_out:
        error = overtime(handling.handler)
    try:
        return judge(handling.message, error, retry, chance)
    except Exception as failure:  # noqa: BLE001  (code of a user's exception)
        reason = f"{type(error).__name__} was raised, and its own code failed: {describe(failure)}"
        return judge(handling.message, signals.Retry(reason[:REASON_LENGTH]), retry, chance=0.5)


def overtime(handler: Handler) -> TimeoutError:
    """Return the error of an attempt that took too long."""
    allowed = format_duration((handler.timeout or 0) * 1000)
    return TimeoutError(f"{handler.name} took longer than its timeout of {allowed}")


def describe(error: BaseException) -> str:
    """Return an error as text: type and message in the first line, then the end of the traceback.

    Frames of the worker itself are left out. The text fits into the reason of a failure.
    """
    cause, note = innermost(error)
    lines = "".join(traceback.format_exception_only(cause)).strip().splitlines()
    first = (lines[0] if lines else type(cause).__name__)[:FIRST_LINE] + note
    whole = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in whole.stack if not frame.filename.startswith(HERE)]
    whole.stack = traceback.StackSummary.from_list(frames)
    text = "".join(whole.format()).strip() if frames or error.__cause__ else ""
    room = REASON_LENGTH - len(first) - 1
    if not text:
        return first
    if len(text) > room:
        text = "...\n" + text[4 - room :]
    return f"{first}\n{text}"


def result(handling: Handling, verdict: Verdict, outcome: Outcome) -> Result:
    """Return how a delivery ended, in one word.

    One that was settled in a transaction of the user's has ended so if the store has no lease of it
    any more: it was committed before the handler raised.
    """
    if not outcome.done:
        return handling.joined or "lost"
    if outcome.state is None and verdict.outcome in ("retried", "released", "dead"):
        return "cancelled"  # its worker was asked to stop
    return "dead" if outcome.state == "dead" else verdict.outcome


def commands(queue: str, pairs: Pairs) -> list[tuple[Command, Pairs]]:
    """Return the fewest commands that settle these messages, each with its messages."""
    by_verdict: dict[Verdict, Pairs] = {}
    for handling, verdict in pairs:
        store_verdict = ACK if verdict.outcome == "discarded" else verdict
        by_verdict.setdefault(store_verdict, []).append((handling, verdict))
    commands: list[tuple[Command, Pairs]] = []
    for store_verdict, alike in by_verdict.items():
        most = RESULTS_MOST if any(handling.result for handling, _ in alike) else len(alike)
        for start in range(0, len(alike), most):
            part = alike[start : start + most]
            commands.append((_command(queue, store_verdict, part), part))
    return commands


def _command(queue: str, verdict: Verdict, pairs: Pairs) -> Command:
    """Return the command that settles messages which all have one verdict."""
    leases = [handling.lease for handling, _ in pairs]
    reason = verdict.reason.encode(errors="backslashreplace").decode()  # may have a surrogate
    match verdict.outcome:
        case "retried" | "released":
            release = verdict.outcome == "released"
            return RetryCommand(queue, leases, verdict.delay, reason, release=release)
        case "dead":
            return BuryCommand(queue, leases, reason)
        case _:
            encoded = [handling.result for handling, _ in pairs]
            results = encoded if any(encoded) else []
            runs = next_runs([handling for handling, _ in pairs])
            if runs is not None:
                return Renew(queue, leases, runs, results=results)
            return Ack(queue, leases, results)


class Settling:
    """Collects the outcomes of one queue, and sends them to the store.

    Args:
        queue: its name.
        store_client: runs its commands on the store.
    """

    def __init__(self, queue: str, store_client: StoreClient) -> None:
        self.keeps_results = False
        """Whether the queue remembers results, as the last claim with messages said."""
        self._queue = queue
        self._store_client = store_client
        self.pairs: Pairs = []
        """What the store has not confirmed yet."""
        self._has_pairs = asyncio.Event()

    def add(self, handling: Handling, verdict: Verdict) -> None:
        """Settle a message with the next batch."""
        if self.keeps_results and handling.returned is not None:
            encode_returned(handling)
        self.pairs.append((handling, verdict))
        self._has_pairs.set()

    async def settle_all(self) -> list[tuple[Pairs, list[Outcome]]]:
        """Wait for deliveries, and settle them; retry as long as the store is unavailable.

        Returns:
            The deliveries of each command, with the outcomes from the store.
        """
        await self._has_pairs.wait()
        count = len(self.pairs)  # more may come while the store works on these
        parts = commands(self._queue, self.pairs)
        replies = await asyncio.gather(
            *[self._store_client.patiently(Outcomes, command) for command, _ in parts]
        )
        del self.pairs[:count]
        if not self.pairs:  # else more have come meanwhile
            self._has_pairs.clear()
        return [(pairs, reply.outcomes) for (_, pairs), reply in zip(parts, replies, strict=True)]


def encode_returned(handling: Handling) -> bool:
    """Encode what a handler has returned; one that cannot be stored is left out of the ack.

    Returns:
        Whether it can be stored.
    """
    try:
        handling.result = encode_result(handling.returned)
    except Exception as error:  # noqa: BLE001  (code of a user's class, such as a property)
        delivery_log.log(
            logging.ERROR,
            handling,
            "result",
            "%s returned what cannot be kept as its result: %s",
            handling.handler.name,
            text_of(error) or type(error).__name__,
        )
        return False
    return True
