import os
import signal
import time
from pathlib import Path
from typing import Any

from django.tasks import TaskContext

import bide
from bide.contrib.django.tasks import task
from kit.models import Order

calls: list[Any] = []

deliveries: list[Any] = []
"""What middleware of a test has seen."""


@task()
def expire(order: int) -> str:
    Order.objects.filter(pk=order).update(state="expired")
    return f"{order} expired"


@task()
async def expire_later(order: int) -> str:
    await Order.objects.filter(pk=order).aupdate(state="expired")
    return f"{order} expired"


@task(takes_context=True, retry=bide.Backoff(attempts=3, first="10s", jitter=0))
def stubborn(context: TaskContext, good: int) -> int:
    if context.attempt < good:
        raise ValueError(f"attempt {context.attempt}")
    return int(context.attempt)


@task()
def note(what: str) -> None:
    calls.append(what)


@task()
def unserializable() -> object:
    return object()


@task()
def too_much() -> str:
    calls.append("too much")
    return "x" * 2_000_000


@task(takes_context=True)
def die(context: TaskContext, folder: str) -> int:
    """Kill the process at the first attempt."""
    Path(folder, f"attempt-{context.attempt}").touch()
    if context.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return int(context.attempt)


@task(takes_context=True, retry=bide.Backoff(attempts=2, first=0, jitter=0))
def stumble(context: TaskContext, folder: str) -> int:
    """Kill the process at the first attempt, and raise at the second one."""
    if context.attempt == 2:
        raise ValueError("its own first failure")
    return int(die.func(context, folder))


@task()
def overrun() -> None:
    _let_time_pass()


@task(retry=bide.Backoff(attempts=2, first="10s", jitter=0))
def overrun_twice() -> None:
    _let_time_pass()


def _let_time_pass() -> None:
    """Let an hour pass, and go on until the worker has given this task up."""
    calls.append("overrun")
    delivery = deliveries[-1]
    delivery.clock.advance(3600)
    assert delivery.lost.wait(60)
