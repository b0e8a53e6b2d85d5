"""Send a message as one signed HTTP POST, and return the answer."""

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.client import responses
from importlib.metadata import version
from urllib.parse import parse_qsl, quote, urlsplit

from bide.clock import Clock
from bide.logs import logger
from bide.model.identity import split_name
from bide.model.message import Message
from bide.targets.http.client import HttpClient, NoAnswer
from bide.targets.http.receiver import ReceiverAnswer, retry_after
from bide.targets.http.subscription import Subscription, signed

EXCERPT = 500
"""How many characters of an answer are stored with a failure."""

TRACE = ("traceparent", "tracestate")
"""Headers of a message that continue a trace: they are sent under their own names."""

HEADERS = {
    "user-agent": f"bide/{version('bide')}",
    "accept-encoding": "identity",
    "accept": "*/*",
}
"""Sent with each request, unless a header of the subscription has another value. No compression:
the start of the answer is shown as text."""

_log = logger("bide.server.push")


class ReceiverBusy(Exception):
    """This process has no connection left for a message, which was not sent."""


def _headers_of(message: Message, subscription: Subscription) -> dict[str, str]:
    """Return the headers of the request for a message.

    The id of the request is made of the queue's name and the message's id, in ASCII: it is the same
    at each attempt, and unique among the messages of all queues.
    """
    _, queue_name = split_name(subscription.queue)
    id = f"{_plain(queue_name)}/{_plain(message.id)}"
    message_headers = _joined_by_name(message.headers or {})
    content_type = message_headers.pop("content-type", "")
    if message.json:
        content_type = "application/json"
    elif not _is_header_value(content_type):
        content_type = "application/octet-stream"
    headers = {
        "content-type": content_type,
        "idempotency-key": id,
        "bide-id": quote(message.id),
        "bide-attempt": str(message.attempt),
        "bide-due": str(message.due),
    }
    for name in TRACE:
        if _is_header_value(trace := message_headers.pop(name, "")):
            headers[name] = trace
    for name, value in message_headers.items():
        header = f"bide-header-{quote(name, safe='')}"
        if _is_header_value(value):
            headers[header] = value
        else:  # a header is ASCII: other values are URL-encoded, and marked so (RFC 8187)
            headers[f"{header}*"] = f"UTF-8''{quote(value)}"
    return headers


