"""The sender: one HTTP POST, and what came back. Connections are kept and shared."""

import asyncio
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from importlib.metadata import version
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver

from bide.clock import Clock
from bide.model.message import Message
from bide.server.push.addresses import Gate, NotPublic
from bide.server.push.answer import Answer, retry_after
from bide.server.push.signing import signed
from bide.server.push.subscription import Subscription

__all__ = ["Request", "Sender", "request_of"]

EXCERPT = 500
"""How many characters of an answer are kept with a failure."""

MOST = 16_384
"""How many bytes of an answer are read; a longer one costs its connection."""

LINGER = 1.0
"""For how many seconds the rest of an answer is waited for, once its status is known."""

TRACE = ("traceparent", "tracestate")
"""Headers of a message that carry a trace on: they are sent by their own names."""

KEEP = 15.0
"""For how many seconds a connection without requests is kept."""


class Request(NamedTuple):
    """What is sent: its id, its body, and the headers that say what it is."""

    id: str
    body: bytes
    headers: Mapping[str, str]


def request_of(message: Message, subscription: Subscription) -> Request:
    """Return the request that carries a message.

    Its id is made of the queue's name and the message's own id, in ASCII: the same at each attempt,
    and another one for each message that a receiver of several queues can get.
    """
    id = f"{_plain(subscription.queue)}/{_plain(message.id)}"
    own = {name.lower(): value for name, value in (message.headers or {}).items()}
    kind = own.pop("content-type", "")
    if message.json or not _fits(kind):
        kind = "application/json" if message.json else "application/octet-stream"
    headers = {
        "content-type": kind,
        "idempotency-key": id,
        "bide-queue": subscription.queue,
        "bide-id": quote(message.id),
        "bide-attempt": str(message.attempt),
        "bide-due": str(message.due),
    }
    for name in TRACE:
        if _fits(trace := own.pop(name, "")):
            headers[name] = trace
    for name, value in own.items():
        named = f"bide-header-{quote(name, safe='')}"
        if _fits(value):
            headers[named] = value
        else:  # a header is ASCII: the rest is encoded as in a URL, and a mark says so
            headers[f"{named}*"] = f"UTF-8''{quote(value)}"
    return Request(id, message.data, headers)


class Sender:
    """Sends requests to receivers, to addresses that a gate lets through.

    Args:
        clock: what signatures are dated by.
        gate: which addresses may be connected to.
        resolver: looks up names; the system's otherwise.
        tls: what certificates are checked by; the system's authorities otherwise.
    """

    def __init__(
        self,
        clock: Clock,
        gate: Gate,
        *,
        resolver: AbstractResolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                socket_factory=gate.socket, resolver=resolver, limit=0, keepalive_timeout=KEEP,
                ssl=tls or ssl.create_default_context(),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # whoever asks has one
            auto_decompress=False,
            trust_env=False,  # a proxy would connect in our place, past the gate
            headers={
                "user-agent": f"bide/{version('bide')}",
                "accept-encoding": "identity",
                "accept": "*/*",
            },
        )  # fmt: skip

    async def send(self, request: Request, subscription: Subscription) -> Answer:
        """Send a request; whoever cancels this ends it.

        Returns:
            What came of it, whatever it was.
        """
        now = self._clock.now()
        secrets = subscription.valid(now)
        proof = signed(secrets, request.id, now // 1000, request.body)
        headers = {**subscription.headers, **request.headers, **proof}
        hidden = (*secrets, proof["webhook-signature"], *_confidential(subscription))
        try:
            async with self._session.post(
                subscription.url, data=request.body, headers=headers, allow_redirects=False
            ) as response:
                return await self._read(response, hidden)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(None, reason_of(error))

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _read(self, response: aiohttp.ClientResponse, hidden: Iterable[str]) -> Answer:
        # The status is the answer: what its body does may cost the connection, no more.
        status = response.status
        start = b""
        linger = self._clock.call_later(asyncio.get_running_loop(), LINGER, response.close)
        try:
            while len(start) < MOST and (part := await response.content.readany()):
                start += part
            if not response.content.at_eof():
                response.close()
        except (aiohttp.ClientError, OSError, ValueError, asyncio.CancelledError):
            # Also when there is no time left: the receiver has answered, and that counts.
            response.close()
        finally:
            linger.cancel()
        again = None
        if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            again = retry_after(response.headers.get("retry-after"), self._clock.now())
        return Answer(status, _told(status, start, hidden), again)


def reason_of(error: BaseException) -> str:
    """Return in words why no answer came; the URL, which may have a secret in it, is left out."""
    match error:
        case aiohttp.InvalidURL():
            return "no connection: the URL names no host that can be"
        case aiohttp.ClientConnectorCertificateError():
            return "no connection: the certificate of the host could not be verified"
        case aiohttp.ClientConnectorSSLError():
            return "no connection: TLS could not be agreed on"
        case aiohttp.ClientConnectorDNSError():
            return "no connection: the name of the host could not be looked up"
        case aiohttp.ClientConnectorError():
            if isinstance(error.os_error, NotPublic):
                return f"no connection: {error.os_error}"
            number = error.os_error.errno
            return f"no connection: {os.strerror(number) if number else 'all addresses failed'}"
        case aiohttp.ServerDisconnectedError() | ConnectionError():
            return "the receiver closed the connection without an answer"
        case _:
            return f"the answer could not be understood ({type(error).__name__})"


def _confidential(subscription: Subscription) -> Iterator[str]:
    """Yield what of a subscription must not come back in an answer's text: the longest first."""
    query = urlsplit(subscription.url).query
    yield query
    for _, value in parse_qsl(query):
        yield value
    for value in subscription.headers.values():
        yield value
        yield from (word for word in value.split() if len(word) >= 8)


def _told(status: int, start: bytes, hidden: Iterable[str]) -> str:
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    if 300 <= status < 400:
        return f"{phrase} (redirects are not followed: name the final URL)"
    text = start.decode(errors="replace")
    for secret in hidden:  # a receiver may answer with what it was sent
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) > EXCERPT:
        text = text[:EXCERPT] + " ..."
    return f"{phrase}: {text}" if text else phrase


def _plain(text: str) -> str:
    # No dot either: the id stands before one in what is signed.
    return quote(text, safe="").replace(".", "%2E")


def _fits(value: str) -> bool:
    return value.isascii() and value.isprintable() and 0 < len(value) <= 4_096
