"""Encode and decode bodies: any JSON value, or bytes."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints
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
"""All bytes that are neither brackets nor quotes."""

_BRACKETS = bytes.maketrans(b"{}", b"[]")
"""Makes curly brackets square."""

_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
"""Makes each line end a space. Strings of JSON have no line ends: there they are escaped."""

_STEPS = {ord("["): 1, ord("]"): -1}
"""By how much a bracket changes the depth."""

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
"""Types of bodies that are stored as they are."""
_NO_NAN = frozenset((str, int, bool, type(None)))
"""Types whose values cannot contain NaN, which msgspec would write as null."""

_MASK = "**********"
"""What pydantic writes in place of a `SecretStr`, a `SecretBytes` or a `Secret`."""


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
    """Return a value that msgspec cannot encode as one that it can.

    Of a pydantic model (the package need not be installed), that is what validates to it again; of
    a subclass of a type that JSON has, a value of that type.

    Raises:
        TypeError: it is another type that JSON cannot represent.
    """
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    for base, to_plain in _PLAIN.items():
        if isinstance(value, base):
            return to_plain(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _look_into(value: Any) -> Any:
    """Return what of a value may be NaN, which `_convert` or msgspec would make null.

    The hook with which `_find_nan` gets its values: of pydantic models, and of subclasses of float.
    """
    if hasattr(type(value), "model_dump"):
        return value.model_dump(by_alias=True, round_trip=True)
    return float.__float__(value) if isinstance(value, float) else None


def _refuse_masked(value: Any) -> Any:
    """Return a value as `_convert` does; the hook that finds secrets in models of pydantic.

    Raises:
        InvalidArgument: pydantic masks a secret in it.
    """
    written = _convert(value)
    if hasattr(type(value), "model_dump"):
        secret = _masked_secret(value.model_dump(by_alias=True, round_trip=True), written)
        if secret is not None:
            raise InvalidArgument(
                f"body has a {type(secret).__name__}, which pydantic writes as '{_MASK}', so that "
                "its value would be lost; put a reference to the secret, or give its field a "
                "serializer (pydantic.field_serializer): all who may read bodies can see it then"
            )
    return written


def _masked_secret(value: Any, written: Any) -> Any:
    """Return the first secret in a value that is a mask in its JSON types; `None`: there is none.

    Args:
        value: what a model or a part of it has.
        written: the same, with JSON types.
    """
    if hasattr(value, "get_secret_value"):
        return value if written == _MASK else None
    if isinstance(value, Mapping) and isinstance(written, Mapping):
        pairs = zip(value.values(), written.values(), strict=False)
    elif isinstance(value, (list, tuple, set, frozenset)) and isinstance(written, list):
        pairs = zip(value, written, strict=False)
    else:
        return None
    secrets = (_masked_secret(part, written_part) for part, written_part in pairs)
    return next((secret for secret in secrets if secret is not None), None)


_encode = msgspec.json.Encoder(enc_hook=_convert).encode
_MASK_IN_JSON = _encode(_MASK)
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
        InvalidArgument: a part of it cannot be JSON (the error names the part) or is a secret that
            pydantic masks, it is nested too deeply, or it is too large.
    """
    is_raw = type(body) not in _NO_NAN and isinstance(body, _RAW)
    data = bytes(body) if is_raw else _to_json(body, decoded=decoded)
    check_size(data, limit)
    return data, not is_raw


def _to_json(body: Any, *, decoded: bool) -> bytes:
    """Return a value as JSON; the arguments and errors are those of `encode`."""
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
    may_lose_values = not decoded and type(body) not in _NO_NAN
    if may_lose_values and data.find(_MASK_IN_JSON) >= 0:
        msgspec.to_builtins(body, enc_hook=_refuse_masked)
    # msgspec writes NaN as null.
    may_have_nan = may_lose_values and data.find(b"null") >= 0
    if may_have_nan and (fault := _find_nan(msgspec.to_builtins(body, enc_hook=_look_into))):
        path, number = fault
        raise InvalidArgument(
            f"{_place(path)} is {number}, which JSON cannot represent; put None or a string instead"
        )
    return data


