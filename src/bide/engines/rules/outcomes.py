"""The reply of a command that names messages."""

from collections.abc import Iterable

from bide.model.replies import Outcome, Outcomes


def outcomes_of(outcomes: list[Outcome], opens: Iterable[int] = ()) -> Outcomes:
    """Return the outcomes of a change, with when the first of its messages can be claimed.

    Args:
        outcomes: one for each message.
        opens: when the limits of the queue allow a message again, in Unix milliseconds.
    """
    wake = min(opens, default=None)
    for outcome in outcomes:
        due = outcome.due
        is_earlier = due is not None and (wake is None or due < wake)
        if is_earlier and outcome.done and outcome.state in ("delayed", "ready"):
            wake = due
    return Outcomes(outcomes, wake)
