"""Bodies: any JSON value, or bytes as they are."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from bide.model.errors import InvalidArgument

__all__ = ["MAX_BODY", "MAX_DEPTH", "check_depth", "decode", "encode", "encode_all"]

MAX_BODY = 1024 * 1024
"""The default limit of an encoded body, in bytes."""

MAX_DEPTH = 500
"""How many lists and objects may stand one in another: what every Python can read back."""

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}

_RAW = (bytes, bytearray, memoryview)
_NO_NAN = frozenset((str, int, bool, type(None)))
"""Types in whose values there can be no NaN, which JSON would make null in silence."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode(body: Any, limit: int = MAX_BODY) -> tuple[bytes, bool]:
    """Return a body as it is stored, and whether that is JSON.

    Bytes stay as they are. Anything else becomes JSON text by msgspec's rules: what JSON has, and
    also dataclasses, `Struct`s, datetimes, UUIDs, enums, sets and tuples.

    Args:
        body: the value.
        limit: how many bytes it may take at most.

    Raises:
        InvalidArgument: when a part of it cannot be JSON (the error tells which), when it is nested
            too deeply, or too large.
    """
    kind = type(body)
    if kind not in _NO_NAN and isinstance(body, _RAW):
        data, is_json = bytes(body), False
    else:
        try:
            data = _encode(body)
        except (TypeError, ValueError, OverflowError, UnicodeEncodeError) as error:
            raise InvalidArgument(_explain(body, error)) from error
        except RecursionError as error:
            raise InvalidArgument(
                f"body is nested too deeply, or holds itself; {MAX_DEPTH} levels are possible"
            ) from error
        if len(data) > 2 * MAX_DEPTH:  # what is shorter cannot be deeper
            check_depth(data)
        if kind not in _NO_NAN and data.find(b"null") >= 0:
            _refuse_nan(body, "body")
        is_json = True
    if len(data) > limit:
        raise InvalidArgument(
            f"body takes {len(data):,} bytes, the limit is {limit:,}; store it elsewhere and put a "
            "reference, or raise the limit with Queue(..., max_body=...)"
        )
    return data, is_json


def encode_all(
    bodies: Sequence[Any], limit: int = MAX_BODY
) -> tuple[Sequence[bytes], Sequence[bool]]:
    """Return bodies as they are stored, as `encode` does, at less cost if they are many.

    Returns:
        All bodies, and of each whether it is JSON.

    Raises:
        InvalidArgument: as `encode`.
    """
    short = min(limit, 2 * MAX_DEPTH)
    kinds = set(map(type, bodies))
    raw = any(issubclass(kind, _RAW) for kind in kinds)
    try:
        texts = [] if raw else list(map(_encode, bodies))
    except Exception:  # noqa: BLE001  (the careful way tells what is wrong, and where)
        texts = []
    careful = not texts or len(max(texts, key=len)) > short
    if careful or (not kinds <= _NO_NAN and b"null" in b" ".join(texts)):
        encoded = [encode(body, limit) for body in bodies]
        return [data for data, _ in encoded], [is_json for _, is_json in encoded]
    return texts, [True] * len(texts)


def check_depth(data: bytes) -> None:
    """See that JSON is not nested deeper than any Python that reads it can follow.

    How deep a decoder gets depends on the version of Python and on who calls it: without a limit,
    what one worker puts another could not read.

    Raises:
        InvalidArgument: it is.

    Example:
        >>> check_depth(b"[" * 501 + b"]" * 501)
        Traceback (most recent call last):
          ...
        bide.model.errors.InvalidArgument: body is nested too deeply: 501 levels, the limit is 500
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    brackets = _STRINGS.sub(b"", data).translate(None, _OTHERS)
    deepest = max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)
    if deepest > MAX_DEPTH:
        raise InvalidArgument(
            f"body is nested too deeply: {deepest:,} levels, the limit is {MAX_DEPTH}"
        )


def decode(data: bytes, is_json: bool) -> Any:
    """Return the body that was stored as `data`."""
    return _decode(data) if is_json else data


def _explain(body: Any, error: Exception) -> str:
    place, value = _culprit(body, "body") or ("body", body)
    if place.endswith(" (key)"):
        return f"{place[:-6]} has the key {value!r} {_kind(value)}; JSON needs str keys"
    return (
        f"{place} is {_kind(value)}, which JSON cannot hold ({error}); convert it, or "
        "encode the whole body to bytes yourself"
    )


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"


def _culprit(value: Any, place: str) -> tuple[str, Any] | None:
    """Find the innermost part that does not encode: where it stands, and the part itself."""
    try:
        _encode(value)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError):
        for where, part in _parts(value, place):
            if found := _culprit(part, where):
                return found
        if isinstance(value, Mapping):
            for key in value:
                try:
                    _encode({key: None})
                except (TypeError, ValueError, OverflowError, UnicodeEncodeError):
                    return f"{place} (key)", key
        return place, value
    return None


def _parts(value: Any, place: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"{place}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"{place}[{index}]", part) for index, part in enumerate(value)]
    if hasattr(value, "__dict__") or hasattr(type(value), "__slots__"):
        names: Any = getattr(type(value), "__struct_fields__", None)
        names = names or getattr(value, "__dict__", ())
        return [(f"{place}.{name}", getattr(value, name)) for name in names]
    return []


def _refuse_nan(value: Any, place: str) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArgument(
                f"{place} is {value}, which JSON cannot hold; put None or a string instead"
            )
        return
    for where, part in _parts(value, place):
        _refuse_nan(part, where)
