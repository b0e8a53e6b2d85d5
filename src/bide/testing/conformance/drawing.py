"""Random commands, drawn from the declarations of their fields.

A field has the same values in every command, those of its name; a choice has all that its type
allows. So scripts use each command and field, or the import of this module fails. There are few ids
and short times, so that commands interact.
"""

from collections.abc import Callable, Iterable
from random import Random
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

from msgspec import NODEFAULT
from msgspec.structs import fields, replace

from bide.model import commands as cmd
from bide.model.message import (
    EXPIRED_KEEP,
    IN_TRANSIT,
    KEPT_FAILURES,
    RUN_ENDED,
    Failure,
    Item,
    Progress,
    State,
)
from bide.model.options import OPTIONS
from bide.model.replies import ClosedGroup
from bide.model.times import LIMITS
from bide.testing.conformance.driver import HOUR, OTHER_RULE, RULE, RUNS, START

T = TypeVar("T")
Draw = Callable[[Random], T]
"""Draws a value by chance."""

Script = list[tuple[int, list[cmd.Command]]]
"""Steps: how many milliseconds time moves on, and the batch that is executed then."""

IDS = ["a", "10", "9", "1e1"]
QUEUES = ["q", "q2"]
GROUPS = ["g", "g2"]
STEPS = [*[0, 0, 0, 1, 1, 2, 3, 5, 10] * 4, EXPIRED_KEEP]
"""By how many milliseconds time moves on."""

SORTED: list[State] = ["delayed", "leased", "dead", "acked", "expired"]
"""States whose messages have one order; ready ones have theirs once a claim has looked at them."""
SEEN, SEEN_DUE = "seen", -1
"""The version and the due time that a message has when the step of the command is played."""
LARGE = b'"%s"' % (b"x" * 16_000)
"""A large body."""

BUDGETS = [24_000, 40_000]
"""Room for one or two large bodies, however an engine counts what else a message has."""


def some(values: Iterable[T]) -> Draw[T]:
    """Return what draws one of some values."""
    choices = list(values)
    return lambda chance: chance.choice(choices)


def either(*draws: Draw[Any]) -> Draw[Any]:
    """Return what draws from one of several."""
    return lambda chance: chance.choice(draws)(chance)


def several(draw: Draw[T], most: int, least: int = 0) -> Draw[list[T]]:
    """Return what draws a list of `least` to `most` values."""
    return lambda chance: [draw(chance) for _ in range(chance.randint(least, most))]


def struct(struct_type: Any, **own: Draw[Any]) -> Draw[Any]:
    """Return what draws a struct; some fields have draws of their `own`.

    The others have the values of `VALUES`, or all values of their type. An optional one has its
    default half of the times.
    """
    draws: dict[str, Draw[Any]] = {}
    for field in fields(struct_type):
        if draw := own.get(field.name):
            draws[field.name] = draw
        elif (draw := VALUES.get(field.name)) is None:
            draws[field.name] = some(_choices(field.type, field.name))
        elif field.required:
            draws[field.name] = draw
        else:
            factory = field.default_factory
            default = field.default if factory is NODEFAULT else factory()
            draws[field.name] = either(some([default]), draw)
    return lambda chance: struct_type(**{name: draw(chance) for name, draw in draws.items()})


def _choices(value_type: Any, name: str) -> list[Any]:
    """Return all values of a field's type; of an option with bounds, its default and its bounds.

    Args:
        value_type: a bool, literals, `None`, or a union of these.
        name: of the field.
    """
    if value_type in (bool, NoneType):
        return [True, False] if value_type is bool else [None]
    if get_origin(value_type) is Literal:
        return list(get_args(value_type))
    if (option := OPTIONS.get(name)) is not None and option.least is not None:
        return [option.default, option.least, option.most]
    members = get_args(value_type)
    assert members, f"scripts have no values for the field {name}; add some to VALUES"
    return [value for member in members for value in _choices(member, name)]


ids = some([*IDS[:1] * 2, *IDS])
moments = some([0, *(START + ms for ms in (-5, -1, 0, 1, 2, 5, 10))])
failure = Failure(1, START - 3, "w9", "no")


def next_run(after: int, number: int) -> cmd.NextRun:
    """Return a run that is due so many milliseconds after the start."""
    return cmd.NextRun(START + after, RUNS[number])


