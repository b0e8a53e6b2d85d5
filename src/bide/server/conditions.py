"""Conditions of a request: only if the message is what the caller saw (RFC 9110, section 13)."""

from bide.model.message import Message
from bide.server.problem import Problem

__all__ = ["chosen", "is_named", "tag_of"]


def tag_of(version: str) -> str:
    """Return the etag of a version.

    Example:
        >>> tag_of("f01d96070ef47d4b")
        '"f01d96070ef47d4b"'
    """
    return f'"{version}"'


def is_named(header: str | None, tag: str) -> bool:
    """Tell whether an if-none-match names an etag, or all; weakness is nothing to it."""
    if header is None:
        return False
    return header.strip() == "*" or tag in [one.removeprefix("W/") for one in _listed(header)]


def chosen(header: str, message: Message | None) -> str:
    """Return the version that an if-match asks for, out of those it names.

    Args:
        header: the etags that would do; `*`: any.
        message: as it is now.

    Raises:
        Problem: the message is of none of them.
    """
    named = _listed(header)
    if any(not (len(tag) > 1 and tag[0] == tag[-1] == '"') for tag in named if tag != "*"):
        raise Problem(
            "precondition-failed",
            "if-match names no version that there was; send the etag as a GET told it",
            field="if-match",
        )
    if message is None:
        raise Problem("precondition-failed", "there is no such message any more; look again")
    tag = tag_of(message.version)
    if "*" not in named and tag not in named:
        raise overtaken(message)
    return message.version


def overtaken(message: Message) -> Problem:
    """Return what tells that somebody else was faster."""
    return Problem(
        "precondition-failed",
        f"{message.id} is {message.state}, and was edited since you looked; look again",
        headers={"etag": tag_of(message.version)},
    )


def _listed(header: str) -> list[str]:
    return [tag.strip() for tag in header.split(",") if tag.strip()]
