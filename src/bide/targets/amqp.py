"""Addresses: a broker, and where on it messages go, in one URL."""

import re
from collections.abc import Iterable
from importlib.util import find_spec
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from bide.engines.registry import invalid_url, split_url
from bide.model.errors import InvalidArgument
from bide.model.identity import check_queue

SCHEMES = ("amqp", "amqps")

OPTIONS = ("exchange", "key", "queue", "cafile", "certfile", "keyfile", "heartbeat")

LONGEST = 255
"""How many bytes a routing key or a message_id may have in AMQP."""

LONGEST_EXCHANGE = 127
"""How many characters the client library lets the name of an exchange have."""

LONGEST_TARGET = LONGEST_EXCHANGE - len(".delayed.dead")
"""How many the target of an intake may have, which declares exchanges with longer names."""

_EXCHANGE = re.compile(r"[A-Za-z0-9-_.:@#,/+ ]*")
"""What the client library takes as the name of an exchange."""

HEARTBEAT = 5
"""Seconds between heartbeats. A silent broker is given up after three of them."""


NOT_INSTALLED = (
    "RabbitMQ needs the package aio-pika, which is not installed: pip install 'bide[rabbitmq]'"
)


def is_installed() -> bool:
    """Tell whether the package that publishes to RabbitMQ is there."""
    return find_spec("aio_pika") is not None


def is_amqp(url: str) -> bool:
    """Tell whether a URL names a broker."""
    return url.partition(":")[0].lower() in SCHEMES


_PASSWORD = re.compile(r"(//[^:@]*:).*@")


class Address(NamedTuple):
    """What an `amqp://` URL says. Its text has no password in it."""

    broker: str
    """The URL of the broker and its virtual host."""
    exchange: str
    """The exchange that messages are published to; empty: the default exchange."""
    key: str
    """The routing key of messages that do not carry one."""
    queue: str | None = None
    """For an intake: the queue of the store; the name of the exchange if it is `None`."""
    heartbeat: int = HEARTBEAT
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    @property
    def files(self) -> bool:
        """Whether it names files of TLS."""
        return any((self.cafile, self.certfile, self.keyfile))

    @property
    def host(self) -> str:
        """The host of the broker."""
        return urlsplit(self.broker).hostname or ""

    @property
    def url(self) -> str:
        """The whole URL, with its password, without the queue of the store."""
        query = {
            "exchange": self.exchange,
            "key": self.key,
            "cafile": self.cafile,
            "certfile": self.certfile,
            "keyfile": self.keyfile,
            "heartbeat": self.heartbeat if self.heartbeat != HEARTBEAT else None,
        }
        options = {option: value for option, value in query.items() if value}
        return f"{self.broker}?{urlencode(options)}"

    def __str__(self) -> str:
        return mask_address(self.url)

    def __repr__(self) -> str:
        return str(self)


def intakes(urls: Iterable[str]) -> list[Address]:
    """Return the addresses of exchanges whose delayed messages are to be taken in.

    Raises:
        InvalidArgument: one cannot be, or aio-pika is not installed.
    """
    addresses = [parse(url) for url in urls]
    for address in addresses:
        if not 0 < len(address.exchange) <= LONGEST_TARGET:
            raise InvalidArgument(
                f"url={str(address)!r} names no exchange, or one whose name is too long; add "
                f"?exchange=NAME of up to {LONGEST_TARGET} characters"
            )
        check_queue(address.queue or address.exchange)
    if addresses and not is_installed():
        raise InvalidArgument(NOT_INSTALLED)
    return addresses


def mask_address(url: str) -> str:
    """Return a URL of a broker with its password hidden, even where it is not encoded as it must.

    Example:
        >>> mask_address("amqp://app:p/a#s@mq/?exchange=shop&key=k")
        'amqp://app:***@mq/?exchange=shop&key=k'
    """
    return _PASSWORD.sub(r"\1***@", url)


def parse(url: str) -> Address:
    """Return the address that a URL names.

    Args:
        url: `amqp://user:password@host:port/vhost?exchange=NAME&key=KEY`, or `amqps://` for TLS.
            Options: `exchange`, `key`, `queue` (of the store, for an intake), `cafile`, `certfile`,
            `keyfile`, `heartbeat` (seconds).

    Raises:
        InvalidArgument: it names no host, neither exchange nor key, or an unknown option.

    Example:
        >>> parse("amqp://app:secret@mq/shop?exchange=orders&key=order.timeout")
        amqp://app:***@mq/shop?exchange=orders&key=order.timeout
    """
    safe = mask_address(url)
    try:
        parts = split_url(url)
        port, host = parts.port, parts.hostname
        options = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
    except ValueError as error:
        raise invalid_url(url, error) from None
    exchange, key = options.get("exchange", ""), options.get("key", "")
    heartbeat, unknown = options.get("heartbeat", str(HEARTBEAT)), options.keys() - set(OPTIONS)
    fits = len(url) <= 2_048 and url.isascii() and url.isprintable()
    # The text of each error, and what must hold; the first one that does not is raised.
    checks = {
        f"url={safe!r} must be amqp://user:password@host/vhost?exchange=NAME&key=KEY, or begin "
        "with amqps:// for TLS": parts.scheme in SCHEMES and host and port != 0,
        f"url={safe!r} has *** where the password is; write the password": parts.password != "***",
        f"url={safe!r} must be up to 2,048 printable ASCII characters, without a fragment; "
        "encode other characters: # is %23": fits and not parts.fragment,
        f"url={safe!r} has the unknown option {min(unknown, default='')!r}; known are "
        f"{', '.join(OPTIONS)}": not unknown,
        f"url={safe!r} names no exchange; add ?exchange=NAME (or ?key=QUEUE for the default "
        "exchange)": exchange or key,
        f"exchange={exchange!r} must be up to {LONGEST_EXCHANGE} of A-Z a-z 0-9 - _ . : @ # , "
        "/ + and space": _EXCHANGE.fullmatch(exchange) and len(exchange) <= LONGEST_EXCHANGE,
        # A URL that does not fit has its own error, and may not even be text that can be encoded.
        f"key in url is longer than the {LONGEST} bytes of AMQP": not fits
        or len(key.encode()) <= LONGEST,
        f"url={safe!r} has options of TLS; write amqps://": parts.scheme == "amqps"
        or not options.keys() & {"cafile", "certfile", "keyfile"},
        f"heartbeat={heartbeat!r} must be 1 to 600 seconds": heartbeat.isdecimal()
        and len(heartbeat) <= 3
        and 1 <= int(heartbeat) <= 600,
    }
    for text, holds in checks.items():
        if not holds:
            raise InvalidArgument(text)
    vhost = unquote(parts.path.removeprefix("/")) or "/"
    return Address(
        broker=parts._replace(path="/" + quote(vhost, safe=""), query="").geturl(),
        exchange=exchange,
        key=key,
        queue=options.get("queue"),
        heartbeat=int(heartbeat),
        cafile=options.get("cafile"),
        certfile=options.get("certfile"),
        keyfile=options.get("keyfile"),
    )
