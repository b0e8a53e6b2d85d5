"""From facts to an explanation: what holds a message where it is."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import msgspec

from bide.model.ended import End
from bide.model.message import LAPSED, State
from bide.model.replies import AHEAD, Explained, Limited, Pause
from bide.model.times import format_duration, rate_text, to_datetime

Reason = Literal[
    "missing", "delayed", "retry", "returned", "paused", "limit", "subscription", "no-worker",
    "busy", "failed", "ahead", "next", "leased", "lapsed", "dead", "acked", "expired",
    "cancelled", "purged",
]  # fmt: skip
"""One cause. A ready message may have several: the first one counts most."""


class _Clause(NamedTuple):
    """A part of the sentence: which one, and its values."""

    name: str
    values: dict[str, Any]


class Explanation(msgspec.Struct, frozen=True):
    """Why a message is where it is.

    Example:
        >>> from bide import Queue
        >>> orders = Queue("explained", "memory://")
        >>> orders.explain("order-42").sentence
        'order-42 is not in explained: it never was, or it is gone'
    """

    id: str
    queue: str
    facts: Explained
    """What the sentence is made of. Times are Unix milliseconds."""

    def __str__(self) -> str:
        return self.sentence

    @property
    def state(self) -> State | None:
        """The state of the message; `None`: there is none of this id."""
        return self.facts.state

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The causes, the most important one first."""
        return tuple(reason for reason, _ in self._causes())

    @property
    def sentence(self) -> str:
        """The explanation in English."""
        return self.in_language("en")

    def in_language(self, language: str) -> str:
        """Return the explanation as a sentence.

        Args:
            language: "en" or "zh" (Simplified Chinese).
        """
        causes = [clause for _, clause in self._causes()]
        if self.state == "ready":
            late = self.facts.now - self.facts.due
            causes.insert(0, _Clause("ready", {"due": self.facts.due, "late": late}))
        if self.facts.successor is not None and "lapsed" not in self.reasons:
            causes.append(_Clause("successor", {"due": self.facts.successor}))
        common = {"id": self.id, "queue": self.queue}
        return joined(
            [render(clause.name, {**common, **clause.values}, language) for clause in causes],
            language,
            explained=self.state == "ready",
        )

    def _causes(self) -> Iterator[tuple[Reason, _Clause]]:
        facts = self.facts
        match facts.state:
            case None if facts.end is not None and facts.end.how != "dead":
                yield self._gone(facts.end)
            case None:
                yield "missing", _Clause("missing", {})
            case "delayed":
                yield self._delayed()
            case "ready":
                yield from self._ready()
            case "leased":
                yield self._leased()
            case "dead":
                yield "dead", _Clause("dead", {**self._failure(), **self._since(facts.ended)})
            case "acked":
                yield "acked", _Clause("acked", self._since(facts.ended))
            case "expired":
                yield "expired", _Clause("expired", self._since(facts.ended))

    def _gone(self, end: End) -> tuple[Reason, _Clause]:
        assert end.how != "dead"
        by = " by" if end.by else ""
        return end.how, _Clause(end.how + by, {"by": end.by, **self._since(end.moment)})

    def _delayed(self) -> tuple[Reason, _Clause]:
        facts = self.facts
        values = {"due": facts.due, "left": facts.due - facts.now}
        if facts.planned is None:
            return "delayed", _Clause("delayed", values)
        if facts.failure is None:
            return "returned", _Clause("returned", values)
        return "retry", _Clause("retry", {**values, **self._failure()})

    def _ready(self) -> Iterator[tuple[Reason, _Clause]]:
        facts = self.facts
        pause = facts.pauses[-1] if facts.pauses else Pause(0, 0)
        if pause.until is None:
            name = "paused by" if pause.actor else "paused"
            since = {} if pause.since is None else self._since(pause.since)
            values = {"actor": pause.actor, **since}
            yield "paused", _Clause(name if since else "paused before", values)
        if facts.limited is not None:
            yield "limit", self._limit(facts.limited)
        for one in facts.subscriptions or ():
            name = "subscription paused" if one.paused else "circuit"
            since = self._since(one.since or facts.now)
            values = {"name": one.name, "error": one.reason or "-", "until": one.until, **since}
            yield "subscription", _Clause(name, values)
        yield from self._workers()
        if facts.failure is not None and facts.attempt:
            yield "failed", _Clause("failed", self._failure())
        if facts.ahead:
            many = facts.ahead > AHEAD
            count = AHEAD if many else facts.ahead
            name = "ahead more" if many else "ahead"
            if facts.limited is not None:
                name += " of its group"
            yield "ahead", _Clause(name, {"count": count})
        elif pause.until is not None and facts.limited is None and self._is_served:
            yield "next", _Clause("next", {})

    @property
    def _is_served(self) -> bool:
        return not self.facts.subscriptions and bool(self.facts.workers)

    def _limit(self, limited: Limited) -> _Clause:
        name, running = limited.by.replace("_", " "), {"running": limited.running}
        if limited.until is None:
            return _Clause(name, {"count": limited.value, **running})
        left = {"until": limited.until, "left": limited.until - self.facts.now}
        return _Clause(name, {"rate": rate_text(limited.value), **left, **running})

    def _workers(self) -> Iterator[tuple[Reason, _Clause]]:
        workers = self.facts.workers
        if workers is None:
            return
        if not workers:
            yield "no-worker", _Clause("no-worker", {})
        elif all(one.busy for one in workers):
            places = sum(one.places or 0 for one in workers)
            values = {"places": places, "workers": len(workers)}
            oldest = min(
                (one for one in workers if one.since is not None),
                key=lambda one: one.since or 0, default=None,
            )  # fmt: skip
            if oldest is None or oldest.since is None:
                yield "busy", _Clause("busy", values)
                return
            longest = {"longest": oldest.longest, "holder": oldest.holder}
            yield "busy", _Clause("busy with", {**values, **longest, **self._since(oldest.since)})

    def _leased(self) -> tuple[Reason, _Clause]:
        facts = self.facts
        assert facts.until is not None
        values = {"holder": facts.holder, "until": facts.until, "left": facts.until - facts.now}
        if facts.until <= facts.now:
            if facts.successor is None:
                return "lapsed", _Clause("lapsed", values)
            return "lapsed", _Clause("lapsed successor", {**values, "due": facts.successor})
        if facts.since is None:
            return "leased", _Clause("leased before", values)
        values |= {"extended": facts.extended, **self._since(facts.since)}
        return "leased", _Clause("leased extended" if facts.extended else "leased", values)

    def _since(self, moment: int | None) -> dict[str, Any]:
        """Return a time in the past, and how long ago it was."""
        moment = self.facts.now if moment is None else moment
        return {"since": moment, "lasting": self.facts.now - moment}

    def _failure(self) -> dict[str, Any]:
        facts = self.facts
        error = None if facts.failure is None else facts.failure.reason
        return {"attempt": facts.attempt, "attempts": facts.attempts, "error": error}


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
