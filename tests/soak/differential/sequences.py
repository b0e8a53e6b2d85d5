"""Random sequences, drawn from one seed: every call of a queue, with all of its options.

There are few ids, groups and spans of time, so that calls meet: a wait ends a lease or a delay to
the millisecond. Nothing is drawn while a sequence is played, so the same seed is the same sequence
on every store, and a step that is left out changes no other.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import bide
from bide.model.ended import ENDINGS
from bide.model.times import DAY_MS, to_datetime
from bide.testing.conformance.drawing import either, several, some
from tests.soak.differential.steps import (
    DueTime,
    Exported,
    Held,
    Sequence,
    Step,
    UndoToken,
    Version,
)
from tests.start import START

__all__ = ["IDS", "drawn"]

Draw = Callable[[Random], Any]

BEFORE_SUMMER = 1_774_744_200_000  # 2026-03-29 00:30 UTC, half an hour before in Europe/Berlin
BEFORE_WINTER = 1_792_885_800_000  # 2026-10-24 23:50 UTC, 70 minutes before
STARTS = [START, START, BEFORE_SUMMER, BEFORE_WINTER]

IDS = ["a", "b", "c", "d"]
GROUPS = ["g", "h"]
WORKERS = ["w1", "w2"]
QUEUES = [*["q"] * 7, "q2"]
SPANS = [1, 1, 5, 5, 30, 60, 3_600]
"""Seconds, for delays, leases and what passes."""
WAITS = [*(span * 1_000 for span in SPANS), 1, 4_999, DAY_MS]
"""Milliseconds."""
LEASES = [1, 5, 5, 30, 60]
"""Seconds."""

ids = some(IDS)
spans = some(SPANS)
groups = some(GROUPS)


def fields(**draws: Draw) -> Draw:
    """Return what draws arguments that go together."""
    return lambda chance: {name: draw(chance) for name, draw in draws.items()}


def maybe(draw: Draw, one_in: int = 3) -> Draw:
    """Return what draws arguments in one of so many cases, and none in the others."""
    return lambda chance: draw(chance) if chance.randrange(one_in) == 0 else {}


def all_of(*draws: Draw) -> Draw:
    """Return what draws the arguments of each of several."""

    def draw(chance: Random) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        for each in draws:
            arguments |= each(chance)
        return arguments

    return draw


def held(chance: Random) -> Held:
    """Draw which delivery: mostly one of the last."""
    id = chance.choice([*[None] * 8, *IDS])
    return Held(id, chance.choice([*[0] * 6, 1, 2]))


class Calls:
    """What is drawn for a sequence that starts at some time.

    Args:
        start: in Unix milliseconds.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        moments = some([self.after(seconds) for seconds in (-60, -1, 0, 1, 5, 30, 60, 3_600)])
        local = some(
            [
                {"at": text, "timezone": zone}
                for zone, texts in {
                    "Europe/Berlin": ("2026-03-29 02:30", "2026-10-25 02:30", "2023-11-15 00:00"),
                    "America/New_York": ("2026-03-29 09:00", "2023-11-14 17:13:25"),
                }.items()
                for text in texts
            ]
        )
        rule = some(self._rules())
        window = some(
            [
                bide.Window("22:00-22:30"),
                bide.Window("09:00-17:00", "Europe/Berlin"),
                bide.Window("00:00-02:30, 03:00-04:00", "Europe/Berlin"),
                bide.Window("Mon-Fri 01:00-23:00", holidays=["2023-11-15"]),
            ]
        )
        json = some([1, "x", {"order": 42, "of": "ü"}, [None, 0.5]])
        body = either(json, json, some([b"\0\xff"]))
        due = either(fields(delay=spans), fields(at=moments), local)
        time = either(*[some([{}])] * 4, due, fields(delay=spans))
        options = all_of(
            maybe(fields(priority=some([0, 1, 9, 255]))),
            maybe(fields(expires=some([1, 5, 60])), 4),
            maybe(fields(attempts=some([1, 2, 3])), 2),
            maybe(fields(group=groups), 2),
            maybe(fields(headers=some([{"a": "ü"}, {}])), 6),
            maybe(fields(window=window), 8),
            maybe(fields(repeat=rule), 4),
        )
        spread = maybe(fields(spread=some([5, "1h"])), 8)
        put = all_of(fields(body=body, id=ids), time, options, spread)
        later = all_of(
            fields(body=body, id=ids, delay=spans, latest=spans), maybe(fields(group=groups))
        )
        debounce = all_of(later, fields(on_conflict=some(["replace"])))
        conflict = maybe(fields(on_conflict=some(["keep", "replace", "replace", "raise"])), 2)
        same = maybe(fields(on_conflict=some(["replace"]), if_version=self._versions()), 8)
        many = either(
            fields(messages=several(put, 4, 1)),
            fields(messages=several(put, 4, 1), on_conflict=some(["keep", "replace"])),
            fields(messages=several(either(put, later), 4, 1), on_conflict=some(["replace"])),
        )
        rule_of_several = either(
            fields(group=groups),
            fields(group=groups, after=moments),
            fields(group=groups, before=moments),
            fields(after=moments, before=moments),
            fields(after=some([self.after(-60)])),
        )
        outcome = either(
            *[some([{}])] * 2, some([{"dry_run": True}]), *[some([{"undo": True}])] * 3
        )
        reason = maybe(fields(reason=some(["no", "line\nüber"])), 2)
        only_if = maybe(either(fields(if_due=self._dues()), fields(if_version=self._versions())))
        states = ["delayed", "ready", "dead", "acked", "expired"]
        on_off = some([0, 5, 3_600])
        delivery = fields(delivery=held)
        deliveries = fields(deliveries=several(held, 3, 1))
        edited = all_of(
            maybe(fields(body=body)),
            maybe(fields(priority=some([0, 9]))),
            maybe(fields(expires=some([None, 5]))),
            maybe(fields(attempts=some([1, 2, 3]))),
            maybe(fields(group=some([None, *GROUPS]))),
            maybe(fields(headers=some([None, {"b": "c"}]))),
            maybe(fields(window=either(some([None]), window)), 5),
            maybe(fields(repeat=either(some([None]), rule)), 5),
            maybe(due),
        )
        settings = all_of(
            maybe(fields(keep=on_off)),
            maybe(fields(history=on_off)),
            maybe(fields(result_ttl=on_off)),
            maybe(fields(limit=some([0, 0, 1, 2])), 6),
            maybe(fields(rate=some([0, 1, "12/m"])), 8),
            maybe(fields(group_limit=some([0, 1])), 6),
            maybe(fields(group_rate=some([0, 1])), 8),
            maybe(fields(overdue=some(["", "spread 10m"])), 8),
        )
        plan = some(
            [
                bide.Recovery(spread=30),
                bide.Recovery(rate="30/m", fresh_first=True),
                bide.Recovery(drop_later_than=30),
                bide.Recovery(latest_of_group=True, spread="1m"),
            ]
        )
        self.draws: dict[str, tuple[float, Draw]] = {
            "wait": (22, fields(ms=some(WAITS))),
            "put": (24, either(all_of(put, conflict), all_of(put, conflict), debounce)),
            "put_if_same": (1, all_of(put, same)),
            "put_many": (7, many),
            # More than one part of a bulk change has; rarely, since all is slower then.
            "put_block": (0.25, all_of(fields(count=some([501, 1_001]), group=groups), time)),
            "claim": (26, fields(count=some([1, 1, 2, 10]), lease=some(LEASES))),
            "take": (
                3,
                all_of(fields(end=some(["well", "error", "exit"])), fields(lease=some(LEASES))),
            ),
            "delivery.ack": (8, all_of(delivery, maybe(fields(result=json), 2))),
            "delivery.retry": (6, all_of(delivery, maybe(fields(delay=spans), 2), reason)),
            "delivery.bury": (2, all_of(delivery, reason)),
            "delivery.release": (2, delivery),
            "delivery.extend": (2, all_of(delivery, fields(lease=some(LEASES)))),
            "delivery.report": (2, all_of(delivery, fields(done=some([1, 50]), of=some([50])))),
            "ack": (2, deliveries),
            "retry": (2, all_of(deliveries, maybe(fields(delay=spans)), reason)),
            "bury": (1, all_of(deliveries, reason)),
            "release": (2, either(fields(what=ids), fields(what=several(held, 2, 1)))),
            "extend": (1, all_of(deliveries, fields(lease=some(LEASES)))),
            "cancel": (6, all_of(fields(id=ids), only_if, maybe(fields(running=some([True]))))),
            "cancel_all": (
                3,
                all_of(rule_of_several, either(outcome, outcome, some([{"running": True}]))),
            ),
            "cancel_many": (
                2,
                all_of(fields(ids=several(ids, 3, 1)), maybe(fields(running=some([True])))),
            ),
            "close_group": (
                2,
                all_of(fields(group=groups, keep=spans), maybe(fields(running=some([True])))),
            ),
            "reopen_group": (2, fields(group=groups)),
            "closed_groups": (1, maybe(fields(limit=some([1])))),
            "reschedule": (4, all_of(fields(id=ids), due, only_if)),
            "reschedule_all": (2, all_of(fields(group=groups), due, outcome)),
            "edit": (6, all_of(fields(id=ids), edited, maybe(fields(if_version=self._versions())))),
            "hold": (2, fields(id=ids)),
            "resume": (4, maybe(fields(id=ids), 2)),
            "run_now": (3, fields(id=ids)),
            "backfill": (1, fields(id=ids, after=moments, before=moments)),
            "undo": (5, fields(undo=some([UndoToken(), UndoToken(), UndoToken(1)]))),
            "overdue": (1, some([{}])),
            "recover": (3, all_of(fields(plan=plan), maybe(fields(dry_run=some([True])), 4))),
            "revive": (
                4,
                all_of(
                    maybe(fields(ids=several(ids, 3, 1)), 2), maybe(fields(delay=spans)), outcome
                ),
            ),
            "purge": (
                2,
                all_of(fields(state=some(states)), maybe(fields(before=moments)), outcome),
            ),
            "configure": (3, settings),
            "pause": (1, either(some([{}]), *[fields(lasting=spans), fields(until=moments)] * 2)),
            "delete": (1, some([{}])),
            "load": (1, fields(lines=some([Exported("q"), Exported("q2")]))),
            "export": (1, some([{}])),
            "get": (2, fields(id=ids)),
            "peek": (1, some([{"count": 10_000}])),
            "scan": (
                2,
                all_of(
                    either(fields(state=some([*states, "leased"])), rule_of_several),
                    fields(page=some([2, 100])),
                ),
            ),
            "search": (1, either(fields(id=ids), fields(group=groups), fields(state=some(states)))),
            "counts": (1, some([{}])),
            "audit": (1, some([{}])),
            "forecast": (1, fields(bucket=some([60, "1h"]), repeats=some([True]))),
            "explain": (4, fields(id=ids)),
            "history": (1, fields(id=ids)),
            "ended": (1, all_of(maybe(fields(how=some(ENDINGS)), 2), maybe(fields(after=moments)))),
            "result": (2, fields(id=ids)),
        }
        """By the name of a call: how often it comes, and what draws its arguments."""

    def after(self, seconds: float) -> Any:
        """Return the time so many seconds after the start."""
        return to_datetime(self._start + round(seconds * 1_000))

    def _rules(self) -> list[bide.Every | bide.Cron]:
        """Return rules by which messages repeat."""
        return [
            bide.Every(5),
            bide.Every("1m", times=2),
            bide.Every(30, missed="all", start=self.after(1)),
            bide.Every("1h", missed="skip", grace=30),
            bide.Every(5, until=self.after(60)),
            bide.Cron("30 2 * * *", "Europe/Berlin"),
            bide.Cron("*/15 * * * *", times=3, missed="all"),
        ]

    @staticmethod
    def _versions() -> Draw:
        return lambda chance: chance.choice([Version(chance.choice(IDS)), "0" * 16])

    @staticmethod
    def _dues() -> Draw:
        return lambda chance: DueTime(chance.choice(IDS))


