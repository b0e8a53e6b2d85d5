"""A connection to a server that is kept, and what goes wrong with it."""

import os
import socket
import ssl
import time
from typing import NamedTuple

from bide.engines.http.channel import Channel, ChannelBroken, HttpAnswer, TooLong, words
from bide.model.errors import (
    InvalidArgument,
    NotAStore,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)

RUNNING = "is bide serve running there, and does it speak TLS (https://)?"
"""The fix in an error about no answer, or about one that is not from a bide server."""

MARK = b"bide-request"
"""The header field that names a request. The server repeats it in the answer."""

CONNECTING = 10.0
"""For how many seconds at most a connection is tried, TLS included."""


class HttpAddress(NamedTuple):
    """Where a server is, and the credentials for it."""

    tls: bool
    host: str
    port: int | None
    path: str
    """The part of the path before /v1, behind a proxy."""
    token: str
    ca: str | None = None
    """A file with the certificates to trust, instead of the system's."""
    cert: str | None = None
    """A file with this client's certificate."""
    cert_key: str | None = None
    """A file with its key; `None`: it is in the same file."""

    def __repr__(self) -> str:  # without the token
        return f"<{self.shown}>"

    @property
    def shown(self) -> str:
        """The URL without the token, for output."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port is not None else ""
        return f"http{'s' * self.tls}://{host}{port}{self.path}"


class HttpConnection:
    """Sends requests one after the other, and gives each the answer that is its own.

    Whatever interrupts a request or its answer leaves the connection out of step: the next request
    opens another.

    Args:
        address: of the server.
        timeout: seconds to wait for a connection, for an answer to begin, and for each `PACE` bytes
            of it.
    """

    def __init__(self, address: HttpAddress, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._context = _context(address) if address.tls else None
        self._channel: Channel | None = None
        self._in_step = False
        """Whether all answers on the channel were read; only then another request may use it."""
        self._name = os.urandom(6).hex()
        self._count = 0
        self._heads: dict[tuple[str, str, str], bytes] = {}

    def ask(self, method: str, path: str, data: bytes | None, kind: str) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer.

        Raises:
            StoreUnavailable: nothing was sent, or nothing but a question.
            OutcomeUnknown: it was sent, and no answer came.
            StoreError: the answer is longer than `MAX_ANSWER`.
        """
        self._count += 1
        mark = f"{self._name}-{self._count}".encode()
        try:
            answer = self._send(method, path, data, kind, mark)
            body = answer.body()
            self._check(method, answer, mark)
        except ChannelBroken as error:
            self.close()
            raise self._unanswered(method, error) from error
        except TooLong as size:
            self.close()
            raise StoreError(
                f"{self._address.shown} answered with {size}; it may have done what was asked. Is "
                "it a server of bide's? Ask for fewer messages at a time"
            ) from None
        except BaseException:
            self.close()
            raise
        self._in_step = answer.keeps and answer.fields.get(MARK) == mark
        return answer.status, body

    def stream(self, path: str, kind: str) -> HttpAnswer:
        """Send a request whose answer does not end; return it when it has begun.

        Raises:
            StoreUnavailable: there is no answer.
        """
        try:
            return self._send("GET", path, None, kind, self._name.encode())
        except ChannelBroken as error:
            self.close()
            raise self._unanswered("GET", error) from error
        except BaseException:
            self.close()
            raise

    def end(self) -> None:
        """Make a thread that reads an answer see its end."""
        if (channel := self._channel) is not None:
            channel.end()

    def close(self) -> None:
        """Close it; the next request opens another."""
        self._in_step = False
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _send(
        self, method: str, path: str, data: bytes | None, kind: str, mark: bytes
    ) -> HttpAnswer:
        """Send a request; return its answer, which may come before the request is whole.

        Raises:
            StoreUnavailable: it was not sent.
            ChannelBroken: no answer came, or what came is none.
        """
        head = self._heads.get((method, path, kind)) or self._head(method, path, kind)
        length = b"" if data is None else b"content-length: %d\r\n" % len(data)
        request = b"%b%b: %b\r\n%b\r\n%b" % (head, MARK, mark, length, data or b"")
        while True:
            channel = self._channel
            kept = self._in_step and channel is not None and channel.is_idle
            if channel is None or not kept:
                self.close()  # the server may have closed it meanwhile
                channel = self._channel = self._open()
            self._in_step = False
            try:
                channel.send(request)
            except ChannelBroken as error:
                early = channel.early_answer()
                # 408 is about the connection: it was kept for too long.
                if early is not None and early.status >= 400 and early.status != 408:
                    early.keeps = False
                    return early
                # The server closed it meanwhile, and executes no request of which it has a part.
                if not (kept and isinstance(error.__cause__, ConnectionError)):
                    raise self._unreachable(str(error)) from error
            else:
                return channel.answer()

    def _head(self, method: str, path: str, kind: str) -> bytes:
        """Return the part of a request's head that is the same each time, and keep it."""
        address = self._address
        host = f"[{address.host}]" if ":" in address.host else address.host
        name = host.encode("idna") if not host.isascii() else host.encode()
        if address.port not in (None, 443 if address.tls else 80):
            name += b":%d" % address.port
        fields = [
            f"{method} {address.path}{path} HTTP/1.1".encode("ascii"),
            b"host: " + name,
            f"accept: {kind}".encode(),
            f"content-type: {kind}".encode(),
            b"accept-encoding: identity",
        ]
        if address.token:
            fields.append(f"authorization: Bearer {address.token}".encode())
        head = b"".join(field + b"\r\n" for field in fields)
        self._heads[method, path, kind] = head
        return head

    def _open(self) -> Channel:
        """Open a connection, with a shorter timeout than for an answer."""
        address, timeout = self._address, min(self._timeout, CONNECTING)
        port = address.port or (443 if address.tls else 80)
        began = time.monotonic()
        opened: socket.socket | None = None
        try:
            opened = socket.create_connection((address.host, port), timeout)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                opened = self._context.wrap_socket(opened, server_hostname=address.host)
            return Channel(opened, self._timeout)
        except BaseException as error:
            if opened is not None:
                opened.close()
            early = isinstance(error, TimeoutError) and time.monotonic() < began + timeout
            if early or not isinstance(error, OSError):  # of a signal handler
                raise
            fix = RUNNING
            if isinstance(error, ssl.SSLCertVerificationError):
                fix = "name the certificate of its authority with ?ca=FILE"
            raise self._unreachable(words(error), fix) from error

    def _check(self, method: str, answer: HttpAnswer, mark: bytes) -> None:
        """Check that an answer is that of the request.

        What stands before a server, such as a proxy, refuses requests without their marks.

        Raises:
            NotAStore: it has no mark, and was a question.
            StoreUnavailable: it has another mark.
            OutcomeUnknown: it has another mark or none, and something may have been done.
        """
        given, shown = answer.fields.get(MARK), self._address.shown
        if given == mark or (given is None and answer.status >= 300):
            return
        self.close()
        if given is None and method == "GET":
            raise NotAStore(f"{shown} answers, but is no server of bide's, or an older one")
        kind = StoreUnavailable if method == "GET" else OutcomeUnknown
        raise kind(
            f"{shown} gave an answer that is not that of the request; what was asked may have been "
            "done. Does a proxy before it mix up answers, or keep the header bide-request back?"
        )

    def _unreachable(self, why: str, fix: str = RUNNING) -> StoreUnavailable:
        self.close()
        return StoreUnavailable(f"{self._address.shown} cannot be reached: {why}; {fix}")

    def _unanswered(self, method: str, error: ChannelBroken) -> StoreUnavailable:
        """Return the error of a request that has no answer."""
        silence = f"{self._address.shown} did not answer ({error})"
        if method != "GET":
            return OutcomeUnknown(f"{silence}; it may have done what was asked")
        if self._address.tls:
            fix = "if it wants a client certificate, add ?cert=FILE&cert_key=FILE to the URL"
            return StoreUnavailable(f"{silence}; {fix}")
        return StoreUnavailable(f"{silence}; {RUNNING}")


def _context(address: HttpAddress) -> ssl.SSLContext:
    """Return the certificates that a connection trusts and shows.

    Raises:
        InvalidArgument: a file of the URL cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=address.ca)
        if address.cert is not None:
            context.load_cert_chain(address.cert, address.cert_key, password=lambda: "")
    except OSError as error:
        files = ", ".join(filter(None, (address.ca, address.cert, address.cert_key)))
        raise InvalidArgument(
            f"{address.shown}: ?ca, ?cert or ?cert_key cannot be used ({files}): {words(error)}; "
            "name files of certificates, and of a key without a passphrase, as PEM"
        ) from None
    return context
