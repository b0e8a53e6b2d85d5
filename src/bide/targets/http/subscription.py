"""A subscription: the queue, the receiver, the limits, the retries, and the secrets that sign."""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from bide.model.backoff import Backoff
from bide.model.errors import InvalidArgument
from bide.model.identity import check_queue, check_subscription, split_name
from bide.model.limits import check_range
from bide.model.message import ATTEMPTS
from bide.targets.amqp import is_amqp, mask_address, parse

PREFIX = "whsec_"
LEAST, MOST = 24, 64
"""The least and the most bytes of a secret."""


class Secret(msgspec.Struct, frozen=True, omit_defaults=True):
    """One secret of a subscription, in clear text: the server signs with it."""

    text: str
    created: int
    until: int | None = None
    """The end of its use in Unix milliseconds; set when it is replaced."""

    def valid(self, now: int) -> bool:
        """Tell whether it signs requests at a time."""
        return self.until is None or now < self.until

    def __repr__(self) -> str:
        return f"Secret(created={self.created}, until={self.until})"


def new_secret() -> str:
    """Return a new secret: `whsec_` and 32 bytes in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def check_secret(text: str) -> str:
    """Return a secret of the user after a check.

    Raises:
        InvalidArgument: it is not a secret; the text does not repeat it.
    """
    size = 0
    with suppress(ValueError):
        size = len(_bytes(text)) if text.startswith(PREFIX) else 0
    if not LEAST <= size <= MOST:
        raise InvalidArgument(
            f"secret must be {PREFIX} and {LEAST} to {MOST} bytes in base64; without one, bide "
            "makes one"
        )
    return text


def signed(texts: Iterable[str], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that prove the sender of a request, with a signature for each secret.

    As Standard Webhooks has it: HMAC-SHA256 over id, timestamp and body. See
    https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md

    Args:
        texts: the secrets.
        id: of the message; the same at each attempt.
        timestamp: when it is sent, in Unix seconds.
        body: as it is sent.

    Example:
        >>> signed(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"], "msg", 1, b"{}")["webhook-signature"]
        'v1,JV10oUOb4Ge3hyDXQV+NgLAqirzfPknzw+iKUoxRs40='
    """
    content = b"%b.%d.%b" % (id.encode(), timestamp, body)
    signatures = [hmac.digest(_bytes(text), content, hashlib.sha256) for text in texts]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(
            f"v1,{base64.b64encode(signature).decode()}" for signature in signatures
        ),
    }


def _bytes(text: str) -> bytes:
    """Return the bytes of a secret, which are the key of the signature."""
    return base64.b64decode(text.removeprefix(PREFIX), validate=True)


LONGEST_TIMEOUT = 300_000
"""In milliseconds."""

