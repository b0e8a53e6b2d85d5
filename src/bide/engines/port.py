"""The port: the whole of what a store must do for bide."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from bide.model.commands import Command
from bide.model.errors import StoreError
from bide.model.replies import Reply

__all__ = ["Capabilities", "Engine", "Notifier", "PartlyDone"]


class Capabilities(msgspec.Struct, frozen=True):
    """What an engine can do, as data: callers ask here, never for the engine's name."""

    durable: bool = True
    """What was confirmed survives the death of every process."""
    shared: bool = True
    """Several processes can use one store at a time."""
    caller_time: bool = True
    """`execute(commands, now)` goes by the caller's clock, as tests want it."""
    random_access: bool = True
    """Find, scan, cancel and reschedule: the store can be looked into."""
    priorities: bool = True
    precision_ms: int = 1
    """How fine its moments are."""
    resends: bool = False
    """After a lost connection it finds out itself what was carried out: nobody else repeats."""
    overlaps: bool = False
    """A server does the work, so that of many commands one half is better sent after the other:
    while it is busy with one, this process is with the callers of the other."""


class PartlyDone(StoreError):
    """Some commands of a batch were carried out and others were not."""

    def __init__(self, outcomes: Sequence[Reply | StoreError]) -> None:
        super().__init__("some commands of this batch were carried out, others were not")
        self.outcomes = outcomes
        """As many as commands, in their order: its reply, or why there is none."""


class Notifier(Protocol):
    """A hint from process to process: something in a queue is claimable from a moment on.

    Hints may be lost or come for nothing; a claim that waits looks again by itself now and then.
    """

    def listen(self) -> list[tuple[str, int]]:
        """Block until hints come, and return them; an empty list once the notifier is closed."""

    def decline(self, queue: str, wake: int) -> None:
        """Nobody here waits for the queue of a hint: pass it on, if others were not told of it."""

    def close(self) -> None:
        """Stop listening: `listen` returns."""


class Engine(Protocol):
    """Executes batches of commands. Blocking, single-threaded, and it knows no clock but its own.

    Whoever holds an engine sees to it that one thread at a time calls it; `bide.lane` does.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""

    def execute(self, commands: Sequence[Command], now: int | None = None) -> list[Reply]:
        """Carry out the commands in order, durably, and answer each.

        Args:
            commands: they take effect one after the other, as a batch or each alone.
            now: Unix milliseconds to go by; `None`: the store's own clock.

        Returns:
            As many replies as commands, in their order.

        Raises:
            StoreError: nothing of the batch was carried out (`OutcomeUnknown`: perhaps some was;
                `PartlyDone`: it tells of each command).
        """

    def reader(self) -> "Engine | None":
        """Return a second engine on the same store that only reads and waits for no writer.

        `None` when this kind of store has no such thing; reads then go through this one.
        """

    def notifier(self) -> Notifier | None:
        """Return a way to hear of changes by other processes, if the store is shared.

        `execute` tells the notifiers of other processes when messages can be claimed earlier.
        """

    def close(self) -> None:
        """Let go of the store. Closing twice does nothing."""
