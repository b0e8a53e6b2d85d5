"""The HTTP engine: commands to a server, replies from it."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from bide.engines.http.answers import error_of, refusal
from bide.engines.http.connection import Address, Connection
from bide.engines.http.events import HttpNotifier
from bide.engines.port import Capabilities, Notifier, PartlyDone
from bide.model import errors
from bide.model.command_identity import Identities
from bide.model.commands import Command, Find
from bide.model.errors import BideError, Closed, OutcomeUnknown
from bide.model.replies import Found, Outcomes, Page, Reply, Settings
from bide.model.undoing import Part, Undone

MSGPACK = "application/msgpack"

SAME_TIME = 50
"""Clocks that differ by no more than this many milliseconds count as equal."""


class _Batch(msgspec.Struct):
    commands: Sequence[Command]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The reply of a command that was not executed."""

    error: str
    """The name of the exception that bide raises."""
    detail: str


class Replies(msgspec.Struct):
    """A reply for each command, in their order."""

    replies: list[Reply | Part | Undone | Failed]
    now: int
    """The server's clock, in Unix milliseconds."""


class _About(msgspec.Struct):
    capabilities: Capabilities


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Replies).decode


class HttpEngine:
    """Sends commands to a server, which executes them.

    Args:
        address: of the server.
        timeout: seconds to wait for an answer.

    Raises:
        StoreUnavailable: no server answers there.
        StoreError: the server is not bide's, or refuses the token.
    """

    def __init__(self, address: Address, timeout: float = 30.0) -> None:
        self._address = address
        self._timeout = timeout
        self._connection: Connection | None = Connection(address, timeout)
        self._notifier: HttpNotifier | None = None
        try:
            self.capabilities = self._about()
        except BideError:
            self.close()
            raise

    def _about(self) -> Capabilities:
        data = self._ask("GET", "/v1", None, "application/json")
        try:
            return msgspec.json.decode(data, type=_About).capabilities
        except msgspec.DecodeError:
            where = self._address.shown
            raise errors.NotAStore(f"{where} answers, but is no server of bide's") from None

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        """Send the commands in one request."""
        began = time.time_ns()
        data = self._ask("POST", "/v1/batch", _encode(_Batch(commands)), MSGPACK)
        try:
            answer = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise OutcomeUnknown(
                f"{self._address.shown} answered what this bide does not understand: {error}"
            ) from None
        middle = (began + time.time_ns()) // 2_000_000
        ahead = middle - answer.now if now is None else 0
        outcomes: list[Any] = []
        for reply in answer.replies:
            if isinstance(reply, Failed):
                outcomes.append(error_of(0, reply.error)(reply.detail))
            else:
                outcomes.append(reply if abs(ahead) <= SAME_TIME else _shifted(reply, ahead))
        # The server's answer had no room for these; for the first one it always has.
        left = [n for n, reply in enumerate(outcomes) if _put_off(commands[n], reply)]
        if left:
            again = self._again([commands[n] for n in left], now)
            for n, outcome in zip(left, again, strict=True):
                outcomes[n] = outcome
        errors = [outcome for outcome in outcomes if isinstance(outcome, BideError)]
        if not errors:
            return outcomes
        if len(errors) == len(outcomes) and len(set(map(type, errors))) == 1:
            raise errors[0]
        raise PartlyDone(outcomes)

    def _again(self, commands: Sequence[Command], now: int | None) -> Sequence[Reply | BideError]:
        """Execute commands whose batch was executed in part; return the reply or error of each."""
        try:
            return self.execute(commands, now)
        except PartlyDone as partly:
            return partly.outcomes
        except BideError as error:
            return [error] * len(commands)

    def reader(self) -> "HttpEngine":
        """Return an engine with a separate connection."""
        return HttpEngine(self._address, self._timeout)

    def notifier(self) -> Notifier | None:
        """Listen to the server's events."""
        if self._notifier is None:
            self._notifier = HttpNotifier(self._address, self._timeout)
        return self._notifier

    def close(self) -> None:
        """Close the connection."""
        if self._notifier is not None:
            self._notifier.close()
            self._notifier = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, method: str, path: str, data: bytes | None, kind: str) -> bytes:
        if self._connection is None:
            raise Closed("this engine was closed")
        status, answer = self._connection.ask(method, path, data, kind)
        if status != 200:
            raise refusal(self._address, status, answer)
        return answer


def _put_off(command: Command, reply: Reply | BideError) -> bool:
    """Whether the server had no room for any message of a reply; see its batch endpoint."""
    if isinstance(command, Find):
        return isinstance(reply, Found) and bool(command.ids) and not reply.messages
    return isinstance(reply, Page) and not reply.messages and reply.cursor is not None


def _shifted(reply: Reply | Part | Undone, ahead: int) -> Reply | Part | Undone:
    """Return a reply whose time to wake up is by this machine's clock."""
    if isinstance(reply, (Outcomes, Settings)) and reply.wake is not None:
        return msgspec.structs.replace(reply, wake=reply.wake + ahead)
    return reply
