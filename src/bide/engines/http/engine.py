"""The HTTP engine: commands to a server, replies from it."""

import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, cast

import msgspec

from bide.engines.http.answers import error_of, is_of_proxy, refusal
from bide.engines.http.connection import HttpAddress, HttpConnection
from bide.engines.http.events import HttpNotifier
from bide.engines.port import Capabilities, Identities, Identity, Notifier, PartlyDone
from bide.model import errors
from bide.model.commands import Command, Find
from bide.model.errors import BideError, Closed, OutcomeUnknown, StoreUnavailable
from bide.model.past import Past
from bide.model.replies import Found, Outcomes, Page, QueueSettings, Reply
from bide.model.undoing import Part, Undone

MSGPACK = "application/msgpack"

SAME_TIME = 50
"""Clocks that differ by no more than so many milliseconds count as equal: the time of a request is
known no better."""

SECONDS_BETWEEN_TRIES = 0.05
"""Between two requests to a server that is away."""


class _Batch(msgspec.Struct, omit_defaults=True):
    """What is sent; see `bide.server.limits.decoding.Batch`."""

    commands: list[Command]
    client: str | None = None
    """The sender of the commands, as of `Identity`; `None`: they have no identity."""
    number: int = 1
    """Of the batch of the sender."""
    repeated: bool = False
    """Whether they were sent before."""
    places: list[int] = []
    """The place of each command in the batch of the sender."""

    @property
    def may_be_sent_again(self) -> bool:
        """Whether a server may get it twice: it remembers the sender, or there are only reads."""
        return self.repeated or all(command.only_reads for command in self.commands)

    @property
    def sender(self) -> tuple[str | None, int, bool]:
        """What is the same for all commands of a batch: see `_sender`."""
        return self.client, self.number, self.repeated

    def add(self, command: Command, place: int) -> None:
        """Add a command with its place in the batch of the sender."""
        self.commands.append(command)
        if self.client is not None:
            self.places.append(place)


class FailedReply(msgspec.Struct, frozen=True, tag="failed"):
    """The reply of a command that was not executed."""

    error: str
    """The name of the exception that bide raises."""
    detail: str


class Replies(msgspec.Struct):
    """A reply for each command, in their order."""

    replies: list[Reply | Part | Undone | Past | FailedReply]
    now: int
    """The server's clock, in Unix milliseconds."""


class _About(msgspec.Struct):
    """What a server says of itself, as far as it is read."""

    capabilities: Capabilities


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Replies).decode


