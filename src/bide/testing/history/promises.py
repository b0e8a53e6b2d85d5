"""What bide promises of one message, as rules for its history."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from bide.testing.history.message_history import (
    RETURNING,
    SETTLING,
    ClaimedHold,
    Histories,
    MessageHistory,
    TriedCall,
)
from bide.testing.history.store_clock import StoreClock
from bide.testing.history.violation import Violation

Explanation = Literal["killed", "unknown", "lapsed", "unexplained"]
"""Why a message was delivered again:

- "killed": its holder was killed before it had acked.
- "unknown": the answer to its ack was lost.
- "lapsed": its holder did not ack within the lease.
- "unexplained": its holder was refused an ack within the lease, or somebody else got it meanwhile.
"""

Rule = Iterator[tuple[str, str]]
"""Yields the kind of each violation, and what happened to the message."""


class Judge:
    """Holds the history of a message against each promise.

    Args:
        histories: of all messages.
        clock: of the store.
    """

    def __init__(self, histories: Histories, clock: StoreClock) -> None:
        self._histories = histories
        self._clock = clock

    def violations(self, message: MessageHistory) -> list[Violation]:
        """Return which promises were broken for a message."""
        rules = (
            self._lost(message),
            self._never_put_or_altered(message),
            self._early(message),
            self._two_holders(message),
            self._after_ack(message),
            self._after_cancel(message),
            self._after_close(message),
            self._refused_within_lease(message),
        )
        return [
            Violation(kind, f"{message.id} {what}", message.id)
            for rule in rules
            for kind, what in rule
        ]

    def explanations(self, message: MessageHistory) -> list[Explanation]:
        """Return for each second delivery of a message what explains it.

        A message that its holder gave back was not delivered twice.
        """
        return [
            self._explain(message, first, second)
            for first, second in pairwise(message.holds)
            if not any(call.may_be_done for call in message.of_hold(first, *RETURNING))
        ]

    def _lost(self, message: MessageHistory) -> Rule:
        """A confirmed message ends in a way that somebody tried, or is left."""
        ways_out = [call for call in message.named("ack", "cancel", "bury") if call.may_be_done]
        is_confirmed = any(call.done for call in message.named("put"))
        is_closed = message.group in self._histories.perhaps_closed
        if not is_confirmed or ways_out or message.is_left or is_closed:
            return
        if not message.holds:
            yield "lost", "was confirmed and never delivered"
        else:
            yield "lost", "was confirmed and delivered, but never acked, and is gone"

    def _never_put_or_altered(self, message: MessageHistory) -> Rule:
        """What is delivered is what was put."""
        if message.holds and not message.named("put"):
            yield "never put", "was delivered and never put"
        for hold in message.holds:
            if hold.altered:
                yield "altered", f"was delivered at {hold.now} with another body than it was put"

    def _early(self, message: MessageHistory) -> Rule:
        """No delivery is before the due time: that of the message, and that which was confirmed."""
        for hold in message.holds:
            confirmed = _confirmed_due(message, hold)
            if hold.due is not None and hold.now < hold.due:
                yield "early", f"was delivered at {hold.now}, {_before(hold.now, hold.due)}"
            elif confirmed is not None and hold.now < confirmed:
                yield (
                    "early",
                    f"was delivered at {hold.now}, {_before(hold.now, confirmed)}, "
                    "as the store had confirmed",
                )

    def _two_holders(self, message: MessageHistory) -> Rule:
        """A lease is over, or given up, before the next one begins."""
        for first, second in pairwise(message.holds):
            gave_back = any(call.may_be_done for call in message.of_hold(first, *RETURNING))
            is_acked = any(call.done for call in message.of_hold(first, "ack"))
            if second.now < first.until and not gave_back and not is_acked:
                yield (
                    "two holders",
                    f"was claimed by {second.process} at {second.now}, "
                    f"but {first.process} held it until {first.until}",
                )
            if second.token <= first.token:
                yield "token", f"was claimed with token {second.token} after {first.token}"

    def _after_ack(self, message: MessageHistory) -> Rule:
        """An ack that returned true is the end, and there is one."""
        acks = [call for call in message.named("ack") if call.done]
        if len(acks) > 1:
            yield "acked twice", f"was acked {len(acks)} times"
        if not acks:
            return
        ack = acks[0]
        last = max(message.holds, key=lambda hold: hold.token, default=None)
        if last is not None and ack.token is not None and last.token > ack.token:
            yield "acked", f"was delivered at {last.now}, after its ack at {ack.answered}"
        if any(call.done for call in message.named("cancel")):
            yield "acked and cancelled", "was acked and cancelled: one of the answers is wrong"
        if message.is_left:
            yield "not gone", f"was acked at {ack.answered}, and is still there"

    def _after_cancel(self, message: MessageHistory) -> Rule:
        """A cancel that returned true is final, and is true only if nobody holds the message."""
        cancels = [call for call in message.named("cancel") if call.done]
        if not cancels:
            return
        cancel = cancels[0]
        assert cancel.answered is not None
        for hold in message.holds:
            if self._is_after(hold, cancel.answered):
                yield (
                    "cancelled",
                    f"was delivered at {hold.now}, after its cancel at {cancel.answered}",
                )
            elif self._is_held_at(message, hold, cancel):
                yield (
                    "cancelled",
                    f"was held by {hold.process} until {hold.until}, "
                    f"and its cancel at {cancel.answered} returned true",
                )
        if message.is_left:
            yield "not gone", f"was cancelled at {cancel.answered}, and is still there"

    def _after_close(self, message: MessageHistory) -> Rule:
        """When a group is closed, nothing of it is delivered."""
        closed = self._histories.closed.get(message.group or "")
        if closed is None:
            return
        for hold in message.holds:
            if self._is_after(hold, closed):
                yield (
                    "closed",
                    f"was delivered at {hold.now}, after its group was closed at {closed}",
                )

    def _refused_within_lease(self, message: MessageHistory) -> Rule:
        """An ack within the lease is accepted."""
        for first, second in pairwise(message.holds):
            is_acked = any(call.done for call in message.of_hold(first, "ack"))
            if is_acked or second.now < first.until:
                continue  # other rules
            if self._explain(message, first, second) == "unexplained":
                yield (
                    "unexplained",
                    f"was delivered again at {second.now}, though {first.process} tried to ack it "
                    f"within its lease, until {first.until}",
                )

    def _explain(
        self, message: MessageHistory, first: ClaimedHold, second: ClaimedHold
    ) -> Explanation:
        """Return why a message was delivered again."""
        acks = message.of_hold(first, "ack")
        if second.now < first.until or any(call.done for call in acks):
            return "unexplained"
        if first.process in self._histories.killed:
            return "killed"
        if any(call.done is None for call in acks):
            return "unknown"
        is_extended = bool(message.of_hold(first, "extend"))
        for call in acks:
            assert call.answered is not None
            if not is_extended and call.answered - first.tried < first.lease:
                return "unexplained"
        return "lapsed"

    def _is_after(self, hold: ClaimedHold, at: int) -> bool:
        """Whether a delivery surely came after a time of a process.

        A claim that waits is tried long before: then the clocks have to tell.
        """
        return hold.tried > at or self._clock.is_after(hold.now, at)

    def _is_held_at(self, message: MessageHistory, hold: ClaimedHold, cancel: TriedCall) -> bool:
        """Whether a message was surely held, or delivered later, when a cancel returned true."""
        assert cancel.answered is not None
        ends = [call.tried for call in message.of_hold(hold, *SETTLING, "extend")]
        is_in_lease = cancel.answered < hold.tried + hold.lease
        return (
            self._clock.is_steady
            and is_in_lease
            and not any(tried <= cancel.answered for tried in ends)
        )


def _before(now: int, due: int) -> str:
    return f"{due - now:,} ms before it was due"


def _confirmed_due(message: MessageHistory, hold: ClaimedHold) -> int | None:
    """Return the earliest due time that a message may have had when it was delivered.

    Only calls that were answered before the claim count. `None`: it is not known.
    """
    calls = [call for call in message.named("put", "reschedule") if call.may_be_done]
    dues: list[int] = []
    for call in calls:
        if any(_replaces(later, call, hold) for later in calls):
            continue
        if call.due is None or call.answered is None or call.answered > hold.tried:
            return None
        dues.append(call.due)
    return min(dues, default=None)


def _replaces(later: TriedCall, call: TriedCall, hold: ClaimedHold) -> bool:
    """Whether a call has surely set another due time after a call, and before a delivery."""
    is_between = (
        call.answered is not None
        and later.answered is not None
        and call.answered < later.tried
        and later.answered <= hold.tried
    )
    return is_between and later is not call and later.done is True and later.verb == "reschedule"
