"""Explain why a message is where it is: as data, and as a sentence in English or Chinese."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from bide.model.errors import InvalidArgument
from bide.model.message import State
from bide.model.replies import (
    AHEAD,
    Explained,
    Limited,
    Pause,
)
from bide.model.time_rule import date_of, time_rule_of, window_of
from bide.model.times import LATEST, rate_text
from bide.model.window import Window
from bide.observing.seen_runs import SeenRun, see_run

OPENING_MS = 1_000
"""How long after the opening of its window a message that waits for it is due, at the most: a claim
returns it with a delay, which begins a little later."""

Reason = Literal[
    "missing",
    "delayed",
    "retry",
    "returned",
    "held",
    "window",
    "handler-window",
    "paused",
    "limit",
    "subscription",
    "no-worker",
    "busy",
    "failed",
    "used-up",
    "run-ended",
    "run-missed",
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
    "moved",
]
"""One cause. A ready message may have several: the first one counts most."""


class Cause(NamedTuple):
    """A cause, and what the sentence says about it."""

    reason: Reason
    clause: str
    """The name of its clause in `sentences.toml`."""
    values: dict[str, Any]
    """The values in that clause."""


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
        return tuple(cause.reason for cause in self._causes())

    @property
    def sentence(self) -> str:
        """The explanation in English."""
        return self.in_language("en")

    def in_language(self, language: str) -> str:
        """Return the explanation as a sentence.

        Args:
            language: "en" or "zh" (Simplified Chinese).
        """
        from bide.observing.sentences import clauses, render  # here: few programs read sentences

        facts = self.facts
        parts = [(cause.clause, cause.values) for cause in self._causes()]
        if facts.state == "ready":
            parts.insert(0, ("ready", {"due": facts.due, "late": facts.now - facts.due}))
        if facts.progress is not None and self._is_held:
            report = {"progress": facts.progress, **self._since(facts.progress.moment)}
            parts.append(("progress", report))
        if facts.successor is not None and "lapsed" not in self.reasons:
            parts.append(("successor", {"due": facts.successor}))
        parts += self._repeats()
        parts += self._local_date()
        common = {"id": self.id, "queue": self.queue}
        first, *others = [render(clause, common | values, language) for clause, values in parts]
        colon, semicolon = clauses()["separator"][language]
        if facts.state == "ready" and others:  # the first one says what the others explain
            return f"{first}{colon}{semicolon.join(others)}"
        return str(semicolon.join([first, *others]))

    def _causes(self) -> Iterator[Cause]:
        """Yield the causes, the most important one first."""
        facts = self.facts
        end = facts.end
        match facts.state:
            # "dead" is how it became a dead letter, not what has deleted that since.
            case None if end is not None and end.how != "dead":
                with_actor = " by" if end.by else ""
                values = {"by": end.by, **self._since(end.moment)}
                yield Cause(end.how, end.how + with_actor, values)
            case None:
                yield Cause("missing", "missing", {})
            case "delayed":
                yield self._delayed()
                yield from self._closed(facts.due)
                yield from self._unplanned()
            case "ready":
                yield from self._ready()
            case "leased":
                yield self._leased()
                if facts.stopping is not None and self._is_held:
                    by = " by" if facts.stopping else ""
                    request = {"actor": facts.stopping, "holder": facts.holder}
                    yield Cause("stopping", f"stopping{by}", request)
            case "dead":
                yield Cause("dead", "dead", {**self._failure(), **self._since(facts.ended)})
            case "acked" | "expired":
                yield Cause(facts.state, facts.state, self._since(facts.ended))

    @property
    def run(self) -> SeenRun | None:
        """The run of a message that repeats; `None`: it does not, or no longer."""
        facts = self.facts
        if facts.run is None or facts.state in (None, "acked", "expired"):
            return None
        begun = facts.since if facts.state == "leased" else None
        return see_run(
            facts.rule or "",
            facts.run,
            due=facts.due,
            planned=facts.planned,
            now=facts.now,
            begun=begun,
            is_new=facts.attempt == int(begun is not None) and facts.failure is None,
        )

    def _repeats(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the clauses about rule and runs of a message that repeats."""
        run = self.run
        if run is None:
            return
        if run.status == "unread":
            yield "rule unread", {"error": run.error}
            return
        values = {"rule": run.rule, "run": run.at, "next": run.next}
        is_over = run.status in ("ended", "missed")
        if self.state == "dead" or run.status == "held" or (is_over and run.next is None):
            yield "repeats", values
        elif is_over:
            yield "repeats then", values
        elif run.is_last:
            yield "repeats last", values
        else:
            yield "repeats held" if run.is_held else "repeats next", values
            if run.left is not None:
                yield "runs left", {"count": run.left}

    def _local_date(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the clause about the local date of a message, unless it was rescheduled since."""
        facts = self.facts
        if facts.rule is None or facts.run is not None or facts.state not in ("delayed", "ready"):
            return
        planned = date_of(facts.rule)
        if planned is None:
            return
        rule = time_rule_of(facts.rule)
        if not any(rule.is_on_date(due) for due in (facts.due, facts.planned) if due is not None):
            return
        clause = "local date by" if planned.zones else "local date"
        values = {"timezone": planned.local.timezone, "zones": planned.zones}
        yield clause, {"date": planned.local.date, **values}

    def _delayed(self) -> Cause:
        """Return why a message is not due yet: held, put so, given back, or retried."""
        facts = self.facts
        if (run := self.run) is not None and run.status == "held":
            return Cause("held", "held", {})
        values = {"due": facts.due, "left": facts.due - facts.now}
        if facts.planned is None:  # it was never delivered
            return Cause("delayed", "delayed", values)
        if facts.failure is None:
            return Cause("returned", "returned", values)
        return Cause("retry", "retry", {**values, **self._failure()})

    @property
    def _window(self) -> Window | None:
        """The window of the message; `None`: it has none, or it cannot be read here."""
        if self.facts.rule is None:
            return None
        try:
            return window_of(self.facts.rule)
        except InvalidArgument:
            return None

    def _closed(self, due: int | None) -> Iterator[Cause]:
        """Yield that the window of a message due at a time is closed then, or opens then."""
        window, now = self._window, self.facts.now
        if window is None or due is None or due >= LATEST:
            return
        from bide.observing.sentences import Opening

        start = max(due, now)
        opening = window.opening(start)
        waits = opening > start
        if not waits and due > now:
            opening = window.opening(due - OPENING_MS)
            waits = opening > due - OPENING_MS
        if waits:
            values = {"opening": Opening(opening, window.timezone, now), "window": window}
            yield Cause("window", "window", values)

    def _unplanned(self) -> Iterator[Cause]:
        """Yield why a run is not delivered: the next claim plans the one that follows."""
        if (run := self.run) is None:
            return
        last = " last" if run.is_last else ""
        if run.status in ("ended", "missed"):
            reason: Reason = "run-ended" if run.status == "ended" else "run-missed"
            yield Cause(reason, f"{reason}{last}", {"run": run.at})
        elif self.facts.attempt >= self.facts.attempts:
            yield Cause("used-up", f"used-up{last}", self._failure())

    def _ready(self) -> Iterator[Cause]:
        """Yield why a message that is due is not delivered yet, the strongest cause first.

        Those are: a pause, a limit, a subscription that sends nothing, a closed window, workers, a
        run that the next claim will replace, an earlier failure, and the messages before it.
        """
        facts = self.facts
        pause = facts.pauses[-1] if facts.pauses else Pause(0, 0)  # one that is over
        is_paused = pause.lasts(facts.now)
        if is_paused and pause.since is None:
            yield Cause("paused", "paused before", {"actor": pause.actor})
        elif is_paused and pause.until is not None:
            clause = "paused until by" if pause.actor else "paused until"
            end = {"until": pause.until, "left": pause.until - facts.now}
            yield Cause("paused", clause, {"actor": pause.actor, **self._since(pause.since), **end})
        elif is_paused:
            clause = "paused by" if pause.actor else "paused"
            yield Cause("paused", clause, {"actor": pause.actor, **self._since(pause.since)})
        if facts.limited is not None:
            yield self._limit(facts.limited)
        for subscription in facts.subscriptions or ():
            clause = "subscription paused" if subscription.paused else "circuit"
            values = {
                "name": subscription.name,
                "error": subscription.reason or "-",
                "until": subscription.until,
                **self._since(subscription.since),
            }
            yield Cause("subscription", clause, values)
        closed = [*self._closed(facts.due), *self._closed_handlers()]
        yield from closed
        yield from self._workers()
        unplanned = list(self._unplanned())
        yield from unplanned
        if facts.failure is not None and facts.attempt and not unplanned:
            yield Cause("failed", "failed", self._failure())
        if facts.ahead:
            clause = "ahead more" if facts.ahead > AHEAD else "ahead"
            if facts.limited is not None:
                clause += " of its group"
            yield Cause("ahead", clause, {"count": min(facts.ahead, AHEAD)})
        elif not (is_paused or facts.limited or unplanned or closed) and self._is_served:
            yield Cause("next", "next", {})

    @property
    def _is_held(self) -> bool:
        """Whether a worker holds the message, and its lease is not over."""
        return self.facts.until is not None and self.facts.until > self.facts.now

    @property
    def _is_served(self) -> bool:
        """Whether workers serve the queue, and no subscription sends nothing."""
        return bool(self.facts.workers) and not self.facts.subscriptions

    def _limit(self, limited: Limited) -> Cause:
        """Return which limit holds the message back, and until when if that is known."""
        clause = limited.by.replace("_", " ")
        values: dict[str, Any] = {"running": limited.running}
        if limited.until is None:  # a limit of running messages, not a rate
            return Cause("limit", clause, {"count": limited.value, **values})
        remaining = {"until": limited.until, "left": limited.until - self.facts.now}
        rate = rate_text(limited.value)
        return Cause("limit", clause, {"rate": rate, **remaining, **values})

    def _workers(self) -> Iterator[Cause]:
        """Yield that no worker serves the queue, or that all that are open have no free place."""
        workers = self.facts.workers
        if workers is not None and not workers:
            yield Cause("no-worker", "no-worker", {})
            return
        workers = [worker for worker in workers or () if not worker.is_closed(self.facts.now)]
        if workers and all(worker.busy for worker in workers):
            places = sum(worker.places or 0 for worker in workers)
            values = {"places": places, "workers": len(workers)}
            beginnings = [(worker.since, worker) for worker in workers if worker.since is not None]
            if not beginnings:
                yield Cause("busy", "busy", values)
                return
            since, worker = min(beginnings, key=lambda pair: pair[0])
            longest = {"longest": worker.longest, "holder": worker.holder}
            yield Cause("busy", "busy with", {**values, **longest, **self._since(since)})

    def _closed_handlers(self) -> Iterator[Cause]:
        """Yield when the first window opens, if the handlers of all workers wait for theirs."""
        now, workers = self.facts.now, self.facts.workers
        if not workers or not all(worker.is_closed(now) for worker in workers):
            return
        from bide.observing.sentences import Opening

        first = min(workers, key=lambda worker: worker.opens or 0)
        timezone = first.timezone or "UTC"
        opening = Opening(first.opens or 0, timezone, now)
        values = {"opening": opening, "hours": first.hours, "timezone": timezone}
        yield Cause("handler-window", "handler-window", values)

    def _leased(self) -> Cause:
        """Return who holds the message, or what follows now that its lease is over."""
        facts = self.facts
        assert facts.until is not None
        values: dict[str, Any] = {
            "holder": facts.holder,
            "until": facts.until,
            "left": facts.until - facts.now,
        }
        if facts.until <= facts.now:
            if facts.stopping is not None:
                return Cause("lapsed", "lapsed stopping", values)
            if facts.successor is not None:
                return Cause("lapsed", "lapsed successor", {**values, "due": facts.successor})
            is_last = facts.attempt >= facts.attempts and self.run is None
            attempts = {"attempt": facts.attempt, "attempts": facts.attempts}
            return Cause("lapsed", "lapsed last" if is_last else "lapsed", values | attempts)
        if facts.since is None:
            return Cause("leased", "leased before", values)
        values |= {"extended": facts.extended, **self._since(facts.since)}
        return Cause("leased", "leased extended" if facts.extended else "leased", values)

    def _since(self, moment: int | None) -> dict[str, Any]:
        """Return the values of a time in the past, and of how long ago it was; `None`: now."""
        moment = self.facts.now if moment is None else moment
        return {"since": moment, "lasting": self.facts.now - moment}

    def _failure(self) -> dict[str, Any]:
        """Return the values of the last failure."""
        facts = self.facts
        error = None if facts.failure is None else facts.failure.reason
        return {"attempt": facts.attempt, "attempts": facts.attempts, "error": error}
