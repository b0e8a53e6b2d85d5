"""Arrivals: when a message of RabbitMQ is due, and how the store keeps it. Nothing here waits."""

from collections.abc import Mapping
from datetime import datetime
from math import isfinite
from typing import Any

import msgspec
from aio_pika import DeliveryMode
from aio_pika.abc import AbstractIncomingMessage

from bide.model.body import check_depth
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name, new_id
from bide.model.limits import MAX_AMQP_HEADERS, MAX_BODY
from bide.model.message import Item, Message
from bide.model.times import LATEST, milliseconds, unix
from bide.targets.rabbitmq.fields import DELAYS, KEY, UNFIT, Publication, headers_of

GIVEN_ID = "bide-message-id"
"""The header with the `message_id` that a message came with, where it could not keep it."""


REASON = "bide-reason"
"""The header of a dead letter that says why it is one."""


def item_of(message: AbstractIncomingMessage, limit: int = MAX_BODY) -> Item:
    """Return a message as the store keeps it.

    Its id is its `message_id`; without one an id is made. A `message_id` that cannot be an id of
    the store stays in the header `GIVEN_ID`.

    Args:
        message: as it came.
        limit: how many bytes its body may have.

    Raises:
        InvalidArgument: its delay is not valid, or it is too large.
    """
    at, delay = due_of(message.headers)
    if len(message.body) > limit:
        raise InvalidArgument(f"body takes {len(message.body):,} bytes, the limit is {limit:,}")
    headers = headers_of(message)
    id = message.message_id or new_id()
    item = Item(
        id, message.body, _is_json(message), at, delay, min(message.priority or 0, 255),
        headers=headers,
    )  # fmt: skip
    try:
        check_name(id)
    except InvalidArgument:
        return renamed(item)
    return item


def renamed(item: Item) -> Item:
    """Return a message under an id of its own, since another one has its `message_id`."""
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


def is_same(item: Item, there: Message) -> bool:
    """Tell whether a message is the one that is stored under its id, come again."""
    keys = [(headers or {}).get(KEY) for headers in (item.headers, there.headers)]
    return (item.data, keys[0]) == (there.data, keys[1])


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
    match name:
        case "bide-at":
            return unix(_moment(value), name), 0
        case "bide-delay":
            text = isinstance(value, str) and not _is_number(value)
            return None, milliseconds(value if text else _number(value, name), name)
        case _:
            number = _number(value, name)
            if number > LATEST:
                raise InvalidArgument(f"{name}={value!r} is later than 2100; it is milliseconds")
            whole = max(0, round(number))
            return (None, whole) if name == "x-delay" else (whole, 0)


def _moment(value: Any) -> float | datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str) and not _is_number(value):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            raise InvalidArgument(
                f"bide-at={value[:80]!r} must be Unix seconds, or as 2030-01-01T12:00:00Z"
            ) from None
    return _number(value, "bide-at")


def _number(value: Any, name: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value):
        return value
    if isinstance(value, str) and _is_number(value):
        return float(value)
    raise InvalidArgument(f"{name}={str(value)[:80]!r} must be a number")


def _is_number(text: str) -> bool:
    whole, _, part = text.removeprefix("-").partition(".")
    return len(text) <= 20 and text.isascii() and whole.isdigit() and (not part or part.isdigit())


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
