"""Split what is too much for one command."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from bide.model.limits import MAX_BYTES, MAX_COUNT
from bide.model.message import Item, size_of

T = TypeVar("T")


def in_bytes(items: Iterable[Item], most: int = MAX_COUNT) -> Iterator[list[Item]]:
    """Split messages into parts that a server takes in one request.

    A part has at most `most` messages and 8 MiB, but one message if that is larger.
    """
    part: list[Item] = []
    size = 0
    for item in items:
        size += size_of(item)
        if part and size > MAX_BYTES:
            yield part
            part, size = [], size_of(item)
        part.append(item)
        if len(part) == most:
            yield part
            part, size = [], 0
    if part:
        yield part


def in_parts(named: Sequence[T], size: int = 1_000) -> Iterator[Sequence[T]]:
    """Split ids or leases into parts of the size of one command."""
    for start in range(0, len(named), size):
        yield named[start : start + size]
