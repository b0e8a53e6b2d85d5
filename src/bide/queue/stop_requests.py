"""How a plain handler learns that its message was cancelled: its next call of bide raises.

A thread cannot be interrupted, so whoever runs a handler in one notes here what to ask first.
"""

from contextvars import ContextVar
from typing import Protocol


class MayBeStopped(Protocol):
    """Work that somebody may ask to stop."""

    def raise_if_stopping(self) -> None:
        """Raise `StopRequested`, once, if somebody has."""


CURRENT: ContextVar[MayBeStopped | None] = ContextVar("bide-current-work", default=None)
"""The work that runs in this context, if it can be stopped in this way."""