class Sender:
    """Sends requests to receivers, and reads their answers.

    Args:
        clock: dates signatures.
        client: makes the connections.
    """

    def __init__(self, clock: Clock, client: HttpClient) -> None:
        self._clock = clock
        self.client = client
        self._running: Counter[str] = Counter()
        """How many requests are under way, by subscription, and by namespace with its slash."""
        self._failing = 0
        """How many requests to failing receivers are under way."""

    def room_for(self, to: Subscription, under_way: int, *, failing: bool = False) -> int:
        """Return how many more requests of a subscription may run now.

        A receiver that hangs cannot take all connections: a subscription takes at most half of what
        others leave, and so do all subscriptions of a namespace together. Those of no namespace are
        the operator's own. All that are failing take at most half of the connections: thousands may
        fail at the same time, and each may take its timeout.

        Args:
            to: the subscription.
            under_way: how many of its messages are being sent, or are about to be. Its pings, and
                the requests of a worker that is leaving, are under way besides.
            failing: whether its receiver has failed since it last accepted a message.
        """
        # Messages that will take a connection, and have not sent their request yet.
        starting = max(0, under_way - self._running[to.name])
        free = self.client.free - starting
        if failing:
            free = min(free, (self.client.limit + 1) // 2 - self._failing - starting)
        # How many connections the subscription has, and its namespace. Each of them may have half
        # of those and the free ones together, and one at least.
        used_counts = [under_way]
        if to.namespace is not None:
            used_counts.append(self._running[f"{to.namespace}/"] + starting)
        return min(free, *(max(1, (free + used) // 2) - used for used in used_counts))

    async def send(
        self, message: Message, to: Subscription, *, failing: bool = False
    ) -> ReceiverAnswer:
        """Send a message.

        Raises:
            ReceiverBusy: this process runs too many requests.
        """
        return await self._post(to, _headers_of(message, to), message.data, failing=failing)

    async def ping(self, to: Subscription) -> ReceiverAnswer:
        """Send a request that carries no message.

        Raises:
            ReceiverBusy: this process runs too many requests.
        """
        id = f"ping/{secrets.token_hex(12)}"
        headers = {"content-type": "application/json", "idempotency-key": id}
        return await self._post(to, headers, b'{"type":"bide.ping"}')

    async def _post(
        self,
        to: Subscription,
        request_headers: Mapping[str, str],
        body: bytes,
        *,
        failing: bool = False,
    ) -> ReceiverAnswer:
        """Send a request and return the answer, or why there is none.

        Cancelling this closes the connection.

        Args:
            to: the subscription; its secrets sign the request.
            request_headers: those of this request; its `idempotency-key` is the signed id.
            body: of the request.
            failing: whether its receiver has failed since it last accepted a message.

        Raises:
            ReceiverBusy: this process runs too many requests.
        """
        now = self._clock.now()
        keys = to.valid(now)
        signature = signed(keys, request_headers["idempotency-key"], now // 1000, body)
        own_headers = {name.lower(): value for name, value in to.headers.items()}
        # The namespace is nothing to the receiver.
        queue_header = {"bide-queue": split_name(to.queue)[1]}
        # The last one of a name wins: a subscription cannot replace what bide says.
        headers = {**HEADERS, **own_headers, **queue_header, **request_headers, **signature}
        # The subscription's own share bounds what is claimed: what was claimed, and a ping, may use
        # any connection that is free.
        if self.room_for(to, 0, failing=failing) <= 0:
            raise ReceiverBusy("this server has no connection left for it; it tries again soon")
        try:
            with self._counted(to, failing=failing):
                reply = await self.client.post(to.url, headers.items(), body)
        except NoAnswer as error:
            _log.debug("%s: %s (%r)", to.name, error, error.__cause__)
            return ReceiverAnswer(None, str(error))
        pause = None
        if reply.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            pause = retry_after(reply.headers.get("retry-after"), self._clock.now())
        hidden = (*keys, signature["webhook-signature"], *_confidential(to))
        return ReceiverAnswer(reply.status, _excerpt(reply.status, reply.body, hidden), pause)

    @contextmanager
    def _counted(self, to: Subscription, *, failing: bool) -> Iterator[None]:
        """Count a request as under way while the block runs."""
        names = f"{to.namespace or ''}/", to.name
        self._running.update(names)
        self._failing += failing
        try:
            yield
        finally:
            self._failing -= failing
            self._running.subtract(names)
            for name in names:
                if not self._running[name]:  # else names of deleted subscriptions would stay
                    del self._running[name]

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()


def _confidential(subscription: Subscription) -> Iterator[str]:
    """Yield the secrets of a subscription that an answer's text must not show, longest first."""
    _, _, path, query, _ = urlsplit(subscription.url)
    yield query
    for _, value in parse_qsl(query):
        yield value
    yield path  # chat services have their key in it
    # Parts of a value may be the secret, as in "Bearer TOKEN"; words as short as "Bearer" are not.
    yield from (part for part in path.split("/") if len(part) >= 16)
    for value in subscription.headers.values():
        yield value
        yield from (word for word in value.split() if len(word) >= 8)


def _excerpt(status: int, start: bytes, hidden: Iterable[str]) -> str:
    """Return an answer as one line for people: its status and the start of its body.

    Args:
        status: of the answer.
        start: the first bytes of its body.
        hidden: texts that are replaced by ***; those of less than 4 characters are not.
    """
    phrase = f"{status} {responses.get(status, '')}".strip()
    if 300 <= status < 400:
        return f"{phrase} (redirects are not followed: name the final URL)"
    text = start.decode(errors="replace")
    for secret in hidden:  # a receiver may echo the request
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    printable = "".join(character if character.isprintable() else " " for character in text)
    text = " ".join(printable.split())
    if len(text) > EXCERPT:
        text = text[:EXCERPT] + " ..."
    return f"{phrase}: {text}" if text else phrase


def _plain(text: str) -> str:
    """Encode a part of a request's id."""
    # No dot either: in the signed text the id ends with a dot.
    return quote(text, safe="").replace(".", "%2E")


def _joined_by_name(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with their names in small letters; HTTP joins those of equal names so."""
    joined: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower()
        joined[key] = f"{joined[key]}, {value}" if key in joined else value
    return joined


def _is_header_value(value: str) -> bool:
    """Tell whether a text can be the value of an HTTP header as it is.

    Receivers take away blanks at its ends.
    """
    is_plain = value.isascii() and value.isprintable() and value == value.strip()
    return is_plain and 0 < len(value) <= 4_096