class HttpEngine:
    """Sends commands to a server, which executes them.

    Args:
        address: of the server.
        timeout: seconds to wait for an answer.
        reconnect: for how many seconds calls wait for a server that was lost.

    Raises:
        StoreUnavailable: no server answers there.
        StoreError: the server is not bide's, or refuses the token.
    """

    def __init__(self, address: HttpAddress, timeout: float = 30.0, reconnect: float = 5.0) -> None:
        self._address = address
        self._timeout = timeout
        self._reconnect = reconnect
        self._tries_until: float | None = None
        """Until when calls try again, by the monotonic clock; `None`: the server answers."""
        self._connection: HttpConnection | None = HttpConnection(address, timeout)
        self._notifier: HttpNotifier | None = None
        try:
            self.capabilities = self._about()
        except BideError:
            self.close()
            raise

    def _about(self) -> Capabilities:
        """Ask the server what its store can do, and return what this engine can.

        Raises:
            NotAStore: what answers is no server of bide's.
        """
        status, data = self._ask("GET", "/v1", None, "application/json")
        if status != 200:
            raise refusal(self._address, status, data)
        try:
            of_store = msgspec.json.decode(data, type=_About).capabilities
        except msgspec.DecodeError:
            shown = self._address.shown
            raise errors.NotAStore(f"{shown} answers, but is not a bide server") from None
        # What a claim of this process has leased, the server cannot know to be lost.
        return msgspec.structs.replace(of_store, loses_replies=True, recovers=False)

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        """Send the commands, those of one sender in one request.

        Raises:
            PartlyDone: some commands have failed, or all for different reasons.
            BideError: all have failed for the same reason.
        """
        outcomes: list[Reply | BideError] = []
        for batch in _batches(commands, identities):
            try:
                outcomes += self._outcomes(batch, now)
            except BideError as error:
                if len(batch.commands) == len(commands):  # it is the only batch
                    raise
                outcomes += [error] * len(batch.commands)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BideError)]
        if not failures:
            return cast("list[Reply]", outcomes)
        if len(failures) == len(outcomes) and len(set(map(type, failures))) == 1:
            raise failures[0]
        raise PartlyDone(outcomes)

    def _outcomes(self, batch: _Batch, now: int | None) -> list[Reply | BideError]:
        """Send commands in one request; return the reply or the error of each.

        Args:
            batch: of the commands.
            now: the time of a test's clock; `None`: times in replies become those of this machine.
        """
        data, middle_ms = self._send(batch)
        try:
            answer = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise OutcomeUnknown(
                f"{self._address.shown} sent an answer that this bide does not understand: {error}"
            ) from None
        if len(answer.replies) != len(batch.commands):
            raise OutcomeUnknown(
                f"{self._address.shown} answered {len(answer.replies)} of {len(batch.commands)} "
                "commands; is it a bide server?"
            )
        # The server has read its clock about halfway between the request and its answer.
        ahead_ms = middle_ms - answer.now if now is None else 0
        outcomes: list[Any] = []
        places: list[int] = []
        for place, reply in enumerate(answer.replies):
            if isinstance(reply, FailedReply):
                outcomes.append(error_of(0, reply.error)(reply.detail))
                continue
            outcomes.append(reply if abs(ahead_ms) <= SAME_TIME else _shifted(reply, ahead_ms))
            if _has_no_room(batch.commands[place], reply):
                places.append(place)
        if places:  # the server's answer had no room for these; for the first one it always has
            read_again = self._read_again([batch.commands[place] for place in places], now)
            for place, outcome in zip(places, read_again, strict=True):
                outcomes[place] = outcome
        return outcomes

    def _read_again(
        self, commands: Sequence[Command], now: int | None
    ) -> Sequence[Reply | BideError]:
        """Execute reads for which an answer had no room; return the reply or error of each."""
        try:
            return self._outcomes(_Batch([*commands]), now)
        except BideError as error:
            return [error] * len(commands)

    def reader(self) -> "HttpEngine":
        """Return an engine with a separate connection."""
        return HttpEngine(self._address, self._timeout, self._reconnect)

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

    def _send(self, batch: _Batch) -> tuple[bytes, int]:
        """Send a batch, and wait for a server that is away: until it is restarted, for example.

        For `reconnect` seconds after the server was lost, calls try again and again. Later ones
        try once each, until one of them is answered.

        Returns:
            The answer, and the time halfway between the request and it, in Unix milliseconds.

        Raises:
            OutcomeUnknown: the answer was lost. The lane sends the batch again, with `repeated`.
            BideError: the server cannot be reached, or refuses the request.
        """
        request = _encode(batch)
        while True:
            began, began_ns = time.monotonic(), time.time_ns()
            failure: BideError
            try:
                status, answer = self._ask("POST", "/v1/batch", request, MSGPACK)
            except StoreUnavailable as error:
                failure, lasts = error, error.lasts
                may_be_executed = isinstance(error, OutcomeUnknown)
            else:
                if status == HTTPStatus.OK:
                    self._tries_until = None
                    return answer, (began_ns + time.time_ns()) // 2_000_000
                failure, lasts = refusal(self._address, status, answer), False
                if not is_of_proxy(status, answer):
                    self._tries_until = None
                    raise failure
                may_be_executed = status != HTTPStatus.SERVICE_UNAVAILABLE
            was_silent = time.monotonic() - began > self._reconnect
            may_try = batch.may_be_sent_again or not may_be_executed
            if lasts or was_silent or not may_try or not self._has_time():
                raise failure
            time.sleep(SECONDS_BETWEEN_TRIES)

    def _has_time(self) -> bool:
        """Tell whether a call may try again, now that the server is away."""
        now = time.monotonic()
        if self._tries_until is None:
            self._tries_until = now + self._reconnect
        return now < self._tries_until

    def _ask(
        self, method: str, path: str, data: bytes | None, content_type: str
    ) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer."""
        if self._connection is None:
            raise Closed("this engine was closed")
        return self._connection.ask(method, path, data, content_type)


def _batches(commands: Sequence[Command], identities: Identities) -> list[_Batch]:
    """Return the commands as they are sent: those of one batch of a sender together, with reads.

    A lane numbers its own commands, so that all are of one batch. A server with such a store has
    commands of many senders, and changes of its own without an identity.
    """
    if identities is None:
        return [_Batch([*commands])]
    batches: list[_Batch] = []
    for command, identity in zip(commands, identities, strict=True):
        is_read = identity is None and command.only_reads  # which goes with any batch
        if not batches:
            first = next(filter(None, identities), None) if is_read else identity
            batches.append(_Batch([], *_sender(first)))
        elif not is_read and batches[-1].sender != _sender(identity):
            batches.append(_Batch([], *_sender(identity)))
        batches[-1].add(command, 0 if identity is None else identity.place)
    return batches


def _sender(identity: Identity | None) -> tuple[str | None, int, bool]:
    """Return what a batch says of its sender: name, number, and whether it is sent again."""
    if identity is None:
        return None, 1, False
    return identity.sender, identity.number, identity.repeated


def _has_no_room(command: Command, reply: Reply | Part | Undone | Past) -> bool:
    """Return whether the server had no room for any message of a reply; see its batch endpoint."""
    if isinstance(command, Find):
        return isinstance(reply, Found) and bool(command.ids) and not reply.messages
    return isinstance(reply, Page) and not reply.messages and reply.cursor is not None


def _shifted(reply: Reply | Part | Undone | Past, ahead_ms: int) -> Reply | Part | Undone | Past:
    """Return a reply whose time to wake up is by this machine's clock.

    That clock is ahead of the server's by so many milliseconds.
    """
    if isinstance(reply, (Outcomes, QueueSettings)) and reply.wake is not None:
        return msgspec.structs.replace(reply, wake=reply.wake + ahead_ms)
    return reply
