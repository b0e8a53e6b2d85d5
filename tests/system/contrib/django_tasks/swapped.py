"""Backends that stand in for Django's own in its tests: `BideBackend`, with what these tests use.

Django's tests look into the list of its dummy backend, and expect its immediate backend to have run
the task when `enqueue` returns.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.tasks import Task, TaskResult

import bide
from bide.contrib.django.task_records import result_of_message
from bide.contrib.django.tasks import BideBackend
from bide.contrib.django.testing import DjangoWorker
from bide.testing import ScratchStore

__all__ = ["AtOnceBackend", "KeepingBackend"]

store = ScratchStore(os.environ["KIT_STORE"])
store.__enter__()
threads = ThreadPoolExecutor(1)


class KeepingBackend(BideBackend):
    """In place of `DummyBackend`: nothing runs, and the tasks can be listed.

    Some of its tests read on the event loop, where bide refuses to block: this does it elsewhere.
    """

    @property
    def results(self) -> list[TaskResult]:
        def read() -> list[TaskResult]:
            return [result_of_message(one) for one in self._queue("default").scan("ready")]

        return threads.submit(read).result()

    def get_result(self, result_id: str) -> TaskResult:
        return threads.submit(super().get_result, result_id).result()

    def clear(self) -> None:
        self._queue("default").cancel(after=0)


class AtOnceBackend(BideBackend):
    """In place of `ImmediateBackend`: a worker runs each task when it is enqueued."""

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        result = super().enqueue(task, args, kwargs)
        app = bide.App()
        self.register(app)
        worker = DjangoWorker(app, store, errors="collect")
        worker.run_due()
        result.refresh()
        for one in worker.handled:
            if isinstance(getattr(one.error, "__cause__", None), KeyboardInterrupt):
                raise KeyboardInterrupt from one.error
        return result
