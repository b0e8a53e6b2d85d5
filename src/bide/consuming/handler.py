"""Make a handler of a function: what it takes, how its body is decoded, and its settings."""

import inspect
import types
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from bide.consuming.handling import Handler, Handling
from bide.consuming.outcomes import Discard
from bide.model.backoff import Backoff
from bide.model.body import decoder_of
from bide.model.errors import InvalidArgument, UnreadableBody
from bide.model.message import Message
from bide.model.times import Duration, milliseconds
from bide.queue.delivery import Held

Decode = Callable[[Message], Any]


Misfit = Literal["body", "missing argument", "unknown argument", "argument"]
"""What of a body does not fit."""


class Unfit(Exception):
    """A body does not fit the annotation of its handler; a retry would not help.

    Args:
        text: says why.
        misfit: what of it does not fit.
    """

    def __init__(self, text: str, misfit: Misfit = "body") -> None:
        super().__init__(text)
        self.misfit = misfit


class NotAwaited(TypeError):
    """Work did not run, because an `await` is missing; a retry would not help."""


def decoder(body_type: Any, owner: str) -> Decode:
    """Return a function that decodes the body of a message into a type.

    Args:
        body_type: a dataclass, a `TypedDict`, a msgspec `Struct`, a pydantic model, or anything
            that msgspec knows, such as `list[int]`; `bytes` takes bodies that were put as bytes,
            and `Any` takes every body.
        owner: of the parameter, for the error.

    Raises:
        InvalidArgument: this type cannot be decoded.
    """
    if body_type is Any or body_type is object:
        return _any
    if body_type is bytes:
        return _bytes
    decode = json_decoder(body_type, owner)

    def to_value(message: Message) -> Any:
        if not message.json:
            raise Unfit(f"the body is bytes, and the handler takes {type_name(body_type)}")
        try:
            return decode(message.data)
        except Exception as error:  # validation code of the user may raise anything
            raise Unfit(f"the body does not fit {type_name(body_type)}: {error}") from error

    return to_value


def json_decoder(value_type: Any, owner: str) -> Callable[[bytes], Any]:
    """Return a function that decodes JSON into a type, for `decoder` and for arguments of tasks.

    Args:
        value_type: as for `decoder`; bytes are base64 in JSON.
        owner: of the parameter, for the error.

    Raises:
        InvalidArgument: this type cannot be decoded.
    """
    try:
        decode = decoder_of(value_type)
        # The schema asks for each type within this one: see `_schema`.
        with suppress(TypeError):  # of a default value without a form in JSON, which does no harm
            msgspec.json.schema_components([value_type], schema_hook=_schema)
    except (TypeError, Unfit) as error:
        raise InvalidArgument(
            f"{owner} takes {type_name(value_type)}, which no body can be decoded into "
            f"({error}); annotate it with a dataclass, a TypedDict, a msgspec.Struct or a pydantic "
            "model"
        ) from error
    return decode


def _schema(unknown_type: Any) -> dict[str, Any]:
    """Refuse a type that neither msgspec nor pydantic knows; else only a body would show it."""
    if not hasattr(unknown_type, "model_validate"):
        raise Unfit(f"nothing is known of {type_name(unknown_type)}")
    return {"type": "object"}


def _any(message: Message) -> Any:
    """Decode a body of any form."""
    try:
        return message.body
    except UnreadableBody as error:
        raise Unfit(str(error)) from error


def _bytes(message: Message) -> bytes:
    """Return a body that was put as bytes."""
    if message.json:
        raise Unfit(f"the body is JSON, and the handler takes bytes: {message.data[:100]!r}")
    return message.data


def type_name(kind: Any) -> str:
    """Return the name of a type, for people."""
    return getattr(kind, "__name__", None) or str(kind)


