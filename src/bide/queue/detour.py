"""Redirects the queues of a process to another store, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager

from bide.clock import Clock
from bide.lane.lane import Lane

detours: list[tuple[Lane, Clock]] = []
"""The stores to which queues are redirected, the current one last."""


def is_detoured(lane: Lane) -> bool:
    """Tell whether a lane leads to a store of tests, see `detour`."""
    return any(lane is other for other, _ in detours)


def detoured() -> Lane | None:
    """Return the store that every queue uses at present, `None` outside of `detour`."""
    return detours[-1][0] if detours else None


@contextmanager
def detour(lane: Lane, clock: Clock) -> Iterator[None]:
    """Make every queue of this process use one store and one clock during the block.

    For tests: this includes queues that exist already, often made at import, and queues that are
    made during the block. A queue with a clock of its own keeps its store.
    """
    detours.append((lane, clock))
    try:
        yield
    finally:
        detours.remove((lane, clock))
