"""What commands say of their messages: leases, rules, versions, rows of an outbox."""

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_COUNT, MAX_ROW, MAX_RULE, MAX_RUN
from bide.model.times import UnixMs

_TOKEN = re.compile(r"([0-9]{1,16})(?:\.([ -~]{1,64}))?")


class Lease(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One worker's hold on one message.

    `token` is the fencing token: the number of the claim, which only grows within a queue and is
    never used twice. A handler that writes to another system can pass it on, so that the system
    refuses late writers (Kleppmann, "How to do distributed locking", 2016).
    """

    id: str
    token: Annotated[int, Meta(ge=-1, le=1 << 53)]
    secret: str | None = None
    """The secret part of a server's token: the number could be guessed. Engines ignore it."""

    @property
    def text(self) -> str:
        """The token as text: the number, and the secret if there is one.

        Example:
            >>> Lease("order-42", 7).text, Lease("order-42", 7, "Wk3v").text
            ('7', '7.Wk3v')
        """
        return str(self.token) if self.secret is None else f"{self.token}.{self.secret}"

    @classmethod
    def of(cls, id: str, text: str) -> "Lease":
        """Return the lease of a token that was given as text.

        Raises:
            InvalidArgument: the text is no token.
        """
        if (match := _TOKEN.fullmatch(text)) is None:
            raise InvalidArgument(
                f"token={text!r} is not a lease token; send the whole token of a claim"
            )
        return cls(id, int(match[1]), match[2])


class NextRun(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The next run of a message that repeats."""

    due: UnixMs
    """When it is due, in Unix milliseconds."""
    run: Annotated[str, Meta(max_length=MAX_RUN)]
    """Which run it is: see `Item.run`."""


class NewTime(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True
):
    """What an edit changes of the time of one message; `None`: it stays."""

    due: UnixMs | None = None
    rule: Annotated[str, Meta(max_length=MAX_RULE)] | None = None
    run: Annotated[str, Meta(max_length=MAX_RUN)] | None = None


class Where(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A rule that selects messages: all conditions that are given must hold."""

    group: str | None = None
    after: UnixMs | None = None
    """Due at this time or later, in Unix milliseconds."""
    before: UnixMs | None = None
    """Due before this time, in Unix milliseconds."""


def versions_of(command: Any) -> list[str]:
    """Return the version that each message of a command must have, in its order; empty: any.

    Example:
        >>> from bide.model.commands import Cancel
        >>> versions_of(Cancel("orders", ["a"], versions=["f01d96070ef47d4b"]))
        ['f01d96070ef47d4b']
    """
    ids = getattr(command, "ids", None) or ()  # some commands name leases or a rule instead
    if versions := getattr(command, "versions", ()):
        return list(versions)
    version = getattr(command, "if_version", None)
    return [] if version is None else [version] * len(ids)


def version_at(command: Any, number: int) -> str | None:
    """Return the version that one message of a command must have; `None`: any.

    Args:
        command: it names messages by id.
        number: the place of the message in the command.
    """
    if versions := getattr(command, "versions", None):
        version: str = versions[number]
        return version
    return getattr(command, "if_version", None)


_NAME = re.compile(rf"[A-Za-z0-9.:_-]{{1,{MAX_ROW}}}")


class Origin(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The rows of an outbox that the messages of a command come from.

    The store remembers, for the queue, a row whose message it has changed as asked. For a row that
    it remembers it does nothing, and the outcome is "forwarded". It remembers at most
    `MAX_FORWARDED` rows of a queue, and forgets them with the queue. Names have 1 to 64 letters,
    digits and `. : _ -`, and are compared as bytes.
    """

    outbox: str
    """The name of the outbox."""
    rows: Annotated[list[str], Meta(max_length=MAX_COUNT)]
    """The name of the row of each message."""
    before: str = ""
    """First forget the rows of this outbox with smaller names: they have been deleted."""


def check_origin(origin: Origin, named: int) -> None:
    """Check the origin of a command that names `named` messages, each by its id.

    Raises:
        InvalidArgument: the origin has not one different row for each message.
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
