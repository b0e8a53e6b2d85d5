"""Origins: which rows of an outbox a command comes from."""

import re

import msgspec

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_ROW

_NAME = re.compile(rf"[A-Za-z0-9.:_-]{{1,{MAX_ROW}}}")


class Origin(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The rows of an outbox that the messages of a command come from.

    The store remembers, for the queue, a row whose message it has changed as asked. For a row that
    it remembers it does nothing, and the outcome is "forwarded". It remembers at most
    `MAX_FORWARDED` rows of a queue, and forgets them with the queue. Names have 1 to 64 letters,
    digits and `. : _ -`, and are compared as bytes.
    """

    outbox: str
    """The name of the outbox."""
    rows: list[str]
    """The name of the row of each message."""
    before: str = ""
    """First forget the rows of this outbox whose names are smaller: they have been deleted."""


def check_origin(origin: Origin, named: int) -> None:
    """Check the origin of a command that names so many messages, each by its id.

    Raises:
        InvalidArgument: it cannot be.
    """
    if len(set(origin.rows)) != len(origin.rows) or len(origin.rows) != named:
        raise InvalidArgument(
            f"origin has {len(set(origin.rows)):,} different rows for {named:,} messages; give one "
            "for each"
        )
    for name in (origin.outbox, *origin.rows, origin.before or "-"):
        if not _NAME.fullmatch(name):
            raise InvalidArgument(
                f"origin has the name {name[:MAX_ROW]!r}; a name has 1 to {MAX_ROW} letters, "
                "digits and . : _ -"
            )
