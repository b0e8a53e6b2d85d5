"""The exceptions of `bide.timing`, beside `TypeError` and `ValueError` for wrong arguments."""

import sys

if sys.version_info >= (3, 13):
    from queue import ShutDown as _QueueShutDown
else:

    class _QueueShutDown(Exception):
        """Replaces `queue.ShutDown`, which is new in Python 3.13."""


class ShutDown(_QueueShutDown, RuntimeError):
    """The queue, wheel or executor was shut down.

    On Python 3.13 and later `except queue.ShutDown` catches it too; `except RuntimeError`, which is
    what an executor of the standard library raises, does on every version.
    """


class Forked(RuntimeError):
    """This process was forked from the one that the timers belong to.

    Threads do not survive a fork, and a timer that fires in parent and child would fire twice. So
    the parent keeps its timers, and in the child every call raises this.

    Fix: make the queue, wheel or executor in the child, after the fork.
    """
