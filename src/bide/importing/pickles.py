"""Pickles of plain values, read without running code of a stranger, and compressed data."""

import io
import json
import pickle
import pickletools
import zlib
from typing import Any

from bide.importing.source import NotTakenOver

_PLAIN_TYPES = {
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("collections", "OrderedDict"),
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "time"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("decimal", "Decimal"),
    ("uuid", "UUID"),
}
"""The types, by module and name, that a pickle may load: making one runs no code of a stranger."""

MOST = 100_000
"""The maximum number of values in a pickle."""

MOST_STEPS = 10 * MOST
"""The maximum number of instructions in a pickle; each value takes a few."""

_INDEXED = ("PUT", "BINPUT", "LONG_BINPUT")
"""Instructions that name a place of the memo, which the reader makes as long as that."""


class Pickled(Exception):
    """A message is pickled, and pickles are not to be read."""


def is_pickle(data: bytes) -> bool:
    """Tell whether data is a pickle of protocol 2 or newer, which all these libraries write."""
    return data[:1] == b"\x80" and data[-1:] == b"."


class _Reader(pickle.Unpickler):
    """Makes plain values only: loading a class of the program could run code of a stranger."""

    def __init__(self, data: bytes, replacements: dict[str, type]) -> None:
        super().__init__(io.BytesIO(data))
        self._replacements = replacements

    def find_class(self, module: str, name: str) -> Any:
        """Return a type of plain values."""
        if (replacement := self._replacements.get(f"{module}.{name}")) is not None:
            return replacement
        if (module, name) in _PLAIN_TYPES:
            return super().find_class(module, name)
        raise NotTakenOver(f"its pickle has a {module}.{name}, which is not a plain value")


def plain(data: bytes, replacements: dict[str, type] | None = None) -> Any:
    """Return the value of a pickle of numbers, texts, lists, dicts, dates, decimals and UUIDs.

    Args:
        data: the pickle.
        replacements: what is made instead of instances of further classes, by their names.

    Raises:
        NotTakenOver: it is broken, has anything else in it, or more than `MOST` values.

    Example:
        >>> plain(pickle.dumps({"order": [42]}))
        {'order': [42]}
        >>> plain(pickle.dumps(print))
        Traceback (most recent call last):
        bide.importing.source.NotTakenOver: its pickle has a builtins.print, which is not ...
    """
    try:
        _check_steps(data)
        value = _Reader(data, replacements or {}).load()
        _check_size(value)
        return value
    except NotTakenOver:
        raise
    except Exception as error:
        raise NotTakenOver(f"its pickle cannot be read ({error})") from error


def decoded(data: bytes, *, pickles: bool) -> Any:
    """Return the value of a pickle, or of JSON.

    Raises:
        Pickled: it is pickled, and `pickles` are not to be read.
        NotTakenOver: as `plain`.
        ValueError: it is no JSON.
    """
    if not is_pickle(data):
        return json.loads(data)
    if not pickles:
        raise Pickled
    return plain(data)


def _check_steps(data: bytes) -> None:
    """Check a pickle without loading it: an instruction of five bytes may ask for gigabytes.

    Raises:
        NotTakenOver: it has too many instructions, or names a place of the memo that it cannot
            need.
        ValueError: an instruction is broken, or promises more bytes than there are.
    """
    for count, (step, argument, _) in enumerate(pickletools.genops(data)):
        is_too_far = step.name in _INDEXED and argument is not None and int(argument) > MOST_STEPS
        if count > MOST_STEPS or is_too_far:
            raise NotTakenOver(f"its pickle has more than {MOST_STEPS:,} steps")


def _check_size(value: Any) -> None:
    """Check how many values there are: a small pickle can name the same list a billion times.

    Raises:
        NotTakenOver: too many, or without end because a list contains itself.
    """
    count, uncounted = 0, [value]
    while uncounted:
        container = uncounted.pop()
        if isinstance(container, dict):
            container = container.values()
        elif not isinstance(container, (list, tuple, set, frozenset)):
            continue
        count += len(container)
        if count > MOST:
            raise NotTakenOver(f"its pickle has more than {MOST:,} values, or contains itself")
        uncounted += container


def inflated(data: bytes, limit: int) -> bytes:
    """Return data without the compression of zlib or gzip, if it has one.

    Args:
        data: what may be compressed.
        limit: how many bytes it may have without compression.

    Raises:
        NotTakenOver: it is broken, or larger than the limit.
    """
    if data[:1] not in (b"\x78", b"\x1f"):  # the first byte of zlib, and of gzip
        return data
    reader = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)  # 32: either format
    try:
        content = reader.decompress(data, limit)
    except zlib.error as error:
        raise NotTakenOver(f"it cannot be decompressed ({error})") from error
    if not reader.eof:
        raise NotTakenOver(f"it has more than {limit:,} bytes")
    return content
