"""An operation of the API: what it takes, what it answers, and who may call it.

The routes, the checks and the OpenAPI description are all made of these.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from bide.model.body import MAX_DEPTH
from bide.model.errors import InvalidArgument
from bide.queue.command_builder import CommandBuilder
from bide.server.access import OPEN, Caller
from bide.server.long_calls import LongCalls
from bide.server.problem import Problem, of_validation
from bide.server.receiving import Receive, read_body
from bide.server.service import Service

__all__ = [
    "JSON",
    "MSGPACK",
    "Answer",
    "Call",
    "Operation",
    "Scope",
    "Send",
    "send_whole",
]

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON = "application/json"

MSGPACK = "application/msgpack"

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    content: Any = None
    """A value that becomes JSON, or bytes."""
    headers: Mapping[str, str] = {}
    kind: str = JSON

    @property
    def data(self) -> bytes:
        """The content as it is sent."""
        return self.content if isinstance(self.content, bytes) else _encode(self.content)


class Operation(NamedTuple):
    """One method of one path."""

    name: str
    method: str
    path: str
    summary: str
    scope: str | None
    """What a token must allow; `None`: nothing, everybody may."""
    handle: "Callable[[Call], Awaitable[Answer | None]]"
    """Answers a call; `None`: it has sent the answer itself."""
    answers: dict[int, Any]
    """By status: the type of the content, `bytes`, or `None` for no content."""
    takes: Any = None
    """The type of the request's body."""
    takes_bytes: bool = False
    """Whether a body of any other content type is taken as it is."""
    query: Any = None
    """A struct of the query's parameters."""
    headers: Mapping[str, str] = {}
    """Headers of the request that matter, and what they do."""
    problems: Sequence[int] = ()
    """Statuses of problems beside those that every operation has."""
    description: str = ""
    tag: str = "messages"
    kind: str = JSON
    """The content type of what it answers."""


