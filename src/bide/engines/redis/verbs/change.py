"""Cancel, reschedule, revive, purge, configure: what may be done to messages that nobody holds."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from bide.engines.redis.records import Arg, as_outcome, when
from bide.engines.redis.verbs.job import SLICE, Call, Job, decode, parts
from bide.model.commands import (
    BULK,
    Bury,
    Cancel,
    Configure,
    Purge,
    Release,
    Reschedule,
    Revive,
    Where,
)
from bide.model.message import REASON_LENGTH
from bide.model.replies import Affected, Outcome, Outcomes, Settings

__all__ = [
    "cancel", "cancel_where", "configure", "is_unconditional", "purge", "release", "reschedule",
    "revive", "rule_of", "set_aside", "sweep",
]  # fmt: skip


def _by_id(
    run: Sequence[Cancel | Reschedule | Release | Revive | Bury | Purge],
    script: str,
    head: Sequence[Arg],
    size: int,
) -> Job:
    """Change messages of consecutive commands that say the same."""
    queue = run[0].queue
    ids = [id for command in run for id in command.ids or ()]
    lots = _distinct(ids, size)
    texts = yield [Call(script, queue, [*head, *lot]) for lot in lots]
    outcomes: list[Outcome] = []
    for lot, text in zip(lots, texts, strict=True):
        outcomes += map(as_outcome, lot, decode(text)[2])
    replies = []
    first = 0
    for command in run:
        mine = outcomes[first : first + len(command.ids or ())]
        first += len(mine)
        dues = [
            o.due for o in mine if o.done and o.state in ("delayed", "ready") and o.due is not None
        ]
        replies.append(Outcomes(mine, min(dues) if dues else None))
    return list(replies)


def _distinct(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    """Split ids so that no part is too long or names a message twice."""
    if len(set(ids)) == len(ids):
        return parts(ids, size)
    lots: list[Sequence[str]] = []
    part: dict[str, None] = {}
    for id in ids:
        if len(part) == size or id in part:
            lots.append(list(part))
            part = {}
        part[id] = None
    return [*lots, list(part)]


def _still(command: Cancel | Reschedule) -> str:
    """Return what the caller saw, as the scripts read it."""
    due = "" if command.if_due is None else str(command.if_due)
    return due if command.if_version is None else f"{due}v{command.if_version}"


def is_unconditional(command: Cancel) -> bool:
    """Tell whether a cancel names messages by id, whatever has become of them."""
    return command.where is None and not _still(command)


def cancel(run: Sequence[Cancel]) -> Job:
    """Take messages back by id."""
    return _by_id(run, "cancel", (_still(run[0]),), SLICE)


def release(run: Sequence[Release]) -> Job:
    """End leases, whoever has them."""
    return _by_id(run, "release", (run[0].reason[:REASON_LENGTH],), SLICE // 4)


def reschedule(run: Sequence[Reschedule]) -> Job:
    """Move messages to another moment."""
    first = run[0]
    head = when(first.at, first.delay), _still(first)
    return _by_id(run, "reschedule", head, SLICE // 4)


def revive(run: Sequence[Revive]) -> Job:
    """Let dead letters be handed out again."""
    return _by_id(run, "revive", (run[0].delay,), SLICE // 4)


def _bound(moment: int | None) -> Arg:
    return "" if moment is None else moment


class Rule(NamedTuple):
    """Which messages a command names, and what it does with them."""

    which: str
    where: Where
    counted: str
    """What the deleted ones are counted as; empty: as nothing."""
    most: int
    change: bool


def sweep(queue: str, rule: Rule) -> Generator[list[Call], list[Any], tuple[int, bool]]:
    """Delete or count what a rule names, in slices; return how many, and whether one is left."""
    which, where, counted, most, change = rule
    total, cursor = 0, ""
    group = where.group or ""
    bounds = _bound(where.after), _bound(where.before), group
    while total < most:
        left = min(SLICE, most - total) if change else most
        head = which, *bounds, left, cursor, counted, int(change)
        (text,) = yield [Call("sweep", queue, head)]
        found, following = decode(text)
        total += found
        cursor = following or ""
        if not following and (not change or group or found < left):
            return total, False
    while change:
        (text,) = yield [Call("sweep", queue, (which, *bounds, 1, cursor, "", 0))]
        found, cursor = decode(text)
        if found or not cursor:
            return total, bool(found)
    return total, False


def rule_of(command: Cancel | Purge) -> Rule:
    """Return the rule of a command that names no ids."""
    which: str
    if isinstance(command, Purge):
        which = "due" if command.state == "ready" else command.state
        counted = "" if command.state in ("acked", "expired") else "purged"
        return Rule(which, Where(before=command.before), counted, BULK, change=True)
    where = command.where or Where()
    which = "pending" if where.group is None else "group"
    most = 1 << 53 if command.dry_run else BULK
    return Rule(which, where, "cancelled", most, change=not command.dry_run)


def cancel_where(command: Cancel) -> Job:
    """Take messages back by a rule."""
    count, more = yield from sweep(command.queue, rule_of(command))
    return [Affected(count, more=more)]


def set_aside(command: Bury) -> Job:
    """Make dead letters of messages that nobody holds."""
    return _by_id([command], "set_aside", (command.reason[:REASON_LENGTH],), SLICE // 4)


def purge(command: Purge) -> Job:
    """Delete messages of a state, or dead letters by id."""
    if command.ids is not None:
        return (yield from _by_id([command], "discard", (), SLICE // 4))
    if command.state == "leased":  # somebody holds those
        return [Affected(0)]
    count, more = yield from sweep(command.queue, rule_of(command))
    return [Affected(count, more=more)]


def configure(command: Configure) -> Job:
    """Set what is given."""
    paused = "" if command.paused is None else int(command.paused)
    keep = "" if command.keep is None else command.keep
    (text,) = yield [Call("configure", command.queue, (paused, keep))]
    now, _, is_paused, kept, resumed = decode(text)
    return [Settings(is_paused, kept, now if resumed else None)]
