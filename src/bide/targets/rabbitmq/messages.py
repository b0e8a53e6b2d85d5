"""Messages of AMQP as the store keeps them, and back: fields, due times, dead letters.

Headers of bide are text. Properties travel as headers whose names begin with `amqp-`; headers of
AMQP that are no text travel together as JSON in `amqp-headers`.
"""

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, NamedTuple

import msgspec
from aio_pika import DeliveryMode
from aio_pika.abc import AbstractIncomingMessage
from aiormq import spec

from bide.model.body import check_depth
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name, new_id
from bide.model.limits import MAX_AMQP_HEADERS, MAX_BODY
from bide.model.message import Item, Message
from bide.model.times import EARLIEST, LATEST, milliseconds, unix
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
    priority = _whole_number(given.pop(PRIORITY, str(message.priority)), PRIORITY, 255)
    expiration = given.pop(EXPIRATION, None)
    if expiration is not None:
        expiration = str(_whole_number(expiration, EXPIRATION, 2**32 - 1))
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
    headers = {KEY: message.routing_key or ""}
    properties = message.properties
    for header, name in TEXTS.items():
        if value := getattr(properties, name):
            headers[header] = str(value)
    if properties.expiration is not None:
        headers[EXPIRATION] = properties.expiration
    typed: dict[str, Any] = {}
    for name, value in message.headers.items():
        if name in DELAYS or name in OWN or name.startswith(_BROKERS):
            continue
        if isinstance(value, str) and not name.startswith("amqp-") and name not in TEXTS:
            headers[name] = value
        else:
            typed[name] = value
    if typed:
        headers[TYPED] = msgspec.json.encode(_tagged(typed)).decode()
    return headers


def _whole_number(text: str, name: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= most):
        raise InvalidArgument(f"{name}={text[:40]!r} must be a whole number from 0 to {most:,}")
    return int(text)


def _typed(text: str) -> dict[str, Any]:
    try:
        headers = _untagged(msgspec.json.decode(text))
    except UNFIT as error:
        raise InvalidArgument(f"{TYPED} is not what bide writes there: {error}") from None
    if not isinstance(headers, dict):
        raise InvalidArgument(f"{TYPED} must be a JSON object")
    return headers


# What JSON does not have is in an object with one key; so is an object that looks like one.


def _tagged(value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise InvalidArgument(f"headers are nested more than {DEEPEST} levels deep")
    match value:
        case dict():
            table = {str(name): _tagged(element, depth + 1) for name, element in value.items()}
            return (
                {"amqp:table": table}
                if len(table) == 1 and min(table).startswith("amqp:")
                else table
            )
        case list() | tuple():
            return [_tagged(element, depth + 1) for element in value]
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
            return {name: _untagged(element) for name, element in table.items()}
        case dict():
            return {name: _untagged(element) for name, element in value.items()}
        case list():
            return [_untagged(element) for element in value]
        case _:
            return value


GIVEN_ID = "bide-message-id"
"""The header with the `message_id` that a message came with, where it could not keep it."""


REASON = "bide-reason"
"""The header of a dead letter that says why it is one."""


def item_of(message: AbstractIncomingMessage) -> Item:
    """Return a message as the store keeps it.

    Its id is its `message_id`; without one an id is made. A `message_id` that cannot be an id of
    the store stays in the header `GIVEN_ID`.

    Raises:
        InvalidArgument: its delay is not valid, or it is too large.
    """
    at, delay = due_of(message.headers)
    if len(message.body) > MAX_BODY:
        raise InvalidArgument(f"body takes {len(message.body):,} bytes, the limit is {MAX_BODY:,}")
    headers = headers_of(message)
    id = message.message_id or new_id()
    item = Item(
        id,
        message.body,
        _is_json(message),
        at,
        delay,
        min(message.priority or 0, 255),
        headers=headers,
    )
    try:
        check_name(id)
    except InvalidArgument:
        return renamed(item)
    return item


def renamed(item: Item) -> Item:
    """Return a message under a new id, since another one has its `message_id`."""
    headers = {**(item.headers or {}), GIVEN_ID: item.id}
    return msgspec.structs.replace(item, id=new_id(), headers=headers)


def dead_letter_of(message: AbstractIncomingMessage, reason: str) -> Publication | None:
    """Return a message as a dead letter; `None` if AMQP or the client library cannot hold it."""
    properties = message.properties
    properties.headers = {**message.headers, REASON: reason[:1_000]}
    properties.delivery_mode = DeliveryMode.PERSISTENT
    # It must not expire there, and only its user may publish its `user_id`.
    properties.expiration = properties.user_id = None
    try:
        fits = len(properties.marshal()) <= MAX_AMQP_HEADERS
    except UNFIT:  # as for bytes that are not UTF-8
        fits = False
    return Publication(message.body, properties, message.routing_key or "") if fits else None


def is_same(item: Item, stored: Message) -> bool:
    """Tell whether a message is the one that is stored under its id, come again."""
    keys = [(headers or {}).get(KEY) for headers in (item.headers, stored.headers)]
    return (item.data, keys[0]) == (stored.data, keys[1])


def due_of(headers: Mapping[str, Any]) -> tuple[int | None, int]:
    """Return when a message is due: Unix milliseconds, or a delay in milliseconds.

    A message without a header that says so is due at once, as is one whose delay is negative: the
    plugin delivered both at once.

    Raises:
        InvalidArgument: the header cannot be read, or there is more than one.

    Example:
        >>> due_of({"x-delay": 5000}), due_of({"bide-delay": "30m"}), due_of({})
        ((None, 5000), (None, 1800000), (None, 0))
        >>> due_of({"bide-at": "2030-01-01T00:00:00Z"}), due_of({"x-delay": -1})
        ((1893456000000, 0), (None, 0))
    """
    given = [name for name in DELAYS if headers.get(name) is not None]
    if not given:
        return None, 0
    if len(given) > 1:
        raise InvalidArgument(f"{given[0]} and {given[1]} both say when it is due; send one")
    name, value = given[0], headers[given[0]]
    number = _number(value)
    if name == "bide-at":
        if number is None and isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise InvalidArgument(
                    f"bide-at={value[:80]!r} must be Unix seconds, or as 2030-01-01T12:00:00Z"
                ) from None
        return unix(value if number is None else number, name), 0
    if name == "bide-delay":
        return None, milliseconds(value if number is None else number, name)
    if number is None or number > LATEST:
        raise InvalidArgument(f"{name}={str(value)[:80]!r} must be milliseconds, up to 2100")
    whole = max(0, round(number))
    if name == "x-delay" and whole >= EARLIEST * 1000:
        raise InvalidArgument(
            f"x-delay={whole} looks like a time in Unix milliseconds; for a time send bide-at"
        )
    if name == "x-opt-delivery-time" and 0 < whole < EARLIEST * 1000:
        raise InvalidArgument(
            f"x-opt-delivery-time={whole} is before 2001; it must be Unix milliseconds"
        )
    return (None, whole) if name == "x-delay" else (whole, 0)


def _number(value: Any) -> float | None:
    """Return a number of a header, also one that is written as text; `None` if it is none."""
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and isfinite(number) else None


def _is_json(message: AbstractIncomingMessage) -> bool:
    """Tell whether the body can be stored as JSON; otherwise it is stored as bytes."""
    kind = (message.content_type or "").partition(";")[0].strip().lower()
    if kind != "application/json" or message.content_encoding not in (None, "", "utf-8"):
        return False
    try:
        msgspec.json.decode(message.body)
        check_depth(message.body)
    except (ValueError, RecursionError, InvalidArgument):
        return False
    return True
