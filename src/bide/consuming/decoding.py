"""Decode a stored body into the type that a handler is annotated with."""

from collections.abc import Callable
from typing import Any

import msgspec
import msgspec.inspect

from bide.consuming.handling import Handling
from bide.model.body import decoder_of
from bide.model.errors import InvalidArgument

Decode = Callable[[Handling], Any]


class Unfit(Exception):
    """A body does not fit the annotation of its handler; a retry would not help."""


def decoder(kind: Any, what: str) -> Decode:
    """Return a function that decodes the body of a delivery into a type.

    Args:
        kind: a dataclass, a `TypedDict`, a msgspec `Struct`, a pydantic model, or anything that
            msgspec knows, such as `list[int]`; `bytes` takes bodies that were put as bytes, and
            `Any` takes every body.
        what: the owner of the parameter, for the error.

    Raises:
        InvalidArgument: this type cannot be decoded.
    """
    if kind is Any or kind is object:
        return lambda one: one.message.body
    if kind is bytes:
        return _bytes
    try:
        decode = decoder_of(kind)
        strange = _strange(msgspec.inspect.type_info(kind), set())
    except TypeError as error:
        raise _refusal(kind, what, str(error)) from error
    if strange is not None:
        raise _refusal(kind, what, f"nothing is known of {_name(strange)}")
    return _json(decode, kind)


def _refusal(kind: Any, what: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"{what} takes a {_name(kind)}, which no body can be decoded into ({why}); annotate it "
        "with a dataclass, a TypedDict, a msgspec.Struct or a pydantic model"
    )


def _strange(info: Any, seen: set[int]) -> Any:
    """Find a type that neither msgspec nor pydantic knows; msgspec would report it only on use."""
    if isinstance(info, msgspec.inspect.CustomType):
        return None if hasattr(info.cls, "model_validate") else info.cls
    if id(info) in seen or not isinstance(info, msgspec.Struct):
        return None
    seen.add(id(info))
    for name in info.__struct_fields__:
        value = getattr(info, name)
        for part in value if isinstance(value, tuple) else (value,):
            if (found := _strange(part, seen)) is not None:
                return found
    return None


def _bytes(one: Handling) -> bytes:
    message = one.message
    if message.json:
        raise Unfit(f"the body is JSON, and the handler takes bytes: {message.data[:100]!r}")
    return message.data


def _json(decode: Callable[[bytes], Any], kind: Any) -> Decode:
    def to_value(one: Handling) -> Any:
        message = one.message
        if not message.json:
            raise Unfit(f"the body is bytes, and the handler takes a {_name(kind)}")
        try:
            return decode(message.data)
        except Exception as error:  # validation code of the user may raise anything
            raise Unfit(f"the body is no {_name(kind)}: {error}") from error

    return to_value


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