VALUES: dict[str, Draw[Any]] = {
    "actor": some(["ann"]),
    "after": moments,
    "at": moments,
    "attempt": some([1, 2]),
    "attempts": some([1, 2, 2, 3]),
    "before": moments,
    "bucket": some([1, 5, HOUR]),
    "buckets": some([0, 1, 3]),
    "count": some([0, 1, 1, 2, 3, 10]),
    "created": some([0, START - 9]),
    "cursor": some([None]),  # `dumped` follows those of the engine
    "data": some([b"1", b"1", b"2", b"2", LARGE]),
    "delay": some([0, 1, 2, 5, 20, HOUR]),
    "died": some([None, START - 2, START + 3]),
    "dues": several(some([*(START + ms for ms in (-5, -1, 0, 1, 2, 5, 10, 20, HOUR))]), 3, 3),
    "expires": some([None, 0, 2, 10]),
    "failures": some([(failure,), (failure,) * KEPT_FAILURES]),
    "group": some([None, *GROUPS, *GROUPS]),
    "headers": some([None, {}, {"a": "b"}]),
    "history": some([0, 3, EXPIRED_KEEP]),
    "holder": some(["w1", "w2"]),
    "id": ids,
    "ids": either(*[several(ids, 3, 1)] * 7, several(ids, 0)),
    "if_due": some([None, None, SEEN_DUE, SEEN_DUE, START, START + 1]),
    "if_dues": either(some([[]]), several(some([SEEN_DUE, SEEN_DUE, SEEN_DUE, START]), 3, 3)),
    "if_version": some([None, None, SEEN, SEEN, SEEN, "0" * 16]),
    "keep": some([0, 3, 10, HOUR, 3 * EXPIRED_KEEP]),
    "latest": some([0, 2, 20]),
    "lease": some([1, 2, 3, 10, 100, 100, 100]),
    "max_bytes": some([0, cmd.MAX_BYTES, *BUDGETS]),
    "next": some(
        [
            [next_run(5, 1), None, next_run(HOUR, 2), None, None],
            [next_run(HOUR, 1), next_run(0, 2), next_run(2, 1), next_run(20, 1), None],
            [None, next_run(HOUR, 2), next_run(HOUR, 1), next_run(0, 1), None],
        ]
    ),
    "outbox": some(["shop", "mail"]),
    "overdue": some(["", "spread 10m"]),
    "paused": some([False, False, True]),
    "paused_for": some([0, 3, HOUR]),
    "paused_until": some([START - 1, START + 10, START + HOUR]),
    "prefix": some(["", "1", "10", "a", "z"]),
    "priority": some([0, 1, 9, 10, 255]),
    "progress": some([[Progress(1), None, Progress(40, 100, "rows"), Progress(0.5), None]]),
    "queue": some([*QUEUES[:1] * 4, *QUEUES[1:]]),
    "reason": some(["", "no", f"{IN_TRANSIT}move x"]),
    "result_ttl": some([0, 2, EXPIRED_KEEP]),
    "results": some([[b"1", None, b"[2]", b"3", None]]),
    "rule": some([None, None, None, RULE, OTHER_RULE]),
    "run": some([None, RUNS[0], RUN_ENDED + RUNS[0]]),
    "secret": some([None]),
    "stored": some([False]),  # engines may count some bytes more
    **{name: some([0, 1_500, 15_000] if "rate" in name else [0, 1, 2]) for name in LIMITS},
}
# Which token a lease has, and how many were given after it: `Player` knows them.
lease = struct(
    cmd.Lease, id=some(["right"] * 5 + ["stale", "another's"]), token=some([0, 0, 0, 1, 1, 2, 3, 4])
)
origin = struct(cmd.Origin, rows=several(some("12"), 1, 1), before=some(["", "", "9.0.2"]))
new_time = struct(
    cmd.NewTime,
    due=either(some([None]), moments),
    rule=some([None, RULE, OTHER_RULE]),
    run=some([None]),  # the message may have no rule
)
VALUES |= {
    "items": several(struct(Item), 4, 1),
    "leases": several(lease, 5, 1),
    "origin": either(*[some([None])] * 3, origin),
    "times": either(*[some([[]])] * 3, several(new_time, 3, 3)),
    "versions": either(some([[]]), several(some([SEEN, SEEN, "0" * 16]), 3, 3)),
    "where": either(some([None]), struct(cmd.Where)),
}


