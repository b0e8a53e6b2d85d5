"""Fields of messages: what AMQP calls properties and headers, as headers of bide, and back.

Headers of bide are text. Properties travel as headers whose names begin with `amqp-`; headers of
AMQP that are no text travel together as JSON in `amqp-headers`.
"""

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from aio_pika import DeliveryMode
from aio_pika.abc import AbstractIncomingMessage
from aiormq import spec

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_AMQP_HEADERS
from bide.model.message import Message
from bide.targets.amqp import LONGEST, Address

TEXTS = {
    "content-type": "content_type",
    "amqp-content-encoding": "content_encoding",
    "amqp-correlation-id": "correlation_id",
    "amqp-reply-to": "reply_to",
    "amqp-type": "message_type",
    "amqp-app-id": "app_id",
}
"""Headers of bide that become properties of text, with their names in `Basic.Properties`."""

KEY, PRIORITY, EXPIRATION, TYPED = "amqp-key", "amqp-priority", "amqp-expiration", "amqp-headers"

DELAYS = ("bide-at", "bide-delay", "x-opt-delivery-time", "x-delay")
"""Headers that say when a message is due."""

OWN = ("bide-queue", "bide-due", "bide-attempt")
"""Headers that each publication gets."""

UNFIT = (ArithmeticError, RecursionError, TypeError, ValueError, struct.error)
"""What the client library raises for properties that it cannot send."""

DEEPEST = 100
"""How many levels deep headers may be nested: the client library cannot send many more."""

_BROKERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count")
"""How headers begin that the broker adds. With `x-death` kept, it would take a message that comes
round for a cycle, and drop it."""


class Publication(NamedTuple):
    """A message as it is published."""

    body: bytes
    properties: spec.Basic.Properties
    key: str


def to_amqp(message: Message, address: Address, more: Mapping[str, str] = {}) -> Publication:
    """Return a message as it is published.

    Args:
        message: as the store has it.
        address: where it goes.
        more: headers for messages that do not have them.

    Raises:
        InvalidArgument: it cannot be a message of AMQP.
    """
    given = {**more, **(message.headers or {})}
    key = given.pop(KEY, address.key)
    texts = {name: given.pop(header, None) for header, name in TEXTS.items()}
    for what, value in (("id", message.id), (KEY, key), *texts.items()):
        if value is not None and len(value.encode()) > LONGEST:
            raise InvalidArgument(f"{what} is longer than the {LONGEST} bytes that AMQP has for it")
    if message.json:
        texts["content_type"] = texts["content_type"] or "application/json"
    priority = _number(given.pop(PRIORITY, str(message.priority)), PRIORITY, 255)
    expiration = given.pop(EXPIRATION, None)
    if expiration is not None:
        expiration = str(_number(expiration, EXPIRATION, 2**32 - 1))
    typed = given.pop(TYPED, None)
    headers: dict[str, Any] = {
        name: value for name, value in given.items() if not name.startswith(_BROKERS)
    }
    if typed is not None:
        headers |= _typed(typed)
    if (
        size := sum(len(n.encode()) + len(str(v).encode()) for n, v in headers.items())
    ) > MAX_AMQP_HEADERS:
        raise InvalidArgument(
            f"headers take {size:,} bytes; AMQP has room for {MAX_AMQP_HEADERS:,}"
        )
    if long := [name for name in headers if len(name.encode()) > LONGEST]:
        raise InvalidArgument(f"the header {long[0]!r} has a name of more than {LONGEST} bytes")
    headers |= zip(
        OWN, (message.queue.rpartition("/")[2], message.due, message.attempt), strict=True
    )
    properties = spec.Basic.Properties(
        headers=headers,
        message_id=message.id,
        timestamp=datetime.fromtimestamp(message.due // 1000, UTC),
        delivery_mode=DeliveryMode.PERSISTENT,
        priority=priority,
        expiration=expiration,
        **texts,  # type: ignore[arg-type]  # a str or None each
    )
    return Publication(message.data, properties, key)


def headers_of(message: AbstractIncomingMessage) -> dict[str, str]:
    """Return the properties and headers of a message that came from RabbitMQ, as headers of bide.

    Left out are those that say when it is due, those that the broker or bide adds, and `user_id`,
    which only its user may publish.

    Raises:
        InvalidArgument: they are nested too deeply.
    """
    found = {KEY: message.routing_key or ""}
    properties = message.properties
    for header, name in TEXTS.items():
        if value := getattr(properties, name):
            found[header] = str(value)
    if properties.expiration is not None:
        found[EXPIRATION] = properties.expiration
    typed: dict[str, Any] = {}
    for name, value in message.headers.items():
        if name in DELAYS or name in OWN or name.startswith(_BROKERS):
            continue
        if isinstance(value, str) and not name.startswith("amqp-") and name not in TEXTS:
            found[name] = value
        else:
            typed[name] = value
    if typed:
        found[TYPED] = msgspec.json.encode(_tagged(typed)).decode()
    return found


def _number(text: str, name: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= most):
        raise InvalidArgument(f"{name}={text[:40]!r} must be a whole number from 0 to {most:,}")
    return int(text)


def _typed(text: str) -> dict[str, Any]:
    try:
        found = _untagged(msgspec.json.decode(text))
    except UNFIT as error:
        raise InvalidArgument(f"{TYPED} is not what bide writes there: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"{TYPED} must be a JSON object")
    return found


# What JSON does not have is in an object with one key; so is an object that looks like one.


def _tagged(value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise InvalidArgument(f"headers are nested more than {DEEPEST} levels deep")
    match value:
        case dict():
            found = {str(name): _tagged(one, depth + 1) for name, one in value.items()}
            return (
                {"amqp:table": found}
                if len(found) == 1 and min(found).startswith("amqp:")
                else found
            )
        case list() | tuple():
            return [_tagged(one, depth + 1) for one in value]
        case bytes() | bytearray():
            return {"amqp:bytes": value.hex()}
        case datetime():
            return {"amqp:time": value.timestamp()}
        case Decimal():
            return {"amqp:decimal": str(value)}
        case _:
            return value


def _untagged(value: Any) -> Any:
    match value:
        case {"amqp:bytes": str(text), **rest} if not rest:
            return bytearray.fromhex(text)  # bytes are nothing that the library sends
        case {"amqp:time": int(seconds) | float(seconds), **rest} if not rest:
            return datetime.fromtimestamp(seconds, UTC)
        case {"amqp:decimal": str(text), **rest} if not rest:
            return Decimal(text)
        case {"amqp:table": dict(table), **rest} if not rest:
            return {name: _untagged(one) for name, one in table.items()}
        case dict():
            return {name: _untagged(one) for name, one in value.items()}
        case list():
            return [_untagged(one) for one in value]
        case _:
            return value
