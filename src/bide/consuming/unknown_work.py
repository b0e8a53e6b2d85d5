"""Messages of a task or a job that this worker does not know: a newer worker may.

In a rolling deploy, old workers claim what new code has put. They release it with a delay that
grows, and no attempt counts. What nobody has known for an hour becomes a dead letter.
"""

from bide.consuming.handling import Handling
from bide.consuming.verdict import Verdict
from bide.model.message import Failure

SHORTEST_DELAY = 10_000
LONGEST_DELAY = 600_000
"""The delays of a release, in milliseconds: they grow from the shortest to the longest."""

GIVEN_UP = 3_600_000
"""How long, in milliseconds, workers release a message that none of them knows."""

UNKNOWN = "unknown work: "
"""How the reason of such a release begins."""


def settle_unknown(handling: Handling, what: str) -> Verdict:
    """Return how to settle a message that this worker has no handler for.

    Args:
        handling: its delivery.
        what: what the message is, and what the worker knows, in words.

    Example:
        >>> from types import SimpleNamespace
        >>> from bide.consuming.handling import Handler
        >>> from bide.model.message import Message
        >>> message = Message("m", "q", b"1", True, 0, 0, 1, 10, "leased")
        >>> handling = Handling(message, 1, 5_000, Handler("f", print, False), SimpleNamespace())
        >>> settle_unknown(handling, "the task 'expire'").delay
        10000
    """
    since = unknown_since(handling.message.failures)
    waited = 0 if since is None else handling.claimed - since
    if waited >= GIVEN_UP:
        return Verdict("dead", reason=f"no worker has known this work for an hour: {what}")
    delay = min(max(SHORTEST_DELAY, waited // 2), LONGEST_DELAY)
    return Verdict("released", delay, f"{UNKNOWN}{what}")


def unknown_since(failures: tuple[Failure, ...]) -> int | None:
    """Return since when workers have released a message as unknown, in Unix milliseconds.

    `None`: the last one did not, or the message became a dead letter then, and was revived: workers
    release it for another hour. The delays grow so fast that an hour of releases is remembered.
    """
    since = None
    for failure in reversed(failures):
        if not failure.reason.startswith(UNKNOWN):
            break
        since = failure.moment
    return since
