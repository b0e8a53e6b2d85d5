"""Bodies and headers as text: hidden parts replaced, laid out to be read, cut where too long."""

import re
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from bide.model.ended import End
from bide.model.errors import AccessDenied, InvalidArgument
from bide.model.message import Message, withheld

HIDDEN = "•••"

MOST_CHARACTERS = 64 * 1024
"""How many characters of a body a page shows."""

PREVIEW_CHARACTERS = 96
"""How many characters of a body a list shows."""

MOST_PREVIEWED = 16 * 1024
"""Bodies that take more bytes have no preview: decoding them takes time."""

DUMP_BYTES = 1024
"""How many bytes are shown of a body that is no text."""


_TURNING = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that turn the direction of writing: shown as JSON writes them, they hide nothing."""


class Shown(NamedTuple):
    """A body as text."""

    text: str
    cut: int = 0
    """How many of its characters (bytes of what is no text) are left out."""


def hidden_names(hide: Collection[str]) -> frozenset[str]:
    """Return the names that are not shown, in lower case.

    Raises:
        InvalidArgument: they are one text, whose letters would be the names.
    """
    if isinstance(hide, str):
        raise InvalidArgument(
            f"hide={hide!r} is a text and no list of names; write hide=[{hide!r}]"
        )
    return frozenset(name.lower() for name in hide)


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
            name: HIDDEN if str(name).lower() in hide else redact(part, hide)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [redact(part, hide) for part in value]
    if hide and isinstance(value, str) and _quoted_name(frozenset(hide)).search(value):
        return HIDDEN
    return value


@lru_cache(maxsize=8)
def _quoted_name(hide: frozenset[str]) -> re.Pattern[str]:
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


class Redaction:
    """Shows messages to a visitor.

    Args:
        hide: names in lower case of the parts of bodies, and of the headers, that are not shown.
        bodies: whether bodies and headers are shown at all.
    """

    def __init__(self, hide: Collection[str], bodies: bool) -> None:
        self._hide = hide
        self._bodies = bodies

    def body(self, message: Message) -> Shown | None:
        """Return a body to be read; `None` if it is withheld, here or by a server."""
        try:
            data = message.seen_data if self._bodies else None
        except AccessDenied:
            data = None
        if data is None:
            return None
        return _shown(_redacted(data, self._hide, message.json), message.json)

    def editable(self, message: Message) -> str | None:
        """Return a body to be edited, `None` unless it is JSON that the visitor sees all of."""
        shown = self.body(message)
        if shown is None or shown.cut or not message.json:
            return None
        return shown.text if shown == _shown(message.data, True) else None

    def version(self, message: Message) -> str:
        """Return the version of what the visitor may see: it reveals nothing of the rest."""
        if self._bodies and message.data:
            return self.redacted(message).version
        return withheld(message).version

    def preview(self, message: Message) -> str:
        """Return the beginning of a body on one line, "" for one that is withheld or large."""
        if not self._bodies or len(message.data) > MOST_PREVIEWED or not message.data:
            return ""
        data = _redacted(message.data, self._hide, message.json)
        if not message.json:
            return " ".join(_shown(data, False).text.split())[:PREVIEW_CHARACTERS]
        # A short body is shown as it is, a longer one without spaces that take room.
        text = _laid_out(data, 0) if len(data) > PREVIEW_CHARACTERS else _readable(data)
        return text if len(text) <= PREVIEW_CHARACTERS else f"{text[:PREVIEW_CHARACTERS]}…"

    def result(self, end: End) -> str:
        """Return a result to be read, as far as the visitor may see it.

        Example:
            >>> end = End(how="acked", moment=0, by=None, due=0, attempt=1, result=b'{"card":4711}')
            >>> Redaction({"card"}, True).result(end)
            '{\\n  "card": "•••"\\n}'
        """
        return _laid_out(_redacted(end.result, self._hide)) if end.result else ""

    def headers(self, message: Message) -> dict[str, str]:
        """Return the headers that the visitor may see."""
        return self._headers(message) if self._bodies else {}

    def redacted(self, message: Message) -> Message:
        """Return a message without the hidden parts."""
        if not self._hide:
            return message
        headers = None if message.headers is None else self._headers(message)
        shown = _redacted(message.seen_data, self._hide, message.json)
        return msgspec.structs.replace(message, data=shown, headers=headers)

    def _headers(self, message: Message) -> dict[str, str]:
        """Return the headers without the hidden parts."""
        return {
            name: HIDDEN if name.lower() in self._hide else redact(value, self._hide)
            for name, value in (message.headers or {}).items()
        }


def _laid_out(data: bytes, indent: int = 2) -> str:
    """Return JSON as text to be read; what is not JSON, as something else wrote it, as it is."""
    with suppress(msgspec.DecodeError):
        data = msgspec.json.format(data, indent=indent)
    return _readable(data)


def _readable(data: bytes) -> str:
    """Return bytes as text in which no character turns the direction of writing."""
    return data.decode(errors="replace").translate(_TURNING)


def _shown(data: bytes, is_json: bool) -> Shown:
    """Return a body as text: JSON laid out, text as it is, and other bytes in hexadecimal."""
    try:
        text = _laid_out(data) if is_json else data.decode().translate(_TURNING)
    except UnicodeDecodeError:
        part = data[:DUMP_BYTES]
        lines = (part[start : start + 16].hex(" ") for start in range(0, len(part), 16))
        return Shown("\n".join(lines), max(0, len(data) - DUMP_BYTES))
    return Shown(text[:MOST_CHARACTERS], max(0, len(text) - MOST_CHARACTERS))