def command(command_type: Any, **own: Draw[Any]) -> Draw[cmd.Command]:
    """Return what draws a command whose fields go together, as a server demands."""
    draw_struct = struct(command_type, **own)

    def draw(chance: Random) -> Any:
        drawn = draw_struct(chance)
        left_out = _left_out(drawn)
        names = [name for name in drawn.__struct_fields__ if name not in left_out]
        values = {name: getattr(drawn, name) for name in names}
        ids = names_of(drawn)
        for name in ("versions", "dues", "if_dues"):  # one for each id
            if values.get(name):
                values[name] = values[name][: len(ids)]
        if values.get("ids") is not None and isinstance(drawn, cmd.Purge):
            values["state"] = "dead"  # only dead letters are purged by id
        if isinstance(drawn, cmd.Extend) and not drawn.progress:
            values["lease"] = drawn.lease or 100  # without a report it must extend
        if values.get("times"):
            values["times"] = drawn.times[: len(ids)]
        elif isinstance(drawn, cmd.Edit):
            values |= _rule_and_run(drawn)
        if values.get("items"):
            values["items"] = [replace(item, **_rule_and_run(item)) for item in drawn.items]
        if values.get("origin"):  # a row is always about the same message
            rows = [f"{id}.{index}.{drawn.origin.rows[0]}" for index, id in enumerate(ids)]
            values["origin"] = replace(drawn.origin, rows=rows) if rows else None
        if values.get("on_conflict", "replace") != "replace":  # only that goes with `latest`
            values["items"] = [replace(item, latest=None) for item in values["items"]]
        return command_type(**values)

    return draw


def _rule_and_run(drawn: Item | cmd.Edit) -> dict[str, Any]:
    """Return the rule and the run of a message: a run needs a rule."""
    if not isinstance(drawn.rule, str):
        return {"rule": drawn.rule, "run": drawn.rule}
    return {"rule": drawn.rule, "run": drawn.run if isinstance(drawn.run, str) else None}


def _left_out(drawn: Any) -> set[str]:
    """Return the fields that a command cannot have, or that would make replies differ."""
    match drawn:
        case cmd.Put(on_conflict="keep" | "revive"):
            return {"if_version"}
        case cmd.Cancel(where=cmd.Where()):
            return {"ids", "if_due", "if_version", "versions", "origin"}
        case cmd.Purge(ids=None):
            return {"versions", "moved"}
        case cmd.Purge():
            return {"before"}
        case cmd.Scan(prefix=str()):
            return {"state", "where", "limit", "max_bytes"}
        case cmd.Scan() if drawn.state not in SORTED:  # only whole pages are equal
            return {"limit", "max_bytes"}
    left_out = {"at", "delay", "rule", "run"} if getattr(drawn, "times", ()) else set[str]()
    return left_out | {"if_version"} if getattr(drawn, "versions", ()) else left_out


def names_of(command: Any) -> list[str]:
    """Return the ids that a command names, except by leases."""
    return (
        [item.id for item in getattr(command, "items", ())] or getattr(command, "ids", None) or []
    )


later = struct(
    Item, at=some([None]), died=some([None]), delay=some([0, 5, HOUR]), latest=some([2, 20, HOUR])
)
debounce = command(cmd.Put, on_conflict=some(["replace"]), items=several(later, 4, 1))
OFTEN: dict[Any, int] = {
    cmd.Put: 11,
    cmd.Claim: 11,
    cmd.Ack: 4,
    cmd.Cancel: 4,
    cmd.RetryCommand: 4,
    cmd.Renew: 6,
    cmd.BuryCommand: 2,
    cmd.CloseGroup: 2,
    cmd.Reschedule: 3,
    cmd.Postpone: 3,
    cmd.Edit: 3,
    cmd.Purge: 3,
}
"""How many times more often than others these commands come."""

OWN: dict[Any, dict[str, Draw[Any]]] = {
    cmd.CloseGroup: {"group": some(GROUPS), "keep": some([1, 3, 10, 10, HOUR])},
    cmd.ReopenGroup: {"group": some(GROUPS)},
    cmd.ClosedGroups: {
        "after": some([None, ClosedGroup(START + 5, GROUPS[0])]),
        "limit": some([1, 500]),
    },
    cmd.Postpone: {"priority": some([None, None, None, 0, 9])},
    cmd.Scan: {"limit": some([1, 2, 3, 500])},
    cmd.ListEnded: {"limit": some([1, 2, 3, 500])},
    cmd.Extend: {"lease": some([1, 2, 3, 10, 100, 100, 100, None])},
}
"""Fields that have other values in these commands."""


def _script(most: int, **own: Draw[Any]) -> Draw[Script]:
    """Return what draws a script, with up to so many commands in a batch.

    Args:
        most: the maximum number of commands in a batch.
        own: draws of some fields, for all commands but those in `OWN`.
    """
    first = several(command(cmd.Configure, **own), 3, 1)
    draws = [debounce] * 3
    for command_type in get_args(cmd.Command):
        own_draws = OWN.get(command_type, own)
        draws += [command(command_type, **own_draws)] * OFTEN.get(command_type, 1)
    batch = several(either(*draws), most, 1)

    def draw(chance: Random) -> Script:
        count = chance.randint(20, 40)
        return [(0, first(chance)), *((chance.choice(STEPS), batch(chance)) for _ in range(count))]

    return draw


scripts = _script(5, **dict.fromkeys(LIMITS, some([None])))
limited_scripts = _script(6)
"""Scripts of limited queues."""
