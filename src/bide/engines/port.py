"""The port: the whole of what a store must do for bide."""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, cast, runtime_checkable

import msgspec

from bide.model.commands import Command
from bide.model.errors import AccessDenied, BideError, StoreError, WrongConnection
from bide.model.replies import Reply

__all__ = [
    "Capabilities",
    "DbApi",
    "Engine",
    "Guest",
    "Identities",
    "Identity",
    "LeavesBeforeFork",
    "Notifier",
    "PartlyDone",
    "RemoteGuest",
    "replies_of",
]


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do, as data: callers ask here, never for the engine's name."""

    durable: bool = True
    """Confirmed changes survive the death of every process."""
    shared: bool = True
    """Several processes can use one store at a time."""
    caller_time: bool = True
    """`execute(commands, now)` uses the caller's clock, as tests need."""
    ids_ordered: bool = True
    """A scan by a prefix of ids reads no other messages."""
    priorities: bool = True
    precision_ms: int = 1
    """The precision of its times."""
    resends: bool = False
    """After a lost connection it finds out what was executed: callers need not repeat commands."""
    remembers: bool = False
    """It executes a command with an identity once: a repetition gets the remembered answer."""
    loses_replies: bool = False
    """Its replies may be lost after their commands were executed. If it also remembers, callers
    give each command that changes something an identity, and repeat it."""
    recovers: bool = False
    """After an interrupt, the next call of `execute` releases what a claim has leased."""
    has_server: bool = msgspec.field(default=False, name="takes_back")  # its name over HTTP
    """A server of bide is in front of the store. It executes `Bulk`, `Undo` and `PastCommand`
    itself, and keeps up what a store needs: it records the past, plans for new time zones, and
    deletes old undo records. For other stores, the caller makes these of other commands."""


MAX_SENDER = 64
"""The longest name of a sender, in characters."""


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Names one command of one sender, so that a store executes it once.

    A reply can be lost after its command was executed. The sender then repeats the command with the
    same identity, and the store returns the answer that it remembers instead of executing it twice.
    (Request numbers of a client: Oki and Liskov, "Viewstamped Replication", 1988.)

    A sender has at most one batch under way: it sends the next number when each command of the
    batch before it has an answer, or was given up.
    """

    sender: str
    """`owner:name`, in at most `MAX_SENDER` characters. The name is random. A store bounds the
    number of senders that it remembers of one owner."""
    number: int
    """Of the batch, from 1: it grows with each batch of the sender."""
    place: int
    """Of the command in its batch, from 0."""
    repeated: bool = False
    """Whether the command was sent before, and perhaps executed."""

    @property
    def owner(self) -> str:
        """The part of the sender before the colon."""
        return self.sender.partition(":")[0]

    @property
    def owner_and_name(self) -> tuple[str, str]:
        """The parts of the sender before and behind the colon."""
        owner, _, name = self.sender.partition(":")
        return owner, name


Identities = Sequence[Identity | None] | None
"""One for each command of a batch. `None`: the command is not sent again under an identity."""


class PartlyDone(StoreError):
    """Some commands of a batch were carried out and others were not."""

    def __init__(self, outcomes: Sequence[Reply | BideError]) -> None:
        super().__init__("some commands of this batch were carried out, others were not")
        self.outcomes = outcomes
        """As many as commands, in their order: its reply, or why there is none."""


def replies_of(outcomes: Sequence[Reply | BideError]) -> list[Reply]:
    """Return the replies of a batch.

    Raises:
        BideError: the outcome of its only command.
        PartlyDone: an outcome is an error.
    """
    for outcome in outcomes:
        if isinstance(outcome, BideError):
            raise outcome if len(outcomes) == 1 else PartlyDone(outcomes)
    return cast("list[Reply]", [*outcomes])


class Notifier(Protocol):
    """Hints from process to process: a message of a queue can be claimed from a time on.

    Hints may be lost or superfluous; a waiting claim also looks again from time to time.
    """

    @property
    def is_listening(self) -> bool:
        """Whether hints arrive, as far as it knows; any thread may ask."""

    def listen(self) -> list[tuple[str, int]]:
        """Block until hints come, and return them; an empty list once the notifier is closed."""

    def close(self) -> None:
        """Stop listening: `listen` returns."""


class Engine(Protocol):
    """Executes batches of commands. Blocking and single-threaded; its only clock is its own.

    Its owner must let only one thread at a time call it; `bide.lane` does.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do."""

    def execute(
        self,
        commands: Sequence[Command],
        now: int | None = None,
        identities: Identities = None,
    ) -> list[Reply]:
        """Carry out the commands in order, durably, and answer each.

        Args:
            commands: they take effect one after the other, as a batch or each alone.
            now: the time in Unix milliseconds; `None`: the store's own clock.
            identities: as many as commands, if `Capabilities.remembers`. What is repeated is not
                executed twice: see `bide.engines.repetition`.

        Returns:
            As many replies as commands, in their order.

        Raises:
            StoreError: nothing of the batch was carried out (`OutcomeUnknown`: perhaps some was;
                `PartlyDone`: it has the outcome of each command).
        """

    def reader(self) -> "Engine | None":
        """Return a second engine on the same store that only reads and waits for no writer.

        `None` if this kind of store has none; reads then go through this one.
        """

    def notifier(self) -> Notifier | None:
        """Return a notifier of changes by other processes, if the store is shared.

        `execute` sends hints to those of other processes when messages can be claimed earlier.
        """

    def close(self) -> None:
        """Close the store. Closing twice does nothing."""


@runtime_checkable
class LeavesBeforeFork(Protocol):
    """An engine whose store must not be open during a fork."""

    def leave(self) -> None:
        """Leave the store before a fork; the next `execute` opens it again.

        The child calls nothing of this engine.
        """


class DbApi(Protocol):
    """A connection of the user's: runs statements with positional parameters."""

    begins: bool
    """Whether a statement has to begin its transaction first."""

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> Any:
        """Run a statement, and return its cursor, whose rows are tuples."""

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]], /) -> Any:
        """Run a statement with each of several rows of parameters."""


