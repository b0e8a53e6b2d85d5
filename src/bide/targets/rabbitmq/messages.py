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

KEY, PRIORITY, EXPIRATION, NOT_TEXT = "amqp-key", "amqp-priority", "amqp-expiration", "amqp-headers"
"""Headers of bide for the routing key, for the properties of these names, and for headers that are
no text."""

DELAYS = ("bide-at", "bide-delay", "x-opt-delivery-time", "x-delay")
"""Headers that say when a message is due."""

ADDED = ("bide-queue", "bide-due", "bide-attempt")
"""Headers that each publication gets."""

UNFIT = (ArithmeticError, RecursionError, TypeError, ValueError, struct.error)
"""What the client library raises for properties that it cannot send."""

DEEPEST = 100
"""How many levels deep headers may be nested: the client library cannot send many more."""

_ADDED_BY_BROKER = (
    "x-death",
    "x-first-death-",
    "x-last-death-",
    "x-delivery-count",
    "x-acquired-count",
)
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
    # What is taken out below is a property; what remains is a header.
    remaining = {**more, **(message.headers or {})}
    key = remaining.pop(KEY, address.key)
    texts = {name: remaining.pop(header, None) for header, name in TEXTS.items()}
    for name, value in (("id", message.id), (KEY, key), *texts.items()):
        if value is not None and len(value.encode()) > LONGEST:
            raise InvalidArgument(f"{name} is longer than the {LONGEST} bytes that AMQP has for it")
    if message.json:
        texts["content_type"] = texts["content_type"] or "application/json"
    priority = _whole_number(remaining.pop(PRIORITY, str(message.priority)), PRIORITY, 255)
    expiration = remaining.pop(EXPIRATION, None)
    if expiration is not None:
        expiration = str(_whole_number(expiration, EXPIRATION, 2**32 - 1))
    properties = spec.Basic.Properties(
        headers=_amqp_headers(message, remaining),
        message_id=message.id,
        timestamp=datetime.fromtimestamp(message.due // 1000, UTC),
        delivery_mode=DeliveryMode.PERSISTENT,
        priority=priority,
        expiration=expiration,
        **texts,  # type: ignore[arg-type]  # a str or None each
    )
    return Publication(message.data, properties, key)


def _amqp_headers(message: Message, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the headers that a message is published with.

    Args:
        message: as the store has it.
        texts: its headers in bide, without those that became properties. The header `NOT_TEXT`
            holds headers of other types than text, as JSON.

    Raises:
        InvalidArgument: they are too large, or `NOT_TEXT` is damaged.
    """
    headers: dict[str, Any] = {
        name: value
        for name, value in texts.items()
        if name != NOT_TEXT and not name.startswith(_ADDED_BY_BROKER)
    }
    if NOT_TEXT in texts:
        headers |= _typed(texts[NOT_TEXT])
    size = sum(len(name.encode()) + len(str(value).encode()) for name, value in headers.items())
    if size > MAX_AMQP_HEADERS:
        raise InvalidArgument(
            f"headers take {size:,} bytes; AMQP has room for {MAX_AMQP_HEADERS:,}"
        )
    if long_names := [name for name in headers if len(name.encode()) > LONGEST]:
        raise InvalidArgument(
            f"the header {long_names[0]!r} has a name of more than {LONGEST} bytes"
        )
    _, _, queue_name = message.queue.rpartition("/")  # the namespace is nothing to consumers
    return headers | dict(zip(ADDED, (queue_name, message.due, message.attempt), strict=True))


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
        if name in DELAYS or name in ADDED or name.startswith(_ADDED_BY_BROKER):
            continue
        if isinstance(value, str) and not name.startswith("amqp-") and name not in TEXTS:
            headers[name] = value
        else:  # also a text whose name stands for a property in bide
            typed[name] = value
    if typed:
        headers[NOT_TEXT] = msgspec.json.encode(_tagged(typed)).decode()
    return headers


def _whole_number(text: str, name: str, most: int) -> int:
    """Return a number that is written as text.

    Raises:
        InvalidArgument: it is none, or more than `most`.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= most):
        raise InvalidArgument(f"{name}={text[:40]!r} must be a whole number from 0 to {most:,}")
    return int(text)


def _typed(text: str) -> dict[str, Any]:
    """Return the headers that the header `NOT_TEXT` holds as JSON.

    Raises:
        InvalidArgument: it is not what `headers_of` writes.
    """
    try:
        headers = _untagged(msgspec.json.decode(text))
    except UNFIT as error:
        raise InvalidArgument(f"{NOT_TEXT} is not what bide writes there: {error}") from None
    if not isinstance(headers, dict):
        raise InvalidArgument(f"{NOT_TEXT} must be a JSON object")
    return headers


def _tagged(value: Any, depth: int = 0) -> Any:
    """Return a value of AMQP as JSON has it.

    A type that JSON does not have becomes an object with one key, such as `{"amqp:bytes": "00"}`.

    Args:
        value: of a header, or within one.
        depth: how many values it is nested in.

    Raises:
        InvalidArgument: it is nested too deeply.
    """
    if depth > DEEPEST:
        raise InvalidArgument(f"headers are nested more than {DEEPEST} levels deep")
    match value:
        case dict():
            table = {str(name): _tagged(element, depth + 1) for name, element in value.items()}
            # A table that looks like such an object is put into one, so that it stays a table.
            looks_tagged = len(table) == 1 and next(iter(table)).startswith("amqp:")
            return {"amqp:table": table} if looks_tagged else table
        case list() | tuple():
            return [_tagged(element, depth + 1) for element in value]
        case bytes() | bytearray():
            return {"amqp:bytes": value.hex()}
        case datetime():
            return {"amqp:time": value.timestamp()}
        case Decimal():
            return {"amqp:decimal": str(value)}
        case float() if not isfinite(value):
            return {"amqp:float": str(value)}
        case _:
            return value


def _untagged(value: Any) -> Any:
    """Return the value of AMQP that `_tagged` has made JSON of.

    Raises:
        Exception: one of `UNFIT`, `_tagged` has not made it.
    """
    match value:
        case {"amqp:bytes": str(text), **rest} if not rest:
            return bytearray.fromhex(text)  # the library cannot send `bytes`
        case {"amqp:time": int(seconds) | float(seconds), **rest} if not rest:
            return datetime.fromtimestamp(seconds, UTC)
        case {"amqp:decimal": str(text), **rest} if not rest:
            return Decimal(text)
        case {"amqp:float": str(text), **rest} if not rest:
            return float(text)
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
        json=_is_json(message),
        at=at,
        delay=delay,
        priority=min(message.priority or 0, 255),
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
    """Tell whether a message is the one that is stored under its id, and has come again.

    It is if body and routing key are the same: other headers may be changed in the store.
    """
    key = (item.headers or {}).get(KEY)
    stored_key = (stored.headers or {}).get(KEY)
    return item.data == stored.data and key == stored_key


def due_of(headers: Mapping[str, Any]) -> tuple[int | None, int]:
    """Return when a message is due: Unix milliseconds, or `None` and a delay in milliseconds.

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
    names = [name for name in DELAYS if headers.get(name) is not None]
    if not names:
        return None, 0
    if len(names) > 1:
        raise InvalidArgument(f"{names[0]} and {names[1]} both say when it is due; send one")
    name, value = names[0], headers[names[0]]
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
    whole_number = max(0, round(number))
    if name == "x-delay" and whole_number >= EARLIEST * 1000:
        raise InvalidArgument(
            f"x-delay={whole_number} looks like a time in Unix milliseconds; for a time send "
            "bide-at"
        )
    if name == "x-opt-delivery-time" and 0 < whole_number < EARLIEST * 1000:
        raise InvalidArgument(
            f"x-opt-delivery-time={whole_number} is before 2001; it must be Unix milliseconds"
        )
    return (None, whole_number) if name == "x-delay" else (whole_number, 0)


def _number(value: Any) -> float | None:
    """Return a header as a number, also one that is text; `None` if it is no finite number."""
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and isfinite(number) else None


def _is_json(message: AbstractIncomingMessage) -> bool:
    """Tell whether the body can be stored as JSON; otherwise it is stored as bytes."""
    content_type, _, _ = (message.content_type or "").partition(";")
    if content_type.strip().lower() != "application/json":
        return False
    if message.content_encoding not in (None, "", "utf-8"):
        return False
    try:
        msgspec.json.decode(message.body)
        check_depth(message.body)
    except (ValueError, RecursionError, InvalidArgument):
        return False
    return True
