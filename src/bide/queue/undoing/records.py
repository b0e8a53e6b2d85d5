"""What is noted of a bulk change: in a queue of its own, for as long as it can be taken back."""

import re

import msgspec

from bide.lane.steps import Steps
from bide.model.errors import NothingToUndo
from bide.model.message import Item, Message
from bide.model.undoing import UNDO_FOR, Record, Undo
from bide.queue.results import find_all

encode_record = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(Record).decode


_TOKEN = re.compile("[0-9a-hjkmnp-tv-z]{26}")


def is_token(text: str) -> bool:
    """Tell whether a text can be the token of a bulk change.

    Example:
        >>> is_token("01kb2n8m7dzz4r6y0t5v9x3h1q"), is_token("order-42")
        (True, False)
    """
    return _TOKEN.fullmatch(text) is not None


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which messages of a record were changed."""

    unchanged: list[int] = []
    """The numbers of those that were not."""
    dues: list[int] = []
    """When each of the messages is due since then, where that was changed; each shard of a store
    has a clock of its own."""


decode_mark = msgspec.json.Decoder(Mark).decode


def note(id: str, undo: str, data: bytes) -> Item:
    """Return a message that is kept for as long as a change can be taken back."""
    return Item(id, data, False, delay=UNDO_FOR, group=undo)


def noted(queue: str, ids: list[str]) -> Steps[list[Message | None]]:
    """Return messages of a record, `None` for those that are not there or too old."""
    found = yield from find_all(queue, ids)
    return [one if one is not None and one.state == "delayed" else None for one in found]


def nothing(undo: Undo) -> NothingToUndo:
    """Return the error for a token by which nothing can be taken back."""
    return NothingToUndo(
        f"nothing can be taken back by {undo.undo!r}: it is not the token of a change in this "
        f"queue, the change changed nothing, or more than {UNDO_FOR // 60_000} minutes have passed"
    )
