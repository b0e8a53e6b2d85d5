"""Holds the journals of all processes against what bide promises."""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec

from bide.testing.history.journal import Event, JournalFile
from bide.testing.history.message_history import Histories, MessageHistory
from bide.testing.history.promises import Explanation, Judge
from bide.testing.history.store_clock import StoreClock
from bide.testing.history.story import stories_of
from bide.testing.history.violation import Violation

PART_BYTES = 64 << 20
"""How much of the journals is checked at a time: the histories of a part are in memory."""

STORIES = 20
"""How many violations are told with their story."""


class CheckedHistory(msgspec.Struct):
    """What a check has found, and the figures of the history. True if no promise was broken."""

    violations: list[Violation] = []
    confirmed: int = 0
    """Messages whose put was confirmed."""
    delivered: int = 0
    """Deliveries."""
    acked: int = 0
    """Messages whose ack was confirmed."""
    cancelled: int = 0
    """Messages whose cancel returned true."""
    twice: dict[Explanation, int] = {}
    """Second deliveries by what explains them: see `Explanation`."""
    lateness: list[int] = []
    """How late each message was delivered for the first time, in milliseconds, sorted."""

    def __bool__(self) -> bool:
        return not self.violations

    @property
    def explained(self) -> int:
        """Second deliveries that are explained."""
        return sum(self.twice.values()) - self.unexplained

    @property
    def unexplained(self) -> int:
        """Second deliveries that nothing explains."""
        return self.twice.get("unexplained", 0)

    def of_kind(self, *kinds: str) -> int:
        """Return how many violations are of these kinds."""
        return sum(violation.kind in kinds for violation in self.violations)

    def late(self, part: float) -> int:
        """Return the lateness, in milliseconds, below which a part of the deliveries stay.

        Example:
            >>> CheckedHistory(lateness=[1, 2, 3, 90]).late(0.5)
            3
        """
        if not self.lateness:
            return 0
        return self.lateness[min(len(self.lateness) - 1, int(len(self.lateness) * part))]


def check(
    journals: Sequence[Iterable[Event]], *, advance: Callable[[int], object] = lambda part: None
) -> CheckedHistory:
    """Return which promises were broken, and the figures of the history.

    The queue must have been drained at the end: a message that is still there has to be in an event
    `left`, or it counts as lost.

    Args:
        journals: one for each process: see `journals_in`. Each is read several times. The history
            of many messages is checked in parts, so that memory is no limit.
        advance: is called with 1 after each of the parts; see `parts_of`.

    Example:
        >>> put = {"did": "put", "ids": ["a"], "at": 0}
        >>> delivery = {"id": "a", "until": 30_005, "due": 5, "attempt": 1}
        >>> claim = {"did": "claim", "now": 4, "token": 1, "messages": [delivery], "at": 4}
        >>> ack = {"did": "ack", "id": "a", "token": 1, "done": True, "at": 6}
        >>> for violation in check([[put, claim, ack]]).violations:
        ...     print(violation.what)
        a was delivered at 4, 1 ms before it was due
    """
    clock = StoreClock(journals)
    result = CheckedHistory(violations=list(clock.violations))
    twice: Counter[Explanation] = Counter()
    parts = parts_of(journals)
    for part in range(parts):
        histories = Histories(journals, _chooser(part, parts))
        judge = Judge(histories, clock)
        for message in histories.messages.values():
            result.violations += judge.violations(message)
            twice.update(judge.explanations(message))
            _measure(message, result)
        advance(1)
    result.twice = dict(twice)
    result.lateness.sort()
    result.violations = _with_stories(result.violations, journals)
    return result


def parts_of(journals: Sequence[Iterable[Event]]) -> int:
    """Return in how many parts journals are checked: by the size of their files."""
    size = sum(journal.size for journal in journals if isinstance(journal, JournalFile))
    return 1 + size // PART_BYTES


def _chooser(part: int, parts: int) -> Callable[[str], bool]:
    """Return what tells whether a message belongs to a part: each belongs to one."""
    if parts == 1:
        return lambda id: True
    return lambda id: zlib.crc32(id.encode()) % parts == part


def _measure(message: MessageHistory, result: CheckedHistory) -> None:
    """Add one message to the figures."""
    result.confirmed += any(call.done for call in message.named("put"))
    result.acked += any(call.done for call in message.named("ack"))
    result.cancelled += any(call.done for call in message.named("cancel"))
    result.delivered += len(message.holds)
    if message.holds:
        first = message.holds[0]
        # One that was tried before is late by the lease or the delay of that attempt.
        if first.due is not None and first.attempt in (None, 1):
            result.lateness.append(max(0, first.now - first.due))


def _with_stories(
    violations: list[Violation], journals: Sequence[Iterable[Event]]
) -> list[Violation]:
    """Return violations of which the first have their story; each kind has some of them."""
    by_kind: dict[str, list[str]] = {}
    for violation in violations:
        if violation.id is not None:
            by_kind.setdefault(violation.kind, []).append(violation.id)
    share = 1 + STORIES // max(1, len(by_kind))
    ids = {id for named in by_kind.values() for id in islice(named, share)}
    if not ids:
        return violations
    stories = stories_of(ids, journals)
    told = [
        msgspec.structs.replace(violation, story=stories[violation.id])
        if violation.id in stories
        else violation
        for violation in violations
    ]
    return sorted(told, key=lambda violation: not violation.story)
