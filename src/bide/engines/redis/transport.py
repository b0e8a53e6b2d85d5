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
"""Kinds of refusals after which a call is sent again: the slot, or the library, is on its way."""

_log = logger("bide.redis")


class ServerCommand(msgspec.Struct, eq=False):
    """A command, and its answer."""

    slot: int
    """0 if one server has all."""
    words: tuple[Any, ...]
    """All, or those behind `first`: the mark of the script's call, and so on."""
    writes: bool
    hurried: bool
    """It does not wait for a server that is away."""
    first: PackedWords | None = None
    """Of a script's call: the words in front of the others."""
    label: bytes = b""
    """With what the answer begins; empty for a command of the server's own."""
    answer: Any = None
    again: bool = False
    """It may have arrived before."""
    done: bool = False
    tries: int = 0

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
        self._short: set[Address] = set()
        self._since: dict[int, float] = {}
        """By slot, since when callers wait for its server."""
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
            if remaining := _left(remaining):
                self._wait(remaining)
                remaining = _left(requests)
        return [self.result_of(request) for request in requests]

    def result_of(self, request: ServerCommand) -> Any:
        """Return the answer to a command that was sent, an error as a value."""
        answer = request.answer
        return self._error_of(request) if isinstance(answer, Exception) else answer

    def _wait(self, requests: Sequence[ServerCommand]) -> None:
        """Wait a little, unless other servers have the slots now; give up what is hopeless."""
        now, moved = time.monotonic(), self.nodes.refresh()
        for request in requests:
            request.tries += 1
            late = request.hurried or now > self._since.setdefault(request.slot, now) + self._limit
            request.done = late and not moved and request.tries > 1
        if not moved and any(not request.done for request in requests):
            time.sleep(min(0.005 * requests[0].tries, 0.2))

    def _attempt(self, requests: Sequence[ServerCommand]) -> None:
        """Send commands to the servers that have them, and take in what those answer."""
        groups: dict[Address, list[ServerCommand]] = {}
        try:
            for request in requests:
                if (address := self.nodes.owner(request.slot)) is not None:
                    groups.setdefault(address, []).append(request)
                else:
                    text = f"CLUSTERDOWN no node of the cluster has slot {request.slot}"
                    request.answer = Refusal(text)
        except StoreError as error:  # the others would ask the sentinels again
            self.nodes.doubt()
            self._fail(requests, error)
            return
        # What is asked about servers is asked first: nothing else is sent while answers are due.
        reached = [self._connect(address, group) for address, group in groups.items()]
        exchanges = []
        for each in reached:
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
        for connection, exchange, due in exchanges:
            try:
                self._take(connection, due, exchange.answers())
            except ConnectionLost as lost:
                self._lose(connection, due, lost)
        for connection, _, due in exchanges:
            if due[-1].words[0] == "WAIT" and not isinstance(due[-1].answer, StoreError):
                self._confirm(connection.address, due)

    def _connect(
        self, address: Address, group: list[ServerCommand]
    ) -> tuple[RedisConnection, list[ServerCommand]] | None:
        """Return the connection to a server, and which commands go there now, if any.

        The last one is WAIT, if anything has to reach replicas.
        """
        try:
            connection = self.nodes.connection(address)
        except StoreError as error:
            self._fail(group, error)
            return None
        due = group
        writes = address in self._short and any(request.writes for request in group)
        if writes and (missing := self._missing(connection)):
            for request in group:
                if request.writes and not request.again:
                    request.answer, request.done = missing, True
            if not (due := [request for request in group if not request.done]):
                return None
        wanted = self._settings.wait_replicas
        if wanted > 0 and any(request.writes for request in due):
            timeout = self._settings.timeout * 1000
            longest = timeout - max(150, timeout / 10)  # else the server would seem to be silent
            wait = "WAIT", wanted, max(1, int(longest))
            due = [*due, ServerCommand(group[0].slot, wait, writes=False, hurried=False)]
        return connection, due

    def _take(
        self, connection: RedisConnection, due: Sequence[ServerCommand], answers: Sequence[Any]
    ) -> None:
        """Take in the answers of a server, which may say where or when to ask again.

        A slot that is moving (ASK) is asked for until it has moved: before that, the new server
        has no script executed, since never all keys of a script exist.
        """
        for place, request in enumerate(due):
            request.answer = answer = answers[place]
            if not isinstance(answer, Refusal):
                request.done = True
                self._since.pop(request.slot, None)
                continue
            if answer.word == "NOFUNCTION":
                self.nodes.lose(connection.address)  # the next connection loads the library
                request.answer = answer = connection.refusal or answer
            word, text = answer.word, str(answer)
            _log.debug("slot %d: %s", request.slot, text)
            if word == "MOVED" and self.clustered:
                host, _, port = text.split(" ")[2].rpartition(":")
                self.nodes.owners[request.slot] = (host or connection.address[0], int(port))
            elif word == "READONLY":  # it was the master, or another one is it now
                self.nodes.lose(connection.address)
            elif word not in _MOVING and not passes(answer):
                request.done = True
                # A script would report its first run.
                request.again = request.again and not has_run(answer)
                self._since.pop(request.slot, None)
                if "The user executing the script" in text:  # a function ended halfway: the next
                    self.nodes.lose(connection.address)  # connection sees which rights are missing

    def _lose(
        self, connection: RedisConnection, due: Iterable[ServerCommand], lost: ConnectionLost
    ) -> None:
        """Note that all that is due was lost with the connection, and is to be sent again."""
        self.nodes.lose(connection.address)
        error = StoreUnavailable(
            f"{self._settings.shown}: the connection to {shown_address(connection.address)} was "
            f"lost ({lost}); is the server running, and has it a replica to take its place?"
        )
        error.__cause__ = lost.__cause__
        for request in due:
            request.answer, request.again = error, True

    def _fail(self, group: Iterable[ServerCommand], error: StoreError) -> None:
        """Note that there is no connection to a server."""
        for request in group:
            request.answer, request.done = error, not is_away(error)
            request.tries += 1  # else it is sent once more: perhaps only the connection was lost
        if isinstance(error.__cause__, BusyLoadingError):  # it is there
            self._limit = self._settings.reconnect

    def _error_of(self, request: ServerCommand) -> StoreError:
        """Return the error of a command that was not executed, or perhaps not."""
        answer: StoreError = request.answer
        if isinstance(request.answer, Refusal):
            answer = translate(request.answer, self._settings.shown)
            answer.__cause__ = request.answer
        if request.again and request.writes and not isinstance(answer, OutcomeUnknown):
            cause = answer
            answer = OutcomeUnknown(
                f"{self._settings.shown}: the connection was lost after the command was sent, and "
                f"it may have been carried out or not ({cause})"
            )
            answer.__cause__ = cause
        return answer

    # Replicas.

    def _confirm(self, address: Address, due: Sequence[ServerCommand]) -> None:
        """Check that enough replicas have the changes."""
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
        demoted = str(reached).startswith("UNBLOCKED") or self.nodes.doubtful
        count = reached if isinstance(reached, int) else f"0 ({reached})"
        for request in changed:
            request.answer = OutcomeUnknown(
                f"{self._settings.shown}: the server has it, but only {count} of the {wanted} "
                f"replicas that wait_replicas asks for confirmed it in time "
                f"({shown_address(address)}); a fail-over now may lose it"
            )
            # Perhaps another server has taken its place meanwhile.
            if demoted or self.nodes.owners[request.slot] != address:
                request.done, request.again = False, True
            else:
                self._short.add(address)

    def _missing(self, connection: RedisConnection) -> StoreError | None:
        """Return what to say if replicas that were missing are not back; nothing is done then."""
        wanted, address = self._settings.wait_replicas, connection.address
        longest = int(min(BACK_MS, self._settings.timeout * 500))  # else the server seems silent
        try:  # they are to have all that the server had when it was asked last on this connection
            reached = connection.ask("WAIT", wanted, longest)
        except ConnectionLost:
            return None  # the calls themselves find out
        if not isinstance(reached, int) or reached >= wanted:
            self._short.discard(address)
            return None
        if self.nodes.refresh():  # another server is the master: the calls find out
            return None
        return StoreReadOnly(
            f"{self._settings.shown}: only {reached} of the {wanted} replicas that wait_replicas "
            f"asks for keep up with {shown_address(address)}, so nothing was changed; bring them "
            "back, or ask for fewer"
        )


def _left(requests: Sequence[ServerCommand]) -> list[ServerCommand]:
    """Return commands that are not done; give up refused ones that others have overtaken."""
    for request in requests:
        if not request.done:
            break
    else:
        return []
    overtaken: set[int] = set()
    for request in reversed(requests):
        request.done = request.done or (request.slot in overtaken and passes(request.answer))
        if request.done:
            overtaken.add(request.slot)
    return [request for request in requests if not request.done]