Middleware = Callable[[Handling, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Runs around every delivery: it awaits its second argument, which takes none, once."""

_VALUES = frozenset({str, bytes, int, float, bool, list, tuple, dict})
"""Types of plain values, which are never work that waits for an `await`."""

WITHIN = "within"
"""The parameter that takes the connection of a handler with `within=`."""

UNWANTED = "no longer wanted"
"""The reason of a message that `still_wanted` has refused."""

WANTED = "still_wanted takes (body) or (body, delivery: bide.Handling)"
SIGNATURES = "a handler takes (body), (body, delivery: bide.Handling) or (delivery: bide.Handling)"


def make_handler(
    function: Callable[..., Any],
    timeout: Duration | None = None,
    retry: Backoff | None = None,
    still_wanted: Callable[..., Any] | None = None,
    body: Any = Any,
    warn_after: Duration | None = None,
    signatures: str = SIGNATURES,
    optional: bool = False,
    given: Callable[[Handling], Any] | None = None,
    within: bool = False,
) -> Handler:
    """Return the handler of a function.

    Args:
        function: takes the body, the delivery, or both; nothing, if that is `optional`.
        timeout: how long a delivery may take.
        retry: the delays and the number of attempts.
        still_wanted: the check before it, if any.
        body: the type of a body without annotation; for a method, its class.
        warn_after: how long a delivery may take before a warning is logged.
        signatures: what the function may take, in words, for errors.
        optional: whether it may take nothing.
        given: returns what it takes in place of the body.
        within: whether its parameter `within`, if it has one, takes the connection that its
            `within=` has opened.

    Raises:
        InvalidArgument: it takes anything but a body and a delivery, or a setting is not valid.
    """
    name, order, body_type = _inspect(
        function, "a handler", signatures, body_type=body, optional=optional, within=within
    )
    joins = within and takes_within(function)
    is_async = is_coroutine_function(function)
    decode = decoder(body_type, name) if "b" in order and given is None else None
    body_of = given or partial(_body_of, decode)
    order_of_check = ""  # that of `still_wanted`

    if still_wanted is not None:
        order_of_check = _inspect(still_wanted, f"still_wanted of {name}", WANTED).order
        if is_coroutine_function(still_wanted) != is_async:
            raise InvalidArgument(
                f"still_wanted of {name} must be {'async' if is_async else 'a plain function'}, as "
                "the handler is: they run in the same place"
            )
        if "b" not in order:
            raise InvalidArgument(
                f"{name} has still_wanted=, which checks the body, but takes no body; add one"
            )

    def call(handling: Handling) -> Any:
        """Call the function with the parts of a delivery that it takes, if it is still wanted."""
        body = body_of(handling)
        if still_wanted is not None:
            wanted = still_wanted(*_arguments(order_of_check, body, handling))
            if not checked_result(wanted, "still_wanted of " + name):
                raise Discard(UNWANTED)
        if joins:
            return function(*_arguments(order, body, handling), within=handling.connection)
        return function(*_arguments(order, body, handling))

    async def call_with_await(handling: Handling) -> Any:
        """Do the same for an async function whose `still_wanted` must be awaited first."""
        body = body_of(handling)
        if still_wanted is not None:
            wanted = await still_wanted(*_arguments(order_of_check, body, handling))
            if not checked_result(wanted, "still_wanted of " + name):
                raise Discard(UNWANTED)
        if joins:
            return await function(*_arguments(order, body, handling), within=handling.connection)
        return await function(*_arguments(order, body, handling))

    # Without a check before it, `call` returns what the async function returns: an awaitable.
    has_async_check = is_async and still_wanted is not None
    return Handler(
        name,
        call_with_await if has_async_check else call,
        is_async,
        timeout=seconds_of(timeout),
        warn_after=seconds_of(warn_after, "warn_after"),
        retry=checked_retry(retry) or Backoff(),
        check=decode,
        takes="" if decode is None or body_type is Any else type_name(body_type),
    )


def _body_of(decode: Decode | None, handling: Handling) -> Any:
    """Return the decoded body, or `None` for a function that takes none."""
    return None if decode is None else decode(handling.message)


def _arguments(order: str, body: Any, handling: Handling) -> tuple[Any, ...]:
    """Return what a function is called with; `order` as in `_Signature`.

    Example:
        >>> _arguments("db", "body", "delivery"), _arguments("b", "body", "delivery")
        (('delivery', 'body'), ('body',))
    """
    return ((handling, body) if order[:1] == "d" else (body, handling))[: len(order)]


class _Signature(NamedTuple):
    """What a handler's function takes."""

    name: str
    """Of the function."""
    order: str
    """Its arguments in their order: "b" for the body, "d" for the delivery."""
    body_type: Any


def _inspect(
    function: Any,
    role: str,
    signatures: str,
    *,
    body_type: Any = Any,
    optional: bool = False,
    within: bool = False,
) -> _Signature:
    """Return what a function takes.

    Args:
        function: of a user.
        role: what it is, for errors.
        signatures: what it may take, in words, for errors.
        body_type: the type of a body without annotation.
        optional: whether it may take nothing.
        within: whether a parameter of this name is none of the arguments.

    Raises:
        InvalidArgument: it is not a function, or takes anything but a body and a delivery.
    """
    if not callable(function):
        raise InvalidArgument(f"{role} must be a function, not {type(function).__name__}")
    name = name_of(function)
    check_is_no_generator(function)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a function written in C may have no signature
        return _Signature(name, "b", body_type)
    order = ""
    within_is_last = False  # nothing that is given by position may come behind it
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL or parameter.kind is parameter.VAR_KEYWORD:
            continue
        if within and parameter.name == WITHIN:
            within_is_last = parameter.kind is not parameter.KEYWORD_ONLY
            continue
        if within_is_last and parameter.kind is not parameter.KEYWORD_ONLY:
            raise InvalidArgument(
                f"{name} takes within before {parameter.name}; write it last, or by name only: "
                "(body, *, within)"
            )
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise InvalidArgument(f"{name} needs {parameter.name}=, which bide does not pass")
            continue
        annotation = hints_of(function, name).get(parameter.name, parameter.annotation)
        argument = "d" if is_delivery(parameter.name, annotation) else "b"
        if argument in order:
            if parameter.default is not parameter.empty:
                break  # it and those behind it have their defaults
            raise InvalidArgument(f"{name} takes too many arguments; {signatures}")
        order += argument
        if argument == "b" and annotation is not parameter.empty:
            body_type = annotation
    if not order and not optional:
        raise InvalidArgument(
            f"{name} names no parameter (a decorator needs functools.wraps); {signatures}"
        )
    return _Signature(name, order, body_type)


def takes_within(function: Any) -> bool:
    """Tell whether a function has a parameter named `within`."""
    try:
        return WITHIN in inspect.signature(function).parameters
    except ValueError:  # a function written in C may have no signature
        return False


def check_is_no_generator(function: Any) -> None:
    """Check that calling a function runs it.

    Raises:
        InvalidArgument: it is a generator.
    """
    called = called_function(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise InvalidArgument(
            f"{name_of(function)} is a generator: calling it runs nothing; remove the yield"
        )


def checked_result(result: Any, name: str) -> Any:
    """Return what a function returned, unless that is work that has not run or not ended.

    Args:
        result: what it returned; of an async one, what awaiting it has returned.
        name: of the function.

    Raises:
        NotAwaited: it is a coroutine, a generator, or a task of the event loop.
    """
    if result is None or type(result) in _VALUES:
        return result
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise NotAwaited(
            f"{name} returned a generator that was never run: call it in a loop, or remove "
            "the yield"
        )
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()  # else Python warns that it was never awaited
        raise NotAwaited(
            f"{name} returned a coroutine that was never run: the await of "
            f"{result.__qualname__}(...) is missing. Write `return await {result.__name__}(...)` "
            "in an async function; a decorator of an async function must be async, too"
        )
    raise NotAwaited(
        f"{name} returned {type(result).__name__} and did not wait for it: an await is missing. "
        "Write `return await ...` in an async function"
    )


def seconds_of(timeout: Duration | None, what: str = "timeout") -> float | None:
    """Return a timeout in seconds.

    Args:
        timeout: as the user gave it.
        what: the name of the argument, for the error.

    Raises:
        InvalidArgument: it is 0 or less.
    """
    seconds = None if timeout is None else milliseconds(timeout, what) / 1000
    if seconds is not None and seconds <= 0:
        raise InvalidArgument(f"{what} must be longer than 0; leave it out for no limit")
    return seconds


def checked_retry(retry: Backoff | None) -> Backoff | None:
    """Return a backoff after checking its type.

    Raises:
        InvalidArgument: it is not a `Backoff`.
    """
    if retry is not None and not isinstance(retry, Backoff):
        fix = f": bide.Backoff(attempts={retry})" if type(retry) is int and retry > 0 else ""
        raise InvalidArgument(f"retry={retry!r} must be a bide.Backoff{fix}")
    return retry


def check_takes(function: Any, count: int, what: str) -> None:
    """Check that a function can be called with `count` arguments, which `what` names.

    Raises:
        InvalidArgument: it needs another number of arguments.
    """
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as error:
        raise InvalidArgument(f"{name_of(function)} must take {what}: {error}") from None
    except ValueError:  # a function written in C may have no signature
        return


def name_of(function: Any) -> str:
    """Return the name of a function for logs and errors.

    Example:
        >>> name_of(name_of), name_of(5), name_of([].append)
        ('bide.consuming.handler.name_of', 'int', 'list.append')
    """
    inner = getattr(function, "func", function)  # of a functools.partial
    module = getattr(inner, "__module__", None)
    name = getattr(inner, "__qualname__", type(inner).__name__)
    return f"{module}.{name}" if module else str(name)


class Wrapping:
    """An object that calls the function `__wrapped__`, and returns what that returns."""

    __wrapped__: Callable[..., Any]


def called_function(function: Any) -> Any:
    """Return the function that is called for a partial, a static method or a task."""
    while isinstance(function, (partial, staticmethod, Wrapping)):
        function = function.func if isinstance(function, partial) else function.__wrapped__
    return function


def is_coroutine_function(function: Any) -> bool:
    """Tell whether calling a function makes a coroutine."""
    function = called_function(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  (an object whose call is a coroutine)
    )


def is_delivery(name: str, annotation: Any) -> bool:
    """Tell whether a parameter takes the delivery, by its annotation or else by its name."""
    if annotation is inspect.Parameter.empty:
        return name == "delivery"
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    is_union = get_origin(annotation) in (Union, types.UnionType)
    options = get_args(annotation) if is_union else (annotation,)
    return any(isinstance(option, type) and issubclass(option, Held) for option in options)


def hints_of(function: Any, name: str) -> dict[str, Any]:
    """Return the resolved annotations of a function.

    Raises:
        InvalidArgument: they cannot be resolved.
    """
    target = called_function(function)
    # As its signature is: that of what a decorator has wrapped into an object.
    while not isinstance(target, (types.FunctionType, types.MethodType)):
        if not hasattr(target, "__wrapped__"):
            target = type(target).__call__  # an object that is called like a function
            break
        target = called_function(target.__wrapped__)
    try:
        return get_type_hints(target, include_extras=True)
    except Exception as error:
        raise InvalidArgument(
            f"the annotations of {name} cannot be resolved ({error}); use types that its module "
            "imports or defines above it"
        ) from error
