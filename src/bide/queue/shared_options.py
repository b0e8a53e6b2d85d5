"""Whether messages of one put have the same options, so that these are checked once."""

from operator import attrgetter
from typing import Any

import msgspec

from bide.model.message import Item, NewMessage

all_but_body = attrgetter(
    *(name for name in NewMessage.__struct_fields__ if name not in ("body", "id"))
)
"""Returns the options of a message."""


def behind_body(item: Item) -> tuple[Any, ...]:
    """Return the fields of an item after its body, up to the last that is not a default."""
    values = msgspec.structs.astuple(item)[3:]
    defaults = Item.__struct_defaults__[-len(values) :]
    used = [place for place, value in enumerate(values, 1) if value != defaults[place - 1]]
    return values[: max(used, default=0)]
