"""Take a large list of messages in JSON apart, so that no step of reading it takes long.

A decoder reads a text in one step, which holds the interpreter for up to 8 ms a megabyte. This
finds where each message begins and ends, and lets others go on after each slice. It does not
validate: what is between brackets is decoded afterwards, message by message.
"""

import re

from bide.model.limits import MAX_HTTP_MESSAGES
from bide.server.large_bodies import Stepwise
from bide.server.problem import Problem, invalid

SLICE = 64 * 1024
"""Bytes that are looked at in one step, and the most that a request may have around its list."""

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'(?:[^\[\]{}"]++|%b)*+' % _STRING
_NESTED = rb'(?:[^\[\]{}"]++|%b|[\[{]%b[\]}])*+' % (
    _STRING,
    _FLAT,
)

_BEGIN = re.compile(rb"\s*+\{%b\[" % _FLAT, re.DOTALL)
_STEP = re.compile(rb'%b(?:([\[{]++)|([\]}]++)|("))?' % _NESTED, re.DOTALL)
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)
_NEXT = re.compile(rb"\s*+(,?)\s*+([\]{]?)")


def split(data: bytes, longest: int) -> Stepwise[tuple[bytes, list[bytes]]]:
    """Return the request with an empty list, and the objects of the list.

    Args:
        data: the request, `{"messages": [{...}, ...], ...}`.
        longest: bytes that an object may take.

    Raises:
        Problem: it is no such request, or an object is too long, or there are too many.
    """
    begin = _BEGIN.match(data, 0, SLICE)
    if begin is None:
        raise _malformed("it does not begin with an object and its list")
    objects: list[bytes] = []
    at = begin.end()
    while True:
        found = _NEXT.match(data, at, at + SLICE)
        sign = found[2] if found else b""
        if not found or not sign or (sign == b"{" and bool(found[1]) is not bool(objects)):
            raise _malformed(f"an object or the end of the list is missing at byte {at:,}")
        if sign == b"]":
            break
        if len(objects) == MAX_HTTP_MESSAGES:
            raise invalid(
                "messages",
                f"messages are more than {MAX_HTTP_MESSAGES:,}; send them in several requests",
            )
        at = yield from _end_of_object(data, found.start(2), len(objects), longest)
        objects.append(data[found.start(2) : at])
    if found[1]:
        raise _malformed(f"an object is missing at byte {at:,}")
    around = begin[0] + data[found.start(2) : found.start(2) + SLICE + 1]
    if len(around) > SLICE:
        raise _malformed(f"there are more than {SLICE:,} bytes beside its list")
    return around, objects


def _end_of_object(data: bytes, begin: int, number: int, longest: int) -> Stepwise[int]:
    """Return where the object ends that begins there."""
    at, depth, in_string = begin + 1, 1, False
    while True:
        yield
        before, end = at, at + SLICE
        found = (_IN_STRING if in_string else _STEP).match(data, at, end)
        assert found is not None  # both match nothing as well
        at = found.end()
        if in_string:
            in_string = not found[1]
        elif found[1]:
            depth += found.end(1) - found.start(1)
        elif found[2]:
            closed = found.end(2) - found.start(2)
            if closed >= depth:
                return found.start(2) + depth
            depth -= closed
        elif found[3]:  # it ends in another slice
            in_string = True
        if at == before and end >= len(data):
            raise _malformed(f"the object of byte {begin:,} does not end")
        if at - begin > longest:
            raise Problem(
                "too-large",
                f"messages[{number}] takes more than {longest:,} bytes; store its body "
                "elsewhere and put a reference",
                field=f"messages[{number}]",
            )


def _malformed(why: str) -> Problem:
    return Problem("malformed", f'The body cannot be read as {{"messages": [{{...}}, ...]}}: {why}')
