"""A call: one request to one operation, and its answer."""

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from bide.engines.http.connection import MARK
from bide.lane.steps import Steps, arun_steps
from bide.model.body import parse
from bide.model.commands import Command, Queues
from bide.model.identity import actor_of
from bide.model.internal_queues import is_listed
from bide.model.limits import MAX_QUERY
from bide.model.message import Message
from bide.model.replies import Found, Names, Page, Reply, expect
from bide.queue.command_builder import CommandBuilder
from bide.server import wire
from bide.server.access.rights import Caller
from bide.server.http.client_address import network_of
from bide.server.limits.gate import Visit
from bide.server.limits.open_calls import LongCalls
from bide.server.limits.request_bodies import Receive, check_json, read_body, unless_gone
from bide.server.logs import Act
from bide.server.operation import JSON, Answer, Operation
from bide.server.problem import UNREADABLE, Problem, invalid, of_decoding
from bide.server.service import Service, own_names
from bide.targets.http.records import Records

_MARK = re.compile(rb"[!-~]{1,64}")

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]

T = TypeVar("T")

R = TypeVar("R", bound=Reply)


@dataclass(eq=False)
class Call:
    """One request to one operation.

    Args:
        service: the service that answers it.
        operation: the operation that is called.
        scope: the ASGI scope of the request.
        named: the names in the path, not decoded.
        receive: returns the parts of its body.
        send: sends the parts of the answer.
    """

    service: Service
    operation: Operation
    scope: Scope
    named: dict[str, str]
    receive: Receive
    send: Send
    acts: list[Act] = field(default_factory=list, init=False)
    """The commands of a batch, for the action log."""
    streams: bool = field(default=False, init=False)
    """Whether a stream was begun as the answer."""
    _received: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.client = self.service.addresses.of(self.scope)
        """The client's address; "" on a Unix socket without a trusted proxy."""
        self._headers: dict[bytes, bytes] = dict(self.scope["headers"])
        self.visit = visit_of(self.service, self.scope, self.client)

    @property
    def caller(self) -> Caller:
        """Who sends the request."""
        return self.visit.caller

    def header(self, name: str) -> str | None:
        """Return a header by its name in lower case; of several, the last."""
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @property
    def mark(self) -> dict[str, str]:
        """The header field of the answer that names the request, if the client has named it."""
        given = self._headers.get(MARK, b"")
        return {MARK.decode(): given.decode()} if _MARK.fullmatch(given) else {}

    @property
    def token(self) -> str | None:
        """The bearer token, if there is one."""
        kind, _, text = (self.header("authorization") or "").partition(" ")
        return text.strip() if kind.lower() == "bearer" else None

    def part(self, name: str) -> str:
        """Return a part of the path, decoded.

        Raises:
            Problem: it is not UTF-8.
        """
        try:
            return unquote_to_bytes(self.named[name]).decode()
        except UnicodeDecodeError:
            raise invalid(name, f"{name} in the path is not UTF-8; encode it in UTF-8") from None

    @property
    def queue(self) -> str:
        """The caller's name of the queue."""
        return self.part("queue")

    @property
    def actor(self) -> str:
        """The actor of the request's commands: the token's name or id, else the address."""
        return actor_of(self.caller.name or self.caller.token or self.client or "local")

    @cached_property
    def arguments(self) -> CommandBuilder:
        """The builder of commands for the queue."""
        return _arguments_of(
            self.caller.full(self.queue), self.service.settings.max_body, self.actor
        )

    @property
    def records(self) -> Records:
        """The subscriptions of the store."""
        return self.service.pushing.pusher.records

    async def text(self) -> bytes:
        """Return the request's body as JSON text; "{}" without a body.

        Raises:
            Problem: it has another content type.
        """
        data = await self.bytes()
        await self.service.large_bodies.turn(len(data))
        content_type = self.content_type
        if data and content_type not in ("", JSON) and not content_type.endswith("+json"):
            raise Problem(
                "malformed",
                f"content-type is {content_type!r}; this takes application/json",
                field="content-type",
            )
        return data or b"{}"

    async def bytes(self) -> bytes:
        """Return the request's body.

        Raises:
            Problem: it is compressed.
        """
        if (coding := self.header("content-encoding")) not in (None, "", "identity"):
            raise Problem(
                "malformed",
                f"content-encoding is {coding!r}, and bodies are not decompressed; leave it out",
                field="content-encoding",
            )

        def grow(before: int, after: int) -> None:
            self.service.large_bodies.grow(before, after)
            self._received = after

        length, settings = self.header("content-length"), self.service.settings
        return await read_body(
            self.receive, length, settings.max_request, settings.request_timeout, grow
        )

    def over(self) -> None:
        """Free the memory counted for the body and the replies, and count the body as carried."""
        self.service.large_bodies.grow(self._received, 0)
        self.carried(self._received)
        self.visit.close()

    def carried(self, size: int) -> None:
        """Count bytes of the request or its answer, unless the operation needs no token."""
        if self.operation.right is not None:
            self.visit.carried(size)

    async def parameters(self) -> dict[str, Any]:
        """Return the arguments of the handler besides the call.

        Raises:
            Problem: the request's body or query does not fit.
        """
        operation, given = self.operation, {}
        parameters = operation.handle.__annotations__
        if "asked" in parameters:
            given["asked"] = await self.read(operation.takes)
        if "query" in parameters:
            given["query"] = self.query(operation.query)
        elif operation.query is None and operation.method != "GET" and self.scope["query_string"]:
            self.query(wire.Empty)  # to ignore a dry_run=true would do harm
        return given

    async def read(self, kind: type[T]) -> T:
        """Return the request's body as a struct; without a body, its defaults.

        Raises:
            Problem: it does not fit.
        """
        check_json(data := await self.text())
        return decode(data, kind)

    @property
    def has_body(self) -> bool:
        """Whether the request announces a body."""
        length = self._headers.get(b"content-length", b"0")
        return length != b"0" or b"transfer-encoding" in self._headers

    @cached_property
    def content_type(self) -> str:
        """The content type without parameters, in lower case."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    def query(self, kind: type[T]) -> T:
        """Return the query's parameters as a struct.

        Raises:
            Problem: they do not fit.
        """
        try:
            pairs = parse_qsl(
                self.scope["query_string"].decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=MAX_QUERY,
            )
            return msgspec.convert(dict(pairs), kind, strict=False)
        except msgspec.ValidationError as error:
            raise of_decoding(error, kind, "The query") from None
        except ValueError as error:
            raise Problem("malformed", f"the query cannot be read: {error}") from None

    def counted(self, calls: LongCalls) -> AbstractContextManager[None]:
        """Count this call as an open one while the block runs, if requests need tokens.

        Raises:
            Problem: when the block is entered: there are too many.
        """
        if not self.service.admission.asks:
            return nullcontext()
        return calls.one(self.caller.namespace, network_of(self.client))

    async def ask(self, kind: type[R], command: Command) -> R:
        """Execute a command and return its reply; a slow read counts as one of the caller.

        Raises:
            Problem: a quota has no room, or the caller has too many slow reads under way.
        """
        return expect(kind, await self._execute(command))

    async def carry_out(self, steps: Steps[T]) -> T:
        """Execute steps, each as `ask` does, and return their result."""
        return await arun_steps(steps, self._execute)

    async def _execute(self, command: Command) -> Reply:
        with await self.service.quotas.admit(self.caller, [command]) as admitted:
            (admitted_command,) = admitted.commands
            return await self.visit.execute(admitted_command)

    async def names(self, prefix: str = "") -> list[str]:
        """Return the caller's names of the queues that the caller may see.

        Internal queues of bide are left out, unless the prefix is theirs.
        """
        reply = expect(Names, await self.visit.execute(Queues(self.caller.prefix(prefix))))
        return [name for name in own_names(self.caller, reply.names) if is_listed(name, prefix)]

    async def registers(self) -> list[str]:
        """Return the registers of workers that may serve the caller's queues."""
        return self.caller.registers(expect(Names, await self.visit.execute(Queues(""))).names)

    async def wait(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        """Return the result of work that waits, unless the client goes or loses its access.

        Args:
            work: begins the work.
            undo: called with a result that the client does not get.

        Raises:
            Closed: the server stops.
            Problem: too many calls wait, or the token was revoked or expired meanwhile.
        """
        admission, token = self.service.admission, self.token
        with self.counted(self.service.waits):
            return await unless_gone(
                self.receive,
                work(),
                admission.until_refused(token),
                partial(admission.caller, token),
                undo,
            )

    async def find(self) -> Message | None:
        """Return the message in the path, `None` if it does not exist."""
        return (await self.ask(Found, self.arguments.find(self.part("id")))).messages[0]

    async def begin_stream(self, kind: str) -> None:
        """Begin a stream as the answer."""
        self.streams = True
        headers = {"content-type": kind, "cache-control": "no-store", "x-accel-buffering": "no"}
        headers |= self.mark
        await self.send(_beginning(200, headers))

    def shown(self, message: Message) -> wire.MessageOut:
        """Return a message as the caller may see it."""
        return wire.shown(message, self.queue, bodies=self.caller.may("bodies"))

    async def page(self, scan: Command) -> wire.Messages:
        """Return a page of messages as the caller may see them."""
        page = await self.ask(Page, scan)
        return wire.Messages([self.shown(message) for message in page.messages], page.cursor)

    async def answer(self, answer: Answer) -> None:
        """Send an answer."""
        content = answer.content
        data = content if isinstance(content, bytes) else msgspec.json.encode(content)
        self.carried(len(data))
        headers = {"content-type": answer.kind, **answer.headers, **self.mark}
        await send_whole(self.send, answer.status, data, headers)


def visit_of(service: Service, scope: Scope, address: str) -> Visit:
    """Return the visit of a request.

    Args:
        service: the service that it visits.
        scope: the ASGI scope of the request.
        address: the client's address; "" if it is not known.
    """
    return service.gate.visit(scope, network_of(address))


_arguments_of = lru_cache(maxsize=1_000)(CommandBuilder)
"""Builders by queue and actor, so that a name is checked once."""


def decode(data: bytes, kind: type[T]) -> T:
    """Decode JSON to a type.

    Raises:
        Problem: it is not JSON, is nested too deeply, or does not fit.
    """
    try:
        return parse(data) if kind is Any else msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise of_decoding(error, kind, data=data) from None


SAFE = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
"""Headers of each answer that does not say otherwise: no browser guesses its type, and nothing
keeps what a token was needed for."""


def completing(send: Send, request: str) -> Send:
    """Return a `send` that adds the id of the request and the headers `SAFE` to the answer."""
    own = [(b"x-request-id", request.encode()), *SAFE]

    async def complete(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = dict(message["headers"])
            message["headers"] += [field for field in own if field[0] not in given]
        await send(message)

    return complete


async def send_whole(send: Send, status: int, data: bytes, headers: Mapping[str, str]) -> None:
    """Send an answer in one piece."""
    headers = {**headers, "content-length": str(len(data))}
    if status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        data = b""
        del headers["content-length"]
        headers.pop("content-type", None)
    await send(_beginning(status, headers))
    await send({"type": "http.response.body", "body": data})


def _beginning(status: int, headers: Mapping[str, str]) -> dict[str, Any]:
    fields = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]
    return {"type": "http.response.start", "status": int(status), "headers": fields}
