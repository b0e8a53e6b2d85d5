"""What `Queue` and `AsyncQueue` share: the name, the store, joining a transaction, closing."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.port import Guest
from bide.engines.registry import absolute, default_url, lives_alone, mask
from bide.engines.registry import guest as guest_of
from bide.lane.executor import refuse_to_wait
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane, replace_lanes
from bide.model.commands import Ack, BuryCommand, Command, Put, Renew, RetryCommand
from bide.model.errors import Closed, Unsupported
from bide.model.forks import in_child, notice_fork
from bide.model.identity import actor_of, check_name
from bide.model.limits import MAX_BODY
from bide.model.times import Duration, Rate
from bide.queue import spans
from bide.queue.arguments import check_joins
from bide.queue.command_builder import CommandBuilder

if TYPE_CHECKING:
    from bide.model.recovery import Recovery

SETTLES = (Ack, Renew, RetryCommand, BuryCommand)
"""The commands that settle deliveries."""

open_queues: "weakref.WeakSet[BaseQueue]" = weakref.WeakSet()
"""The queues of this process; some may be closed."""


class BaseQueue:
    """A queue's name, its store and its clock. `Queue` describes the arguments."""

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        keep: Duration | None = None,
        history: Duration | None = None,
        result_ttl: Duration | None = None,
        limit: int | None = None,
        rate: Rate | None = None,
        group_limit: int | None = None,
        group_rate: Rate | None = None,
        overdue: "Recovery | str | None" = None,
        max_body: int = MAX_BODY,
        holder: str | None = None,
        actor: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._names_store = url is not None  # else the environment does
        self._url = self._default_url() if url is None else url
        self._holder = None if holder is None else check_name(holder, "holder")
        if actor is None and self._holder is not None:
            actor = actor_of(self._holder)
        self._builder = CommandBuilder(name, max_body, actor, lambda: self._lane.clock.now())
        settings = self._builder.settings(
            keep=keep,
            history=history,
            result_ttl=result_ttl,
            limit=limit,
            rate=rate,
            group_limit=group_limit,
            group_rate=group_rate,
            overdue=overdue,
        )
        self._settings = None if settings == self._builder.configure() else settings
        """The command that sets what the caller has given; `None`: nothing."""
        self._sender: dict[str, object] = {}
        """Under "settings": the caller that is sending them."""
        self._own_clock = clock
        self._absolute_url = absolute(self._url)  # the program may go to another directory
        self._use(open_lane(self._url, clock))
        self._users = [name]
        """One element, and none once it is closed: to remove it is one step of the interpreter."""
        open_queues.add(self)

    def _default_url(self) -> str:
        """Return the store of a queue that names none."""
        return default_url()

    def _use(self, lane: Lane) -> None:
        """Use a store, which may not have the settings of this queue yet."""
        self._lane = lane
        self._unsent_settings = self._settings
        """The command that is sent before the first change; `None`: it was, or sets nothing."""

    @property
    def _clock(self) -> Clock:
        return self._lane.clock

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._builder.queue

    @property
    def url(self) -> str:
        """The store's URL, with a password hidden."""
        return mask(self._url)

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<{type(self).__name__} {self.name!r} at {self.url}{closed}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be sent to another process; make one there, with the "
            "same name and URL"
        )

    @property
    def _closed(self) -> bool:
        return not self._users

    def _guest(self, command: Command, within: object) -> Guest | None:
        """Return what executes a command on the user's connection: the store, or the outbox.

        `None` in the store of a test, which has no connections: the command is executed at once.
        """
        if not self._users:
            raise self._was_closed()
        check_joins(command)
        if self._lane.stands_in:
            return None
        guest = guest_of(self._absolute_url)
        if guest is None and lives_alone(self._url):
            raise Unsupported(
                f"within= needs a store that other processes reach; {self.url} is none"
            )
        return self._outbox(command, within) if guest is None else guest

    def _outbox(self, command: Command, within: object) -> Guest:
        """Return what writes a command to the outbox in the user's database.

        Raises:
            Unsupported: the command settles a delivery. The lease may be over when the forwarder
                reads it.
        """
        from bide.outbox.rows import outbox  # here: most programs need none
        from bide.within import dialect_of

        if isinstance(command, SETTLES):
            raise Unsupported(
                "a delivery is settled within= a transaction of the database that the store is in, "
                f"PostgreSQL or SQLite, and {self.url} is elsewhere; commit first, then settle it "
                "without within="
            )
        return outbox(dialect_of(within))

    @contextmanager
    def _settings_to_send(self) -> Iterator[Command | None]:
        """Yield the settings for the caller to send; `None`: they were sent, or another one does.

        Else a second caller, who began together with the first, would undo what that one sets next.
        Nobody waits for another: the lane executes in order what was given to it.
        """
        notice_fork()
        caller = object()
        try:
            is_first = self._sender.setdefault("settings", caller) is caller  # one atomic step
            settings = self._unsent_settings if is_first else None
            yield settings
            if settings is not None:
                self._unsent_settings = None
        finally:
            if self._sender.get("settings") is caller:
                self._sender.clear()

    def _settings_go_apart(self, guest: Guest, command: Command) -> bool:
        """Whether the settings are to be sent before a command of a user's transaction.

        On PostgreSQL they would lock the row of the queue until the user's commit. Elsewhere they
        are part of the transaction: in SQLite it may have locked the file, and an outbox is there
        for a store that is away.

        Args:
            guest: what executes the command on the user's connection.
            command: the command.
        """
        is_apart = guest.dialect == "postgresql" and guest is guest_of(self._absolute_url)
        return is_apart and self._unsent_settings is not None and not isinstance(command, SETTLES)

    @contextmanager
    def _joining(self, command: Command) -> Iterator[list[Command]]:
        """Yield the commands to execute in the user's transaction: settings, then the given one.

        A put has the trace of the caller in it.
        """
        commands: list[Command] = []
        if self._unsent_settings is not None and not isinstance(command, SETTLES):
            # They count as unsent after this, too: the transaction may be rolled back.
            commands.append(self._unsent_settings)
        if type(command) is Put:
            with spans.sending(command) as traced_command:
                yield [*commands, traced_command]
        else:
            yield [*commands, command]

    def _now(self) -> int | None:
        """Return the time of a test's clock in Unix milliseconds; `None`: the store's decides."""
        return None if self._clock is SYSTEM_CLOCK else self._clock.now()

    def _was_closed(self) -> Closed:
        """Return the error of a call after `close`."""
        return Closed(f"queue {self.name!r} was closed; make a new one to go on")

    def _close(self) -> None:
        """Close the queue if it is open; the last queue of a lane closes the lane as well."""
        notice_fork()
        refuse_to_wait()
        try:
            self._users.pop()  # only one thread succeeds if several close it
        except IndexError:
            return
        self._lane.release(self)
        close_lane(self._lane)


@in_child
def _forget_senders() -> None:
    """In the child of a fork: a thread of the parent may have been sending settings."""
    for queue in list(open_queues):
        queue._sender.clear()


@contextmanager
def all_queues_in(lane: Lane) -> Iterator[None]:
    """Put all queues of this process into one store during the block, for tests.

    These are the queues that exist, often made at import, and those that are made meanwhile. A
    queue with a clock of its own keeps its store.
    """
    moved = [
        queue
        for queue in list(open_queues)
        if queue._own_clock is SYSTEM_CLOCK and not queue._closed
    ]
    # They count as users of their own lanes until the end, so that these stay open.
    own_lanes = [queue._lane for queue in moved]
    try:
        with replace_lanes(lane):
            for queue in moved:
                queue._use(open_lane(queue._absolute_url))
            yield
    finally:
        # Not only those that were moved: some were made meanwhile.
        for queue in [queue for queue in list(open_queues) if queue._lane is lane]:
            if not queue._closed:
                queue._use(open_lane(queue._absolute_url))
                close_lane(lane)
        for own_lane in own_lanes:
            close_lane(own_lane)
