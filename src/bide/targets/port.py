"""The port of targets: what sends the messages of subscriptions."""

from typing import Protocol

from bide.model.message import Message
from bide.targets.http.answer import Answer
from bide.targets.http.subscription import Subscription


class Target(Protocol):
    """Sends messages to the receivers of one kind."""

    @property
    def free(self) -> int:
        """How many more messages may be under way."""

    async def send(self, message: Message, to: Subscription) -> Answer:
        """Send a message; return what came of it. Any number may be sent at a time."""

    async def ping(self, to: Subscription) -> Answer:
        """See whether the receiver is there."""

    async def close(self) -> None:
        """Close all connections."""
