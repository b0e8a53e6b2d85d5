"""The clauses of `sentences.toml` with their values, and rules of messages that repeat in words."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

from bide.model.errors import InvalidArgument
from bide.model.message import LAPSED
from bide.model.repeat import Cron, Every, Repeat
from bide.model.time_rule import repeat_of
from bide.model.times import format_duration, to_datetime, unix

MOST_CHARACTERS = 300
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


_TIME_NAMES = {"due", "since", "until", "start", "run", "next"}
_DURATION_NAMES = {"left", "late", "lasting"}
_COUNT_NAMES = {"count", "places", "running", "workers", "extended", "attempt", "attempts"}


def _text(name: str, value: Any, language: str) -> str:
    """Return a value of a clause as text; its name says what it is."""
    if value is None:
        return "-"
    if name in _TIME_NAMES:
        return f"{to_datetime(value):%Y-%m-%d %H:%M:%S} UTC"
    if name in _DURATION_NAMES:
        return format_duration(max(0, value))
    if name in _COUNT_NAMES:
        return f"{value:,}"
    if name == "rule":
        return rule_in_words(value, language)
    if value == LAPSED:
        return str(clauses()["lease-lapsed"][language])
    first_line, *_ = str(value).splitlines() or [""]
    return first_line[:MOST_CHARACTERS] or "-"


def rule_in_words(text: str, language: str = "en") -> str:
    """Return a rule in words; as it is, if it cannot be read here.

    Example:
        >>> rule_in_words('{"cron":"0 9 * * MON","timezone":"Europe/Berlin","times":10}')
        '0 9 * * MON in Europe/Berlin, 10 times'
        >>> rule_in_words('{"every":"15m","missed":"skip"}')
        'every 15m, missed runs are left out'
    """
    try:
        rule = repeat_of(text)
    except InvalidArgument:
        return text
    parts = [render(clause, values, language) for clause, values in _clauses_of(rule)]
    separator: str = clauses()["rule-separator"][language]
    return separator.join(parts)


def _clauses_of(rule: Repeat) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the clauses of a rule, and their values."""
    if isinstance(rule, Cron):
        yield "rule cron", {"cron": rule.expression, "timezone": rule.timezone}
    elif isinstance(rule, Every):
        yield "rule every", {"period": rule.period}
    if rule.start is not None:
        yield "rule start", {"start": unix(rule.start)}
    if rule.until is not None:
        yield "rule until", {"until": unix(rule.until)}
    if rule.times is not None:
        yield "rule once" if rule.times == 1 else "rule times", {"count": rule.times}
    if rule.missed != "once":
        yield f"rule missed {rule.missed}", {}
    if rule.grace is not None:
        yield "rule grace", {"grace": rule.grace}
