"""Encode and decode bodies: any JSON value, or bytes."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import Annotated, Any, get_args, get_origin
from uuid import UUID

import msgspec

from bide.model.errors import InvalidArgument, UnreadableBody
from bide.model.limits import MAX_BODY, MAX_DEPTH

OR_BYTES = ", or encode the whole body to bytes yourself"
"""The end of errors about values that JSON cannot represent; results cannot be bytes."""

_STRINGS = re.compile(rb'"[^"]*+"')  # possessive: no memory for each character
_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
"""Half of a surrogate pair, as programs write that cut a text between two UTF-16 units."""
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_STEPS = {ord("["): 1, ord("]"): -1}
_STRETCH = 64
"""Brackets that are counted together; only near the limit, the depth is computed for each."""

_NUMBERS = bytes.maketrans(b"123456789E", b"000000000e")
"""Makes each digit a 0, so that `0e` is where a number has an exponent."""

_FAST = 16 * 1024
"""Bytes that are decoded fast enough whatever is in them."""

_EXPONENTS = 1_000
"""Numbers with an exponent that may each take msgspec 10 µs, fifty times what others take."""

_LONGEST_PATH = 1_000
"""Characters of the path of a part in an error."""

_RAW = (bytes, bytearray, memoryview)
_NO_NAN = frozenset((str, int, bool, type(None)))
"""Types whose values cannot contain NaN, which msgspec would write as null."""


def _iso(value: Any) -> str:
    """Return a date or a time as msgspec writes those of the standard library."""
    text: str = value.isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


_PLAIN: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    date: _iso,
    time: _iso,
    timedelta: lambda value: timedelta(seconds=timedelta.total_seconds(value)),
    bytes: lambda value: bytes(memoryview(value)),
    Decimal: str,
    UUID: str,
}
"""What to make of a subclass: Django's SafeString, numpy.float64, times of freezegun and pendulum.

`datetime` is a date. The types are those of the standard library even where freezegun has put its
own into modules."""


def _convert(value: Any) -> Any:
    """Return a pydantic model (which need not be installed) as what validates to it again.

    And a subclass of a type that JSON has as a value of that type.

    Raises:
        TypeError: it is another type that JSON cannot represent.
    """
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    for kind, plain in _PLAIN.items():
        if isinstance(value, kind):
            return plain(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _look_into(value: Any) -> Any:
    """Return what may contain NaN, before it becomes None: of pydantic models, and floats."""
    if hasattr(type(value), "model_dump"):
        return value.model_dump(by_alias=True, round_trip=True)
    return float.__float__(value) if isinstance(value, float) else None


_encode = msgspec.json.Encoder(enc_hook=_convert).encode
_decode = msgspec.json.Decoder().decode


def encode(body: Any, limit: int = MAX_BODY, *, decoded: bool = False) -> tuple[bytes, bool]:
    """Return an encoded body, and whether it is JSON.

    Bytes are not changed. Other values become JSON by msgspec's rules: all JSON types, and
    dataclasses, `Struct`s, pydantic models, datetimes, UUIDs, enums, sets and tuples.

    Args:
        body: the value.
        limit: the maximum size in bytes.
        decoded: whether the body was decoded from JSON, so that it cannot contain NaN.

    Raises:
        InvalidArgument: a part of it cannot be JSON (the error names the part), it is nested too
            deeply, or it is too large.
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
                f"body is nested too deeply, or contains itself; the limit is {MAX_DEPTH} levels"
            ) from error
        if len(data) > 2 * MAX_DEPTH:  # shorter text cannot be nested deeper
            check_depth(data)
        doubtful = not decoded and kind not in _NO_NAN and data.find(b"null") >= 0
        if doubtful and (fault := _find_nan(msgspec.to_builtins(body, enc_hook=_look_into))):
            raise InvalidArgument(
                f"{_place(fault[0])} is {fault[1]}, which JSON cannot represent; put None or a "
                "string instead"
            )
        is_json = True
    if len(data) > limit:
        raise InvalidArgument(
            f"body takes {len(data):,} bytes, the limit is {limit:,}; store it elsewhere and put a "
            "reference, or raise the limit with max_body="
        )
    return data, is_json


