"""A connection to a Redis server that nobody can read out of step.

Commands that were sent are a `WireExchange`, and it alone reads their answers. Until it has read
all of them, the connection sends nothing else: not after an error, nor after an exception of a
signal handler, which may come anywhere. Answers of bide's functions name the call that they answer.
"""

import os
import select
from collections.abc import Callable, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple

import hiredis
import msgspec
from redis import exceptions as redis_errors

from bide.engines.redis.faults import Refusal, is_of_network
from bide.engines.redis.layout import Arg, Word

_BROKEN = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.InvalidResponse,
    OSError,
)
"""Errors that end a connection; `InvalidResponse`: what came is no answer of Redis."""

READ_BYTES = 64 * 1024
"""How many bytes are read at once, at most."""

SOON = 200e-6
"""Seconds for which an answer is looked for before the thread sleeps.

To sleep and be woken takes a thread about as long as a server on the same machine needs for a call.
On a quiet machine the server sleeps, too, and answers later: there a put took 137 us if answers
were looked for during 100 us, and 117 with this time (medians).
"""

SELDOM = 8
"""Of answers that do not come so soon, one of 2 to the power of this is looked for."""

_decode = msgspec.msgpack.Decoder().decode


class ConnectionLost(Exception):
    """The connection broke; its cause is what broke it, in the same words."""


class PackedWords(NamedTuple):
    """The first words of a command as they go to the server: many calls have the same."""

    length: int
    """How many words they are."""
    packed: bytes


def pack(words: tuple[Arg, ...]) -> bytes:
    """Return a command as it goes to the server."""
    # An interrupt while hiredis takes the text of a number would end the process.
    texts = tuple([str(word) if type(word) is int else word for word in words])
    return hiredis.pack_command(texts)  # type: ignore[no-any-return,arg-type]


def pack_first(words: tuple[Word, ...]) -> PackedWords:
    """Return the first words of a command, for `pack_behind`."""
    return PackedWords(len(words), _pack(words))


def pack_behind(first: PackedWords, words: tuple[Word, ...]) -> bytes:
    """Return a command as it goes to the server, of its first words and the others."""
    return b"*%d\r\n%b%b" % (first.length + len(words), first.packed, _pack(words))


def _pack(words: tuple[Word, ...]) -> bytes:
    """Return words as they go to the server, without the line in front that says their number."""
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    _number, _, packed_words = packed.partition(b"\n")
    return packed_words