MOST_CONCURRENCY = 1_000
MOST_HEADERS = 50

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE = re.compile(r"[\x20-\x7e\t]{0,4096}")
_RESERVED = {
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


class Subscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription. Durations are milliseconds, times are Unix milliseconds."""

    name: str
    """Its name, after its namespace if it has one: shop/hooks."""
    queue: str
    """The name of the queue in the store."""
    url: str
    headers: dict[str, str] = {}
    """Sent with every request, as for an `authorization`."""
    concurrency: int = 10
    """The maximum number of running requests, on all servers together."""
    rate: float | None = None
    """The maximum number of requests per second, on all servers together."""
    timeout: int = 15_000
    """How long the receiver may take to answer."""
    attempts: int = ATTEMPTS
    """The maximum number of attempts; the message's own limit counts as well."""
    first: int = 10_000
    """The delay after the first attempt; each is twice as long as the one before."""
    ceiling: int = 3_600_000
    """The longest delay between attempts."""
    failures: int = 5
    """The failures in a row that open the circuit: nothing is sent for a while."""
    probe: int = 30_000
    """The time until one message is sent to check whether the receiver is back."""
    paused: bool = False
    reason: str = ""
    """Why it is paused."""
    secrets: tuple[Secret, ...] = ()
    """The secrets that sign requests, newest first."""
    encrypted: str = ""
    """URL, headers and secrets, while they are in the store and where their key is missing."""
    created: int = 0
    changed: int = 0
    version: int = 0
    """Counts the changes, so that two clients do not overwrite each other's."""

    def __repr__(self) -> str:
        # The URL and the headers may have secrets in them.
        return f"<Subscription {self.name} of {self.queue!r}>"

    @property
    def namespace(self) -> str | None:
        """Its namespace; `None`: it is in none."""
        return split_name(self.name)[0]

    @property
    def tag(self) -> str:
        """Identifies this version among all versions of its name."""
        return f"{self.version}-{self.changed}"

    @property
    def signed(self) -> bool:
        """Whether its requests are signed; messages to RabbitMQ are not."""
        return not is_amqp(self.url)

    @property
    def backoff(self) -> Backoff:
        """The retries of a message."""
        return Backoff(self.attempts, self.first / 1000, 2, self.ceiling / 1000)

    def valid(self, now: int) -> list[str]:
        """Return the secrets that are valid at a time."""
        return [secret.text for secret in self.secrets if secret.valid(now)]

    def check(self) -> "Subscription":
        """Return the subscription after a check.

        Raises:
            InvalidArgument: one of its values is not valid.
        """
        check_subscription(self.name)
        check_queue(self.queue)
        if split_name(self.queue)[0] != self.namespace:
            raise InvalidArgument(
                f"queue={self.queue!r} is not in the namespace of the subscription, {self.name!r}; "
                "use one that is"
            )
        check_url(self.url)
        _check_headers(self.headers)
        check_range(self.concurrency, "concurrency", 1, MOST_CONCURRENCY)
        check_range(self.failures, "failures", 1, 10_000)
        check_range(self.timeout, "timeout", 1, LONGEST_TIMEOUT)
        check_range(self.probe, "probe", 1, 3_600_000)
        if self.rate is not None:
            check_range(self.rate, "rate", 0.001, 1_000_000)
        _ = self.backoff  # raises if attempts or delays are not valid
        return self


def usual_concurrency(url: str) -> int:
    """Return the default concurrency of a target."""
    return 500 if is_amqp(url) else 10


def masked(url: str) -> str:
    """Return a URL without what may be a key, to show it to people.

    That is the password in the URL of a broker, and path and query of any other URL. Such a URL
    has no password: `check_url` refuses it.

    Example:
        >>> masked("https://chat.example/services/T1/hush?key=hush")
        'https://chat.example/***'
    """
    if is_amqp(url):
        return mask_address(url)
    parts = urlsplit(url)
    hidden = "***" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc}/{hidden}"


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL.

    Example:
        >>> origin_of("https://Chat.example:443/services"), origin_of("http://chat.example")
        ('https://chat.example:443', 'http://chat.example:80')
    """
    parts = urlsplit(url)
    usual_ports = {"https": 443, "http": 80, "amqps": 5671, "amqp": 5672}
    port = parts.port or usual_ports[parts.scheme]
    return f"{parts.scheme}://{parts.hostname}:{port}"


def check_url(url: str) -> None:
    """Check that messages can be sent to a URL.

    Raises:
        InvalidArgument: the URL is not one of HTTP or AMQP, or has parts that are not allowed.
    """
    if is_amqp(url):
        parse(url)
        return
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:  # its text may have a part of a password
        raise InvalidArgument("url is not valid: its host or port cannot be read") from None
    is_web = parts.scheme in ("http", "https") and bool(host)
    is_anonymous = parts.username is None and parts.password is None
    is_plain = len(url) <= 2_048 and url.isascii() and url.isprintable() and " " not in url
    # What must hold, and the error if it does not; the first one is raised.
    checks = [
        (is_web, "url must begin with https:// (or http://, amqp://, amqps://) and name a host"),
        (
            is_anonymous,
            "url has a user or password in it; send an authorization header instead (headers)",
        ),
        (not parts.fragment, "url has a fragment (#...), which is never sent; take it out"),
        (
            is_plain and port != 0,
            "url must be up to 2,048 printable ASCII characters, without spaces",
        ),
    ]
    for holds, text in checks:
        if not holds:
            raise InvalidArgument(text)


def _check_headers(headers: Mapping[str, str]) -> None:
    """Check the headers that a subscription adds to requests.

    Raises:
        InvalidArgument: they are too many, not valid, or bide sets one itself.
    """
    if len(headers) > MOST_HEADERS:
        raise InvalidArgument(f"headers are {len(headers)}; {MOST_HEADERS} is the most")
    for name, value in headers.items():
        lower = name.lower()
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise InvalidArgument(f"headers[{name!r}] must be a header's name and printable ASCII")
        if lower in _RESERVED or lower.startswith(("webhook-", "bide-")):
            raise InvalidArgument(f"headers[{name!r}] is set by bide; take another name")
