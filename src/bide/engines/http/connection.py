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
"""The header field with the id of a request. The server repeats it in the answer."""

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
        """The random part of the ids of requests."""
        self._count = 0
        """How many requests there were: the other part of their ids."""
        self._heads: dict[tuple[str, str, str], bytes] = {}
        """What is the same in all heads, by method, path and content type; see `_head`."""

    def ask(
        self, method: str, path: str, data: bytes | None, content_type: str
    ) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer.

        Args:
            method: of the request.
            path: on the server, such as "/v1/batch".
            data: the body of the request; `None`: it has none.
            content_type: of request and answer.

        Raises:
            StoreUnavailable: nothing was sent, or nothing but a question.
            OutcomeUnknown: it was sent, and no answer came.
            StoreError: the answer is longer than `MAX_ANSWER`.
        """
        self._count += 1
        request_id = f"{self._name}-{self._count}".encode()
        try:
            answer = self._send(method, path, data, content_type, request_id)
            body = answer.body()
            self._check(method, answer, request_id)
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
        self._in_step = answer.keeps and answer.fields.get(MARK) == request_id
        return answer.status, body

    def stream(self, path: str, content_type: str) -> HttpAnswer:
        """Send a request whose answer does not end; return it when it has begun.

        Raises:
            StoreUnavailable: the server cannot be reached, or does not answer.
        """
        try:
            return self._send("GET", path, None, content_type, self._name.encode())
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
        self, method: str, path: str, data: bytes | None, content_type: str, request_id: bytes
    ) -> HttpAnswer:
        """Send a request; return its answer, which may come before the request is whole.

        The arguments are those of `ask`, and the id that the answer must repeat.

        Raises:
            StoreUnavailable: the server cannot be reached, so the request was not sent.
            ChannelBroken: no answer came, or what came is none.
        """
        head = self._heads.get((method, path, content_type))
        if head is None:
            head = self._head(method, path, content_type)
        length = b"" if data is None else b"content-length: %d\r\n" % len(data)
        request = b"%b%b: %b\r\n%b\r\n%b" % (head, MARK, request_id, length, data or b"")
        while True:
            channel = self._channel
            is_kept = self._in_step and channel is not None and channel.is_idle
            if channel is None or not is_kept:
                self.close()  # the server may have closed it meanwhile
                channel = self._channel = self._open()
            self._in_step = False
            try:
                channel.send(request)
            except ChannelBroken as error:
                if (refusal := _early_refusal(channel)) is not None:
                    return refusal
                # The server closed it meanwhile, and executes no request of which it has a part.
                closed_meanwhile = is_kept and isinstance(error.__cause__, ConnectionError)
                if not closed_meanwhile:
                    raise self._unreachable(str(error)) from error
                # Once more at most: the next channel is a new one.
                continue
            return channel.answer()

    def _head(self, method: str, path: str, content_type: str) -> bytes:
        """Return the part of a request's head that is the same each time, and keep it."""
        address = self._address
        host = f"[{address.host}]" if ":" in address.host else address.host
        host_field = host.encode("idna") if not host.isascii() else host.encode()
        if address.port not in (None, 443 if address.tls else 80):
            host_field += b":%d" % address.port
        fields = [
            f"{method} {address.path}{path} HTTP/1.1".encode("ascii"),
            b"host: " + host_field,
            f"accept: {content_type}".encode(),
            f"content-type: {content_type}".encode(),
            b"accept-encoding: identity",
        ]
        if address.token:
            fields.append(f"authorization: Bearer {address.token}".encode())
        head = b"".join(field + b"\r\n" for field in fields)
        self._heads[method, path, content_type] = head
        return head

    def _open(self) -> Channel:
        """Open a connection, with a shorter timeout than for an answer."""
        address, timeout = self._address, min(self._timeout, CONNECTING)
        port = address.port or (443 if address.tls else 80)
        began = time.monotonic()
        connected: socket.socket | None = None
        try:
            connected = socket.create_connection((address.host, port), timeout)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                connected = self._context.wrap_socket(connected, server_hostname=address.host)
            return Channel(connected, self._timeout)
        except BaseException as error:
            if connected is not None:
                connected.close()
            # Signal handlers raise, too. Some raise a `TimeoutError`, before the time is over.
            is_early = isinstance(error, TimeoutError) and time.monotonic() < began + timeout
            if is_early or not isinstance(error, OSError):
                raise
            if isinstance(error, ssl.SSLCertVerificationError):
                fix = "name the certificate of its authority with ?ca=FILE"
                untrusted = self._unreachable(words(error), fix)
                untrusted.lasts = True
                raise untrusted from error
            raise self._unreachable(words(error)) from error

    def _check(self, method: str, answer: HttpAnswer, request_id: bytes) -> None:
        """Check that an answer is that of the request.

        A proxy before the server may refuse a request, and does not repeat its id.

        Raises:
            NotAStore: it has no id, and nothing was to be done.
            StoreUnavailable: it has another id, and nothing was to be done.
            OutcomeUnknown: it has another id or none, and something may have been done.
        """
        answered_id = answer.fields.get(MARK)
        if answered_id == request_id or (answered_id is None and answer.status >= 300):
            return
        self.close()
        shown = self._address.shown
        if answered_id is None and method == "GET":
            raise NotAStore(f"{shown} answers, but is not a bide server, or an older one")
        error_type = StoreUnavailable if method == "GET" else OutcomeUnknown
        raise error_type(
            f"{shown} gave an answer to another request; what was asked may have been done. Does a "
            "proxy in front of it mix up answers, or drop the header bide-request?"
        )

    def _unreachable(self, why: str, fix: str = RUNNING) -> StoreUnavailable:
        """Close the connection; return the error of a request that was not sent."""
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


def _early_refusal(channel: Channel) -> HttpAnswer | None:
    """Return the answer with which a server refuses a request that it has not read to its end.

    `None`: there is none, or it says nothing of the request.
    """
    answer = channel.early_answer()
    # 408 is about the connection: it was kept for too long.
    if answer is None or answer.status < 400 or answer.status == 408:
        return None
    answer.keeps = False  # the rest of the request was not sent
    return answer


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
