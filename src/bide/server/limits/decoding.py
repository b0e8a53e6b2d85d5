"""Read large requests in short steps: messages in JSON, commands in msgpack.

A decoder reads a text in one step, which holds the interpreter for up to 8 ms per megabyte. In
JSON, `split` finds the beginning and the end of each message; it does not validate: each message is
decoded afterwards. In msgpack, one byte may be a value, and a few bytes a message: the values of a
large batch are counted first, then its commands are split, and the messages of a put are decoded
one by one.
"""

import re
from collections.abc import Callable
from itertools import accumulate
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, field

from bide.model import commands as cmd
from bide.model import limits
from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_HTTP_MESSAGES
from bide.model.message import Item
from bide.model.past import PastCommand
from bide.model.undoing import Bulk, Undo
from bide.server.limits.request_bodies import LARGE, Pause, check_count, check_fields
from bide.server.problem import Problem, invalid

SLICE = 64 * 1024
"""Bytes that are scanned in one step, and the most that a request may have around its list."""

_FIRST_SCAN = 256
"""Bytes of an object that are scanned first; each step takes twice as many, up to `SLICE`."""

# The quantifiers are possessive (`*+`): nothing is tried a second time in another way.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_WITHOUT_BRACKETS = rb'(?:[^\[\]{}"]++|%b)*+' % _STRING

_BEGIN_OF_LIST = re.compile(rb"\s*+\{%b\[" % _WITHOUT_BRACKETS, re.DOTALL)
"""The beginning of a request, up to the bracket of its list."""

_NEXT_OF_LIST = re.compile(rb"\s*+(?P<comma>,?)\s*+(?P<sign>[\]{]?)")
"""What comes before an object of the list, and its first sign, or the end of the list."""

# What `_scan` makes of a piece: its brackets and quotes, of one kind, then as steps of the depth.
_NOT_SIGNS = bytes(set(range(256)) - set(b'[]{}"'))
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_DEPTH_STEPS = bytes.maketrans(b"[]", b"\x01\xff")
"""What a bracket adds to the depth, as a signed byte."""


async def split(data: bytes, longest: int, pause: Pause) -> tuple[bytes, list[bytes]]:
    """Return the request with an empty list, and the objects of the list.

    Args:
        data: the request, `{"messages": [{...}, ...], ...}`.
        longest: bytes that an object may take.
        pause: lets other requests go on.

    Raises:
        Problem: the request is malformed, an object is too long, or there are too many.
    """
    beginning = _BEGIN_OF_LIST.match(data, 0, SLICE)
    if beginning is None:
        raise _malformed("it does not begin with an object and its list")
    objects: list[bytes] = []
    at = beginning.end()
    while True:
        match = _NEXT_OF_LIST.match(data, at, at + SLICE)
        sign = match["sign"] if match else b""
        if match is None or not sign:
            raise _malformed(f"an object or the end of the list is missing at byte {at:,}")
        has_comma = bool(match["comma"])
        if sign == b"]":
            break
        if has_comma is not bool(objects):  # a comma comes before each object but the first
            raise _malformed(f"an object or the end of the list is missing at byte {at:,}")
        if len(objects) == MAX_HTTP_MESSAGES:
            raise invalid(
                "messages",
                f"messages are more than {MAX_HTTP_MESSAGES:,}; send them in several requests",
            )
        begin = match.start("sign")
        at = await _end_of_object(data, begin, len(objects), longest, pause)
        objects.append(data[begin:at])
    if has_comma:
        raise _malformed(f"an object is missing at byte {at:,}")
    end_of_list = match.start("sign")
    around = beginning[0] + data[end_of_list : end_of_list + SLICE + 1]
    if len(around) > SLICE:
        raise _malformed(f"there are more than {SLICE:,} bytes beside its list")
    return around, objects


async def _end_of_object(data: bytes, begin: int, number: int, longest: int, pause: Pause) -> int:
    """Return the end of the object that begins at a byte.

    Args:
        data: the request.
        begin: the offset of the object.
        number: the place of the object in its list, for the error text.
        longest: bytes that the object may take.
        pause: lets other requests go on.

    Raises:
        Problem: the object does not end, or is too long.
    """
    at, size = begin + 1, min(_FIRST_SCAN, SLICE)
    depth, in_string = 1, False
    while at - begin <= longest:
        await pause()
        piece = data[at : at + size]
        if not piece:
            raise _malformed(f"the object of byte {begin:,} does not end")
        if _ends_escaped(piece):  # an escape is not cut in two
            piece = data[at : at + size + 1]
        # Without escapes, each quote begins or ends a string; the length stays the same.
        piece = piece.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        depth_after, in_string_after = _scan(piece, depth, in_string)
        if depth_after is None:  # it ends in this piece
            end = at + _end_in(piece, depth, in_string)
            if end - begin > longest:
                break
            return end
        at += len(piece)
        depth, in_string = depth_after, in_string_after
        size = min(2 * size, SLICE)
    raise Problem(
        "too-large",
        f"messages[{number}] takes more than {longest:,} bytes; store its body "
        "elsewhere and put a reference",
        field=f"messages[{number}]",
    )


