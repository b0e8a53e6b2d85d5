"""Pages of messages that have ended: where they begin and end, on every engine."""

from collections.abc import Iterable
from typing import NamedTuple

from bide.engines.cursor import Budget
from bide.model.commands import ListEnded
from bide.model.ended import Ended, size_of_end
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name
from bide.model.replies import EndedPage

LOOKED_AT = 2_000
"""How many ends a page looks at, at most: few of them may be what is asked for."""

FOREVER = 1 << 53
"""Above all times."""

_DIGITS = len(str(FOREVER))


class EndPosition(NamedTuple):
    """Where a page begins: behind the end at this moment of the messages with this id.

    Positions are in the order of a list: Python compares texts as their bytes in UTF-8 compare.
    """

    moment: int = 0
    """In Unix milliseconds."""
    id: str = ""

    def __str__(self) -> str:
        """Return the position as a cursor."""
        return f"{self.moment}.{self.id}"

    @classmethod
    def of(cls, ended: Ended) -> "EndPosition":
        """Return the position of a message in a list."""
        return cls(ended.moment, ended.id)


def end_position(cursor: str | None) -> EndPosition:
    """Return the position of a cursor.

    Raises:
        InvalidArgument: no list of ended messages made this cursor.

    Example:
        >>> end_position("1700000000000.order-42")
        EndPosition(moment=1700000000000, id='order-42')
    """
    if cursor is None:
        return EndPosition()
    moment, mark, id = cursor.partition(".")
    is_number = moment.isascii() and moment.isdecimal() and len(moment) <= _DIGITS
    if not (mark and is_number and int(moment) <= FOREVER):
        raise InvalidArgument(
            f"cursor={cursor[:64]!r} is not from a list of ended messages; begin without one"
        )
    return EndPosition(int(moment), id and check_name(id, "cursor"))


class EndSpan(NamedTuple):
    """The times of the ends that a page may have, in Unix milliseconds, and where it begins."""

    first: int
    """The first one."""
    before: int
    """They are before this time."""
    behind: EndPosition

    @classmethod
    def of(cls, command: ListEnded, remembered_since: int) -> "EndSpan":
        """Return the span of a page.

        Args:
            command: what is asked for.
            remembered_since: an end at this time, or before it, is to be forgotten.
        """
        behind = end_position(command.cursor)
        first = max(command.after or 0, remembered_since + 1, behind.moment)
        return cls(first, FOREVER if command.before is None else command.before, behind)


def ended_page(command: ListEnded, ends: Iterable[Ended | EndPosition]) -> EndedPage:
    """Return a page: as many messages as its limit and its budget allow.

    Args:
        command: what is asked for.
        ends: the messages in order; then, if the store did not come to the end of what it
            remembers, the position up to which it has looked.
    """
    budget = Budget(command.max_bytes)
    messages: list[Ended] = []
    last_taken = EndPosition()
    for ended in ends:
        if isinstance(ended, EndPosition):  # there may be more behind it
            return EndedPage(messages, str(ended))
        if not budget.takes(size_of_ended(ended)):
            return EndedPage(messages, str(last_taken))
        messages.append(ended)
        last_taken = EndPosition.of(ended)
        if len(messages) == command.limit:
            return EndedPage(messages, str(last_taken))
    return EndedPage(messages, None)


def size_of_ended(ended: Ended) -> int:
    """Return about the size of an entry of a list, in bytes."""
    return size_of_end(ended) + len(ended.id)
