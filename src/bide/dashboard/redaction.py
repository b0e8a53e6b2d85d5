"""Bodies and headers as text: hidden parts replaced, laid out to be read, cut where too long."""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from bide.model.errors import AccessDenied
from bide.model.message import Message

HIDDEN = "•••"

LONGEST = 64 * 1024
"""How many characters of a body a page shows."""

PREVIEW = 96
"""How many characters of a body a list shows."""

PREVIEWED = 16 * 1024
"""Bodies that take more bytes have no preview: decoding them takes time."""

DUMPED = 1024
"""How many bytes are shown of a body that is no text."""


_TURNING = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that turn the direction of writing: shown as JSON writes them, they hide nothing."""


class Shown(NamedTuple):
    """A body as text."""

    text: str
    cut: int = 0
    """How many of its characters (bytes of what is no text) are left out."""


def redact(value: Any, hide: Collection[str]) -> Any:
    """Return a value without the parts that have these names, at any depth.

    A text with such a name in quotes is hidden whole: JSON in JSON, as Celery writes arguments.

    Example:
        >>> redact({"card": "4711", "items": [{"Card": 1, "n": 2}]}, {"card"})
        {'card': '•••', 'items': [{'Card': '•••', 'n': 2}]}
        >>> redact(["a card", '[{"card": "4711"}]', "{'card': 4711}"], {"card"})
        ['a card', '•••', '•••']
    """
    if isinstance(value, dict):
        return {
            name: HIDDEN if str(name).lower() in hide else redact(one, hide)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [redact(one, hide) for one in value]
    if hide and isinstance(value, str) and _quoted(frozenset(hide)).search(value):
        return HIDDEN
    return value


@lru_cache(maxsize=8)
def _quoted(hide: frozenset[str]) -> re.Pattern[str]:
    """Return what finds a name in quotes, which have backslashes in JSON in JSON in JSON."""
    names = "|".join(map(re.escape, hide))
    return re.compile(rf"""["'](?:{names})\\*["']""", re.IGNORECASE)


def _redacted(data: bytes, hide: Collection[str], is_json: bool = True) -> bytes:
    """Return a body without the parts that have these names; nothing of what cannot be searched."""
    if not hide:
        return data
    if not is_json:
        return HIDDEN.encode() if redact(data.decode(errors="replace"), hide) == HIDDEN else data
    try:
        return msgspec.json.encode(redact(msgspec.json.decode(data), hide))
    except (msgspec.DecodeError, RecursionError):  # a number such as 1e400, or nested deeply
        return msgspec.json.encode(HIDDEN)


def body_of(message: Message, hide: Collection[str]) -> Shown | None:
    """Return a body as a page shows it; `None` if a server withholds it."""
    try:
        data = message.seen_data
    except AccessDenied:
        return None
    if not message.json:
        return _of_bytes(_redacted(data, hide, is_json=False))
    text = _laid_out(_redacted(data, hide))
    return Shown(text[:LONGEST], max(0, len(text) - LONGEST))


def result_of(data: bytes, hide: Collection[str]) -> str:
    """Return a result as a page shows it.

    Example:
        >>> result_of(b'{"card":4711}', {"card"})
        '{\\n  "card": "•••"\\n}'
    """
    if not data:
        return ""
    return _laid_out(_redacted(data, hide))


def _laid_out(data: bytes, indent: int = 2) -> str:
    """Return JSON as text to be read; what is not JSON, as something else wrote it, as it is."""
    try:
        data = msgspec.json.format(data, indent=indent)
    except msgspec.DecodeError:
        pass
    return _readable(data)


def _readable(data: bytes) -> str:
    return data.decode(errors="replace").translate(_TURNING)


def preview_of(message: Message, hide: Collection[str]) -> str:
    """Return the beginning of a body on one line, "" for one that is withheld or large."""
    if len(message.data) > PREVIEWED or not message.data:
        return ""
    data = _redacted(message.data, hide, message.json)
    if not message.json:
        return " ".join(_of_bytes(data).text.split())[:PREVIEW]
    text = _laid_out(data, 0) if len(data) > PREVIEW else _readable(data)
    return text if len(text) <= PREVIEW else f"{text[:PREVIEW]}…"


def redacted(message: Message, hide: Collection[str]) -> Message:
    """Return a message without the hidden parts of its body and headers."""
    headers = None if message.headers is None else dict(headers_of(message, hide))
    shown = _redacted(message.seen_data, hide, message.json)
    return msgspec.structs.replace(message, data=shown, headers=headers)


def headers_of(message: Message, hide: Collection[str]) -> Mapping[str, str]:
    """Return headers as a page shows them."""
    return {
        name: HIDDEN if name.lower() in hide else redact(value, hide)
        for name, value in (message.headers or {}).items()
    }


def _of_bytes(data: bytes) -> Shown:
    try:
        text = data.decode().translate(_TURNING)
    except UnicodeDecodeError:
        part = data[:DUMPED]
        lines = (part[start : start + 16].hex(" ") for start in range(0, len(part), 16))
        return Shown("\n".join(lines), max(0, len(data) - DUMPED))
    return Shown(text[:LONGEST], max(0, len(text) - LONGEST))