class Wire:
    """A connection to a server, which `connect` opens.

    Args:
        client: what connects, of redis-py.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._reader = hiredis.Reader(
            protocolError=redis_errors.InvalidResponse, replyError=Refusal
        )
        self._owner: WireExchange | None = None
        """What has been sent and is not answered yet."""
        self.open = True
        """Whether it was not closed."""
        self.socket: Any = None

    def connect(self) -> None:
        """Connect to the server.

        Raises:
            Exception: what redis-py raises.
        """
        try:
            self._client.connect()
        except BaseException:
            self.close()
            raise
        self.socket = self._client._sock
        self._looks_for = _poll(self.socket)
        self._missed = self._unlooked = 0

    @property
    def usable(self) -> bool:
        """Whether commands can be sent: all that were sent before are answered."""
        return self.open and self._owner is None

    @property
    def inherited(self) -> bool:
        """Whether it belongs to the process that forked this one."""
        return bool(self._client.pid != os.getpid())

    def begin(self, packed: bytes, labels: Sequence[bytes]) -> "WireExchange":
        """Send commands, whose answers are due then.

        Args:
            packed: the commands.
            labels: with what the answer to each begins; empty for a command of the server's own.

        Raises:
            ConnectionLost: the connection broke, or answers to other commands are due on it.
        """
        with self:
            if not self.usable or self._reader.has_data():
                raise redis_errors.ConnectionError("an earlier command was interrupted")
            exchange = self._owner = WireExchange(self, labels)
            self.socket.sendall(packed)
        return exchange

    def exchange(self, packed: bytes, labels: Sequence[bytes]) -> list[Any]:
        """Send commands and return what comes back, refusals as values. Arguments as of `begin`.

        Raises:
            ConnectionLost: the connection broke, the server was silent for too long or answered
                something else, or answers to other commands are due.
        """
        return self.begin(packed, labels).answers()

    def ask(self, *command: Arg) -> Any:
        """Send one command of the server's own; return what comes back, a refusal as a value.

        Raises:
            ConnectionLost: see `exchange`.
        """
        (answer,) = self.exchange(pack(command), labels=(b"",))  # one answer, without a label
        return answer

    def tell(self, packed: bytes) -> None:
        """Send a command of which the answer comes among what `heard` returns.

        Raises:
            ConnectionLost: the connection broke.
        """
        with self:
            self.socket.sendall(packed)

    def heard(self) -> list[Any]:
        """Return what the server says unasked; wait until it says something.

        Raises:
            ConnectionLost: the connection broke.
        """
        with self:
            self._read()
        return list(iter(self._reader.gets, False))

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        self._client.disconnect()

    def __enter__(self) -> None:
        """Begin to send or to receive."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection after an error: half a command may be on its way, or half an answer.

        Raises:
            ConnectionLost: the network or the server caused it, and not a signal handler.
        """
        if error is not None:
            self.close()
            if isinstance(error, _BROKEN) and is_of_network(error):
                raise ConnectionLost(str(error)) from error

    def look(self) -> None:
        """Wait for an answer without sleeping, for `SOON` at most; less often after late ones."""
        if self._unlooked:
            self._unlooked -= 1
            return
        end = perf_counter() + SOON
        while not self._looks_for(0):
            if perf_counter() > end:
                self._missed = min(self._missed + 1, SELDOM)
                self._unlooked = (1 << self._missed) - 1
                return
        self._missed = 0

    def _read(self) -> None:
        """Read what has come; wait until something has."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise redis_errors.ConnectionError("Connection closed by server.")
        self._reader.feed(data)

    def _next(self) -> Any:
        """Return the next answer."""
        while (answer := self._reader.gets()) is False:
            self._read()
        return answer


class WireExchange:
    """Commands that were sent on a connection, which is theirs until all are answered."""

    def __init__(self, wire: Wire, labels: Sequence[bytes]) -> None:
        self._wire = wire
        self._labels = labels

    def answers(self) -> list[Any]:
        """Return what comes back of the commands, refusals as values.

        Raises:
            ConnectionLost: see `Wire.exchange`.
        """
        wire = self._wire
        with wire:
            if wire._owner is not self or not wire.open:
                raise redis_errors.ConnectionError("the connection was closed")
            wire.look()
            answers = [_checked(wire._next(), label) for label in self._labels]
            wire._owner = None
        return answers


def _poll(socket: Any) -> Callable[[int], object]:
    """Return a function that tells whether something can be read; true where no call tells it."""
    if not hasattr(select, "poll"):
        return lambda _: True
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return poll.poll


def _checked(answer: Any, label: bytes) -> Any:
    """Return an answer, a refusal as a value; that of a function is decoded.

    Args:
        answer: as it was read.
        label: with what the answer of a function begins; empty for a command of the server's own.

    Raises:
        RedisError: the server is loading its data, or it answers another command.
    """
    if isinstance(answer, Refusal):
        if answer.word == "LOADING":
            raise redis_errors.BusyLoadingError(str(answer))
        return answer
    if not label:
        return answer
    # A function answers with one packed value, or with a list whose first element is one.
    brings_records = type(answer) is list and bool(answer)
    head = answer[0] if brings_records else answer
    if type(head) is not bytes or not head.startswith(label):
        raise redis_errors.InvalidResponse("the server answered another command than the last one")
    try:
        decoded = _decode(head[len(label) :])
    except msgspec.MsgspecError as error:
        raise redis_errors.InvalidResponse(f"the answer cannot be read: {error}") from error
    if not brings_records:
        return decoded
    answer[0] = decoded
    return answer
