"""The result of a task as Celery's programs ask for it, and the queues that tasks are in."""

from functools import cache
from typing import Any

from bide.contrib.celery.arguments import revived
from bide.model.ended import NotAcked
from bide.model.errors import NotEnded, NotRemembered
from bide.model.replies import Outcome
from bide.model.times import Duration
from bide.queue.sync import Queue


class TaskQueues:
    """The queues of the tasks of one app.

    Args:
        default: the queue of tasks that name none.
        url: of the store.
        result_ttl: how long results are kept.
    """

    def __init__(self, default: str, url: str, result_ttl: Duration | None) -> None:
        self.default = default
        self.names = [default]
        self.open = cache(lambda name: Queue(name, url, result_ttl=result_ttl))
        """Return a queue by its name; each is opened once."""

    def add(self, name: str) -> None:
        """Make a queue known."""
        if name not in self.names:
            self.names.append(name)

    def holding(self, id: str) -> str | None:
        """Return the queue that has a task, or remembers how it ended."""
        for name in self.names:
            queue = self.open(name)
            if queue.get(id) or queue.history(id):
                return name
        return None


PART = 60.0
"""Seconds of one wait for a result, when there is no limit."""


class AsyncResult:
    """The handle of a task: revoke it, or get its result.

    Made by `apply_async`, `delay` and `Celery.AsyncResult`. Results are there if the app was given
    a `result_ttl`.
    """

    def __init__(self, id: str, queues: TaskQueues, queue: str | None = None) -> None:
        self.id = id
        self._queues = queues
        self._queue = queue

    def __repr__(self) -> str:
        return f"<AsyncResult {self.id}>"

    def revoke(self, *, terminate: bool = False) -> Outcome:
        """Remove the task unless a worker has it; with `terminate`, ask that worker to stop.

        Returns:
            The outcome: true if it is gone for good, else it says where it is. Of a task whose
            worker was asked to stop, it is neither true nor false: its state is "stopping".
        """
        return self._home().cancel(self.id, running=terminate)

    def get(self, timeout: Duration | None = None) -> Any:
        """Wait for the end of the task, and return what its function returned.

        Args:
            timeout: how long to wait; by default without limit.

        Raises:
            NotEnded: it has not ended in time.
            NotAcked: it has failed, expired, or was revoked; the error says why.
            NotRemembered: nothing is known of it: the app has no `result_ttl`, or it has passed.
        """
        queue = self._home()
        while timeout is None:
            try:
                return revived(queue.result(self.id, wait=PART))
            except NotEnded:
                continue
        return revived(queue.result(self.id, wait=timeout))

    @property
    def state(self) -> str:
        """The state in Celery's words: PENDING (or not known), SUCCESS, FAILURE or REVOKED."""
        try:
            self._home().result(self.id)
        except NotAcked as error:
            failed = error.end is None or error.end.how == "dead"
            return "FAILURE" if failed else "REVOKED"
        except (NotEnded, NotRemembered):
            return "PENDING"
        return "SUCCESS"

    status = state

    def ready(self) -> bool:
        """Tell whether the task has ended."""
        return self.state != "PENDING"

    def successful(self) -> bool:
        """Tell whether the function has returned."""
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        """Tell whether the task is a dead letter."""
        return self.state == "FAILURE"

    def _home(self) -> Queue:
        """Return the queue of the task; of one that was sent elsewhere, the one that knows it."""
        if self._queue is None:
            self._queue = self._queues.holding(self.id)
        return self._queues.open(self._queue or self._queues.default)
