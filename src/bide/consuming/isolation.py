"""Run messages that may kill a process one at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from bide.consuming.handling import Handling
from bide.model.message import Message

PAUSE = 0.5
"""The shortest delay, in seconds, of a suspect that may not start yet."""

SPACING = 0.02
"""Seconds between the due times of two released suspects: however many there are, each process
claims at most fifty of them a second."""


def is_suspect(message: Message) -> bool:
    """Tell whether a message, as it was claimed, may be what kills processes.

    The lease of a suspect's last attempt expired; so did the one before, or this is its last
    attempt. A message that only ran beside a suspect, or in a process that was killed from outside,
    has one expired lease: it runs as usual.

    Example:
        >>> from bide.model.message import LAPSED, Failure
        >>> lapses = (Failure(1, 0, "web1:431", LAPSED), Failure(2, 0, "web1:431", LAPSED))
        >>> third = Message("m", "q", b"1", True, 0, 0, 3, 10, "leased", failures=lapses)
        >>> is_suspect(third)
        True
    """
    is_last_attempt = message.attempt >= message.attempts
    return _lapsed_before(message, 1) and (is_last_attempt or _lapsed_before(message, 2))


def _lapsed_before(message: Message, back: int) -> bool:
    """Tell whether the lease of the attempt `back` before this one expired."""
    if len(message.failures) < back:
        return False
    failure = message.failures[-back]
    # A failure before a revival does not count: the attempts started again from 0.
    return failure.lapsed and failure.attempt == message.attempt - back


class CrashIsolation:
    """Lets one suspect run at a time in this process, over all its queues.

    The others are released with a short delay. If they stayed here and the running one killed the
    process, all their leases would expire; without a delay they would be claimed again at once.
    The one that runs starts when the store has confirmed the release of the others.
    """

    def __init__(self) -> None:
        self._suspect: Handling | None = None
        """The one that may run."""
        self._last_due = 0.0
        """The latest time at which a released suspect is due, by the monotonic clock."""
        self._releasing: set[Handling] = set()
        """Suspects whose release the store has not confirmed."""
        self._confirmed = asyncio.Event()

    def admit(self, handling: Handling) -> bool:
        """Tell whether a suspect may start; if so, no other may until it has left."""
        # One whose outcome is ignored is settled: even if its handler never ends, others may start.
        if self._suspect is not None and not self._suspect.outcome_ignored:
            return False
        self._suspect = handling
        return True

    def leave(self, handling: Handling) -> None:
        """Admit the next suspect if this delivery, which has ended or was released, was one."""
        if self._suspect is handling:
            self._suspect = None

    def wait_of(self, handling: Handling) -> Callable[[], Awaitable[None]] | None:
        """Return what a delivery must await before it starts; `None`: it is not the suspect."""
        return self._others_released if self._suspect is handling else None

    async def _others_released(self) -> None:
        """Wait until the store has confirmed the release of all other suspects."""
        while self._releasing:
            self._confirmed.clear()
            await self._confirmed.wait()

    def release(self, handling: Handling, now: float, chance: float) -> int:
        """Return the delay, in milliseconds, with which a suspect is released.

        Args:
            handling: it may not start, and counts as held here until `settled`.
            now: by the monotonic clock.
            chance: 0 to 1, so that several processes do not claim at the same time.
        """
        self._releasing.add(handling)
        self._last_due = max(self._last_due, now + PAUSE) + SPACING
        return round((self._last_due - now + PAUSE * chance) * 1000)

    def note_settled(self, deliveries: Iterable[Handling]) -> None:
        """Note that the store holds these no longer for this process."""
        if self._releasing:
            self._releasing.difference_update(deliveries)
            self._confirmed.set()
