"""How Celery's JSON writes what JSON does not have."""

import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple


class _Form(NamedTuple):
    """How Celery's JSON writes and reads values of a type that JSON does not have."""

    value_type: type
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


# In the order in which they are tried: a datetime is a date, too, and bytes are written as base64.
_FORMS = {
    "datetime": _Form(datetime, datetime.isoformat, datetime.fromisoformat),
    "date": _Form(date, date.isoformat, date.fromisoformat),
    "time": _Form(time, time.isoformat, time.fromisoformat),
    "decimal": _Form(Decimal, str, Decimal),
    "uuid": _Form(
        uuid.UUID, lambda value: {"hex": value.hex}, lambda value: uuid.UUID(value["hex"])
    ),
    "base64": _Form(bytes, lambda value: b64encode(value).decode(), b64decode),
    "bytes": _Form(bytes, bytes.decode, str.encode),
}
"""By the name that Celery gives a type."""


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
    for name, form in _FORMS.items():
        if isinstance(value, form.value_type):
            return {"__type__": name, "__value__": form.write(value)}
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
    if value["__type__"] not in _FORMS:
        raise ValueError(f"a value of the type {value['__type__']}")
    return _FORMS[value["__type__"]].read(value["__value__"])
