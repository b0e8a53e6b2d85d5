"""Send commands to the servers that have their slots, and again if the answer was lost."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from redis.exceptions import BusyLoadingError

from bide.engines.redis.connection import RedisConnection
from bide.engines.redis.faults import Refusal, has_run, is_away, passes, translate
from bide.engines.redis.nodes import Nodes
from bide.engines.redis.sentinel import Address
from bide.engines.redis.settings import RedisSettings, shown_address
from bide.engines.redis.wire import ConnectionLost, PackedWords, pack, pack_behind
from bide.logs import logger
from bide.model.errors import OutcomeUnknown, StoreError, StoreReadOnly, StoreUnavailable

BACK_MS = 300
"""Milliseconds, at most, in which replicas that were missing have to show that they are back."""

_MOVING = ("ASK", "TRYAGAIN", "CLUSTERDOWN", "NOFUNCTION")
"""First words of refusals after which a call is sent again: its slot, or the library, is on its
way."""

_log = logger("bide.redis")


class ServerCommand(msgspec.Struct, eq=False):
    """A command, and its answer."""

    slot: int
    """0 if one server has all."""
    words: tuple[Any, ...]
    """All, or those behind `first`: the mark of the script's call, and so on."""
    writes: bool
    """It may change something."""
    hurried: bool
    """It does not wait for a server that is away."""
    first: PackedWords | None = None
    """Of a script's call: the words in front of the others."""
    label: bytes = b""
    """With what the answer begins; empty for a command of the server's own."""
    answer: Any = None
    """The last one, or the error instead of it."""
    again: bool = False
    """It may have arrived before."""
    done: bool = False
    """It is not sent again: it was answered, or is given up."""
    tries: int = 0
    """How often it was not done after it was sent, or could not be sent."""

    def packed(self) -> bytes:
        """Return the command as it goes to the server; a second try says so before its mark."""
        words = self.words
        if self.again and self.writes:
            words = (f"?{words[0]!s}", *words[1:])
        return pack(words) if self.first is None else pack_behind(self.first, words)


