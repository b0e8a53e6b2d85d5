"""What a call has answered, as plain data: what may differ between two stores is left out here."""

import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any

from msgspec import NODEFAULT, Struct
from msgspec.structs import replace

import bide
from bide.model.message import Message
from bide.model.recovery import Recovered
from bide.model.replies import Explained, Outcome, QueueSettings
from bide.model.undoing import Undoable
from tests.soak.differential.steps import Step

__all__ = ["Plain", "plain_error", "plain_reply"]

Plain = Any
"""Dicts, lists and plain values."""

ORDERED = ("delayed", "leased", "dead", "acked", "expired")
"""States whose messages have one order. Ready ones have theirs once a claim has looked at them, and
a scan of all states promises none."""

_TOKEN = re.compile(r"\b[0-9a-hjkmnp-tv-z]{26}\b")
"""Of a bulk change; it is random."""


def plain_reply(step: Step, reply: Any) -> Plain:
    """Return what a call has returned, without what a store may choose."""
    match step.call:
        case "scan" if step.arguments.get("state") not in ORDERED:
            return [_plain(message) for message in _by_id(reply)]
        case "peek":
            return [_plain(message) for message in _by_id(reply)]
        case "search":  # how much was read for it is the store's business
            return [_plain(message) for message in _by_id(reply)]
        case "export":
            return sorted(reply)
    return _plain(reply)


def plain_error(error: Exception) -> Plain:
    """Return what a call has raised."""
    return {"raised": type(error).__name__, "text": _TOKEN.sub("TOKEN", str(error))}


def _by_id(messages: Iterable[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: message.id)


def _plain(value: Any) -> Plain:
    """Return a value as plain data."""
    match value:
        case bide.Delivery():  # a token is a number of the store's own; `Player` sees that it grows
            return {"delivery": _plain(value.message), "lateness": value.lateness}
        case Message():
            return _fields(replace(value, secret=None)) | {"version": value.version}
        case bide.Explanation():
            return _plain_explanation(value)
        case QueueSettings():  # a client of a server has `wake` by its own clock
            return _fields(replace(value, wake=None))
        case Recovered():
            # Of a plan that is only tried out, the times depend on the order of the store.
            times = () if value.undo else ("first", "last")
            plain = {name: each for name, each in _fields(value).items() if name not in times}
            return plain | {"undo": bool(value.undo)}
        case Undoable():
            return {"count": int(value), "undo": bool(value.undo)}
        case bide.Closing():
            count = {"count": int(value), "stopping": value.stopping}
            return count | {"until": value.until.isoformat()}
        case bide.Cancelled():
            return {"count": int(value), "stopping": value.stopping}
        case Outcome():
            return {"outcome": str(value), **_fields(value)}
        case Struct():
            return _fields(value)
        case datetime() | date():
            return value.isoformat()
        case str() | bytes() | bool() | int() | float() | None:
            return value
        case Mapping():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
    return str(value)


def _fields(struct: Struct) -> dict[str, Plain]:
    """Return the fields of a struct that are not as they are by default."""
    names, defaults = struct.__struct_fields__, struct.__struct_defaults__
    by_default = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    return {
        name: _plain(value)
        for name in names
        if (value := getattr(struct, name)) != by_default.get(name, NODEFAULT)
    }


def _plain_explanation(explanation: bide.Explanation) -> Plain:
    """Return an explanation by the facts of the store.

    Only of a store that others share it is known who serves the queue.
    """
    facts: Explained = replace(explanation.facts, workers=None, subscriptions=None)
    of_store = bide.Explanation(explanation.id, explanation.queue, facts)
    return {"explanation": of_store.sentence, **_fields(facts)}
