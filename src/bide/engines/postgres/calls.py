"""From commands to calls of the schema's functions, and from their rows to replies."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import UNSET

from bide.engines.postgres.arrays import Array, integers, texts
from bide.engines.postgres.forwarding import once
from bide.engines.postgres.putting import outcome, puts
from bide.engines.postgres.reading import (
    NEVER,
    Run,
    claim,
    count,
    explain,
    find,
    forecast,
    history,
    of_version,
    of_versions,
    queues,
    scan,
)
from bide.model import commands as cmd
from bide.model.message import REASON_LENGTH, STATES
from bide.model.replies import PAUSES, Affected, Deleted, Outcome, Outcomes, Reply, Settings
from bide.model.times import LIMITS
from bide.model.versions import versions_of

__all__ = ["change_outcomes", "is_one_call", "replies"]


def replies(
    run: Run, commands: Sequence[cmd.Command], now: int | None, *, hopeful: bool = False
) -> list[Reply]:
    """Carry out commands in order, within one transaction of `run`'s connection.

    Args:
        run: calls a function of the schema.
        commands: what to do.
        now: Unix milliseconds to go by; `None`: the server's clock.
        hopeful: puts may raise `UniqueViolation`, and cost less: without it the same succeeds.
    """
    command = commands[0]
    if len(commands) == 1 and isinstance(command, cmd.Put) and command.origin is None:
        return puts(run, command.queue, [command], now, hopeful)

    def alone(command: cmd.Command) -> Reply:
        return replies(run, [command], now)[0]

    found: list[Reply] = []
    for (kind, queue, origin), group in groupby(commands, _together):
        same = list(group)
        if origin is not None:
            found += [
                once(run, command, lambda left: replies(run, [left], now)[0]) for command in same
            ]
        elif kind is cmd.Put:
            found += puts(run, queue, same, now, hopeful)  # type: ignore[arg-type]
        else:
            found += [_carry_out(run, command, now) for command in same]
    return found


def _carry_out(run: Run, command: Any, now: int | None) -> Reply:
    verb = _VERBS[type(command)]
    ids = getattr(command, "ids", None) or ()
    if len(set(ids)) == len(ids) or not (wanted := versions_of(command)):
        return verb(run, command, now)
    of_versions(run, command.queue, wanted)  # locks them in the order of all commands
    outcomes: list[Outcome] = []
    wakes: list[int] = []
    for id in ids:  # one after the other: the first change may give another version
        version = {"versions": [wanted[id]]} if getattr(command, "versions", ()) else {}
        reply = verb(run, msgspec.structs.replace(command, ids=[id], **version), now)
        assert isinstance(reply, Outcomes)
        outcomes += reply.outcomes
        wakes += [] if reply.wake is None else [reply.wake]
    return Outcomes(outcomes, min(wakes, default=None))


def _together(command: cmd.Command) -> tuple[type, str, cmd.Origin | None]:
    return type(command), command.queue, getattr(command, "origin", None)


def is_one_call(command: cmd.Command) -> bool:
    """Whether a command is one call of one function, which is a transaction of its own."""
    if getattr(command, "origin", None) is not None:
        return False
    match command:
        case cmd.Put(if_version=None) | cmd.Claim() | cmd.Ack() | cmd.Extend() | cmd.Retry():
            return True
        case cmd.Release() | cmd.Configure():
            return True
        case cmd.Cancel(if_version=None) | cmd.Reschedule(if_version=None):
            return not command.versions
        case cmd.Revive() | cmd.Purge():
            return not command.versions
        case cmd.Edit(if_version=None):
            return True
        case _:
            return command.only_reads


# Changing.


def _change(
    run: Run, verb: str, command: Any, ids: Sequence[str], now: int | None, *,
    tokens: Sequence[int] | None = None, at: int | None = None, delay: int = 0,
    if_due: int | None = None, if_version: str | None = None, reason: str = "",
    untouched: bool = False, results: Sequence[bytes | None] = (),
) -> Outcomes:  # fmt: skip
    only = None
    if versions := getattr(command, "versions", None):
        only = integers(of_versions(run, command.queue, dict(zip(ids, versions, strict=True))))
    elif if_version is not None:
        only = integers(of_version(run, command.queue, ids, if_version))
    rows = run(
        "_change", verb, command.queue, now, texts(ids),
        None if tokens is None else integers(tokens), at, delay, if_due,
        msgspec.json.encode(reason[:REASON_LENGTH]).decode(), untouched, only,
        command.actor, _texts_of(results),
    )  # fmt: skip
    return change_outcomes(ids, rows)


def _texts_of(results: Sequence[bytes | None]) -> Array | None:
    if not any(results):
        return None
    return texts([None if result is None else result.decode() for result in results])


def change_outcomes(ids: Sequence[str], rows: list[Any]) -> Outcomes:
    """Return the outcomes of a change by id, of the rows that it answers."""
    by_number = {row.number: row for row in rows}
    outcomes = []
    for number, id in enumerate(ids, 1):
        row = by_number.get(number)
        outcomes.append(Outcome(id, False) if row is None else outcome(id, row.done, row))
    wakes = [
        o.due for o in outcomes
        if o.done and o.state in ("delayed", "ready") and o.due is not None
    ]  # fmt: skip
    wakes += [row.due for row in rows if row.number == 0 and row.due is not None]
    return Outcomes(outcomes, min(wakes, default=None))


def _cancel(run: Run, command: cmd.Cancel, now: int | None) -> Reply:
    where = command.where
    if where is None:
        return _change(
            run, "cancel", command, command.ids, now,
            if_due=command.if_due, if_version=command.if_version,
        )  # fmt: skip
    if command.dry_run:
        bounds = (where.after or 0, NEVER if where.before is None else where.before)
        ((count,),) = run("_count_unheld", command.queue, where.group, *bounds)
        return Affected(count)
    return _delete_where(
        run,
        "cancelled",
        command.queue,
        now,
        None,
        where.group,
        where.after,
        where.before,
        command.actor,
    )


def _delete_where(run: Run, cause: str, queue: str, now: int | None, *rule: Any) -> Affected:
    (row,) = run("_delete_where", cause, queue, now, *rule)
    return Affected(row.count, row.more)


def _purge(run: Run, command: cmd.Purge, now: int | None) -> Reply:
    if command.ids is not None:
        return _change(run, "purge", command, command.ids, now)
    state = STATES.index(command.state)
    return _delete_where(
        run, "purged", command.queue, now, state, None, None, command.before, command.actor
    )


def _reschedule(run: Run, command: cmd.Reschedule, now: int | None) -> Reply:
    return _change(
        run, "reschedule", command, command.ids, now, at=command.at, delay=command.delay,
        if_due=command.if_due, if_version=command.if_version,
    )  # fmt: skip


def _edit(run: Run, command: cmd.Edit, now: int | None) -> Reply:
    only = None
    if command.if_version is not None:
        only = integers(of_version(run, command.queue, command.ids, command.if_version))
    options, data = command.options, None if command.data is UNSET else command.data
    headers = options.get("headers")
    rows = run(
        "_edit", command.queue, now, texts(command.ids), texts(list(options)), data,
        None if data is None else command.json, options.get("priority"), options.get("attempts"),
        options.get("expires"), options.get("group"),
        None if headers is None else msgspec.json.encode(headers).decode(), command.at,
        command.delay, only,
    )  # fmt: skip
    return change_outcomes(command.ids, rows)


def _revive(run: Run, command: cmd.Revive, now: int | None) -> Reply:
    return _change(run, "revive", command, command.ids, now, delay=command.delay)


def _release(run: Run, command: cmd.Release, now: int | None) -> Reply:
    return _change(run, "release", command, command.ids, now, reason=command.reason)


def _held(run: Run, verb: str, command: Any, now: int | None, **options: Any) -> Outcomes:
    ids, tokens = [held.id for held in command.leases], [held.token for held in command.leases]
    return _change(run, verb, command, ids, now, tokens=tokens, **options)


def _extend(run: Run, command: cmd.Extend, now: int | None) -> Reply:
    return _held(run, "extend", command, now, delay=command.lease)


def _ack(run: Run, command: cmd.Ack, now: int | None) -> Reply:
    ids = [held.id for held in command.leases]
    tokens = [held.token for held in command.leases]
    if len(set(ids)) < len(ids):  # a message named twice: one after the other
        return _held(run, "ack", command, now, results=command.results)
    rows = run("_ack", command.queue, now, texts(ids), integers(tokens), _texts_of(command.results))
    if not rows:
        return Outcomes([Outcome(id, True) for id in ids])
    return change_outcomes(ids, rows)


def _retry(run: Run, command: cmd.Retry, now: int | None) -> Reply:
    return _held(
        run, "retry", command, now,
        delay=command.delay, reason=command.reason, untouched=command.release,
    )  # fmt: skip


def _bury(run: Run, command: cmd.Bury, now: int | None) -> Reply:
    held = _held(run, "bury", command, now, reason=command.reason)
    if not command.ids:
        return held
    unheld = _change(run, "bury_unheld", command, command.ids, now, reason=command.reason)
    return Outcomes(held.outcomes + unheld.outcomes, held.wake)


def _configure(run: Run, command: cmd.Configure, now: int | None) -> Reply:
    limits = [getattr(command, name) for name in LIMITS]
    (row,) = run(
        "_configure", command.queue, now, command.paused, command.keep, command.actor, PAUSES,
        command.history, command.result_ttl, None if limits == _NO_LIMITS else integers(limits),
    )  # fmt: skip
    wake = row.moment if row.wakes else None
    return Settings(row.paused, row.keep, wake, row.history, row.result_ttl, *row.limits)


_NO_LIMITS = [None] * len(LIMITS)


def _delete(run: Run, command: cmd.Delete, now: int | None) -> Reply:
    ((deleted,),) = run("_delete", command.queue, now)
    if deleted:
        return Deleted(True)
    counts = count(run, cmd.Count(command.queue), now)
    return Deleted(False, counts.sizes, counts.kept)


_VERBS: dict[type, Callable[[Run, Any, int | None], Reply]] = {
    cmd.Cancel: _cancel,
    cmd.Reschedule: _reschedule,
    cmd.Edit: _edit,
    cmd.Claim: claim,
    cmd.Extend: _extend,
    cmd.Ack: _ack,
    cmd.Retry: _retry,
    cmd.Bury: _bury,
    cmd.Release: _release,
    cmd.Revive: _revive,
    cmd.Find: find,
    cmd.History: history,
    cmd.Scan: scan,
    cmd.Count: count,
    cmd.Forecast: forecast,
    cmd.Explain: explain,
    cmd.Configure: _configure,
    cmd.Purge: _purge,
    cmd.Delete: _delete,
    cmd.Queues: queues,
}
