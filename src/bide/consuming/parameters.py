"""The parameters of a task: arguments are checked at the put, and decoded for the call."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Protocol, get_args, get_origin

import msgspec

from bide.consuming.handler import (
    WITHIN,
    Misfit,
    Unfit,
    hints_of,
    is_delivery,
    json_decoder,
    name_of,
)
from bide.consuming.handling import Handling
from bide.model import body as bodies
from bide.model.errors import InvalidArgument
from bide.model.message import Message


class TaskBody(msgspec.Struct):
    """The body of a message that calls a task.

    Programs in other languages put the same: `{"task": "expire", "args": {"order": 42}}`.
    """

    task: str
    """The name of the task."""
    args: dict[str, msgspec.Raw] = {}
    """Its arguments by name; those that are left out have their defaults."""


_decode_body = msgspec.json.Decoder(TaskBody).decode


def task_body(data: bytes) -> TaskBody:
    """Decode the body of a message as the call of a task.

    Raises:
        Unfit: the body is not the call of a task.
    """
    try:
        return _decode_body(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unfit(
            f'the body calls no task, as {{"task": its name, "args": {{...}}}} does: {error}'
        ) from error


class TaskName(msgspec.Struct):
    """The name in a `TaskBody`: to read it alone is faster, and works with any arguments."""

    task: str


_decode_name = msgspec.json.Decoder(TaskName).decode


def task_named(message: Message) -> str | None:
    """Return the name of the task that a message calls; `None` if it calls none."""
    try:
        return _decode_name(message.data).task if message.json else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class ExactTaskBody(msgspec.Struct, forbid_unknown_fields=True):
    """A body that is nothing but a call of a task, as `Task.put` makes it."""

    task: str
    args: dict[str, msgspec.Raw]


_decode_exactly = msgspec.json.Decoder(ExactTaskBody).decode


def task_called(message: Message) -> str | None:
    """Return the name of the task that a message calls, in a queue that may have none.

    Bodies of other programs may have a field `task`, too: those are no calls.
    """
    try:
        return _decode_exactly(message.data).task if message.json else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class TaskParameters(Protocol):
    """How the arguments of a task are checked, and travel in bodies."""

    @property
    def by_position(self) -> Sequence[str]:
        """The names of those that a call may give by position, in order."""
        ...

    @property
    def result(self) -> Any:
        """The type of what the function returns, as annotated."""
        ...

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, as its body has them.

        Raises:
            InvalidArgument: the function cannot be called with them.
        """
        ...

    def read(self, name: str | None, text: str) -> Any:
        """Return the value of an argument that a person wrote, for `bide call`.

        Args:
            name: of its parameter; `None` if it is given by position, after those that have names.
            text: what was written.
        """
        ...

    def decode(self, message: Message) -> object:
        """Return the arguments that a message has.

        Raises:
            Unfit: the function cannot be called with them.
        """
        ...

    def arguments_of(self, handling: Handling) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return what the function is called with for a message: by position, and by name.

        Raises:
            Unfit: the function cannot be called with the arguments of the message.
        """
        ...


class Parameters:
    """The parameters of a function that messages call: each travels by its name.

    Args:
        function: plain or async. A parameter that is annotated with `bide.Handling`, or without
            annotation is named `delivery` and has the default `None`, is given the delivery by the
            worker, and is none of the arguments.
        joins: whether a parameter named `within` is given a connection in the same way.

    Raises:
        InvalidArgument: it is a method of no object, it takes `*args`, or arguments by position
            only, or a type that no argument can be decoded into.
    """

    def __init__(self, function: Callable[..., Any], *, joins: bool = False) -> None:
        self._name = name_of(function)
        self._signature = inspect.signature(function)
        self._decoders: dict[str, Callable[[bytes], Any]] = {}
        """What decodes each argument, by the names of the parameters."""
        self._texts: set[str] = set()
        """The names of those annotated with `str`."""
        self._required: set[str] = set()
        """The names of those without a default."""
        self._given: set[str] = set()
        """The names of those that only a worker gives."""
        self._not_of_msgspec: list[str] = []
        """The names of those whose types msgspec does not decode by itself."""
        self.by_position: list[str] = []
        """The names of those that a call may give by position, in order."""
        self._other: Callable[[bytes], Any] | None = None
        """What decodes the arguments of `**kwargs`; `None`: the function takes no others."""
        self.delivery: str | None = None
        """The parameter that takes the delivery, if there is one."""
        self.takes_within = joins and WITHIN in self._signature.parameters
        """Whether a parameter takes the connection of the transaction in which it runs."""
        self._check_is_bound()
        hints = self._annotations() | hints_of(function, self._name)
        for parameter in self._signature.parameters.values():
            self._add(parameter, hints.get(parameter.name, Any))
        self._decode_call = self._call_decoder(hints)
        """Decodes a whole call at once; `None`: see `_call_decoder`."""
        returned = hints.get("return", Any)
        self.result: Any = Any if returned is None or returned is type(None) else returned
        """The type of what it returns, as annotated; `Any` if it returns nothing."""
        self._text = self._as_text(hints)

    def __str__(self) -> str:
        return self._text

    def _annotations(self) -> dict[str, Any]:
        """Return what the signature has as annotations, for functions that have it alone."""
        return {
            name: parameter.annotation
            for name, parameter in self._signature.parameters.items()
            if parameter.annotation is not parameter.empty
        }

    def _as_text(self, hints: Mapping[str, Any]) -> str:
        """Return the parameters that arguments have, with annotations that are types, not text."""
        shown = [
            parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
            for parameter in self._signature.parameters.values()
            if parameter.name != self.delivery
            and not (self.takes_within and parameter.name == WITHIN)
        ]
        returned = hints.get("return", type(None))
        if returned is type(None):
            returned = inspect.Signature.empty
        signature = self._signature.replace(parameters=shown, return_annotation=returned)
        return str(signature)

    def _check_is_bound(self) -> None:
        """Check that the function is no method without its object."""
        first = next(iter(self._signature.parameters.values()), None)
        if first is None or first.name not in ("self", "cls"):
            return
        if first.annotation is first.empty and first.default is first.empty:
            raise InvalidArgument(
                f"{self._name} is a method, and a message carries no {first.name}; decorate a "
                "function, or write @staticmethod below @app.task, or register the method of one "
                "object: app.task(object.method)"
            )

    def _add(self, parameter: inspect.Parameter, annotation: Any) -> None:
        """Add a parameter with its resolved annotation.

        Raises:
            InvalidArgument: a message cannot give it.
        """
        name, required = parameter.name, parameter.default is parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            shown = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + name
            raise InvalidArgument(
                f"{self._name} takes {shown} by position; messages carry arguments by name, so "
                "give each one a name, and remove the / of positional-only ones"
            )
        written = parameter.annotation if annotation is Any else annotation
        # Without an annotation, its name decides whether it is the delivery, unless its default
        # says that it is something else.
        is_other = written is parameter.empty and not (required or parameter.default is None)
        if is_delivery(name, written) and not is_other:
            if required:
                raise InvalidArgument(
                    f"{self._name} takes the delivery, which only a worker gives it: write "
                    f"{name}: bide.Handling | None = None"
                )
            self.delivery = name
            self._given.add(name)
            return
        if self.takes_within and name == WITHIN:
            if required:
                raise InvalidArgument(
                    f"{self._name} takes the connection, which only a worker gives it: write "
                    f"{name}: Connection | None = None"
                )
            self._given.add(name)
            return
        decode = json_decoder(annotation, f"{name}= of {self._name}")
        if parameter.kind is parameter.VAR_KEYWORD:
            self._other = decode
            return
        self._decoders[name] = decode
        is_annotated_str = get_origin(annotation) is Annotated and get_args(annotation)[0] is str
        if annotation is str or is_annotated_str:
            self._texts.add(name)
        if required:
            self._required.add(name)
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            self.by_position.append(name)

    def _call_decoder(self, hints: Mapping[str, Any]) -> Callable[[bytes], Any] | None:
        """Return what decodes a whole call at once; `None` if the parameters are not all known.

        It says of a call that does not fit only that; `_decoded` says what is wrong with it.
        """
        if self._other is not None:
            return None
        self._not_of_msgspec = [
            name for name in self._decoders if not bodies.is_of_msgspec(hints.get(name, Any))
        ]
        fields: list[tuple[str, Any, Any]] = []
        for name in self._decoders:
            field_type = msgspec.Raw if name in self._not_of_msgspec else hints.get(name, Any)
            default = msgspec.NODEFAULT if name in self._required else msgspec.UNSET
            fields.append((name, field_type, default))
        arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        call = msgspec.defstruct("Call", [("task", str), ("args", arguments)])
        return msgspec.json.Decoder(call, dec_hook=bodies.validate).decode

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name.

        They are encoded and decoded once, so that a message which a worker could not call the
        function with is refused where it is put.

        Raises:
            InvalidArgument: the function cannot be called with them.
        """
        arguments = dict(zip(self.by_position, args, strict=False))
        named_twice = not arguments.keys().isdisjoint(kwargs)
        arguments.update(kwargs)
        if len(args) > len(self.by_position) or named_twice or self._mismatch(arguments):
            raise InvalidArgument(self._cannot_be_called(args, kwargs))
        data, _ = bodies.encode({"task": self._name, "args": arguments})
        if not self._fits(data):
            try:
                self._decoded(task_body(data).args)
            except Unfit as error:
                raise InvalidArgument(str(error)) from error
        return arguments

    def _fits(self, data: bytes) -> bool:
        """Tell whether one decoder accepts a whole call: the quick way, without an error text."""
        if self._decode_call is None or self._not_of_msgspec:
            return False
        try:
            self._decode_call(data)
        except Exception:  # noqa: BLE001  (`_decoded` says what is wrong)
            return False
        return True

    def read(self, name: str | None, text: str) -> Any:
        """Return the value of an argument that a person wrote, for `bide call`.

        A parameter annotated with `str` takes the text as it is. Others take it as JSON if that
        fits the annotation, or else as text. What fits in neither way is for `bind` to refuse.

        Example:
            >>> import datetime
            >>> def expire(order: int, reason: str, until: datetime.date) -> None: ...
            >>> parameters = Parameters(expire)
            >>> parameters.read("order", "42"), parameters.read("reason", "42")
            (42, '42')
            >>> parameters.read("until", "2030-01-01")
            datetime.date(2030, 1, 1)
        """
        decode = None if name is None else self._decoders.get(name, self._other)
        if decode is None or name in self._texts:
            return text
        data = text.encode("utf-8", "surrogateescape")  # the bytes that the shell passed
        with suppress(Exception):  # validation code of the user may raise anything
            return decode(data)
        with suppress(Exception):
            return decode(msgspec.json.encode(text))
        with suppress(ValueError, RecursionError):
            return bodies.parse(data)
        return text

    def arguments_of(self, handling: Handling) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return what the function is called with for a message, all of it by name.

        Raises:
            Unfit: the function cannot be called with the arguments of the message.
        """
        arguments = self.decode(handling.message)
        if self.delivery is not None:
            arguments[self.delivery] = handling
        if self.takes_within:
            arguments[WITHIN] = handling.connection
        return (), arguments

    def decode(self, message: Message) -> dict[str, Any]:
        """Return the arguments that a message has, by name.

        Raises:
            Unfit: the function cannot be called with them.
        """
        if not message.json:
            raise Unfit('the body is bytes; a task takes {"task": its name, "args": {...}}')
        return self._of_call(message.data)

    def _of_call(self, data: bytes) -> dict[str, Any]:
        """Decode the arguments of a call at once, and else one by one, which finds what is wrong.

        Raises:
            Unfit: the function cannot be called with them.
        """
        if self._decode_call is not None:
            with suppress(Exception):  # validation code of the user may raise anything
                arguments: dict[str, Any] = msgspec.structs.asdict(self._decode_call(data).args)
                for name in self._not_of_msgspec:
                    if arguments[name] is not msgspec.UNSET:
                        arguments[name] = self._decoders[name](bytes(arguments[name]))
                if len(self._required) == len(arguments):  # none has a default
                    return arguments
                unset = msgspec.UNSET
                return {name: value for name, value in arguments.items() if value is not unset}
        return self._decoded(task_body(data).args)

    def _decoded(self, raw: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
        """Decode arguments one by one.

        Raises:
            Unfit: the function cannot be called with them; the text says which one is wrong.
        """
        if mismatch := self._mismatch(raw):
            misfit, text = mismatch
            raise Unfit(f"{self._name}{self} {text}", misfit)
        arguments: dict[str, Any] = {}
        for name, value in raw.items():
            decode = self._decoders.get(name, self._other)
            assert decode is not None
            try:
                arguments[name] = decode(bytes(value))
            except Exception as error:  # validation code of the user may raise anything
                text = f"{name}= of {self._name} does not fit: {error}"
                raise Unfit(text, "argument") from error
        return arguments

    def _mismatch(self, arguments: Mapping[str, Any]) -> tuple[Misfit, str] | None:
        """Return how names of arguments differ from those of the parameters, and as a text.

        `None`: they fit.
        """
        names = arguments.keys()
        if not names >= self._required:
            missing = ", ".join(sorted(self._required - names))
            return "missing argument", f"needs {missing}, which the arguments lack"
        if not names <= self._decoders.keys():
            unknown = names - self._decoders.keys()
            if self._other is not None:  # it takes all but those
                unknown &= self._given
            if unknown:
                return "unknown argument", f"has no parameter {', '.join(sorted(unknown))}"
        return None

    def _cannot_be_called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Say why the function cannot be called so."""
        if self.delivery in kwargs:
            return f"{self._name} gets {self.delivery}= from its worker; leave it out"
        if self.takes_within and WITHIN in kwargs:
            return f"{self._name} gets {WITHIN}= from its worker; leave it out"
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            return f"{self._name}{self} cannot be called like this: {error}"
        return f"{self._name}{self} gets its delivery from the worker; leave it out"
