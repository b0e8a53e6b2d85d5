"""What follows from a change of a message: its successor, and its group if that is closed.

When a lease ends, the successor of the message takes its place. Nothing waits in a closed group:
what would is cancelled. Puts into closed groups are refused by `bide.engines.rules.putting`.
"""

from msgspec.structs import replace

from bide.engines.rules.change import WAITING, Change, Facts, finished
from bide.engines.rules.putting import follow_with_successor
from bide.model.replies import Outcome


def with_consequences(change: Change, facts: Facts) -> list[Change]:
    """Return a change of a message, and the changes that follow from it.

    - If the change ends a lease and the message has a successor, the successor takes its place.
    - A message that would wait in a closed group after that is cancelled instead.
    - A successor that would wait in a closed group is removed. The message ends as it would without
      a successor; but it does not wait again, since the successor was to be delivered in its place.
    """
    steps = [change]
    if change.ends_lease:
        steps += follow_with_successor(change)
    waiting = steps[-1].after
    if waiting is None or waiting is change.before or waiting.state not in WAITING:
        return steps
    until = facts.closed_until(waiting.group)
    if until is None:
        return steps
    after = change.after
    if after is None or after.state not in WAITING:  # it is its successor that would wait
        return [replace(change, after=None if after is None else replace(after, successor=None))]
    outcome = Outcome(after.id, True)
    if not change.ends_lease:  # then its caller has asked for something else
        outcome = Outcome(after.id, False, "closed", until=until)
    cancelled = finished(after, "cancelled", None, facts)
    counts = ("lapsed", "cancelled") if "lapsed" in change.counts else ("cancelled",)
    return [replace(cancelled, before=change.before, counts=counts, outcome=outcome)]
