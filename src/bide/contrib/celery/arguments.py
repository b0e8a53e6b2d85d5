"""How Celery's JSON writes what JSON does not have."""

import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

_TYPES: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),  # it is a date, too
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "decimal": (Decimal, str, Decimal),
    "uuid": (uuid.UUID, lambda value: {"hex": value.hex}, lambda value: uuid.UUID(value["hex"])),
    "base64": (bytes, lambda value: b64encode(value).decode(), b64decode),
    "bytes": (bytes, bytes.decode, str.encode),
}
"""How Celery's JSON writes and reads values that JSON does not have."""


def written(value: Any) -> Any:
    """Return a value with what JSON does not have in the form of Celery.

    Example:
        >>> written([date(2030, 1, 1)])
        [{'__type__': 'date', '__value__': '2030-01-01'}]
    """
    if isinstance(value, dict):
        return {key: written(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [written(part) for part in value]
    for name, (kind, write, _) in _TYPES.items():
        if isinstance(value, kind):
            return {"__type__": name, "__value__": write(value)}
    return value


def revived(value: Any) -> Any:
    """Return a value as it was before `written`, or before Celery has written it.

    Raises:
        ValueError: a part of it is of a type that is not known, or not as it is written.

    Example:
        >>> revived(written({"paid": Decimal("4.50")}))
        {'paid': Decimal('4.50')}
    """
    if isinstance(value, list):
        return [revived(part) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"__type__", "__value__"}:
        return {key: revived(part) for key, part in value.items()}
    if value["__type__"] not in _TYPES:
        raise ValueError(f"a value of the type {value['__type__']}")
    _, _, read = _TYPES[value["__type__"]]
    return read(value["__value__"])
