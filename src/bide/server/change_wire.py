"""What requests that change messages look like, and their answers."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bide.model.message import Attempts, Group, Priority
from bide.server import wire

__all__ = ["Changed", "Moved", "MovedOut"]


class Moved(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """wire.When messages are due: `delay` or `at`."""

    delay: wire.Span | None = None
    at: wire.When | None = None


class Changed(Moved, kw_only=True):
    """What to change of a message; what is left out stays as it is."""

    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Any JSON value."""
    raw: bytes | UnsetType = msgspec.field(default=UNSET, name="bytes")
    """Bytes, in base64, instead of `body`."""
    priority: Priority | UnsetType = UNSET
    attempts: Attempts | UnsetType = UNSET
    expires: wire.Span | UnsetType | None = UNSET
    """How long after its due time it is still worth delivering; null: without limit."""
    group: Group | UnsetType | None = UNSET
    headers: Annotated[
        msgspec.Raw,
        Meta(
            extra_json_schema={
                "type": ["object", "null"],
                "additionalProperties": {"type": "string"},
            }
        ),
    ] = msgspec.field(default_factory=msgspec.Raw)
    """Text that travels beside the body; null: none."""


class MovedOut(msgspec.Struct, omit_defaults=True):
    """How many messages were changed, and where the next part begins."""

    count: int
    cursor: str | None = None
    """Give it with the next request; all were changed when it is missing."""
    undo: str | None = None
    """The token by which it is taken back: the same for all parts of a change."""