def encode_all(
    bodies: Sequence[Any], limit: int = MAX_BODY
) -> tuple[Sequence[bytes], Sequence[bool]]:
    """Encode many bodies as `encode` does, faster than one by one.

    Returns:
        The encoded bodies, and whether each is JSON.

    Raises:
        InvalidArgument: as `encode`.
    """
    short = min(limit, 2 * MAX_DEPTH)
    kinds = set(map(type, bodies))
    raw = any(issubclass(kind, _RAW) for kind in kinds)
    try:
        texts = [] if raw else list(map(_encode, bodies))
    except Exception:  # noqa: BLE001  (`encode` finds the body and the part that is wrong)
        texts = []
    careful = not texts or len(max(texts, key=len)) > short
    if careful or (not kinds <= _NO_NAN and b"null" in b" ".join(texts)):
        encoded = [encode(body, limit) for body in bodies]
        return [data for data, _ in encoded], [is_json for _, is_json in encoded]
    return texts, [True] * len(texts)


def check_depth(data: bytes) -> None:
    """Check that JSON is not nested too deeply.

    The depth that a decoder can read depends on the version of Python and on its caller. Without a
    limit, one worker could put a body that another cannot read.

    Raises:
        InvalidArgument: it is nested deeper than `MAX_DEPTH`.

    Example:
        >>> check_depth(b"[" * 501 + b"]" * 501)
        Traceback (most recent call last):
          ...
        bide.model.errors.InvalidArgument: body is nested too deeply: 501 levels, the limit is 500
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    brackets = _outside_strings(data)
    depth = 0
    for begin in range(0, len(brackets), _STRETCH):
        stretch = brackets[begin : begin + _STRETCH]
        opened = stretch.count(b"[")
        if depth + opened > MAX_DEPTH:
            steps = map(_STEPS.__getitem__, stretch)
            if max(accumulate(steps, initial=depth)) > MAX_DEPTH:
                deepest = max(accumulate(map(_STEPS.__getitem__, brackets)))
                raise InvalidArgument(
                    f"body is nested too deeply: {deepest:,} levels, the limit is {MAX_DEPTH}"
                )
        depth += 2 * opened - len(stretch)


def check_json(data: bytes, what: str) -> None:
    """Check that data is JSON, and not nested too deeply.

    Raises:
        InvalidArgument: it is not; the text names `what`.
    """
    try:
        parse(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{what} is not JSON: {why_unreadable(data, error)}") from None
    check_depth(data)


def why_unreadable(data: bytes, error: Exception) -> str:
    """Return why a decoder could not read JSON. Its own words may name nothing to look for.

    Example:
        >>> print(why_unreadable(b'"\\\\ud83d"', ValueError("Input data was truncated")))
        \\ud83d is half of a character: the other half of the surrogate pair is missing
    """
    if isinstance(error, RecursionError):
        return f"it is nested too deeply; the limit is {MAX_DEPTH} levels"
    if half := _HALF.search(data):
        return (
            f"{half[0].decode()} is half of a character: the other half of the surrogate pair is "
            "missing"
        )
    return str(error)


def _outside_strings(data: bytes) -> bytes:
    """Return the brackets of JSON that are not in strings, all as square ones."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # now a quote begins or ends
    signs = data.translate(_BRACKETS, _OTHERS)
    # Two quotes side by side are an empty string, or make one string of two: what is in strings
    # stays so. Most strings go here, and many by many, where the expression takes them one by one.
    signs = signs.replace(b'""', b"")
    return _STRINGS.sub(b"", signs) if b'"' in signs else signs


def parse(data: bytes) -> Any:
    """Return a value from JSON that comes from anywhere, in a time that is bounded by its length.

    Raises:
        DecodeError, UnicodeDecodeError, RecursionError: it cannot be read.

    Example:
        >>> parse(b'{"total": 3e2}')
        {'total': 300.0}
    """
    if len(data) > _FAST and data.translate(_NUMBERS).count(b"0e") > _EXPONENTS:
        return _decode_plainly(data)
    return _decode(data)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("Number out of range")  # msgspec's words
    return value


