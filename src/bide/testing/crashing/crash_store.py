"""The store of a crash test: it stays in the test's process while the handler's process dies."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bide.engines.memory import MemoryEngine
from bide.engines.port import Capabilities, Identities, Identity, Notifier
from bide.lane.lane import Lane
from bide.model.commands import Command
from bide.model.replies import Reply
from bide.testing.clock import FakeClock
from bide.testing.store import ScratchStore


class LoggedCommand(NamedTuple):
    """A command that was executed."""

    command: Command
    now: int | None
    identity: Identity | None
    transaction: int | None
    """In which it was executed; `None`: in none that is still open."""


class CrashStore:
    """A store in memory that can take back what was done in a transaction.

    It executes a command of a transaction at once. If the transaction is rolled back, all other
    commands are executed again on an empty store: the memory engine answers them as before.
    """

    capabilities: Capabilities = msgspec.structs.replace(MemoryEngine.capabilities, recovers=False)

    def __init__(self) -> None:
        self._engine = MemoryEngine()
        self._log: list[LoggedCommand] = []

    def execute(
        self,
        commands: Sequence[Command],
        now: int | None = None,
        identities: Identities = None,
        transactions: Sequence[int | None] = (),
    ) -> list[Reply]:
        """Execute commands, each in its transaction if it has one."""
        replies = self._engine.execute(commands, now, identities)
        for place, command in enumerate(commands):
            identity = identities[place] if identities is not None else None
            transaction = transactions[place] if transactions else None
            self._log.append(LoggedCommand(command, now, identity, transaction))
        return replies

    def commit(self, transaction: int) -> None:
        """Keep what was done in a transaction."""
        self._log = [
            logged._replace(transaction=None) if logged.transaction == transaction else logged
            for logged in self._log
        ]

    def roll_back(self, transaction: int | None = None) -> None:
        """Take back what was done in a transaction; without one, in all that are open."""
        is_open = {logged.transaction for logged in self._log} - {None}
        ended = is_open if transaction is None else is_open & {transaction}
        if not ended:
            return
        kept = [logged for logged in self._log if logged.transaction not in ended]
        self._engine, self._log = MemoryEngine(), []
        for logged in kept:
            self.execute([logged.command], logged.now, [logged.identity], [logged.transaction])

    def reader(self) -> None:
        """Return `None`: reads need no second engine."""

    def notifier(self) -> Notifier | None:
        """Return `None`: no two processes use it at the same time."""
        return None

    def close(self) -> None:
        """Do nothing: the next process of the run uses it, too."""


class StoreOfEngine(ScratchStore):
    """All queues of the process are on one engine.

    Args:
        lane: the way to it.
        clock: that of the lane.
    """

    def __init__(self, lane: Lane, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.lane = lane
