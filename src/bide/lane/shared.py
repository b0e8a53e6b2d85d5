"""Share one lane per store and process."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.registry import absolute, opener
from bide.lane.executor import refuse_to_wait
from bide.lane.lane import Lane
from bide.model.forks import in_child, notice_fork

_lock = threading.RLock()  # a finalizer may open and close queues while its thread does
_open: dict[tuple[str, int, int], Lane] = {}
"""By store, clock and process: the child of a fork shares no lane with its parent."""

_stand_ins: list[Lane] = []
"""The lanes to the stores of tests; the last one stands in for all other stores."""


def open_lane(url: str, clock: Clock = SYSTEM_CLOCK) -> Lane:
    """Return this process's lane to a store; each caller closes it with `close_lane`.

    In a test that replaces all stores by one of its own, callers without a clock of their own get
    the lane to that one.

    Raises:
        InvalidArgument: the URL names no known kind of store.
    """
    notice_fork()
    key, open_engine = (absolute(url), id(clock), os.getpid()), opener(url)
    with _lock:
        if _stand_ins and clock is SYSTEM_CLOCK:
            lane = _stand_ins[-1]
        else:
            # Not `_open[key] = ...`: meanwhile a finalizer may have opened the same store.
            lane = _open.get(key) or _open.setdefault(key, Lane(open_engine, clock))
        # Callers are counted by appending: a finalizer cannot come within that step.
        lane.users.append(None)
        return lane


def stand_in() -> Lane | None:
    """Return the lane that stands in for those to all stores, or `None`."""
    return _stand_ins[-1] if _stand_ins else None


def present_clock() -> Clock:
    """Return the clock of this process: that of the test's store, if a test replaces all stores."""
    return SYSTEM_CLOCK if not _stand_ins else _stand_ins[-1].clock


@contextmanager
def replace_lanes(lane: Lane) -> Iterator[None]:
    """Let `open_lane` return one lane for all stores during the block, for tests."""
    lane.users.append(None)
    lane.stands_in = True
    _stand_ins.append(lane)
    try:
        yield
    finally:
        _stand_ins.remove(lane)
        lane.stands_in = False
        lane.users.pop()


def close_lane(lane: Lane) -> None:
    """Close a lane once its last user has closed it.

    Raises:
        WrongContext: it would have to wait, in a thread for which others wait.
    """
    refuse_to_wait()
    with _lock:
        if lane.users:
            lane.users.pop()
        if lane.users:
            return
        for key in [key for key, known in list(_open.items()) if known is lane]:
            _open.pop(key, None)
    lane.close()


def close_lanes(url: str) -> None:
    """Close all lanes of this process to a store, also those still in use."""
    with _lock:
        keys = [key for key in list(_open) if key[0] == absolute(url)]
        lanes = [_open.pop(key) for key in keys]
    for lane in lanes:
        lane.close()


@in_child
def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
