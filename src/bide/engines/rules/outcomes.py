"""The reply of a command that names messages."""

from collections.abc import Iterable

from bide.model.replies import Outcome, Outcomes


def outcomes_of(outcomes: list[Outcome], opens: Iterable[int] = ()) -> Outcomes:
    """Return the outcomes of a change, with when the first of its messages can be claimed.

    Args:
        outcomes: one for each message.
        opens: when the limits of the queue allow a message again.
    """
    wakes = [
        outcome.due
        for outcome in outcomes
        if outcome.done and outcome.state in ("delayed", "ready") and outcome.due is not None
    ]
    return Outcomes(outcomes, min([*wakes, *opens], default=None))