def encode_all(
    bodies: Sequence[Any], limit: int = MAX_BODY
) -> tuple[Sequence[bytes], Sequence[bool]]:
    """Encode many bodies as `encode` does, faster than one by one.

    Returns:
        The encoded bodies, and whether each is JSON.

    Raises:
        InvalidArgument: as `encode`.
    """
    harmless_size = min(limit, 2 * MAX_DEPTH)  # neither too large nor too deep
    types = set(map(type, bodies))
    has_raw = any(issubclass(each_type, _RAW) for each_type in types)
    try:
        texts = [] if has_raw else list(map(_encode, bodies))
    except Exception:  # noqa: BLE001  (`encode` finds the body and the part that is wrong)
        texts = []
    needs_checks = not texts or len(max(texts, key=len)) > harmless_size
    if not needs_checks and not types <= _NO_NAN:
        all_texts = b" ".join(texts)
        needs_checks = b"null" in all_texts or _MASK_IN_JSON in all_texts
    if needs_checks:
        encoded = [encode(body, limit) for body in bodies]
        return [data for data, _ in encoded], [is_json for _, is_json in encoded]
    return texts, [True] * len(texts)


def check_size(data: bytes, limit: int) -> None:
    """Check that an encoded body has at most `limit` bytes.

    Raises:
        InvalidArgument: it has more.
    """
    if len(data) > limit:
        raise InvalidArgument(
            f"body takes {len(data):,} bytes, the limit is {limit:,}; store it elsewhere and put a "
            "reference, or raise the limit with max_body="
        )


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
        if depth + opened > MAX_DEPTH:  # it may be too deep within this stretch
            steps = map(_STEPS.__getitem__, stretch)
            if max(accumulate(steps, initial=depth)) > MAX_DEPTH:
                deepest = max(accumulate(map(_STEPS.__getitem__, brackets)))
                raise InvalidArgument(
                    f"body is nested too deeply: {deepest:,} levels, the limit is {MAX_DEPTH}"
                )
        depth += 2 * opened - len(stretch)  # opened less closed


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
    """Return a number of JSON, as msgspec does.

    Raises:
        ValueError: it is too large.
    """
    value = float(text)
    if math.isinf(value):
        raise ValueError("Number out of range")  # msgspec's words
    return value


_decode_plainly = msgspec.json.Decoder(float_hook=_finite).decode
"""Decodes numbers by Python's `float`: slower, but in a time that is bounded by their length."""


def is_of_msgspec(value_type: Any) -> bool:
    """Tell whether msgspec decodes a type by itself; pydantic decodes the others.

    Example:
        >>> is_of_msgspec(list[int])
        True
    """
    if _is_model(value_type):
        return False
    return not any(map(_is_checked_by_pydantic, _types_in(value_type, {})))


def _is_model(annotation: Any) -> bool:
    """Tell whether a type is a model of pydantic, which need not be installed."""
    return hasattr(annotation, "model_validate_json")


