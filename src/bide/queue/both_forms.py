"""What the methods that `Queue` and `AsyncQueue` share are made of: each is written once.

A method makes a command, or steps, of its arguments, and hands it to one of the methods below. A
`Queue` returns the result. An `AsyncQueue` returns a coroutine that returns it.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Generic, TypeVar

from bide.lane.steps import Steps
from bide.model.commands import Command, Configure
from bide.model.replies import Outcome, Outcomes
from bide.model.undoing import Bulk
from bide.queue.base import BaseQueue
from bide.queue.delivery import Held

DeliveryT = TypeVar("DeliveryT", bound=Held[Any])
OutcomeT = TypeVar("OutcomeT")
OutcomesT = TypeVar("OutcomesT")
CountT = TypeVar("CountT")
UndoableT = TypeVar("UndoableT")
SettingsT = TypeVar("SettingsT")


class BothForms(BaseQueue, Generic[DeliveryT, OutcomeT, OutcomesT, CountT, UndoableT, SettingsT]):
    """A queue of either form: its deliveries, and the results of its methods."""

    @abstractmethod
    def _one(self, command: Command, within: object = None, *, new: bool = False) -> OutcomeT:
        """Execute a command for one message; return its outcome, which must be `new` if so."""

    @abstractmethod
    def _many(self, steps: Steps[list[Outcome]], within: object = None) -> OutcomesT:
        """Run steps that return outcomes."""

    @abstractmethod
    def _count(self, steps: Steps[int], within: object = None) -> CountT:
        """Run steps that return a number of messages."""

    @abstractmethod
    def _settle(self, deliveries: Sequence[DeliveryT], command: Command) -> OutcomesT:
        """Settle deliveries."""

    @abstractmethod
    def _bulk(self, bulk: Bulk) -> UndoableT:
        """Make a bulk change that can be taken back."""

    @abstractmethod
    def _configure(self, command: Configure) -> SettingsT:
        """Change settings."""


def outcomes_of(*commands: Command) -> Steps[list[Outcome]]:
    """Execute commands; return all their outcomes."""
    outcomes: list[Outcome] = []
    for command in commands:
        reply: Outcomes = yield command
        outcomes += reply.outcomes
    return outcomes


def awaited(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a shared method of `AsyncQueue` as a coroutine function.

    It returns a coroutine anyway. As a coroutine function it is known as such to `inspect` and to
    mocks, and checks its arguments when it is awaited.
    """

    @wraps(method)
    async def call(self: BaseQueue, *args: Any, **options: Any) -> Any:
        return await method(self, *args, **options)

    call.__doc__ = f"Async form of `Queue.{method.__name__}`."
    return call
