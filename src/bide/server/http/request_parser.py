"""Parse the requests of a connection: llhttp finds heads and bodies, this module limits heads.

A head that is too large, or that a proxy may read in another way than this server, is refused.
"""

from enum import Enum
from typing import Any, NamedTuple

import httptools

from bide.model.limits import MAX_FIELDS, MAX_HEAD

SLICE = 16 * 1024
"""Bytes that are parsed at a time; parsing stops while a request waits for its turn."""

Refusal = tuple[int, str]
"""A status and its reason."""

TOO_LARGE: Refusal = (431, f"the head is larger than {MAX_HEAD:,} bytes")

_TOO_MANY_FIELDS: Refusal = (431, f"there are more than {MAX_FIELDS} header fields")

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


class RequestHead(NamedTuple):
    """The head of a request."""

    scope: dict[str, Any]
    """ASGI's description of the request."""
    keep: bool
    """Whether the client may send another one on the connection."""
    expects: bool
    """Whether the client waits for `100 Continue` before it sends the body."""


class Sign(Enum):
    """What comes behind a head and the parts of its body."""

    END = "the request is complete"
    TUNNEL = "what follows is not HTTP"


Parsed = RequestHead | bytes | Sign
"""A piece of a request: its head, a part of its body, or a sign behind it."""


class RequestParser:
    """Parses the requests of a connection, one after the other.

    Args:
        common_scope: the part of ASGI's description that all requests of the connection have.
    """

    def __init__(self, common_scope: dict[str, Any]) -> None:
        self._common_scope = common_scope
        self._parser = httptools.HttpRequestParser(self)
        self.refusal: Refusal | None = None
        """Why the request cannot be answered; nothing after it is parsed."""
        self._parsed: list[Parsed] = []
        """What `feed` will return."""
        self._in_body = False
        """Whether a head was passed on, and the end of its request was not."""
        self.head_size = 0
        """How many bytes of an unfinished head were parsed."""
        self.on_message_begin()

    def on_message_begin(self) -> None:
        """Begin a head, and forget that of the request before; llhttp calls this."""
        self.in_head = True
        """Whether the head of the next request is not complete."""
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        """The header fields in their order, with names in small letters."""
        self._values: dict[bytes, bytes] = {}
        """The header fields by name; of several with a name, the last."""
        self._field_count = 0
        """The number of header fields, those after a chunked body included."""
        self._head_bytes = 0
        """The size of the target and the header fields in bytes."""
        self._asks_for_upgrade = False
        """Whether the request asks for another protocol, which the server does not have."""
        self._framing_bytes = 0
        """Bytes since the last part of a body, or the last request, which llhttp keeps."""

    def feed(self, data: memoryview) -> list[Parsed]:
        """Parse up to `SLICE` bytes; return the pieces of requests in them, in order."""
        remaining: bytes | memoryview = data
        while remaining:
            try:
                self._parser.feed_data(remaining)
                remaining = b""
            except httptools.HttpParserUpgrade as upgrade:  # to be answered as if it had not asked
                (end_of_head,) = upgrade.args
                remaining = self._without_upgrade(remaining[end_of_head:])
            except httptools.HttpParserError as error:
                self._refuse((400, f"this is not HTTP/1.1: {error}"))
                remaining = b""
        # Parts of a body reset it. So over several calls it counts only heads, trailers and the
        # framing of chunks, and at most one slice of other bytes.
        self._framing_bytes += len(data)
        if self._framing_bytes > MAX_HEAD + SLICE:
            self._refuse(TOO_LARGE)
        self.head_size = self._framing_bytes if self.in_head else 0
        parsed, self._parsed = self._parsed, []  # an idle connection keeps none of it
        return parsed

    def _without_upgrade(self, data: bytes | memoryview) -> bytes:
        """Return a request to upgrade as one that asks for no upgrade; nothing after a CONNECT.

        llhttp treats the body of such a request as the other protocol.

        Args:
            data: the data after the head.
        """
        if self.refusal is not None or not self._asks_for_upgrade:
            self._parsed.append(Sign.TUNNEL)
            return b""
        head = self._head_without_upgrade()
        self._parser = httptools.HttpRequestParser(self)
        return head + data

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

    def on_url(self, url: bytes) -> None:
        """Keep the request's target, which may come in pieces."""
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > MAX_HEAD:
            self._refuse(TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header field; a field after a chunked body is only counted."""
        self._field_count += 1
        self._head_bytes += len(name) + len(value) + 4  # ": " and the end of the line
        if self._head_bytes > MAX_HEAD:
            self._refuse(TOO_LARGE)
        elif self._field_count > MAX_FIELDS:
            self._refuse(_TOO_MANY_FIELDS)
        elif self.in_head:
            name = name.lower()
            if name in _ONCE and name in self._values:
                self._refuse((400, f"two {name.decode()} header fields; send one"))
            self._fields.append((name, value))
            self._values[name] = value

    def on_headers_complete(self) -> None:
        """Pass the request on, unless it is refused, or is parsed again without its upgrade."""
        self.in_head = False
        parser = self._parser
        self._check_head()
        self._asks_for_upgrade = parser.should_upgrade() and parser.get_method() != b"CONNECT"
        if self.refusal is not None or self._asks_for_upgrade:
            return
        version = parser.get_http_version()
        waits_for_continue = self._values.get(b"expect", b"").lower() == b"100-continue"
        expects = version == "1.1" and waits_for_continue
        self._parsed.append(RequestHead(self._scope(), parser.should_keep_alive(), expects))
        self._in_body = True

    def _check_head(self) -> None:
        """Refuse what proxies may read in another way than this server."""
        version = self._parser.get_http_version()
        coding = self._values.get(b"transfer-encoding")
        if version not in ("1.1", "1.0"):
            self._refuse((400, f"HTTP/{version} is not supported; use HTTP/1.1"))
        elif version == "1.1" and b"host" not in self._values:
            self._refuse((400, "HTTP/1.1 needs a host header field"))
        elif coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
            self._refuse((400, "transfer-encoding can only be chunked, and only in HTTP/1.1"))

    def _scope(self) -> dict[str, Any]:
        """Return ASGI's description of the request."""
        url = self._url
        if url.startswith((b"http://", b"https://")):  # the form that a proxy sends
            _, slash, rest = url.partition(b"//")[2].partition(b"/")
            url = slash + rest
        path, _, query = url.partition(b"?")
        return {
            **self._common_scope,
            "http_version": self._parser.get_http_version(),
            "method": self._parser.get_method().decode(),
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "headers": self._fields,
            "extensions": {},
        }

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        self._framing_bytes = 0
        if self.refusal is None and self._in_body:
            self._parsed.append(body)

    def on_message_complete(self) -> None:
        """Pass the end of the body on."""
        self._framing_bytes = 0
        if self.refusal is None and self._in_body:
            self._parsed.append(Sign.END)
            self._in_body = False