def _ends_escaped(piece: bytes) -> bool:
    """Tell whether the byte after a piece is escaped."""
    return (len(piece) - len(piece.rstrip(b"\\"))) % 2 == 1


def _scan(piece: bytes, depth: int, in_string: bool) -> tuple[int | None, bool]:
    """Return the depth after a piece without escapes, and whether it ends in a string.

    The depth is `None` if the object ends in the piece. Each step is one call for the whole piece,
    so that a byte costs about the same in any text.

    Args:
        piece: the piece.
        depth: how many brackets are open before it.
        in_string: whether it begins within a string.
    """
    signs = piece.translate(_BRACES_TO_BRACKETS, _NOT_SIGNS)
    if in_string or b'"' in signs:
        parts = signs.replace(b'""', b"").split(b'"')  # within and outside of strings in turn
        signs = b"".join(parts[1::2] if in_string else parts[::2])
        if len(parts) % 2 == 0:
            in_string = not in_string
    signs = signs.replace(b"[]", b"").replace(b"[]", b"")  # most pairs; they change no depth
    closing_count = signs.count(b"]")
    if closing_count >= depth:  # else the depth cannot become 0
        steps = memoryview(signs.translate(_DEPTH_STEPS)).cast("b")
        if 0 in accumulate(steps, initial=depth):
            return None, in_string
    opening_count = len(signs) - closing_count
    return depth + opening_count - closing_count, in_string


def _end_in(piece: bytes, depth: int, in_string: bool) -> int:
    """Return where in a piece without escapes the object ends, by halving the piece."""
    at, end = 0, len(piece)
    while end - at > 1:
        middle = (at + end) // 2
        depth_after, in_string_after = _scan(piece[at:middle], depth, in_string)
        if depth_after is None:
            end = middle
        else:
            at, depth, in_string = middle, depth_after, in_string_after
    return end


def _malformed(reason: str) -> Problem:
    return Problem(
        "malformed", f'The body cannot be read as {{"messages": [{{...}}, ...]}}: {reason}'
    )


BatchCommand = cmd.Command | Bulk | Undo | PastCommand

UNCOUNTED_BYTES = 4 * 1024 * 1024
"""Bytes up to which values are not counted first: skipping them takes 20 ms at most."""

_VALUES_PER_PAUSE = 4_096
"""Values that are counted before other requests may go on."""


_CommandPlace = Annotated[int, Meta(ge=0, le=limits.MAX_COMMANDS)]


