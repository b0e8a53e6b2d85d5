"""Share one lane per store and process, and restart lanes in the child of a fork."""

import os
import threading
from functools import partial

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.registry import absolute, opener
from bide.lane.executor import EXECUTORS
from bide.lane.lane import Lane
from bide.model.forks import in_child, notice_fork

_lock = threading.Lock()
_open: dict[tuple[str, int, int], Lane] = {}
"""By store, clock and process: the child of a fork shares no lane with its parent."""


def open_lane(url: str, clock: Clock = SYSTEM_CLOCK) -> Lane:
    """Return this process's lane to a store; each caller closes it with `close_lane`.

    Raises:
        InvalidArgument: the URL names no known kind of store.
    """
    notice_fork()
    key = absolute(url), id(clock), os.getpid()
    with _lock:
        if key not in _open:
            _open[key] = Lane(opener(url), clock)
        _open[key].users += 1
        return _open[key]


def close_lane(lane: Lane) -> None:
    """Close a lane once its last user has closed it."""
    with _lock:
        lane.users -= 1
        if lane.users > 0:
            return
        for key in [key for key, known in _open.items() if known is lane]:
            del _open[key]
    lane.close()


def close_lanes(url: str) -> None:
    """Close all lanes of this process to a store, also those still in use."""
    with _lock:
        keys = [key for key in _open if key[0] == absolute(url)]
        lanes = [_open.pop(key) for key in keys]
    for lane in lanes:
        lane.close()


def _each(step: str) -> None:
    """Call a method of every executor of this process."""
    for executor in list(EXECUTORS):
        getattr(executor, step)()


@in_child
def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _each("after_fork_in_child")


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(
        before=partial(_each, "before_fork"), after_in_parent=partial(_each, "after_fork_in_parent")
    )
