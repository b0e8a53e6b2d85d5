"""Hooks for the tests of bide itself: they reach what a queue and its lane keep to themselves.

Programs and their tests have no use for them, and they may change with any version.
"""

from collections.abc import Callable
from typing import Any

from bide.engines.port import Engine, Notifier
from bide.lane import executor
from bide.lane.inbox import Inbox
from bide.lane.lane import Lane
from bide.model.commands import Command
from bide.model.replies import Reply
from bide.queue.base import BaseQueue
from bide.queue.sync import Queue
from bide.worker.app.app import App


def lane_of(queue: BaseQueue) -> Lane:
    """Return the lane by which a queue object sends its commands."""
    return queue._lane


def url_of(owner: BaseQueue | App) -> str:
    """Return the URL of the store as it was given, where `url` hides users and passwords."""
    return owner._url


def execute(queue: Queue, command: Command) -> Reply:
    """Execute a command as the methods of the queue do, and return its reply."""
    reply: Reply = queue._execute(command)
    return reply


def count_waiting(lane: Lane) -> int:
    """Return how many claims wait for a message, and reads for the end of one."""
    return len(lane._waiting)


def has_waiting_queues(lane: Lane) -> bool:
    """Return whether the lane keeps any queue for which claims wait, or ask now."""
    return bool(lane._waiting.queues)


def count_submitted(lane: Lane) -> int:
    """Return how many commands wait for the next batch."""
    return len(lane._inbox)


def inbox_of(lane: Lane) -> Inbox:
    """Return where commands wait for the next batch."""
    return lane._inbox


def engine_of(lane: Lane) -> Engine | None:
    """Return the engine that the lane has opened; `None` if it has not yet."""
    return lane._engine


def is_executing(lane: Lane) -> bool:
    """Return whether a thread executes commands now."""
    if is_free := lane._lock.acquire(blocking=False):
        lane._lock.release()
    return not is_free


def is_forking() -> bool:
    """Return whether another thread forks this process now, or makes a lane."""
    if is_free := executor._making.acquire(blocking=False):
        executor._making.release()
    return not is_free


def notifier_of(lane: Lane) -> Notifier | None:
    """Return what hears of changes by other processes, once a claim waits."""
    return lane._notifier


def is_listening(lane: Lane) -> bool:
    """Return whether the lane hears of changes by other processes."""
    return lane._hears is True


def batch_waits(lane: Lane) -> bool:
    """Return whether a batch waits until a caller has executed its command alone."""
    return lane._batch_waits


def is_closing(lane: Lane) -> bool:
    """Return whether the lane was told to close."""
    return lane._closing


def plan_nothing(lane: Lane) -> None:
    """Let claims return messages whose runs are over, as their store does."""
    lane._planned = lambda engine, command, reply: reply  # type: ignore[method-assign]


def call_in_thread(lane: Lane, step: Callable[[], object]) -> None:
    """Have the lane's own thread call a function before its next batch."""
    # Of a note, the lane calls the first with the second before each batch.
    lane._notes.append((lambda _: step(), None))
    lane._signal.set()


def recover_nothing(service: Any) -> None:
    """Let the service of a server apply no plan for what is overdue before a claim."""

    async def before_claim(queue: str) -> None:
        """Let the claim go on."""

    service.overdue_plans.before_claim = before_claim
