"""The result of a task as Celery's programs ask for it."""

from collections.abc import Sequence
from typing import Any

from bide.contrib.celery.arguments import revived
from bide.model.ended import NotAcked
from bide.model.errors import NotEnded, NotRemembered
from bide.model.replies import Outcome
from bide.model.times import Duration
from bide.queue.sync import Queue

PART = 60.0
"""Seconds of one wait for a result, when there is no limit."""


class AsyncResult:
    """The handle of a task: revoke it, or get its result.

    Made by `apply_async`, `delay` and `Celery.AsyncResult`. Results are there if the app was given
    a `result_ttl`.

    Args:
        id: of the task.
        queues: those that it may be in.
    """

    def __init__(self, id: str, queues: Sequence[Queue]) -> None:
        self.id = id
        self._queues = queues

    def __repr__(self) -> str:
        return f"<AsyncResult {self.id}>"

    def revoke(self, *, terminate: bool = False) -> Outcome:
        """Remove the task unless a worker has it; with `terminate`, ask that worker to stop.

        Returns:
            The outcome: true if it is gone for good, else it says where it is. Of a task whose
            worker was asked to stop, it is neither true nor false: its state is "stopping".
        """
        return self._queue().cancel(self.id, running=terminate)

    def get(self, timeout: Duration | None = None) -> Any:
        """Wait for the end of the task, and return what its function returned.

        Args:
            timeout: how long to wait; by default without limit.

        Raises:
            NotEnded: it has not ended in time.
            NotAcked: it has failed, expired, or was revoked; the error says why.
            NotRemembered: nothing is known of it: the app has no `result_ttl`, or it has passed.
        """
        queue = self._queue()
        while timeout is None:  # one wait has to have an end
            try:
                return revived(queue.result(self.id, wait=PART))
            except NotEnded:
                continue
        return revived(queue.result(self.id, wait=timeout))

    @property
    def state(self) -> str:
        """The state in Celery's words: PENDING (or not known), SUCCESS, FAILURE or REVOKED."""
        try:
            self._queue().result(self.id)
        except NotAcked as error:
            # Without an end, the store only has the message: dead, or expired.
            has_failed = error.end is None or error.end.how == "dead"
            return "FAILURE" if has_failed else "REVOKED"
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

    def _queue(self) -> Queue:
        """Return the queue that has the task or remembers it; the first if none does."""
        if len(self._queues) > 1:
            for queue in self._queues:
                if queue.get(self.id) or queue.history(self.id):
                    self._queues = [queue]
                    break
        return self._queues[0]
