"""Conditions of a request: only if the message is what the caller saw (RFC 9110, section 13)."""

from bide.model.message import Message
from bide.model.replies import Outcome
from bide.server.call import Call
from bide.server.operation import Answer
from bide.server.problem import Problem, invalid


def tag_of(version: str) -> str:
    """Return the etag of a version.

    Example:
        >>> tag_of("f01d96070ef47d4b")
        '"f01d96070ef47d4b"'
    """
    return f'"{version}"'


def wants_fresh(call: Call) -> bool:
    """Tell whether a put is only to make something new: `if-none-match: *`.

    Raises:
        Problem: it names anything else.
    """
    header = call.header("if-none-match")
    if header not in (None, "*"):
        raise invalid("if-none-match", "if-none-match takes * alone")
    return header is not None


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
        raise Problem(
            "precondition-failed",
            f"{message.id} is {message.state}, and was edited since you looked; look again",
            headers={"etag": tag},
        )
    return message.version


def changed(
    outcome: Outcome, *, conditional: bool = False, why: str = "nothing was changed"
) -> Answer:
    """Return the answer of a change of one message.

    Args:
        outcome: what the store said.
        conditional: whether the change depended on the message being as the caller saw it.
        why: what it means that the message is as it is.

    Raises:
        Problem: it was not changed.
    """
    if outcome.done:
        return Answer(200, outcome)
    if conditional and outcome.state in (None, "delayed", "ready", "dead"):
        raise Problem(
            "precondition-failed",
            f"{outcome}: somebody else has changed it since you looked; look again",
            outcomes=[outcome],
        )
    if outcome.state is None:
        raise Problem("not-found", f"{outcome}", outcomes=[outcome])
    raise Problem("conflict", f"{outcome}; {why}", outcomes=[outcome])


def _listed(header: str) -> list[str]:
    return [tag.strip() for tag in header.split(",") if tag.strip()]