class _Identified(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What identifies the commands of a batch, so that they can be sent again."""

    client: Annotated[str, Meta(pattern="^[!-~]{1,64}$")] | None = None
    """A random name of the sender, which sends its batches one after the other. The commands have
    identities then: sent again, they are not executed twice, and get the answers of the first
    time."""
    number: Annotated[int, Meta(ge=1, le=1 << 53)] = 1
    """The number of the batch. It grows with each batch of the client."""
    places: Annotated[list[_CommandPlace], Meta(max_length=limits.MAX_COMMANDS)] = []
    """The place of each command in the batch as it was sent first; by default 0, 1, 2 and so on. To
    send only some commands again, name their places."""
    repeated: bool = False
    """Whether the commands were sent before, and perhaps executed."""


class RequestBatch(_Identified):
    """Commands to be executed in this order, each all or nothing."""

    commands: Annotated[list[BatchCommand], Meta(max_length=limits.MAX_COMMANDS)]


class _RawBatch(_Identified):
    """A batch with encoded commands."""

    commands: Annotated[list[Raw], Meta(max_length=limits.MAX_COMMANDS)]


class _Headers(msgspec.Struct):
    """The headers of an edit, or of a message."""

    headers: Raw = field(default_factory=Raw)


_decode_batch = msgspec.msgpack.Decoder(RequestBatch).decode
_decode_raw_batch = msgspec.msgpack.Decoder(_RawBatch).decode
_decode_headers = msgspec.msgpack.Decoder(_Headers).decode
_decode_fields = msgspec.msgpack.Decoder(Annotated[dict[str, Raw], Meta(max_length=100)]).decode
_decode_raws = msgspec.msgpack.Decoder(
    Annotated[list[Raw], Meta(max_length=limits.MAX_COUNT)]
).decode
_decode_item = msgspec.msgpack.Decoder(Item).decode
_decode_command: Callable[[bytes | Raw], BatchCommand] = msgspec.msgpack.Decoder(
    BatchCommand
).decode
_encode = msgspec.msgpack.Encoder().encode


async def unpack(data: bytes, pause: Pause) -> RequestBatch:
    """Decode a batch of commands.

    Raises:
        Problem: it has too many messages, values or fields.
        DecodeError: it is not a batch.
        InvalidArgument: the headers of a message are too long.
    """
    if len(data) <= LARGE:
        return _decode_batch(data)
    await pause(len(data))
    if len(data) > UNCOUNTED_BYTES:
        await count_values(data, pause)
    commands: list[BatchCommand] = []
    message_count = field_count = 0
    raw_batch = _decode_raw_batch(data)
    for raw in raw_batch.commands:
        if len(memoryview(raw)) <= LARGE:
            command = _decode_command(raw)
        else:
            command = await _large_command(raw, pause)
        message_count += command.weight
        check_count("messages", message_count, limits.MAX_BATCH_MESSAGES)
        if isinstance(command, cmd.Put):
            field_count += sum(map(_field_count, command.items))
            check_fields(field_count)
        commands.append(command)
        await pause()
    identity = {name: getattr(raw_batch, name) for name in _Identified.__struct_fields__}
    return RequestBatch(commands=commands, **identity)


async def _large_command(raw: Raw, pause: Pause) -> BatchCommand:
    """Decode a large command; the messages of a put are decoded one by one."""
    fields = _decode_fields(raw)
    check_headers(fields.get("headers", Raw()))
    raw_items = fields.get("items", Raw())
    if "items" in fields:
        fields["items"] = Raw(_EMPTY_LIST)
    command = _decode_command(_encode(fields))
    if not isinstance(command, cmd.Put):
        return command
    items: list[Item] = []
    field_count = 0
    for raw_item in _decode_raws(raw_items):
        if len(memoryview(raw_item)) > LARGE:
            check_headers(_decode_headers(raw_item).headers)
        item = _decode_item(raw_item)
        items.append(item)
        field_count += _field_count(item)
        check_fields(field_count)
        await pause()
    return msgspec.structs.replace(command, items=items)


_EMPTY_LIST = b"\x90"
"""In msgpack."""


def _field_count(item: Item) -> int:
    """Return how many header fields and failures a message has."""
    return len(item.headers or ()) + len(item.failures)


def check_headers(raw: Raw) -> None:
    """Check the size of the headers of a message before they are decoded.

    Raises:
        InvalidArgument: they are too long.
    """
    if (size := len(memoryview(raw))) > limits.MAX_HEADERS:
        raise InvalidArgument(
            f"headers take {size:,} bytes, the limit is {limits.MAX_HEADERS:,}; put long texts "
            "into the body"
        )


async def count_values(data: bytes, pause: Pause) -> None:
    """Count the values of a batch.

    The first byte of a value says what it is, and how many bytes or values follow (the msgpack
    specification, "Formats").

    Raises:
        Problem: there are too many.
        DecodeError: it ends too early.
    """
    at, end = 0, len(data)
    remaining = 1  # values that must still come: the batch itself is one
    seen = 0
    while remaining:
        seen += 1
        if not seen % _VALUES_PER_PAUSE:
            check_count("values", seen + remaining, limits.MAX_PACKED)
            await pause()
        if at >= end:
            break
        first_byte = data[at]
        at += 1
        remaining -= 1
        if first_byte < 0x80 or first_byte >= 0xE0:  # a small number
            continue
        if first_byte <= 0x9F:  # a small map, whose entries are two values, or a small array
            remaining += (first_byte & 0x0F) * (2 if first_byte < 0x90 else 1)
        elif first_byte <= 0xBF:  # a short text
            at += first_byte & 0x1F
        elif (size := _LENGTH_SIZES.get(first_byte)) is not None:
            length = int.from_bytes(data[at : at + size])
            at += size
            if first_byte >= 0xDC:  # an array, or a map
                remaining += length * (2 if first_byte >= 0xDE else 1)
            else:
                at += length + (first_byte in _EXTENSIONS)
        else:
            at += _FIXED_SIZES.get(first_byte, 0)
    if remaining or at > end:
        raise msgspec.DecodeError("Input data was truncated")


_LENGTH_SIZES = {
    0xC4: 1,
    0xC5: 2,
    0xC6: 4,
    0xC7: 1,
    0xC8: 2,
    0xC9: 4,
    0xD9: 1,
    0xDA: 2,
    0xDB: 4,
    0xDC: 2,
    0xDD: 4,
    0xDE: 2,
    0xDF: 4,
}
"""Size of the length field of bytes, extensions, text, arrays and maps."""

_EXTENSIONS = (0xC7, 0xC8, 0xC9)
"""First bytes of values with one more byte, the type of the extension."""

_FIXED_SIZES = {
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
"""Size of numbers and short extensions after their first byte."""
