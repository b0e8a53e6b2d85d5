"""From commands to calls of the schema's functions, and from their rows to replies."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import UNSET

from bide.engines.origins import executed_once
from bide.engines.postgres.arrays import integers, texts
from bide.engines.postgres.batch import PostgresBatch
from bide.engines.postgres.constants import OUTCOME_STATES
from bide.engines.postgres.putting import only_puts, outcome, puts, some
from bide.engines.postgres.reading import (
    FOREVER,
    claim,
    count,
    explain,
    find,
    forecast,
    history,
    of_versions,
    queues,
)
from bide.engines.postgres.scanning import scan
from bide.model import commands as cmd
from bide.model.command_parts import versions_of
from bide.model.limits import MAX_FORWARDED
from bide.model.message import REASON_LENGTH, STATES
from bide.model.progress import Progress
from bide.model.replies import PAUSES, Affected, Deleted, Outcome, Outcomes, QueueSettings, Reply
from bide.model.times import LIMITS


def replies(batch: PostgresBatch, commands: Sequence[cmd.Command]) -> list[Reply]:
    """Carry out commands in order."""
    answers: list[Reply] = []
    for (kind, queue, origin), group in groupby(commands, _together):
        same: list[Any] = list(group)
        if origin is not None:
            answers += [_once(batch, command) for command in same]
        elif kind is cmd.Put:
            answers += puts(batch, queue, same)
        else:
            answers += [_carry_out(batch, command) for command in same]
    return answers


def _together(command: cmd.Command) -> tuple[type, str, cmd.Origin | None]:
    return type(command), command.queue, getattr(command, "origin", None)


def is_one_call(commands: Sequence[cmd.Command]) -> bool:
    """Whether commands need no `BEGIN`: they are a single call of a function, or only read."""
    if len(commands) > 1:
        return only_puts(commands)
    (command,) = commands
    more = (getattr(command, name, None) for name in ("origin", "if_version", "versions"))
    return not (isinstance(command, (cmd.BuryCommand, cmd.Delete)) or any(more))


def remembers(command: cmd.Command) -> bool:
    """Whether a command is one call of a function that remembers its answer by itself."""
    if not is_one_call([command]):
        return False
    match command:
        case cmd.Cancel(where=rule):
            return rule is None
        case cmd.Purge(ids=ids):
            return ids is not None
    return isinstance(command, _REMEMBERING)


def _once(batch: PostgresBatch, command: Any) -> Reply:
    """Execute a command of an outbox for the messages whose rows the queue does not remember."""
    queue, origin = command.queue, command.origin
    rows = batch.call("_forward", queue, origin.outbox, texts(origin.rows), origin.before)
    known = {row.name for row in rows}
    reply, done = executed_once(command, origin, known, lambda rest: replies(batch, [rest])[0])
    undone = sorted(set(origin.rows) - known - set(done))
    batch.call("_forwarded", queue, origin.outbox, texts(undone), MAX_FORWARDED)
    return reply


def _carry_out(batch: PostgresBatch, command: Any) -> Reply:
    verb = _VERBS[type(command)]
    ids = getattr(command, "ids", None) or ()
    if len(set(ids)) == len(ids) or not (wanted := versions_of(command)):
        return verb(batch, command)
    pairs = list(zip(ids, wanted, strict=True))
    of_versions(batch, command.queue, dict(pairs))  # locks them in the order of all commands
    outcomes: list[Outcome] = []
    wakes: list[int] = []
    for id, expected in pairs:  # one after the other: the first change may give another version
        fields = {"versions": [expected]} if getattr(command, "versions", ()) else {}
        reply = verb(batch, msgspec.structs.replace(command, ids=[id], **fields))
        assert isinstance(reply, Outcomes)
        outcomes += reply.outcomes
        wakes += [] if reply.wake is None else [reply.wake]
    return Outcomes(outcomes, min(wakes, default=None))


# Changing.

_STOPPING = OUTCOME_STATES.index("stopping")


def _change(batch: PostgresBatch, verb: str, command: Any, *, edit: object = None) -> Outcomes:
    """Do one thing to each message that a command names, as its other fields say."""

    def given(name: str, default: Any = None) -> Any:
        return getattr(command, name, default)

    if leases := given("leases", ()):
        ids, tokens = [held.id for held in leases], integers([held.token for held in leases])
        only = None
    else:
        ids, tokens = given("ids", []), None
        wanted = dict(zip(ids, versions_of(command), strict=False))
        only = integers(of_versions(batch, command.queue, wanted)) if wanted else None
    rows = batch.call(
        "_change",
        verb,
        command.queue,
        batch.now,
        ids=texts(ids),
        tokens=tokens,
        at=given("at"),
        delay=given("lease", given("delay", 0)),
        if_due=given("if_due"),
        reason=batch.json(given("reason", "")[:REASON_LENGTH]),
        untouched=given("release", False),
        only_seqs=only,
        actor=command.actor,
        notes=_notes(batch, command),
        edit=None if edit is None else batch.json(edit),
        **batch.identity,
    )
    if verb != "ack" and any(row.done or row.state == _STOPPING for row in rows):
        batch.positions[command.queue] = int.from_bytes(rows[-1].lsn)
    if verb == "ack" and not rows:
        return Outcomes([Outcome(id, True) for id in ids])
    return change_outcomes(ids, rows)


def _notes(batch: PostgresBatch, command: Any) -> bytes | None:
    """Return what a worker says of each of its messages: results of an ack, or reports."""
    match command:
        case cmd.Ack(results=results):
            notes = [None if result is None else result.decode() for result in results]
        case cmd.Extend(progress=reports):  # the store adds the time
            notes = [
                None if report is None else _encoded(msgspec.structs.replace(report, moment=0))
                for report in reports
            ]
        case _:
            return None
    if not any(notes):
        return None
    return texts([None if note is None else batch.storable(note) for note in notes])


def _encoded(report: Progress) -> str:
    return msgspec.json.encode(report).decode()


def change_outcomes(ids: Sequence[str], rows: list[Any]) -> Outcomes:
    """Return the outcomes of a change by id, of the rows that it answers."""
    by_number = {row.number: row for row in rows}
    outcomes = []
    for number, id in enumerate(ids, 1):
        row = by_number.get(number)
        outcomes.append(Outcome(id, False) if row is None else outcome(id, row.done, row))
    wakes = [
        o.due for o in outcomes if o.done and o.state in ("delayed", "ready") and o.due is not None
    ]
    wakes += [row.due for row in rows if row.number == 0 and row.due is not None]
    return Outcomes(outcomes, min(wakes, default=None))


def _cancel(batch: PostgresBatch, command: cmd.Cancel) -> Reply:
    where = command.where
    if where is None:
        return _change(batch, "stop" if command.running else "cancel", command)
    if command.dry_run:
        bounds = (where.after or 0, FOREVER if where.before is None else where.before)
        ((count,),) = batch.call.patiently(
            "_count_where", command.queue, where.group, *bounds, command.running
        )
        return Affected(count)
    rule = (None, where.group, where.after, where.before)
    return _delete_where(batch, "cancelled", command, *rule, running=command.running)


def _purge(batch: PostgresBatch, command: cmd.Purge) -> Reply:
    if command.ids is not None:
        return _change(batch, "purge", command)
    state = STATES.index(command.state)
    return _delete_where(batch, "purged", command, state, None, None, command.before)


def _delete_where(
    batch: PostgresBatch, cause: str, command: Any, *rule: Any, running: bool = False
) -> Affected:
    (row,) = batch.call(
        "_delete_where", cause, command.queue, batch.now, *rule, command.actor, running
    )
    if row.count or row.stopping:
        batch.positions[command.queue] = int.from_bytes(row.lsn)
    return Affected(row.count, row.more, row.stopping)


def _edit(batch: PostgresBatch, command: cmd.Edit) -> Reply:
    edit = command.options  # by the names of columns
    if (headers := edit.get("headers")) is not None:
        edit = {**edit, "headers": batch.json(headers)}
    if command.data is not UNSET:
        edit = {**edit, "data": f"\\x{command.data.hex()}", "is_json": command.json}
    return _change(batch, "edit", command, edit=edit)


def _bury(batch: PostgresBatch, command: cmd.BuryCommand) -> Reply:
    none_held = command.ids and not command.leases
    held = Outcomes([]) if none_held else _change(batch, "bury", command)
    if not command.ids:
        return held
    unheld = _change(batch, "bury_unheld", msgspec.structs.replace(command, leases=[]))
    return Outcomes(held.outcomes + unheld.outcomes, held.wake)


def _configure(batch: PostgresBatch, command: cmd.Configure) -> Reply:
    limits = [getattr(command, name) for name in LIMITS]
    (row,) = batch.call(
        "_configure",
        command.queue,
        batch.now,
        paused=command.paused,
        keep=command.keep,
        actor=command.actor,
        pauses=PAUSES,
        history=command.history,
        result_ttl=command.result_ttl,
        limits=some(limits, None, integers),
    )
    wake = row.moment if row.wakes else None
    return QueueSettings(
        paused=row.paused,
        keep=row.keep,
        wake=wake,
        history=row.history,
        result_ttl=row.result_ttl,
        **dict(zip(LIMITS, row.limits, strict=True)),
    )


def _delete(batch: PostgresBatch, command: cmd.Delete) -> Reply:
    ((deleted,),) = batch.call("_delete", command.queue, batch.now)
    if deleted:
        return Deleted(True)
    counts = count(batch, cmd.Count(command.queue))
    return Deleted(False, counts.sizes, counts.kept)


def _by(verb: str) -> Callable[[PostgresBatch, Any], Reply]:
    return lambda batch, command: _change(batch, verb, command)


_REMEMBERING = (
    cmd.Put,
    cmd.Reschedule,
    cmd.Edit,
    cmd.Claim,
    cmd.Extend,
    cmd.Ack,
    cmd.RetryCommand,
    cmd.Release,
    cmd.Revive,
)
_VERBS: dict[type, Callable[[PostgresBatch, Any], Reply]] = {
    cmd.Cancel: _cancel,
    cmd.Reschedule: _by("reschedule"),
    cmd.Edit: _edit,
    cmd.Claim: claim,
    cmd.Extend: _by("extend"),
    cmd.Ack: _by("ack"),
    cmd.RetryCommand: _by("retry"),
    cmd.BuryCommand: _bury,
    cmd.Release: _by("release"),
    cmd.Revive: _by("revive"),
    cmd.Find: find,
    cmd.History: history,
    cmd.Scan: scan,
    cmd.Count: count,
    cmd.ForecastCommand: forecast,
    cmd.Explain: explain,
    cmd.Configure: _configure,
    cmd.Purge: _purge,
    cmd.Delete: _delete,
    cmd.Queues: queues,
}
