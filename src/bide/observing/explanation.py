"""Explain why a message is where it is: as data, and as a sentence in English or Chinese."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from bide.model.message import LAPSED, State
from bide.model.replies import (
    AHEAD,
    Explained,
    Limited,
    Pause,
)
from bide.model.times import format_duration, rate_text, to_datetime

Reason = Literal[
    "missing",
    "delayed",
    "retry",
    "returned",
    "paused",
    "limit",
    "subscription",
    "no-worker",
    "busy",
    "failed",
    "ahead",
    "next",
    "leased",
    "stopping",
    "lapsed",
    "dead",
    "acked",
    "expired",
    "cancelled",
    "purged",
]
"""One cause. A ready message may have several: the first one counts most."""


Cause = tuple[Reason, str, dict[str, Any]]
"""A cause, its clause of the sentence, and the values in that."""


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
        return tuple(reason for reason, _, _ in self._causes())

    @property
    def sentence(self) -> str:
        """The explanation in English."""
        return self.in_language("en")

    def in_language(self, language: str) -> str:
        """Return the explanation as a sentence.

        Args:
            language: "en" or "zh" (Simplified Chinese).
        """
        facts = self.facts
        parts = [(clause, values) for _, clause, values in self._causes()]
        if facts.state == "ready":
            parts.insert(0, ("ready", {"due": facts.due, "late": facts.now - facts.due}))
        if facts.progress is not None and self._is_held:
            report = {"progress": facts.progress, **self._since(facts.progress.moment)}
            parts.append(("progress", report))
        if facts.successor is not None and "lapsed" not in self.reasons:
            parts.append(("successor", {"due": facts.successor}))
        common = {"id": self.id, "queue": self.queue}
        first, *others = [render(clause, common | values, language) for clause, values in parts]
        colon, semicolon = clauses()["separator"][language]
        if facts.state == "ready" and others:  # the first one says what the others explain
            return f"{first}{colon}{semicolon.join(others)}"
        return str(semicolon.join([first, *others]))

    def _causes(self) -> Iterator[Cause]:
        facts = self.facts
        end = facts.end
        match facts.state:
            case None if end is not None and end.how != "dead":
                by = " by" if end.by else ""
                yield end.how, end.how + by, {"by": end.by, **self._since(end.moment)}
            case None:
                yield "missing", "missing", {}
            case "delayed":
                yield self._delayed()
            case "ready":
                yield from self._ready()
            case "leased":
                yield self._leased()
                if facts.stopping is not None and self._is_held:
                    by = " by" if facts.stopping else ""
                    asked = {"actor": facts.stopping, "holder": facts.holder}
                    yield "stopping", f"stopping{by}", asked
            case "dead":
                yield "dead", "dead", {**self._failure(), **self._since(facts.ended)}
            case "acked" | "expired":
                yield facts.state, facts.state, self._since(facts.ended)

    def _delayed(self) -> Cause:
        facts = self.facts
        values = {"due": facts.due, "left": facts.due - facts.now}
        if facts.planned is None:
            return "delayed", "delayed", values
        if facts.failure is None:
            return "returned", "returned", values
        return "retry", "retry", {**values, **self._failure()}

    def _ready(self) -> Iterator[Cause]:
        facts = self.facts
        pause = facts.pauses[-1] if facts.pauses else Pause(0, 0)
        if pause.until is None and pause.since is None:
            yield "paused", "paused before", {"actor": pause.actor}
        elif pause.until is None:
            name = "paused by" if pause.actor else "paused"
            yield "paused", name, {"actor": pause.actor, **self._since(pause.since)}
        if facts.limited is not None:
            yield self._limit(facts.limited)
        for subscription in facts.subscriptions or ():
            name = "subscription paused" if subscription.paused else "circuit"
            since = self._since(subscription.since)
            values = {
                "name": subscription.name,
                "error": subscription.reason or "-",
                "until": subscription.until,
                **since,
            }
            yield "subscription", name, values
        yield from self._workers()
        if facts.failure is not None and facts.attempt:
            yield "failed", "failed", self._failure()
        if facts.ahead:
            name = "ahead more" if facts.ahead > AHEAD else "ahead"
            name += "" if facts.limited is None else " of its group"
            yield "ahead", name, {"count": min(facts.ahead, AHEAD)}
        elif pause.until is not None and facts.limited is None and self._is_served:
            yield "next", "next", {}

    @property
    def _is_held(self) -> bool:
        """Whether a worker holds the message, and its lease is not over."""
        return self.facts.until is not None and self.facts.until > self.facts.now

    @property
    def _is_served(self) -> bool:
        return bool(self.facts.workers) and not self.facts.subscriptions

    def _limit(self, limited: Limited) -> Cause:
        name, values = limited.by.replace("_", " "), {"running": limited.running}
        if limited.until is None:
            return "limit", name, {"count": limited.value, **values}
        remaining = {"until": limited.until, "left": limited.until - self.facts.now}
        return "limit", name, {"rate": rate_text(limited.value), **remaining, **values}

    def _workers(self) -> Iterator[Cause]:
        workers = self.facts.workers
        if workers is not None and not workers:
            yield "no-worker", "no-worker", {}
        elif workers and all(worker.busy for worker in workers):
            places = sum(worker.places or 0 for worker in workers)
            values = {"places": places, "workers": len(workers)}
            lasting = [(worker.since, worker) for worker in workers if worker.since is not None]
            if not lasting:
                yield "busy", "busy", values
                return
            since, oldest = min(lasting, key=lambda pair: pair[0])
            longest = {"longest": oldest.longest, "holder": oldest.holder}
            yield "busy", "busy with", {**values, **longest, **self._since(since)}

    def _leased(self) -> Cause:
        facts = self.facts
        assert facts.until is not None
        values: dict[str, Any] = {
            "holder": facts.holder,
            "until": facts.until,
            "left": facts.until - facts.now,
        }
        if facts.until <= facts.now:
            if facts.stopping is not None:
                return "lapsed", "lapsed stopping", values
            if facts.successor is None:
                return "lapsed", "lapsed", values
            return "lapsed", "lapsed successor", {**values, "due": facts.successor}
        if facts.since is None:
            return "leased", "leased before", values
        values |= {"extended": facts.extended, **self._since(facts.since)}
        return "leased", "leased extended" if facts.extended else "leased", values

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
