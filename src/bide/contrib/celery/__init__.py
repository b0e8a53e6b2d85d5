"""Celery: its delays in bide, or its tasks on bide without Celery.

`install` keeps Celery: tasks with a `countdown` or an `eta` wait in bide and reach the broker when
they are due.
"""

from bide.contrib.celery.delays import install

__all__ = ["install"]
