"""Arrays for PostgreSQL in its binary form, each made with one call of `struct`.

psycopg writes an array element by element in Python; for 500 messages with 13 fields that takes
longer than the server needs to store them.
"""

import json
import re
import struct
from collections.abc import Sequence
from itertools import chain

_HEAD = struct.Struct("!iiIii")  # dimensions, has nulls, type of elements, length, first index
_EMPTY = struct.Struct("!iiI")
_NULL = struct.pack("!i", -1)


def _array(oid: int, length: int, nulls: bool, data: bytes) -> bytes:
    if not length:
        return _EMPTY.pack(0, 0, oid)
    return _HEAD.pack(1, nulls, oid, length, 1) + data


def integers(values: Sequence[int | None]) -> bytes:
    """Return an array of bigint."""
    if None not in values:
        flat = [part for value in values for part in (8, value)]
        return _array(20, len(values), False, struct.pack("!" + "iq" * len(values), *flat))
    data = b"".join(_NULL if v is None else struct.pack("!iq", 8, v) for v in values)
    return _array(20, len(values), True, data)


def booleans(values: Sequence[bool]) -> bytes:
    """Return an array of boolean."""
    data = b"".join(b"\x00\x00\x00\x01\x01" if v else b"\x00\x00\x00\x01\x00" for v in values)
    return _array(16, len(values), False, data)


def byteas(values: Sequence[bytes | None], oid: int = 17) -> bytes:
    """Return an array of bytea."""
    pack = struct.Struct("!i").pack
    present = [value for value in values if value is not None]
    lengths = list(map(len, present))
    if present and lengths.count(lengths[0]) == len(values):  # as ids of bide's, and many bodies
        head = pack(lengths[0])
        return _array(oid, len(values), False, head + head.join(present))
    if nulls := len(present) < len(values):
        parts = [part for v in values for part in ((_NULL,) if v is None else (pack(len(v)), v))]
    else:
        parts = list(chain.from_iterable(zip(map(pack, lengths), present, strict=True)))
    return _array(oid, len(values), nulls, b"".join(parts))


_NOT_ASCII = re.compile("[^\x00-\x7f]")


def ascii_json(text: str) -> str:
    """Return JSON with escapes for all characters that an encoding may lack.

    Example:
        >>> print(ascii_json('["\N{GRINNING FACE}"]'))
        ["\\ud83d\\ude00"]
    """
    if text.isascii():
        return text
    return _NOT_ASCII.sub(lambda character: json.dumps(character[0])[1:-1], text)


def texts(values: Sequence[str | None]) -> bytes:
    """Return an array of text."""
    return byteas([None if v is None else v.encode() for v in values], 25)