class Guest(Protocol):
    """Carries out commands in a transaction of the user's, on a connection of the user's.

    It commits nothing. A command is all or nothing, and a result that a user must expect is a
    reply: an error of the database would abort the user's transaction.
    """

    @property
    def dialect(self) -> Literal["postgresql", "sqlite"]:
        """The kind of database whose connections it takes."""

    @property
    def is_open(self) -> bool:
        """Whether `open` has nothing to do."""

    def open(self) -> None:
        """Find the store. Called before each use; it blocks unless `is_open`.

        Raises:
            StoreError: the store cannot be reached.
        """

    def execute(
        self, connection: DbApi, commands: Sequence[Command], now: int | None
    ) -> list[Reply]:
        """Carry out the commands in order, and answer each.

        Raises:
            WrongConnection: the connection belongs to another database than the store.
            StoreError: nothing was carried out.
        """


class RemoteGuest(Guest, Protocol):
    """One that needs a single statement, so that asynchronous drivers can run it."""

    def statement(
        self, commands: Sequence[Command], now: int | None, mark: str
    ) -> tuple[str, tuple[Any, ...]]:
        """Return the statement and its parameters; `mark` is the driver's of the first one."""

    def replies(self, commands: Sequence[Command], answer: str) -> list[Reply]:
        """Return the replies in the one value that it answers. Raises as `execute`."""

    def execute(
        self, connection: DbApi, commands: Sequence[Command], now: int | None
    ) -> list[Reply]:
        """Carry out commands by the statement. Raises as `replies`, and what the driver raises."""
        cursor = connection.execute(*self.statement(commands, now, "%s"))
        return self.replies(commands, cursor.fetchone()[0])

    def wrong_database(self) -> WrongConnection:
        """Return the error for a connection to a database that has no store."""

    def no_access(self, why: str) -> AccessDenied:
        """Return the error for a user of the database who may not run the statement."""
