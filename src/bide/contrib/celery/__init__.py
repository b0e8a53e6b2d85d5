"""Celery: its delays in bide, or its tasks on bide without Celery.

`install` keeps Celery: tasks with a `countdown` or an `eta` wait in bide and reach the broker when
they are due. `Celery` replaces it: tasks keep their form and run in `bide worker`. They are tasks
of bide, `App.task`, in the words of Celery: their arguments travel by name, with the types that
Celery's JSON has.
"""

from bide.contrib.celery.app import Celery
from bide.contrib.celery.delays import install
from bide.contrib.celery.result import AsyncResult
from bide.contrib.celery.task import MaxRetriesExceeded, Task

__all__ = ["AsyncResult", "Celery", "MaxRetriesExceeded", "Task", "install"]
