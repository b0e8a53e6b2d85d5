"""Arrays for PostgreSQL in its binary form, each made with one call of `struct`.

psycopg writes an array element by element in Python; for 500 messages with 13 fields that takes
longer than the server needs to store them.
"""

import struct
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

_HEAD = struct.Struct("!iiIii")  # dimensions, has nulls, type of elements, length, first index
_EMPTY = struct.Struct("!iiI")
_NULL = struct.pack("!i", -1)


class Array(NamedTuple):
    """An array as it is sent."""

    oid: int
    data: bytes


def _array(oid: int, array_oid: int, length: int, nulls: bool, data: bytes) -> Array:
    if not length:
        return Array(array_oid, _EMPTY.pack(0, 0, oid))
    return Array(array_oid, _HEAD.pack(1, nulls, oid, length, 1) + data)


def integers(values: Sequence[int | None]) -> Array:
    """Return an array of bigint."""
    if None not in values:
        flat = [part for value in values for part in (8, value)]
        return _array(20, 1016, len(values), False, struct.pack("!" + "iq" * len(values), *flat))
    data = b"".join(_NULL if v is None else struct.pack("!iq", 8, v) for v in values)
    return _array(20, 1016, len(values), True, data)


def booleans(values: Sequence[bool]) -> Array:
    """Return an array of boolean."""
    data = b"".join(b"\x00\x00\x00\x01\x01" if v else b"\x00\x00\x00\x01\x00" for v in values)
    return _array(16, 1000, len(values), False, data)


def byteas(values: Sequence[bytes | None], oid: int = 17, array_oid: int = 1001) -> Array:
    """Return an array of bytea."""
    pack = struct.Struct("!i").pack
    there = [value for value in values if value is not None]
    lengths = list(map(len, there))
    if there and lengths.count(lengths[0]) == len(values):  # as ids of bide's, and many bodies
        head = pack(lengths[0])
        return _array(oid, array_oid, len(values), False, head + head.join(there))
    if nulls := len(there) < len(values):
        parts = [part for v in values for part in ((_NULL,) if v is None else (pack(len(v)), v))]
    else:
        parts = list(chain.from_iterable(zip(map(pack, lengths), there, strict=True)))
    return _array(oid, array_oid, len(values), nulls, b"".join(parts))


def texts(values: Sequence[str | None]) -> Array:
    """Return an array of text."""
    return byteas([None if v is None else v.encode() for v in values], 25, 1009)
