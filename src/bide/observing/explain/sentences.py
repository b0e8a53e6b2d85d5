"""The sentences of explanations, in English and in Simplified Chinese."""

import tomllib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from bide.model.message import LAPSED
from bide.model.times import format_duration, to_datetime

LONGEST = 300
"""How many characters of an error a sentence shows."""


@lru_cache(maxsize=1)
def clauses() -> Mapping[str, Mapping[str, Any]]:
    """Return the clauses by name, each by language: "en" and "zh"."""
    return tomllib.loads(files(__package__).joinpath("sentences.toml").read_text("utf-8"))


def render(clause: str, values: Mapping[str, Any], language: str) -> str:
    """Return a clause in a language.

    Example:
        >>> render("ahead", {"count": 1200}, "en")
        'messages delivered before it: 1,200'
    """
    texts = {name: _text(name, value, language) for name, value in values.items()}
    text: str = clauses()[clause][language].format_map(texts)
    return text


def joined(parts: Sequence[str], language: str, *, explained: bool) -> str:
    """Return clauses as one sentence.

    Args:
        parts: the clauses, one at least.
        language: "en" or "zh".
        explained: whether the first one states what the others explain.
    """
    colon, semicolon = clauses()["separator"][language]
    first, *others = parts
    if explained and others:
        return f"{first}{colon}{semicolon.join(others)}"
    return str(semicolon.join(parts))


_MOMENTS = {"due", "since", "until"}
_SPANS = {"left", "late", "lasting"}
_COUNTS = {"count", "places", "running", "workers", "extended", "attempt", "attempts"}


def _text(name: str, value: Any, language: str) -> str:
    if value is None:
        return "-"
    if name in _MOMENTS:
        return f"{to_datetime(value):%Y-%m-%d %H:%M:%S} UTC"
    if name in _SPANS:
        return format_duration(max(0, value))
    if name in _COUNTS:
        return f"{value:,}"
    if value == LAPSED:
        return str(clauses()["lease-lapsed"][language])
    lines = str(value).splitlines() or ["-"]
    return lines[0][:LONGEST] or "-"