FIRST = ["configure", "put", "put", "put_many"]
"""The calls that a sequence begins with."""

_SETTLING = [
    "ack",
    "bury",
    "delivery.ack",
    "delivery.ack",
    "delivery.bury",
    "delivery.extend",
    "delivery.report",
    "delivery.retry",
    "delivery.retry",
    "retry",
]
FOLLOWING = {
    "claim": _SETTLING,
    "take": _SETTLING,
    "delivery.extend": _SETTLING,
    **{call: ["undo"] for call in ("cancel_all", "purge", "recover", "reschedule_all", "revive")},
    "hold": ["resume", "run_now"],
}
"""What a call is often followed by, at once or after some time."""

_OWN_ID = ("put", "put_if_same", "cancel", "reschedule", "edit")
"""Calls whose condition is mostly about the message that they name."""


def _about_own(arguments: dict[str, Any], chance: Random) -> dict[str, Any]:
    """Let the condition of a call be about the message that it names, in three of four cases."""
    kinds = (Version, DueTime)
    return {
        name: type(value)(arguments["id"])
        if isinstance(value, kinds) and chance.randrange(4)
        else value
        for name, value in arguments.items()
    }


def drawn(seed: int, length: int) -> Sequence:
    """Return the sequence of a seed, with so many steps."""
    chance = Random(seed)
    calls = Calls(chance.choice(STARTS))
    names = [*calls.draws]
    weights = [often for often, _ in calls.draws.values()]
    steps: list[Step] = []
    followed = ""
    while len(steps) < length:
        queue, worker = chance.choice(QUEUES), chance.choice(WORKERS)
        (call,) = FIRST[len(steps) :][:1] or chance.choices(names, weights)
        if followed in FOLLOWING and call != "wait":
            if chance.randrange(2) == 0:
                call, queue = chance.choice(FOLLOWING[followed]), steps[-1].queue
            followed = ""
        arguments = calls.draws[call][1](chance)
        if call in _OWN_ID:
            arguments = _about_own(arguments, chance)
        if call == "wait" and steps:
            queue = steps[-1].queue  # that of the call before it, for the one that may follow
        else:
            followed = call
        steps.append(Step(call, arguments, queue, worker))
    return Sequence(calls._start, tuple(steps))
