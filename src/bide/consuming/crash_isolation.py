"""Run messages that may have killed a process one at a time."""

from bide.consuming.handling import Handling
from bide.model.message import Message

__all__ = ["CrashIsolation", "is_suspect"]

PAUSE = 0.5
"""A suspect that may not begin is due again after so many seconds at least."""

SPACING = 0.02
"""So many seconds lie between two that are handed back: however many there are, each process sees
fifty of them a second at most."""


def is_suspect(message: Message) -> bool:
    """Tell whether a message, as it was claimed, may be what kills processes.

    Its last attempt ended in a lapse, and the one before did too, or no attempt comes after this
    one. Who was merely beside another when that killed their process has one lapse, and so has who
    was held by a process that was killed from outside: they run as always.

    Example:
        >>> from bide.model.message import LAPSED, Failure
        >>> lapses = (Failure(1, 0, "web1:431", LAPSED), Failure(2, 0, "web1:431", LAPSED))
        >>> third = Message("m", "q", b"1", True, 0, 0, 3, 10, "leased", failures=lapses)
        >>> is_suspect(third)
        True
    """
    failures = message.failures
    if not failures or not _lapsed_before(message, 1):
        return False
    return message.attempt >= message.attempts or _lapsed_before(message, 2)


def _lapsed_before(message: Message, back: int) -> bool:
    """Tell whether the attempt so many before this one ended in a lapse."""
    if len(message.failures) < back:
        return False
    failure = message.failures[-back]
    # One of before a revival is not counted: it has all its attempts anew.
    return failure.lapsed and failure.attempt == message.attempt - back


class CrashIsolation:
    """Lets one suspect run at a time in this process, over all its queues.

    The others are handed back untouched, to be due a little later: held here they would lapse
    together with the one that kills the process, and handed back at once they would be claimed
    again at once.
    """

    def __init__(self) -> None:
        self._one: Handling | None = None
        self._free_from = 0.0

    def admit(self, one: Handling) -> bool:
        """Tell whether a suspect may begin; if so, it is the only one until it has left."""
        # What no longer counts has been settled: should it never end, the others need not wait.
        if self._one is not None and not self._one.gone:
            return False
        self._one = one
        return True

    def left(self, one: Handling) -> None:
        """A delivery, suspect or not, has ended or was handed back."""
        if self._one is one:
            self._one = None

    def delay(self, now: float, chance: float) -> int:
        """Return in how many milliseconds one that may not begin is due again.

        Args:
            now: by the monotonic clock.
            chance: 0 to 1, so that several processes do not ask at the same moments.
        """
        self._free_from = max(self._free_from, now + PAUSE) + SPACING
        return round((self._free_from - now + PAUSE * chance) * 1000)
