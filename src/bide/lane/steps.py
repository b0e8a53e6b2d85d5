"""Commands that depend on the replies before them, written once for threads and for tasks."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from bide.model.commands import Command

__all__ = ["Steps", "arun_steps", "run_steps"]

R = TypeVar("R")

Steps = Generator[Command, Any, R]
"""Yields commands, receives their replies, and returns a result."""


def run_steps(steps: Steps[R], ask: Callable[[Command], Any]) -> R:
    """Execute each command of some steps; return their result."""
    try:
        command = next(steps)
        while True:
            command = steps.send(ask(command))
    except StopIteration as done:
        found: R = done.value
        return found


async def arun_steps(steps: Steps[R], ask: Callable[[Command], Awaitable[Any]]) -> R:
    """Async form of `run_steps`."""
    try:
        command = next(steps)
        while True:
            command = steps.send(await ask(command))
    except StopIteration as done:
        found: R = done.value
        return found
