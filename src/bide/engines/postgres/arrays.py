"""Arrays for PostgreSQL in its binary form."""

import json
import re
from collections.abc import Sequence
from typing import Any

from psycopg.adapt import Transformer
from psycopg.postgres import types
from psycopg.types.array import ListBinaryDumper


class _Arrays(ListBinaryDumper):
    """Writes lists of one type, which may be empty, as arrays.

    psycopg's own class tells the type by the values, of which an empty list has none.

    Args:
        element_type: the name of the type in PostgreSQL.
    """

    def __init__(self, element_type: str) -> None:
        self.element_oid = types[element_type].oid
        super().__init__(list, Transformer())

    def __call__(self, values: Sequence[Any]) -> bytes:
        """Return an array of the values in binary form; `None` is the null of SQL."""
        return bytes(self.dump([*values]) or b"")


_bigint, _boolean, _bytea, _text = map(_Arrays, ("int8", "bool", "bytea", "text"))


def integers(values: Sequence[int | None]) -> bytes:
    """Return an array of bigint."""
    return _bigint(values)


def booleans(values: Sequence[bool]) -> bytes:
    """Return an array of boolean."""
    return _boolean(values)


def byteas(values: Sequence[bytes | None]) -> bytes:
    """Return an array of bytea."""
    return _bytea(values)


def texts(values: Sequence[str | None]) -> bytes:
    """Return an array of text."""
    return _text(values)


_NOT_ASCII = re.compile("[^\x00-\x7f]")


def ascii_json(text: str) -> str:
    """Return JSON with escapes for all characters that an encoding may lack.

    Example:
        >>> print(ascii_json('["\N{GRINNING FACE}"]'))
        ["\\ud83d\\ude00"]
    """
    if text.isascii():
        return text
    # `dumps` writes an escape, or two for a character above U+FFFF, within quotes.
    return _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)
