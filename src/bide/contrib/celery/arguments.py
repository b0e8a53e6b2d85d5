"""The arguments of a call of a task, and how JSON of Celery writes what JSON does not have."""

import json
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple

from bide.consuming.outcomes import Bury
from bide.importing.source import iso_seconds

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


class TaskCall(NamedTuple):
    """The arguments of a call."""

    args: list[Any]
    kwargs: dict[str, Any]
    expires: float | None = None
    """When Celery would no longer run it, in Unix seconds."""


def call_of(body: Any) -> TaskCall:
    """Return the arguments, from a body of this kit or of a task that Celery made.

    Raises:
        Bury: the body is none of these, or the task is part of a canvas.

    Example:
        >>> call_of({"args": [42], "kwargs": {}})
        TaskCall(args=[42], kwargs={}, expires=None)
        >>> call_of({"task": "shop.expire", "text": '[[42], {}, {"chain": null}]'}).args
        [42]
    """
    try:
        if "task" not in body:
            return TaskCall(list(revived(body["args"])), dict(revived(body["kwargs"])))
        if body.get("content_type", "application/json") != "application/json":
            raise Bury(f"its arguments are {body['content_type']}, not JSON; Celery can run it")
        args, kwargs, embed = json.loads(body["text"])
        canvas = [name for name, value in embed.items() if value]
        end = body.get("headers", {}).get("expires")
        expires = None if end is None else iso_seconds(end)
        args, kwargs = revived(args), revived(kwargs)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise Bury(f"its body is no call of a task ({error!r})") from error
    if canvas:
        raise Bury(f"it is part of a canvas ({', '.join(canvas)}); Celery can run it")
    return TaskCall(args, kwargs, expires)