class Transport:
    """Sends commands to the servers of a store, until they are done or given up.

    Args:
        settings: what the URL says.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self.nodes = Nodes(settings)
        self.clustered = settings.cluster is not None
        self._short_of_replicas: set[Address] = set()
        """Servers of which too few replicas have confirmed the last changes."""
        self._waiting_since: dict[int, float] = {}
        """By slot, the time of the monotonic clock since when callers wait for its server."""
        self._limit = settings.reconnect
        """For how many seconds they wait."""

    def execute(self, requests: Sequence[ServerCommand]) -> list[Any]:
        """Send to all servers at once, and again where the answer was lost or the server wrong.

        Args:
            requests: none of them is done.

        Returns:
            The answer to each, errors as values.
        """
        remaining = requests
        while remaining:
            self._attempt(remaining)
            remaining = _not_done(remaining)
            if remaining:
                self._wait(remaining)
                remaining = _not_done(requests)
        return [self.result_of(request) for request in requests]

    def result_of(self, request: ServerCommand) -> Any:
        """Return the answer to a command that was sent, an error as a value."""
        answer = request.answer
        return self._error_of(request) if isinstance(answer, Exception) else answer

    def _wait(self, requests: Sequence[ServerCommand]) -> None:
        """Wait a little, unless other servers have the slots now; give up what is hopeless.

        Each command is sent at least twice: perhaps only its connection was lost.
        """
        now = time.monotonic()  # before the servers are asked, which may take a while
        moved = self.nodes.refresh()
        for request in requests:
            request.tries += 1
            since = self._waiting_since.setdefault(request.slot, now)
            is_late = request.hurried or now > since + self._limit
            request.done = is_late and not moved and request.tries > 1
        if not moved and any(not request.done for request in requests):
            time.sleep(min(0.005 * requests[0].tries, 0.2))

    def _attempt(self, requests: Sequence[ServerCommand]) -> None:
        """Send commands to the servers that have them, and take in what those answer."""
        groups: dict[Address, list[ServerCommand]] = {}
        try:
            for request in requests:
                address = self.nodes.owner(request.slot)
                if address is not None:
                    groups.setdefault(address, []).append(request)
                else:
                    text = f"CLUSTERDOWN no node of the cluster has slot {request.slot}"
                    request.answer = Refusal(text)
        except StoreError as error:  # the others would ask the sentinels again
            self.nodes.doubt_sentinels()
            self._fail(requests, error)
            return
        # What is asked about servers is asked first: nothing else is sent while answers are due.
        connected = [self._connect(address, group) for address, group in groups.items()]
        exchanges = []
        for each in connected:
            if each is None:
                continue
            connection, due = each
            packed = b"".join([request.packed() for request in due])
            try:
                exchange = connection.begin(packed, [request.label for request in due])
            except ConnectionLost as lost:
                self._lose(connection, due, lost)
            else:
                exchanges.append((connection, exchange, due))
        # All servers work by now; their answers are read one after another.
        for connection, exchange, due in exchanges:
            try:
                self._take(connection, due, exchange.answers())
            except ConnectionLost as lost:
                self._lose(connection, due, lost)
        for connection, _, due in exchanges:
            waits_for_replicas = due[-1].words[0] == "WAIT"
            if waits_for_replicas and not isinstance(due[-1].answer, StoreError):
                self._confirm(connection.address, due)

    def _connect(
        self, address: Address, group: list[ServerCommand]
    ) -> tuple[RedisConnection, list[ServerCommand]] | None:
        """Return the connection to a server, and which commands go there now; `None`: none do.

        The last command is WAIT, if changes have to reach replicas.
        """
        try:
            connection = self.nodes.connection(address)
        except StoreError as error:
            self._fail(group, error)
            return None
        due = group
        is_short = address in self._short_of_replicas
        if is_short and any(request.writes for request in group):
            refusal = self._missing_replicas(connection)
            if refusal is not None:
                for request in group:
                    # One that may have arrived before is sent again, to get its answer.
                    if request.writes and not request.again:
                        request.answer, request.done = refusal, True
                due = [request for request in group if not request.done]
                if not due:
                    return None
        wanted = self._settings.wait_replicas
        if wanted > 0 and any(request.writes for request in due):
            timeout_ms = self._settings.timeout * 1000
            # Shorter than the timeout: else the server would seem to be silent.
            longest_ms = timeout_ms - max(150, timeout_ms / 10)
            wait = "WAIT", wanted, max(1, int(longest_ms))
            due = [*due, ServerCommand(group[0].slot, wait, writes=False, hurried=False)]
        return connection, due

    def _take(
        self, connection: RedisConnection, due: Sequence[ServerCommand], answers: Sequence[Any]
    ) -> None:
        """Take in the answers of a server, which may say where or when to ask again.

        A slot that is moving (ASK) is asked for until it has moved: before that, the new server
        has no script executed, since never all keys of a script exist.
        """
        for request, answer in zip(due, answers, strict=True):
            request.answer = answer
            if isinstance(answer, Refusal):
                self._take_refusal(connection, request, answer)
            else:
                self._end(request)

    def _take_refusal(
        self, connection: RedisConnection, request: ServerCommand, refusal: Refusal
    ) -> None:
        """Take in that a server refuses a command, which is sent again if that may help."""
        if refusal.word == "NOFUNCTION":
            self.nodes.lose(connection.address)  # the next connection loads the library
            # Why this one did not, if the server has said it.
            request.answer = refusal = connection.refusal or refusal
        text = str(refusal)
        _log.debug("slot %d: %s", request.slot, text)
        if refusal.word == "MOVED" and self.clustered:
            _moved, _slot, address = text.split(" ")
            host, _, port = address.rpartition(":")
            # A node that does not know its own name is where it was asked.
            self.nodes.owners[request.slot] = (host or connection.address[0], int(port))
        elif refusal.word == "READONLY":  # it was the master, or another one is it now
            self.nodes.lose(connection.address)
        elif refusal.word not in _MOVING and not passes(refusal):
            self._end(request)
            # A script would report its first run.
            request.again = request.again and not has_run(refusal)
            if "The user executing the script" in text:  # a function ended halfway: the next
                self.nodes.lose(connection.address)  # connection sees which rights are missing

    def _end(self, request: ServerCommand) -> None:
        """Note that a command was answered, so that its server is there."""
        request.done = True
        self._waiting_since.pop(request.slot, None)

    def _lose(
        self, connection: RedisConnection, due: Iterable[ServerCommand], lost: ConnectionLost
    ) -> None:
        """Note that all that is due was lost with the connection, and is to be sent again."""
        self.nodes.lose(connection.address)
        error = StoreUnavailable(
            f"{self._settings.shown}: the connection to {shown_address(connection.address)} was "
            f"lost ({lost}); is the server running, and does it have a replica to take its place?"
        )
        error.__cause__ = lost.__cause__
        for request in due:
            request.answer, request.again = error, True

    def _fail(self, group: Iterable[ServerCommand], error: StoreError) -> None:
        """Note that there is no connection to a server."""
        for request in group:
            request.answer, request.done = error, not is_away(error)
            request.tries += 1  # so that `_wait` may give it up at once
        if isinstance(error.__cause__, BusyLoadingError):  # the server is there, and starting
            self._limit = self._settings.reconnect

    def _error_of(self, request: ServerCommand) -> StoreError:
        """Return the error of a command that was not executed, or perhaps not."""
        error: StoreError = request.answer
        if isinstance(request.answer, Refusal):
            error = translate(request.answer, self._settings.shown)
            error.__cause__ = request.answer
        if request.again and request.writes and not isinstance(error, OutcomeUnknown):
            cause = error
            error = OutcomeUnknown(
                f"{self._settings.shown}: the connection was lost after the command was sent, and "
                f"it may have been carried out or not ({cause})"
            )
            error.__cause__ = cause
        return error

    # Replicas.

    def _confirm(self, address: Address, due: Sequence[ServerCommand]) -> None:
        """Check that enough replicas have the changes.

        Args:
            address: of the server.
            due: the commands that it got, the last one of which is WAIT.
        """
        wanted, reached = self._settings.wait_replicas, due[-1].answer
        if isinstance(reached, int) and reached >= wanted:
            return
        changed = [
            request
            for request in due
            if request.writes and request.done and not isinstance(request.answer, Exception)
        ]
        self.nodes.refresh()
        # One that became a replica no longer waits for its own: another one is the master.
        is_demoted = str(reached).startswith("UNBLOCKED") or self.nodes.doubtful
        count = reached if isinstance(reached, int) else f"0 ({reached})"
        for request in changed:
            request.answer = OutcomeUnknown(
                f"{self._settings.shown}: the server has it, but only {count} of the {wanted} "
                f"replicas that wait_replicas asks for confirmed it in time "
                f"({shown_address(address)}); a failover now may lose it"
            )
            # Perhaps another server has taken its place meanwhile.
            if is_demoted or self.nodes.owners[request.slot] != address:
                request.done, request.again = False, True
            else:
                self._short_of_replicas.add(address)

    def _missing_replicas(self, connection: RedisConnection) -> StoreError | None:
        """Return the error of changes that are not made, since replicas are missing still.

        `None`: they are back, or the changes themselves find out what is wrong.
        """
        wanted, address = self._settings.wait_replicas, connection.address
        # Half the timeout at most: else the server would seem to be silent.
        longest_ms = int(min(BACK_MS, self._settings.timeout * 1000 / 2))
        try:  # replicas are to have all that the server had at its last change on this connection
            reached = connection.ask("WAIT", wanted, longest_ms)
        except ConnectionLost:
            return None  # the calls themselves find out
        if not isinstance(reached, int) or reached >= wanted:
            self._short_of_replicas.discard(address)
            return None
        if self.nodes.refresh():  # another server is the master: the calls find out
            return None
        return StoreReadOnly(
            f"{self._settings.shown}: only {reached} of the {wanted} replicas that wait_replicas "
            f"asks for keep up with {shown_address(address)}, so nothing was changed; bring them "
            "back, or ask for fewer"
        )


def _not_done(requests: Sequence[ServerCommand]) -> list[ServerCommand]:
    """Return the commands to send again.

    The commands of a slot must be executed in their order. So one that a busy server has refused
    counts as done, with the refusal as its answer, if a later command of its slot was executed.
    """
    if all(request.done for request in requests):
        return []
    overtaken: set[int] = set()  # slots of which a later command is done
    for request in reversed(requests):
        request.done = request.done or (request.slot in overtaken and passes(request.answer))
        if request.done:
            overtaken.add(request.slot)
    return [request for request in requests if not request.done]
