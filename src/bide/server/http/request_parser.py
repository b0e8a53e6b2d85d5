"""Parse the requests of a connection: llhttp finds heads and bodies, this module limits heads.

A head that is too large, or that a proxy may read in another way than this server, is refused.
"""

from typing import Any, Protocol

import httptools

from bide.model.limits import MAX_FIELDS, MAX_HEAD

SLICE = 16 * 1024
"""Bytes that are parsed at a time; parsing stops while a request waits for its turn."""

Refusal = tuple[int, str]
"""A status and its reason."""

TOO_LARGE: Refusal = (431, f"the head is larger than {MAX_HEAD:,} bytes")

_TOO_MANY: Refusal = (431, f"there are more than {MAX_FIELDS} header fields")

_ONCE = frozenset(
    (
        b"host",
        b"authorization",
        b"content-type",
        b"origin",
        b"sec-fetch-site",
        b"transfer-encoding",
    )
)
"""Header fields that may occur once: proxies may use another one of two than this server."""


class RequestSink(Protocol):
    """Gets the requests of a connection."""

    def head_begins(self) -> None:
        """Note that the head of a request begins."""

    def head_complete(self, scope: dict[str, Any], *, keep: bool, expects: bool) -> None:
        """Take a request whose body follows.

        Args:
            scope: ASGI's description of it.
            keep: whether the client may send another one on the connection.
            expects: whether the client waits for `100 Continue` before it sends the body.
        """

    def body_part(self, data: bytes) -> None:
        """Take a part of the body."""

    def body_complete(self) -> None:
        """Note the end of the body."""

    def tunnel_begins(self) -> None:
        """Note that what follows is not HTTP."""


class RequestParser:
    """Parses the requests of a connection, one after the other.

    Args:
        sink: gets the requests.
        known: the part of ASGI's description that all requests of the connection have.
    """

    def __init__(self, sink: RequestSink, known: dict[str, Any]) -> None:
        self._sink = sink
        self._known = known
        self._parser = httptools.HttpRequestParser(self)
        self.refusal: Refusal | None = None
        """Why the request cannot be answered; nothing after it is parsed."""
        self._begin_head()

    def _begin_head(self) -> None:
        self.in_head = True
        """Whether the head of the next request is not complete."""
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._values: dict[bytes, bytes] = {}
        self._field_count = 0
        self._size = 0
        self._fed = 0
        """Bytes since the last part of a body, or the last request, which llhttp keeps."""

    @property
    def head_size(self) -> int:
        """How many bytes of an unfinished head were parsed."""
        return self._fed if self.in_head else 0

    def feed(self, data: memoryview) -> None:
        """Parse up to `SLICE` bytes."""
        remaining: bytes | memoryview = data
        try:
            while remaining:
                remaining = self._feed(remaining)
        except httptools.HttpParserError as error:
            self._refuse((400, f"this is not HTTP/1.1: {error}"))
        # This counts the head, the trailers, and the framing of chunks.
        self._fed += len(data)
        if self._fed > MAX_HEAD + SLICE:
            self._refuse(TOO_LARGE)

    def _feed(self, data: bytes | memoryview) -> bytes:
        """Parse data; return data to parse next: only for a request to upgrade.

        The server has no other protocol, so it ignores the upgrade. llhttp treats the body of such
        a request as the other protocol, so it gets the request again without the upgrade.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.refusal is None and self._asks_to_upgrade():
                head = self._head_without_upgrade()
                self._parser = httptools.HttpRequestParser(self)
                return head + data[upgrade.args[0] :]
            self._sink.tunnel_begins()
        return b""

    def _asks_to_upgrade(self) -> bool:
        return self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        parser = self._parser
        version = parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (parser.get_method(), self._url, version)]
        lines += [b"%b: %b" % field for field in self._fields if field[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _refuse(self, refusal: Refusal) -> None:
        """Refuse the request; the first reason counts."""
        if self.refusal is None:
            self.refusal = refusal

    # llhttp calls these, also several times for one piece of data.

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._begin_head()
        self._sink.head_begins()

    def on_url(self, url: bytes) -> None:
        """Keep the request's target, which may come in pieces."""
        self._url += url
        self._size += len(url)
        if self._size > MAX_HEAD:
            self._refuse(TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header field; a field after a chunked body is only counted."""
        self._field_count += 1
        self._size += len(name) + len(value) + 4
        if self._size > MAX_HEAD:
            self._refuse(TOO_LARGE)
        elif self._field_count > MAX_FIELDS:
            self._refuse(_TOO_MANY)
        elif self.in_head:
            name = name.lower()
            if name in _ONCE and name in self._values:
                self._refuse((400, f"two {name.decode()} header fields; send one"))
            self._fields.append((name, value))
            self._values[name] = value

    def on_headers_complete(self) -> None:
        """Pass the request on."""
        self.in_head = False
        parser, values = self._parser, self._values
        version = parser.get_http_version()
        coding = values.get(b"transfer-encoding")
        if version not in ("1.1", "1.0"):
            self._refuse((400, f"HTTP/{version} is not supported; use HTTP/1.1"))
        elif version == "1.1" and b"host" not in values:
            self._refuse((400, "HTTP/1.1 needs a host header field"))
        elif coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
            self._refuse((400, "transfer-encoding can only be chunked, and only in HTTP/1.1"))
        if self.refusal is not None or self._asks_to_upgrade():
            return
        url = self._url
        if url.startswith((b"http://", b"https://")):  # the form that a proxy sends
            _, slash, rest = url.partition(b"//")[2].partition(b"/")
            url = slash + rest
        path, _, query = url.partition(b"?")
        scope = {
            **self._known,
            "http_version": version,
            "method": parser.get_method().decode(),
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "headers": self._fields,
            "extensions": {},
        }
        expects = version == "1.1" and values.get(b"expect", b"").lower() == b"100-continue"
        self._sink.head_complete(scope, keep=parser.should_keep_alive(), expects=expects)

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        self._fed = 0
        if self.refusal is None:
            self._sink.body_part(body)

    def on_message_complete(self) -> None:
        """Pass the end of the body on."""
        self._fed = 0
        if self.refusal is None:
            self._sink.body_complete()
