"""The counters of the store beside what the journals tell."""

from collections import Counter
from collections.abc import Iterable, Sequence

from bide.model.replies import Counts
from bide.testing.history.journal import Event
from bide.testing.history.violation import Violation

COUNTED = ("put", "ack", "cancel")
"""The verbs whose numbers the store counts, too."""


def check_counts(journals: Sequence[Iterable[Event]], counts: Counts) -> list[Violation]:
    """Return where the counters of a queue cannot be what the journals tell.

    What was confirmed must be counted, and nothing may be counted that nobody tried. All that is in
    the queue must be named as left.

    Args:
        journals: of all processes that used the queue, from its beginning.
        counts: of the queue at the end.
    """
    confirmed: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    left: set[str] = set()
    closed: set[str] = set()
    grouped: Counter[str] = Counter()
    for journal in journals:
        for event in journal:
            verb = event.get("tries")
            if verb in COUNTED:
                tried[verb] += _size(event)
                if verb == "put" and event.get("group") is not None:
                    grouped[event["group"]] += _size(event)
            elif verb == "close":
                closed.add(event["group"])
            verb = event.get("did")
            if verb in COUNTED and event.get("done", True):
                confirmed[verb] += _size(event)
            elif verb == "left":
                left.update(event["ids"])
    # To close a group cancels what is in it.
    tried["cancel"] += sum(count for group, count in grouped.items() if group in closed)
    flow = counts.flow
    participles = {"put": "put", "ack": "acked", "cancel": "cancelled"}
    problems = [
        f"{counted:,} were {participles[verb]} by the counters of the store: "
        f"{confirmed[verb]:,} confirmed, {tried[verb]:,} tried"
        for verb, counted in zip(COUNTED, (flow.put, flow.acked, flow.cancelled), strict=True)
        if not confirmed[verb] <= counted <= tried[verb]
    ]
    if counts.sizes.total != len(left):
        problems.append(f"{counts.sizes.total:,} are left by the counters, {len(left):,} are there")
    return [Violation("audit", problem) for problem in problems]


def _size(event: Event) -> int:
    """Return how many messages an event is about."""
    return len(event["ids"]) if "ids" in event else 1
