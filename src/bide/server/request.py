"""A request to an operation as it came, and how its head, its query and its body are decoded."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from bide.engines.http.connection import MARK
from bide.model.body import parse
from bide.model.limits import MAX_QUERY
from bide.server import wire
from bide.server.limits.request_bodies import LargeBodies, Pause, RequestBody, check_json
from bide.server.operation import JSON, MSGPACK, Operation
from bide.server.problem import UNREADABLE, Problem, invalid, of_decoding
from bide.server.settings import Settings

_MARK = re.compile(rb"[!-~]{1,64}")

Scope = dict[str, Any]

T = TypeVar("T")


@dataclass(eq=False)
class ApiRequest:
    """A request to an operation, as it came.

    Args:
        operation: the operation that is called.
        scope: ASGI's description of the request.
        path: its path, not decoded.
        client: the client's address; "" on a Unix socket without a trusted proxy.
        body: its body.
        bodies: lets other requests go on between two that are decoded.
        settings: the limits of a body.
    """

    operation: Operation
    scope: Scope
    path: str
    client: str
    body: RequestBody
    bodies: LargeBodies
    settings: Settings
    pause: Pause = field(init=False)
    """Lets other requests go on in a loop over the body, which was read."""

    def __post_init__(self) -> None:
        headers: dict[bytes, bytes] = dict(self.scope["headers"])
        self.headers = headers
        """The header fields by their names in lower case; of several with one name, the last."""
        scheme, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        self.token = text.strip() if scheme.lower() == "bearer" else None
        """The bearer token of the request; `None`: it has none."""
        kind = headers.get(b"content-type", b"").decode("latin-1")
        self.content_type = kind.partition(";")[0].strip().lower()
        """The content type without parameters, in lower case."""
        mark = headers.get(MARK, b"")
        host = headers.get(b"host")
        self.host = None if host is None else host.decode("latin-1")
        """The host for which the request is; `None`: it does not say."""
        length = headers.get(b"content-length", b"0")
        self.has_body = length != b"0" or b"transfer-encoding" in headers
        """Whether the request announces a body."""
        self.mark = {MARK.decode(): mark.decode()} if _MARK.fullmatch(mark) else {}
        """The header field of the answer that names the request, if the client has named it."""

    def header(self, name: str) -> str | None:
        """Return a header by its name in lower case."""
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @cached_property
    def names(self) -> dict[str, str]:
        """The names in the path, not decoded, by their placeholders: "queue" for {queue}."""
        parts = zip(self.operation.path.split("/"), self.path.split("/"), strict=True)
        return {
            placeholder.strip("{}"): part
            for placeholder, part in parts
            if placeholder.startswith("{")
        }

    def part(self, name: str) -> str:
        """Return a name in the path, decoded.

        Raises:
            Problem: it is not UTF-8.
        """
        try:
            return unquote_to_bytes(self.names[name]).decode()
        except UnicodeDecodeError:
            raise invalid(name, f"{name} in the path is not UTF-8; encode it in UTF-8") from None

    @property
    def queue(self) -> str:
        """The caller's name of the queue."""
        return self.part("queue")

    async def arguments(self) -> dict[str, Any]:
        """Return the arguments of the handler besides the call; see `Routes`.

        Raises:
            Problem: the request's body or query does not fit.
        """
        operation = self.operation
        arguments: dict[str, Any] = {}
        if operation.decodes_body:
            arguments["content"] = await self.read(operation.takes)
        if operation.query is not None:
            arguments["query"] = self.query(operation.query)
        elif self.scope["query_string"] and operation.method != "GET":
            self.query(wire.EmptyRequest)  # refuses all: an ignored dry_run=true would do harm
        return arguments

    def query(self, kind: type[T]) -> T:
        """Return the query's parameters as a struct.

        Raises:
            Problem: a parameter is unknown, or has another type.
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

    async def read(self, kind: type[T]) -> T:
        """Return the request's body as a struct; without a body, its defaults.

        Raises:
            Problem: the body is not JSON, or a field is unknown or has another type.
        """
        unpack = self.operation.unpack
        if unpack is not None and self.content_type == MSGPACK:
            data = await self.bytes()
            try:
                content: T = await unpack(data, self.pause)
            except UNREADABLE as error:
                raise of_decoding(error, kind) from None
            return content
        data = await self.text()
        check_json(data)
        return decode(data, kind)

    async def text(self) -> bytes:
        """Return the request's body as JSON text; "{}" without a body. Decode it at once.

        Raises:
            Problem: it has another content type.
        """
        data = await self.bytes()
        await self.bodies.turn(len(data))
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
            Problem: it is compressed, too large, or does not arrive in time.
        """
        if self.headers.get(b"content-encoding", b"") not in (b"", b"identity"):
            coding = self.header("content-encoding")
            raise Problem(
                "malformed",
                f"content-encoding is {coding!r}, and bodies are not decompressed; leave it out",
                field="content-encoding",
            )
        settings, length = self.settings, self.headers.get(b"content-length", b"0")
        data = await self.body.read(length, settings.max_request, settings.request_timeout)
        self.pause = self.bodies.pauses()
        return data


def decode(data: bytes, kind: type[T]) -> T:
    """Decode JSON to a type.

    Raises:
        Problem: it is not JSON, is nested too deeply, or does not fit.
    """
    try:
        return parse(data) if kind is Any else msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise of_decoding(error, kind, data=data) from None