class Call:
    """One request to one operation.

    Args:
        service: who answers it.
        operation: what is asked for.
        scope: what ASGI says of the request.
        path: the path as it came, an encoded slash in it as it is.
        named: what stands in the path where the operation has a name.
        receive: from where its body comes.
        send: where the answer goes.
    """

    def __init__(
        self,
        service: Service,
        operation: Operation,
        scope: Scope,
        path: str,
        named: dict[str, str],
        receive: Receive,
        send: Send,
    ) -> None:
        self.service = service
        self.operation = operation
        self.scope = scope
        self.path = path
        self.named = named
        self.receive = receive
        self.send = send
        self.caller: Caller = OPEN
        self.streams = False
        """Whether the beginning of an answer without an end was sent."""
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._arguments: CommandBuilder | None = None

    def header(self, name: str) -> str | None:
        """Return a header of the request by its name in small letters; the last of equals."""
        value = self._headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @property
    def token(self) -> str | None:
        """The bearer token, if there is one."""
        value = self._headers.get(b"authorization")
        if value is None:
            return None
        kind, _, text = value.decode("latin-1").partition(" ")
        return text.strip() if kind.lower() == "bearer" else None

    def part(self, name: str) -> str:
        """Return a part of the path, decoded.

        Raises:
            Problem: it is no UTF-8.
        """
        text = self.named[name]
        if "%" not in text and text.isascii():
            return text
        try:
            return unquote_to_bytes(text).decode()
        except UnicodeDecodeError:
            raise Problem(
                "invalid-argument", f"{name} in the path is no UTF-8; encode it so", field=name
            ) from None

    @property
    def queue(self) -> str:
        """The queue's name as the caller knows it."""
        return self.part("queue")

    @property
    def full(self) -> str:
        """The queue's name in the store."""
        return self.caller.full(self.queue)

    @property
    def arguments(self) -> CommandBuilder:
        """What makes commands for the queue."""
        if self._arguments is None:
            queue = self.queue
            full = self.caller.full(queue)
            try:
                self._arguments = _arguments_of(full, self.service.settings.max_body)
            except InvalidArgument as error:
                raise InvalidArgument(str(error).replace(full, queue, 1)) from None
        return self._arguments

    async def bytes(self) -> bytes:
        """Return the request's body."""
        settings = self.service.settings
        return await read_body(
            self.receive, self.header("content-length"), settings.max_request,
            settings.request_timeout,
        )  # fmt: skip

    async def read(self, kind: type[T]) -> T:
        """Return the request's body as a struct; of one that is not there, its defaults.

        Raises:
            Problem: it does not fit.
        """
        data = await self.bytes()
        content_type = self.content_type
        if data and content_type not in ("", JSON) and not content_type.endswith("+json"):
            raise Problem(
                "malformed",
                f"content-type is {content_type!r}; this takes application/json",
                field="content-type",
            )
        return decode(data or b"{}", kind)

    @property
    def has_body(self) -> bool:
        """Whether the request announces a body."""
        length = self._headers.get(b"content-length", b"0")
        return length != b"0" or b"transfer-encoding" in self._headers

    @property
    def content_type(self) -> str:
        """The content type without its parameters, in small letters."""
        return _plain(self._headers.get(b"content-type", b""))

    def query(self, kind: type[T]) -> T:
        """Return the query's parameters as a struct.

        Raises:
            Problem: they do not fit.
        """
        said: bytes = self.scope["query_string"]
        try:
            text = said.decode("ascii")
            pairs = (
                parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=50)
                if text
                else ()
            )
        except (UnicodeDecodeError, ValueError) as error:
            raise Problem("malformed", f"the query cannot be read: {error}") from None
        try:
            return msgspec.convert(dict(pairs), kind, strict=False)
        except msgspec.ValidationError as error:
            raise of_validation(error, kind, "The query") from None

    @property
    def client(self) -> str | None:
        """The client's address; `None` on a Unix socket."""
        client = self.scope.get("client")
        return client[0] if client else None

    def counted(self, calls: LongCalls) -> AbstractContextManager[None]:
        """Count this call among those that stay open, where tokens are asked for.

        Raises:
            Problem: when the block is entered: there are too many.
        """
        if not self.service.admission.asks:
            return nullcontext()
        return calls.one(self.caller.namespace, self.client)

    async def begin_stream(self, kind: str) -> None:
        """Send the beginning of an answer that goes on for as long as there is something to say."""
        self.streams = True
        headers = [
            (b"content-type", kind.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def answer(self, answer: Answer) -> None:
        """Send an answer."""
        headers = {"content-type": answer.kind, **answer.headers}
        await send_whole(self.send, answer.status, answer.data, headers)


_arguments_of = lru_cache(maxsize=1_000)(CommandBuilder)
"""What makes commands for a queue, whose name is checked once."""


@lru_cache(maxsize=64)
def _plain(content_type: bytes) -> str:
    return content_type.decode("latin-1").partition(";")[0].strip().lower()


def decode(data: bytes, kind: type[T]) -> T:
    """Return JSON as a struct.

    Raises:
        Problem: it is no JSON, nested too deeply, or does not fit.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise of_validation(error, kind) from None
    except UnicodeDecodeError as error:
        raise Problem("malformed", f"The body is no UTF-8: {error}") from None
    except RecursionError:
        raise Problem(
            "malformed", f"The body is nested too deeply; {MAX_DEPTH} levels are possible"
        ) from None


async def send_whole(send: Send, status: int, data: bytes, headers: Mapping[str, str]) -> None:
    """Send an answer in one piece."""
    empty = status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
    fields = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
        if not (empty and name == "content-type")
    ]
    if empty:
        data = b""
    else:
        fields.append((b"content-length", b"%d" % len(data)))
    await send({"type": "http.response.start", "status": int(status), "headers": fields})
    await send({"type": "http.response.body", "body": data})
