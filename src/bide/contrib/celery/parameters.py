"""The parameters of a task that is written as for Celery."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bide.consuming.handler import Misfit, Unfit, name_of
from bide.consuming.handling import Handling
from bide.consuming.outcomes import Discard
from bide.contrib.celery.arguments import revived, written
from bide.importing.source import iso_seconds
from bide.model import body as bodies
from bide.model.errors import InvalidArgument
from bide.model.message import Message


class TaskCall(NamedTuple):
    """The arguments of a call."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    expires: float | None = None
    """When Celery would no longer run it, in Unix seconds."""


class CeleryParameters:
    """The parameters of a function that messages call as Celery does.

    They travel by name, as those of `App.task`; those of `*rest` are a list with the name `rest`.
    Annotations count for nothing: each value comes back with the type that it was sent with.

    Args:
        function: is called; a plain function, or a method of an object.

    Example:
        >>> def total(order: int, *rest: int, note: str = "") -> None: ...
        >>> parameters = CeleryParameters(total)
        >>> parameters.bind((1, 2, 3), {"note": "paid"})
        {'order': 1, 'rest': [2, 3], 'note': 'paid'}
    """

    result: Any = Any

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = name_of(function)
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.by_position = [
            parameter.name for parameter in parameters if parameter.kind in positional
        ]
        """The names of those that a call may give by position, in order."""
        self._text_names = {
            parameter.name for parameter in parameters if parameter.annotation is str
        }
        """The names of those annotated with `str`."""
        self._names: list[str] = []
        """The names of all but `**others`, in order."""
        self._rest: str | None = None
        """The name of `*rest`; `None`: there is none."""
        self._others: str | None = None
        """The name of `**others`; `None`: there is none."""
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                self._others = parameter.name
                continue
            self._names.append(parameter.name)
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = parameter.name

    def __str__(self) -> str:
        return str(self._signature)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name.

        Raises:
            InvalidArgument: the function cannot be called with them, or one of `**others` has the
                name of another parameter, as Python allows for `*rest`.
        """
        try:
            arguments = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidArgument(
                f"{self._name}{self} cannot be called with args={args!r} and kwargs={kwargs!r}: "
                f"{error}"
            ) from None
        others: dict[str, Any] = {}
        if self._others is not None:
            others = arguments.pop(self._others, {})
        if taken := sorted(others.keys() & set(self._names)):
            raise InvalidArgument(
                f"{taken[0]}= is also the name of another parameter of {self._name}{self}, and a "
                "message carries arguments by name; give one of them another name"
            )
        by_name: dict[str, Any] = written(arguments | others)
        return by_name

    def read(self, name: str | None, text: str) -> Any:
        """Return the value of an argument that a person wrote: JSON, or else text.

        A parameter annotated with `str` takes the text as it is.

        Example:
            >>> def mail(order: int, text: str) -> None: ...
            >>> parameters = CeleryParameters(mail)
            >>> parameters.read("order", "42"), parameters.read("text", "42")
            (42, '42')
        """
        if name in self._text_names:
            return text
        with suppress(ValueError, RecursionError):
            return bodies.parse(text.encode("utf-8", "surrogateescape"))
        return text

    def decode(self, message: Message) -> TaskCall:
        """Return the arguments that a message has: one of the app, of Celery, or of another app.

        Raises:
            Unfit: it calls no task, the function cannot be called with its arguments, or it is part
                of a canvas.
        """
        try:
            body = message.body
            is_of_celery = bool(body.keys() & {"text", "data"})  # taken over from its broker
            call = _of_celery(body) if is_of_celery else self._of_bide(body)
        # A body may be anything, and so may what it has in place of a date or a decimal.
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise Unfit(f"its body is not a call of a task ({error!r})") from error
        try:
            self._signature.bind(*call.args, **call.kwargs)
        except TypeError as error:
            text = f"{self._name}{self} cannot be called like this: {error}"
            raise Unfit(text, self._misfit(call)) from None
        return call

    def arguments_of(self, handling: Handling) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return what the function is called with for a message: by position, and by name.

        Raises:
            Unfit: as `decode`.
            Discard: Celery has sent it, and it has expired.
        """
        call = self.decode(handling.message)
        if call.expires is not None and handling.claimed > call.expires * 1000:
            end = datetime.fromtimestamp(call.expires, UTC)
            raise Discard(f"it expired at {end:%Y-%m-%d %H:%M:%S} UTC, before it was run")
        return call.args, call.kwargs

    def _of_bide(self, body: dict[str, Any]) -> TaskCall:
        """Return the arguments of a body of bide.

        That is `{"task": name, "args": {name: value}}`. A sender that does not know the names of
        the parameters puts `{"task": name, "args": [...], "kwargs": {...}}`.

        Raises:
            KeyError: it has neither `task` nor `args`, so it is no call.
        """
        args = body.get("args", {}) if "task" in body else body["args"]
        if isinstance(args, list):
            return TaskCall(revived(args), _each_revived(body.get("kwargs", {})))
        unknown = _each_revived(args)
        known = {name: unknown.pop(name) for name in self._names if name in unknown}
        if self._rest in known and not isinstance(known[self._rest], list):
            raise Unfit(f"{self._rest}= of {self._name} must be a list", "argument")
        # `BoundArguments` tells which known ones go by position, those of `*rest` among them.
        bound = inspect.BoundArguments(self._signature, known)
        return TaskCall(list(bound.args), bound.kwargs | unknown)

    def _misfit(self, call: TaskCall) -> Misfit:
        """Return what is wrong with arguments that the function cannot be called with."""
        try:
            self._signature.bind_partial(*call.args, **call.kwargs)  # which may lack some
        except TypeError:
            return "unknown argument"
        return "missing argument"


def _of_celery(body: dict[str, Any]) -> TaskCall:
    """Return the arguments of a task that Celery has sent, as `bide import` takes it over."""
    if body.get("content_type", "application/json") != "application/json":
        raise Unfit(f"its arguments are {body['content_type']}, not JSON; Celery can run it")
    args, kwargs, canvas = json.loads(body["text"])
    canvas_parts = [name for name, value in canvas.items() if value]
    if canvas_parts:
        raise Unfit(f"it is part of a canvas ({', '.join(canvas_parts)}); Celery can run it")
    iso_time = body.get("headers", {}).get("expires")
    expires = None if iso_time is None else iso_seconds(iso_time)
    return TaskCall(list(revived(args)), _each_revived(kwargs), expires)


def _each_revived(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name as they were before `written`.

    Not `revived` of the whole: parameters may be called `__type__` and `__value__`.
    """
    return {name: revived(value) for name, value in arguments.items()}