_decode_plainly = msgspec.json.Decoder(float_hook=_finite).decode


def _has_constraints(kind: Any) -> bool:
    """Tell whether `Annotated` in a type has constraints of pydantic, which msgspec ignores.

    Example:
        >>> _has_constraints(list[int])
        False
    """
    marks = kind.__metadata__ if get_origin(kind) is Annotated else ()
    packages = {type(mark).__module__.partition(".")[0] for mark in marks}
    return bool(packages & {"pydantic", "annotated_types"}) or any(
        _has_constraints(part) for part in get_args(kind)
    )


def is_of_msgspec(kind: Any) -> bool:
    """Tell whether msgspec decodes a type by itself; pydantic decodes the others.

    Example:
        >>> is_of_msgspec(list[int])
        True
    """
    if hasattr(kind, "model_validate_json"):  # pydantic, which need not be installed
        return False
    # A dataclass of pydantic, which msgspec only fills. A plain subclass inherits that of its base.
    if "__pydantic_validator__" in getattr(kind, "__dict__", ()):
        return False
    return not _has_constraints(kind)


def decoder_of(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes JSON into a type: of pydantic, or one that msgspec knows.

    Raises:
        TypeError: neither knows it.
    """
    if is_of_msgspec(kind):
        return msgspec.json.Decoder(kind, dec_hook=validate).decode
    if hasattr(kind, "model_validate_json"):
        decode: Callable[[bytes], Any] = kind.model_validate_json
        return decode
    if _has_constraints(kind):
        from pydantic import TypeAdapter

        checked: Callable[[bytes], Any] = TypeAdapter(kind).validate_json
        return checked
    validated: Callable[[bytes], Any] = kind.__pydantic_validator__.validate_json
    return validated


def validate(model: Any, value: Any) -> Any:
    """Return a value as a pydantic model: the hook for one inside, as in `list[Order]`."""
    return model.model_validate(value)


def decode(data: bytes, is_json: bool) -> Any:
    """Return the body from its encoded form.

    Raises:
        UnreadableBody: something has stored JSON that cannot be read.
    """
    if not is_json:
        return data
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableBody(
            f"the body is no JSON that can be read ({error}), and was put without a check: its "
            "bytes are in `message.data`"
        ) from error


def is_readable(data: bytes) -> bool:
    """Tell whether JSON can be read, by every program."""
    try:
        check_json(data, "body")
    except InvalidArgument:
        return False
    return True


def _explain(body: Any, error: Exception) -> str:
    """Name the innermost element of lists and dictionaries that cannot be encoded."""
    path, value = "", body
    while element := next((part for part in _parts(value) if not _encodes(part[1])), None):
        path, value = path + f"[{element[0]!r}]", element[1]
    return (
        f"{_place(path)} is of type {type(value).__name__}, which JSON cannot represent ({error}); "
        f"convert it (keys to str){OR_BYTES}"
    )


def _place(path: str) -> str:
    """Return a path such as `['items'][3]` for an error; the end of a long one."""
    return f"body{path}" if len(path) <= _LONGEST_PATH else f"body...{path[-_LONGEST_PATH:]}"


def _encodes(value: Any) -> bool:
    try:
        _encode(value)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError):
        return False
    return True


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the elements of a dictionary or of a sequence, each after its key or number."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value if isinstance(value, (list, tuple, set, frozenset)) else ())


def _find_nan(value: Any) -> tuple[str, float] | None:
    """Return the path and the value of a number that is not finite.

    The path is built only when a fault is found: the paths of all elements would take many times
    the memory of the body.
    """
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", value)
    for key, part in _parts(value):
        if type(part) not in _NO_NAN and (fault := _find_nan(part)):
            return f"[{key!r}]{fault[0]}", fault[1]
    return None
