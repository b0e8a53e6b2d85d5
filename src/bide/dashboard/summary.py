"""What pages show of messages in lists: no bodies, headers or tracebacks.

What a template was rendered with stays in memory until the collector of reference cycles runs, and
results that several visitors share stay for seconds. So neither gets a message.
"""

import msgspec

from bide.dashboard.redaction import Redaction
from bide.model.message import Message, Progress, State
from bide.observing.seen_runs import is_held, repeats

LONGEST = 160
"""How many characters of the last error a list shows."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a list. Times are Unix milliseconds."""

    id: str
    queue: str
    """Its name in the store."""
    state: State
    due: int
    until: int | None
    """When its lease ends."""
    ended: int | None
    """When it became dead, acked or expired."""
    priority: int
    attempt: int
    attempts: int
    group: str | None
    holder: str | None
    is_stopping: bool
    """Whether the holder was asked to stop."""
    rule: str | None
    """By which rule it repeats, as text; `None`: it does not."""
    is_held: bool
    """Whether it repeats and waits until it is resumed."""
    progress: Progress | None
    """The last report of the holder."""
    error: str
    """The beginning of the first line of its last error."""
    preview: str
    """The beginning of its body, as far as the visitor may see it."""


def summary_of(message: Message, shown: Redaction | None = None) -> Summary:
    """Return the summary of a message.

    Args:
        message: the message.
        shown: what the visitor may see of its body; `None`: nothing.
    """
    return Summary(
        id=message.id,
        queue=message.queue,
        state=message.state,
        due=message.due,
        until=message.until,
        ended=message.ended,
        priority=message.priority,
        attempt=message.attempt,
        attempts=message.attempts,
        group=message.group,
        holder=message.holder,
        is_stopping=message.stopping is not None,
        rule=message.rule if repeats(message) else None,
        is_held=is_held(message),
        progress=message.progress,
        # One character more shows the template that it is cut.
        error=(message.error or "").partition("\n")[0][: LONGEST + 1],
        preview="" if shown is None else shown.preview(message),
    )
