"""How many objects a large request would become: known before it is decoded.

A byte of a request can take sixty of memory: `{}` may be a message, `1,` the id of one.
"""

from bide.model import limits
from bide.model.errors import InvalidArgument
from bide.server.problem import Problem

CHECKED = 1024 * 1024
"""Bytes up to which a request is not checked: what it becomes is not much."""

ESCAPED = 6
"""Bytes of JSON text that a byte of a body may take: an escaped character is so much longer."""

_NO_SIGNS = bytes(set(range(256)) - set(b"[]{},:"))


def check_json(data: bytes) -> None:
    """Check a request in JSON that holds no bodies of messages.

    Raises:
        Problem: it is too large, or would become too many objects.
    """
    if len(data) <= CHECKED:
        return
    if len(data) > limits.MAX_JSON:
        raise Problem(
            "too-large",
            f"the request takes {len(data):,} bytes, and {limits.MAX_JSON:,} is the most in JSON, "
            "unless it puts or edits messages; send it in several, or commands in msgpack",
            field="body",
        )
    check_count("objects", data.count(b"{"), limits.MAX_OBJECTS)
    check_count("values", data.count(b","), limits.MAX_VALUES)


def check_body(text: bytes, most: int, beside: int = 0) -> None:
    """Check the text of a message or its body, before it is read, for what it becomes at least.

    Each sign of the structure takes a byte of a body however it is written, while an escaped
    character or a space takes more in the text than in the body.

    Args:
        text: in JSON.
        most: bytes that a body may take.
        beside: bytes that there may be beside the body.

    Raises:
        InvalidArgument: it is larger.
    """
    size, whole = len(text), most + beside
    if size > ESCAPED * whole or (size > whole and (size := _signs(text)) > whole):
        raise InvalidArgument(
            f"body takes {size:,} bytes, the limit is {most:,}; store it elsewhere and put a "
            "reference"
        )


def _signs(text: bytes) -> int:
    return len(text.translate(None, _NO_SIGNS))


def check_fields(count: int) -> None:
    """Check how many header fields and failures the messages of a request have together.

    Raises:
        Problem: there are too many.
    """
    check_count("header fields and failures", count, limits.MAX_FIELDS_TOTAL)


def check_count(what: str, count: int, most: int) -> None:
    """Check how many of something a request holds.

    Raises:
        Problem: there are too many.
    """
    if count > most:
        raise Problem(
            "too-large",
            f"the request holds more than {most:,} {what}; send it in several",
            field="body",
        )
