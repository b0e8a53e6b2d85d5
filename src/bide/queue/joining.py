"""What settles deliveries of a worker in transactions of the user's."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from bide.model.commands import Command
from bide.queue.aio import AsyncQueue
from bide.queue.command_builder import CommandBuilder
from bide.queue.sync import Queue


class Opens(Protocol):
    """Opens queues of a store, each once."""

    def queue(self, name: str) -> Queue:
        """Return a queue."""

    def async_queue(self, name: str) -> AsyncQueue:
        """Return a queue for event loops."""


class JoiningQueue:
    """Executes the commands of a handler's deliveries: in a thread at once, on a loop by `await`.

    The queue is opened when it is used first: most handlers settle nothing themselves.

    Args:
        name: of the queue.
        opens: opens it.
    """

    def __init__(self, name: str, opens: Opens) -> None:
        self._name = name
        self._opens = opens
        self._builder = CommandBuilder(name)

    def _execute(self, command: Command, result_of: Callable[[Any], Any], *, within: object) -> Any:
        """Execute a command; for a task, return a coroutine that does."""
        if asyncio._get_running_loop() is None:
            return self._opens.queue(self._name)._execute(command, result_of, within=within)
        queue = self._opens.async_queue(self._name)
        return queue._execute(command, result_of, within=within)
