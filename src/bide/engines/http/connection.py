"""A connection to a server that is kept, and what goes wrong with it."""

import socket
import ssl
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import NamedTuple

from bide.engines.waiting import readable
from bide.model.errors import InvalidArgument, OutcomeUnknown, StoreError, StoreUnavailable
from bide.model.limits import MAX_ANSWER

RUNNING = "is bide serve running there, and does it speak TLS (https://)?"
"""The fix in an error about no answer, or about one that is not from a bide server."""

CONNECTING = 10.0
"""For how many seconds at most a connection is tried, TLS included."""


class Address(NamedTuple):
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


class Connection:
    """Sends requests one after the other.

    Args:
        address: of the server.
        timeout: seconds to wait for a connection, and for each piece of an answer.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        host, port = address.host, address.port
        self._http = (
            HTTPSConnection(host, port, timeout=timeout, context=_context(address))
            if address.tls
            else HTTPConnection(host, port, timeout=timeout)
        )
        self._address = address
        self._timeout = timeout

    def ask(self, method: str, path: str, data: bytes | None, kind: str) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer.

        Raises:
            StoreUnavailable: nothing was sent, or nothing but a question.
            OutcomeUnknown: it was sent, and no answer came.
        """
        try:
            answer = self._send(method, path, data, kind)
            return answer.status, self.body(answer)
        except (OSError, HTTPException) as error:
            raise self._unanswered(method, error) from error
        except BaseException:  # an interrupt: what comes is no answer to the next request
            self.close()
            raise

    def body(self, answer: HTTPResponse) -> bytes:
        """Return the whole body of an answer.

        Raises:
            StoreError: it is longer than `MAX_ANSWER`; the connection is closed.
            IncompleteRead: the connection ended before the body did.
        """
        announced = answer.length or 0
        data = answer.read(MAX_ANSWER + 1) if announced <= MAX_ANSWER else b""
        if max(announced, len(data)) > MAX_ANSWER:
            self.close()
            raise StoreError(
                f"{self._address.shown} answered with more than {MAX_ANSWER:,} bytes; it may "
                "have done what was asked. Is it a server of bide's? Ask for fewer messages at a "
                "time"
            )
        if answer.length:  # unlike read(), read(most) does not raise if the end is missing
            raise IncompleteRead(data, answer.length)
        return data

    def stream(self, path: str, kind: str) -> HTTPResponse:
        """Send a request whose answer does not end; return it when it has begun.

        Raises:
            StoreUnavailable: there is no answer.
        """
        try:
            return self._send("GET", path, None, kind)
        except (OSError, HTTPException) as error:
            raise self._unanswered("GET", error) from error

    def _unanswered(self, method: str, error: Exception) -> StoreUnavailable:
        """Close the connection; return the error of a request that has no answer."""
        self.close()
        why = "no answer in time" if isinstance(error, TimeoutError) else _words(error)
        said = f"{self._address.shown} did not answer ({why})"
        if method != "GET":
            return OutcomeUnknown(f"{said}; it may have done what was asked")
        if self._address.tls:
            fix = "if it wants a client certificate, add ?cert=FILE&cert_key=FILE to the URL"
            return StoreUnavailable(f"{said}; {fix}")
        return StoreUnavailable(f"{said}; {RUNNING}")

    def shutdown(self) -> None:
        """Make a thread that reads an answer see its end."""
        with suppress(OSError, AttributeError):  # it has ended already, or has not begun
            self._http.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it; the next request opens another."""
        self._http.close()

    def _connect(self) -> None:
        """Open the connection, with a shorter timeout than for an answer."""
        self._http.timeout = min(self._timeout, CONNECTING)
        self._http.connect()
        self._http.sock.settimeout(self._timeout)

    def _send(self, method: str, path: str, data: bytes | None, kind: str) -> HTTPResponse:
        """Send a request; return its answer, which may come before the request is whole.

        Raises:
            StoreUnavailable: it was not sent.
            OSError: no answer came. `HTTPException`: it was no answer of HTTP.
        """
        headers = {"accept": kind, "content-type": kind}
        if self._address.token:
            headers["authorization"] = f"Bearer {self._address.token}"
        if self._http.sock is not None and readable(self._http.sock.fileno(), seconds=0):
            self.close()  # the server has closed it meanwhile: open another
        kept = self._http.sock is not None
        try:
            if self._http.sock is None:
                self._connect()
            self._http.request(method, self._address.path + path, data, headers)
        except (OSError, HTTPException) as error:
            if isinstance(error, ConnectionError) and (answer := self._refusal()) is not None:
                return answer
            self.close()
            if kept and isinstance(error, ConnectionError):
                # The server closed it meanwhile, and executes no request of which it has a part.
                return self._send(method, path, data, kind)
            fix = RUNNING
            if isinstance(error, ssl.SSLCertVerificationError):
                fix = "name the certificate of its authority with ?ca=FILE"
            raise StoreUnavailable(
                f"{self._address.shown} cannot be reached: {_words(error)}; {fix}"
            ) from error
        return self._http.getresponse()

    def _refusal(self) -> HTTPResponse | None:
        """Return the answer that came while a request was sent, such as 413, if one did."""
        if self._http.sock is None or not readable(self._http.sock.fileno(), seconds=0):
            return None
        try:
            answer = self._http.getresponse()
        except (OSError, HTTPException):
            return None
        # 408 is about the connection: it was kept for too long.
        return answer if answer.status >= 400 and answer.status != 408 else None


def _context(address: Address) -> ssl.SSLContext:
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
            f"{address.shown}: ?ca, ?cert or ?cert_key cannot be used ({files}): {_words(error)}; "
            "name files of certificates, and of a key without a passphrase, as PEM"
        ) from None
    return context


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
