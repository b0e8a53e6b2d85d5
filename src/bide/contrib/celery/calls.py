"""The arguments of a task in the body of a message."""

import json
import uuid
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple

from bide.consuming.outcomes import Bury
from bide.queue.takeover.source import iso_seconds

__all__ = ["Call", "call_of"]

_TYPES: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat, "date": date.fromisoformat, "time": time.fromisoformat,
    "decimal": Decimal, "uuid": lambda value: uuid.UUID(value["hex"]),
}  # fmt: skip
"""How Celery's JSON writes values that JSON does not have."""


class Call(NamedTuple):
    """The arguments of a call."""

    args: list[Any]
    kwargs: dict[str, Any]
    expires: float | None = None
    """When Celery would no longer run it, in Unix seconds."""


def call_of(body: Any) -> Call:
    """Return the arguments, from a body of this kit or of a task that Celery made.

    Raises:
        Bury: the body is none of these, or the task is part of a canvas.

    Example:
        >>> call_of({"args": [42], "kwargs": {}})
        Call(args=[42], kwargs={}, expires=None)
        >>> call_of({"task": "shop.expire", "text": '[[42], {}, {"chain": null}]'}).args
        [42]
    """
    try:
        if "task" not in body:
            return Call(list(body["args"]), dict(body["kwargs"]))
        if body.get("content_type", "application/json") != "application/json":
            raise Bury(f"its arguments are {body['content_type']}, not JSON; Celery can run it")
        args, kwargs, embed = json.loads(body["text"], object_hook=_value)
        canvas = [name for name, value in embed.items() if value]
        end = body.get("headers", {}).get("expires")
        expires = None if end is None else iso_seconds(end)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Bury(f"its body is no call of a task ({error!r})") from error
    if canvas:
        raise Bury(f"it is part of a canvas ({', '.join(canvas)}); Celery can run it")
    return Call(args, kwargs, expires)


def _value(found: dict[str, Any]) -> Any:
    kind = found.get("__type__")
    if kind is None:
        return found
    if kind not in _TYPES:
        raise ValueError(f"a value of the type {kind}")
    return _TYPES[kind](found["__value__"])
