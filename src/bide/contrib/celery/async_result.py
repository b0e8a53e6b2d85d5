"""The handle of a task that was sent."""

from typing import TYPE_CHECKING, Any

from bide.model.errors import NotAcked, NotEnded, NotRemembered
from bide.model.replies import Outcome
from bide.model.times import Duration
from bide.queue.sync import Queue

if TYPE_CHECKING:
    from bide.contrib.celery.app import Celery

__all__ = ["AsyncResult"]

PART = 60.0
"""Seconds of one wait for a result, when there is no limit."""


class AsyncResult:
    """The handle of a task: revoke it, or get its result.

    Made by `apply_async`, `delay` and `Celery.AsyncResult`. Results are there if the app was given
    a `result_ttl`.
    """

    def __init__(self, id: str, app: "Celery", queue: str | None = None) -> None:
        self.id = id
        self._app = app
        self._queue = queue

    def __repr__(self) -> str:
        return f"<AsyncResult {self.id}>"

    def revoke(self) -> Outcome:
        """Remove the task unless a worker has it.

        Returns:
            The outcome: true if it is gone for good, else it says where it is.
        """
        return self._home().cancel(self.id)

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
                return queue.result(self.id, wait=PART)
            except NotEnded:
                continue
        return queue.result(self.id, wait=timeout)

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
            names = list(self._app._queues)
            known = (
                name for name in names
                if self._app._queue(name).get(self.id) or self._app._queue(name).history(self.id)
            )  # fmt: skip
            self._queue = next(known, None)
            if self._queue is None:
                return self._app._queue(names[0])
        return self._app._queue(self._queue)
