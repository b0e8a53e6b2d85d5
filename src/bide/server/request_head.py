"""The head of a request: its limits, and what of it could be read in two ways."""

from typing import Any

from bide.model.limits import MAX_FIELDS, MAX_HEAD

_ONCE = frozenset(
    (
        b"host", b"authorization", b"content-type", b"origin", b"sec-fetch-site",
        b"transfer-encoding",
    )
)  # fmt: skip
"""Header fields of which a second one would mean something else to a proxy than to this server."""

Refusal = tuple[int, str]
"""A status and its reason."""

TOO_LARGE: Refusal = (431, f"the head is larger than {MAX_HEAD:,} bytes")

_TOO_MANY: Refusal = (431, f"there are more than {MAX_FIELDS} header fields")


class RequestHead:
    """Collects a head field by field."""

    def __init__(self) -> None:
        self.url = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self._bytes = self._fields = 0

    def add_url(self, part: bytes) -> Refusal | None:
        """Add a part of the target; return why the request is refused, `None` if it is not."""
        self.url += part
        self._bytes += len(part)
        return TOO_LARGE if self._bytes > MAX_HEAD else None

    def add_field(self, name: bytes, value: bytes) -> Refusal | None:
        """Add a header field."""
        name = name.lower()
        if name in _ONCE and any(known == name for known, _ in self.fields):
            return 400, f"two {name.decode()} header fields; send one"
        self.fields.append((name, value))
        return self.add_trailer(name, value)

    def add_trailer(self, name: bytes, value: bytes) -> Refusal | None:
        """Count a field that is not kept: one after a chunked body."""
        self._fields += 1
        self._bytes += len(name) + len(value) + 4
        if self._bytes > MAX_HEAD:
            return TOO_LARGE
        return _TOO_MANY if self._fields > MAX_FIELDS else None

    def check(self, version: str) -> Refusal | None:
        """Look at the head as a whole."""
        names = dict(self.fields)
        coding = names.get(b"transfer-encoding")
        if version not in ("1.1", "1.0"):
            return 400, f"HTTP/{version} is not spoken here; use HTTP/1.1"
        if version == "1.1" and b"host" not in names:
            return 400, "HTTP/1.1 needs a host header field"
        if coding is not None and (coding.lower() != b"chunked" or version == "1.0"):
            return 400, "transfer-encoding can only be chunked, and only in HTTP/1.1"
        return None

    def expects_continue(self, version: str) -> bool:
        """Tell whether the client waits for `100 Continue` before it sends the body."""
        expected = dict(self.fields).get(b"expect", b"")
        return version == "1.1" and expected.lower() == b"100-continue"

    def without_upgrade(self, method: bytes, version: str) -> bytes:
        """Return the head as a client sends it that wishes for no other protocol."""
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        lines += [b"%b: %b" % field for field in self.fields if field[0] != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def scope(self, method: str, version: str, client: Any, server: Any) -> dict[str, Any]:
        """Return ASGI's description of the request."""
        path, _, query = _path_of(self.url).partition(b"?")
        return {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": version, "method": method, "scheme": "http",
            "path": path.decode("latin-1"), "raw_path": path, "query_string": query,
            "root_path": "", "headers": self.fields, "client": client, "server": server,
        }  # fmt: skip


def _path_of(url: bytes) -> bytes:
    """Return the path and the query of a request's target."""
    if url.startswith((b"http://", b"https://")):  # as a proxy sends it
        _, slash, rest = url.partition(b"//")[2].partition(b"/")
        return slash + rest
    return url