def _types_in(annotation: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield a type and the types within it, at any depth, but for those within a pydantic model.

    For a model, msgspec calls `validate`.

    Args:
        annotation: the type.
        seen: those that were yielded before, by their `id`; one may contain itself. It also keeps
            them: another type must not get the `id` of one that is gone.
    """
    if id(annotation) in seen:
        return
    seen[id(annotation)] = annotation
    yield annotation
    if _is_model(annotation) or _is_base64_of_pydantic(annotation):
        return
    parts = [get_origin(annotation), *get_args(annotation)]
    # What `NewType`, `type X = ...` and a `TypeVar` stand for.
    names = ("__supertype__", "__value__", "__bound__")
    parts += [getattr(annotation, name, None) for name in names]
    parts += getattr(annotation, "__constraints__", ())
    if isinstance(annotation, type):
        with suppress(Exception):  # code of the user; msgspec says why it knows no such type
            hints = get_type_hints(annotation, include_extras=True).values()
            parts += [hint for hint in hints if ClassVar not in (hint, get_origin(hint))]
    for part in parts:
        if part is not None:
            yield from _types_in(part, seen)


def _metadata(annotation: Any) -> Sequence[Any]:
    """Return what `Annotated` says of a type."""
    return annotation.__metadata__ if get_origin(annotation) is Annotated else ()


def _is_checked_by_pydantic(annotation: Any) -> bool:
    """Tell whether msgspec would skip checks: of a dataclass of pydantic, or its constraints."""
    if _is_model(annotation):
        return False
    packages = {type(element).__module__.partition(".")[0] for element in _metadata(annotation)}
    if packages & {"pydantic", "annotated_types"}:
        return True
    # The attribute of the class itself: a plain subclass inherits it, and has no checks.
    return isinstance(annotation, type) and "__pydantic_validator__" in annotation.__dict__


def _is_base64_of_pydantic(annotation: Any) -> bool:
    """Tell whether a type is bytes that pydantic reads as msgspec writes them, as `Base64Bytes`."""
    return any(type(element).__name__ == "EncodedBytes" for element in _metadata(annotation))


def _is_set_to_base64(annotation: Any) -> bool:
    """Tell whether the user has set a class of pydantic to read bytes as msgspec writes them."""
    return getattr(annotation, "__pydantic_config__", {}).get("val_json_bytes") == "base64"


def decoder_of(value_type: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes JSON into a type: of pydantic, or one that msgspec knows.

    Raises:
        TypeError: neither knows it, or pydantic is to check a part of it and knows another part not
            at all, or in another way than msgspec, which encodes it.
    """
    decode: Callable[[bytes], Any]
    if is_of_msgspec(value_type):
        decode = msgspec.json.Decoder(value_type, dec_hook=validate).decode
    elif _is_model(value_type):
        decode = value_type.model_validate_json
    else:
        from pydantic import PydanticUserError, TypeAdapter

        parts = list(_types_in(value_type, {}))
        reads_base64 = any(map(_is_set_to_base64, parts))
        for part in parts:
            if part in (bytes, bytearray, memoryview) and not reads_base64:
                raise TypeError(
                    f"pydantic is to check a part of it, and reads {part.__name__} not as they are "
                    "put: as base64; annotate them with pydantic.Base64Bytes"
                )
            if any(isinstance(element, msgspec.Meta) for element in _metadata(part)):
                raise TypeError(
                    "pydantic is to check a part of it, and ignores msgspec.Meta; use "
                    "pydantic.Field instead"
                )
        try:
            decode = TypeAdapter(value_type).validate_json
        except PydanticUserError as error:
            reason = str(error).partition("\n")[0]
            raise TypeError(f"pydantic is to check a part of it, and cannot: {reason}") from error
    return decode


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
            f"the body is not readable JSON ({error}), and was put without a check: its "
            "bytes are in `message.data`"
        ) from error


def is_readable(data: bytes) -> bool:
    """Tell whether JSON can be read, by every program."""
    try:
        check_json(data, "body")
    except InvalidArgument:
        return False
    return True


def on_one_line(data: bytes) -> bytes:
    """Return JSON without line ends, as lines of JSON need it: outside of strings, they are spaces.

    Example:
        >>> on_one_line(b'{"total":\\n1.50}')
        b'{"total": 1.50}'
    """
    return data.translate(_LINE_ENDS)


def _explain(body: Any, error: Exception) -> str:
    """Name the innermost element of lists and dictionaries that cannot be encoded."""
    path, value = "", body
    while wrong := next(((key, part) for key, part in _parts(value) if not _encodes(part)), None):
        key, value = wrong
        path += f"[{key!r}]"
    return (
        f"{_place(path)} is of type {type(value).__name__}, which JSON cannot represent ({error}); "
        f"convert it (keys to str){OR_BYTES}"
    )


def _place(path: str) -> str:
    """Return a path such as `['items'][3]` for an error; the end of a long one."""
    return f"body{path}" if len(path) <= _LONGEST_PATH else f"body...{path[-_LONGEST_PATH:]}"


def _encodes(value: Any) -> bool:
    """Return whether a value can be JSON."""
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
    """Return the path and the value of a number that is not finite; `None`: all are.

    The path is built only when a fault is found: the paths of all elements would take many times
    the memory of the body.
    """
    if isinstance(value, float):
        return None if math.isfinite(value) else ("", value)
    for key, part in _parts(value):
        if type(part) not in _NO_NAN and (fault := _find_nan(part)):
            path, number = fault
            return f"[{key!r}]{path}", number
    return None
