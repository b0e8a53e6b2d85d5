"""How to settle a message after its handler has run."""

from typing import NamedTuple

from bide.consuming.handling import Handling
from bide.observing.tally import Result


class Verdict(NamedTuple):
    """How to settle a message."""

    outcome: Result
    """"discarded": acked without the work, which was no longer wanted."""
    delay: int = 0
    """For a retry or a release, in milliseconds."""
    reason: str = ""


ACK = Verdict("acked")

RELEASE = Verdict("released")
"""The message is ready again at once, and no attempt is counted."""

STOPPED_WORKER = "interrupted: its worker stopped"
"""The reason of the release of a run that had begun: so it does not count as missed."""


def interruption(handling: Handling) -> Verdict:
    """Return how to settle a message whose handler runs while its worker stops."""
    return RELEASE._replace(reason=STOPPED_WORKER) if handling.message.repeats else RELEASE


Pairs = list[tuple[Handling, Verdict]]
"""Deliveries, and how to settle their messages."""
