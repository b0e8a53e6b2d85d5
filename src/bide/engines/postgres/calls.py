"""From commands to calls of the schema's functions, and from their rows to replies."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import UNSET

from bide.engines.origins import executed_once
from bide.engines.postgres.arrays import integers, texts
from bide.engines.postgres.batch import PostgresBatch
from bide.engines.postgres.connection import Argument
from bide.engines.postgres.constants import OUTCOME_STATES
from bide.engines.postgres.putting import only_puts, outcome, puts, unless_default
from bide.engines.postgres.reading import (
    FOREVER,
    claim,
    count,
    explain,
    find,
    forecast,
    history,
    list_ended,
    of_versions,
    queues,
)
from bide.engines.postgres.scanning import scan
from bide.model import commands as cmd
from bide.model.command_parts import versions_of
from bide.model.limits import MAX_FORWARDED
from bide.model.message import REASON_LENGTH, STATES, Progress
from bide.model.replies import (
    PAUSES,
    Affected,
    ClosedGroup,
    Deleted,
    GroupsClosed,
    Outcome,
    Outcomes,
    QueueSettings,
    Reply,
)
from bide.model.times import LIMITS


def replies(batch: PostgresBatch, commands: Sequence[cmd.Command]) -> list[Reply]:
    """Carry out commands in order; consecutive puts into one queue are joined."""
    answers: list[Reply] = []
    for (command_type, queue, origin), group in groupby(commands, _group_of):
        alike: list[Any] = list(group)
        if origin is not None:
            answers += [_once(batch, command) for command in alike]
        elif command_type is cmd.Put:
            answers += puts(batch, queue, alike)
        else:
            answers += [_carry_out(batch, command) for command in alike]
    return answers


def _group_of(command: cmd.Command) -> tuple[type, str, cmd.Origin | None]:
    """Return what consecutive commands must have in common to be joined."""
    return type(command), command.queue, getattr(command, "origin", None)


def is_one_call(commands: Sequence[cmd.Command]) -> bool:
    """Whether commands need no `BEGIN`: they are a single call of a function, or only read."""
    if len(commands) > 1:
        return only_puts(commands)
    (command,) = commands
    if isinstance(command, (cmd.BuryCommand, cmd.Delete)):
        return False  # both may be two calls: see `_bury` and `_delete`
    # For these another function is called before: see `_once` and `of_versions`.
    needs_look = (getattr(command, name, None) for name in ("origin", "if_version", "versions"))
    return not any(needs_look)


def remembers(command: cmd.Command) -> bool:
    """Whether a command is one call of a function that remembers its answer by itself.

    Of commands that name messages by id or by a rule, those by id.
    """
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
    # Remembers all rows at once, so that another process that forwards them waits.
    rows = batch.call(
        "_forward", queue, batch.now, origin.outbox, texts(origin.rows), origin.before
    )
    known = {row.name for row in rows}
    reply, done = executed_once(command, origin, known, lambda rest: replies(batch, [rest])[0])
    undone = sorted(set(origin.rows) - known - set(done))
    batch.call("_forwarded", queue, origin.outbox, texts(undone), MAX_FORWARDED)
    return reply


def _carry_out(batch: PostgresBatch, command: Any) -> Reply:
    """Carry out one command: one call, unless it names an id twice and versions count."""
    execute = _EXECUTORS[type(command)]
    ids = getattr(command, "ids", None) or ()
    has_duplicates = len(set(ids)) < len(ids)
    versions = versions_of(command) if has_duplicates else []
    if not versions:
        return execute(batch, command)
    pairs = list(zip(ids, versions, strict=True))
    of_versions(batch, command.queue, dict(pairs))  # locks them in the order of all commands
    outcomes: list[Outcome] = []
    wakes: list[int] = []
    # One after the other: the first change may give another version.
    for number, (id, version) in enumerate(pairs):
        fields: dict[str, Any] = {}
        if getattr(command, "versions", ()):
            fields["versions"] = [version]
        if getattr(command, "times", ()):
            fields["times"] = [command.times[number]]
        reply = execute(batch, msgspec.structs.replace(command, ids=[id], **fields))
        assert isinstance(reply, Outcomes)
        outcomes += reply.outcomes
        if reply.wake is not None:
            wakes.append(reply.wake)
    return Outcomes(outcomes, min(wakes, default=None))


# Changing.

_CHANGED = [OUTCOME_STATES.index(state) for state in ("stopping", "closed", "ending")]
"""States of outcomes that are not done, though something was changed."""


def _change(batch: PostgresBatch, verb: str, command: Any, *, edit: object = None) -> Outcomes:
    """Do one thing to each message that a command names by id or lease; return the outcomes.

    Args:
        batch: calls the function.
        verb: what is done: see `_change` in the schema.
        command: the fields that it has count; others have their defaults.
        edit: of an edit: the columns that change, with their values.
    """

    def field_of(name: str, default: Any = None) -> Any:
        return getattr(command, name, default)

    tokens = only_seqs = None
    if leases := field_of("leases", ()):
        ids = [lease.id for lease in leases]
        tokens = integers([lease.token for lease in leases])
    else:
        ids = field_of("ids", [])
        versions = dict(zip(ids, versions_of(command), strict=False))  # none, or one for each id
        if versions:
            only_seqs = integers(of_versions(batch, command.queue, versions))
    rows = batch.call(
        "_change",
        verb,
        command.queue,
        batch.now,
        ids=texts(ids),
        tokens=tokens,
        at=field_of("at"),
        delay=field_of("lease", field_of("delay", 0)),  # an extend delays the end of the lease
        if_due=field_of("if_due"),
        reason=batch.json(field_of("reason", "")[:REASON_LENGTH]),
        untouched=field_of("release", False),
        only_seqs=only_seqs,
        actor=command.actor,
        edit=None if edit is None else batch.json(edit),
        **{"notes": _notes(batch, command)} | _next_runs(command) | _new_times(command),
        **({} if field_of("holder") is None else {"holder": command.holder}),  # of a release
        **batch.identity,
    )
    has_changed = any(row.done or row.state in _CHANGED for row in rows)
    # If an ack is lost, its message is delivered again.
    if verb not in ("ack", "renew") and has_changed:
        batch.positions[command.queue] = int.from_bytes(rows[-1].lsn)
    if verb == "ack" and not rows:  # as the function answers if all is done
        return Outcomes([Outcome(id, True) for id in ids])
    return change_outcomes(ids, rows)


def _next_runs(command: Any) -> dict[str, Argument]:
    """Return when messages are due next, as arguments that only a renew and a postponement have."""
    if isinstance(command, cmd.Postpone):
        if_dues = unless_default(command.if_dues, None, integers)
        return {"next": integers(command.dues), "if_dues": if_dues}
    if not isinstance(command, cmd.Renew):
        return {}
    dues = [None if following is None else following.due for following in command.next]
    runs = [None if following is None else following.run for following in command.next]
    return {"next": integers(dues), "runs": texts(runs), "how": command.how}


def _new_times(command: Any) -> dict[str, Argument]:
    """Return the times of messages as arguments, which only an edit may have."""
    if not (isinstance(command, cmd.Edit) and command.times):
        return {}
    return {
        "next": integers([time.due for time in command.times]),
        "notes": texts([time.rule for time in command.times]),
        "runs": texts([time.run for time in command.times]),
    }


def _notes(batch: PostgresBatch, command: Any) -> bytes | None:
    """Return what a worker says of each of its messages: results of an ack, or reports.

    They are an array of JSON; `None` if nothing is said of any message.
    """
    match command:
        case cmd.Ack(results=results) | cmd.Renew(results=results):
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
    """Return a report as JSON."""
    return msgspec.json.encode(report).decode()


def change_outcomes(ids: Sequence[str], rows: list[Any]) -> Outcomes:
    """Return the outcomes of a change by id, of the rows that `_change` answers.

    There is a row for each message that was there: `number` is the place of its id, from 1. The row
    with the number 0 is of the queue: its `due` is when its limits allow a claim again.
    """
    rows_by_number = {row.number: row for row in rows}
    outcomes: list[Outcome] = []
    for number, id in enumerate(ids, 1):
        row = rows_by_number.get(number)
        outcomes.append(Outcome(id, False) if row is None else outcome(id, row.done, row))
    queue_row = rows_by_number.get(0)
    opens = [] if queue_row is None or queue_row.due is None else [queue_row.due]
    return Outcomes.of(outcomes, opens)


def _cancel(batch: PostgresBatch, command: cmd.Cancel) -> Reply:
    """Cancel messages by id or by rule; with `dry_run` only count them."""
    where = command.where
    if where is None:
        return _change(batch, "stop" if command.running else "cancel", command)
    if command.dry_run:
        bounds = (where.after or 0, FOREVER if where.before is None else where.before)
        ((count,),) = batch.call.patiently(
            "_count_where", command.queue, where.group, *bounds, command.running
        )
        return Affected(count)
    return _delete_where(
        batch,
        "cancelled",
        command,
        group=where.group,
        after=where.after,
        before=where.before,
        running=command.running,
    )


def _purge(batch: PostgresBatch, command: cmd.Purge) -> Reply:
    """Delete dead letters by id, or messages of a state."""
    if command.ids is not None:
        return _change(batch, "move" if command.moved else "purge", command)
    state = STATES.index(command.state)
    return _delete_where(batch, "purged", command, state=state, before=command.before)


def _delete_where(
    batch: PostgresBatch,
    cause: str,
    command: cmd.Cancel | cmd.Purge,
    *,
    state: int | None = None,
    group: str | None = None,
    after: int | None = None,
    before: int | None = None,
    running: bool = False,
) -> Affected:
    """Delete messages by a rule, and return how many; ask again if there are more.

    Args:
        batch: calls the function.
        cause: the counter of what is done.
        command: names the queue, and who wants it.
        state: of the messages, by number; `None`: delayed and ready ones.
        group: of the messages; `None`: any.
        after: from when on they are due, in Unix milliseconds.
        before: before when they are due, or came into a state in which they have ended.
        running: whether to ask the workers of leased messages to stop, too.
    """
    (row,) = batch.call(
        "_delete_where",
        cause,
        command.queue,
        batch.now,
        state=state,
        group=group,
        after=after,
        before=before,
        actor=command.actor,
        running=running,
    )
    if row.count or row.stopping:
        batch.positions[command.queue] = int.from_bytes(row.lsn)
    return Affected(row.count, row.more, row.stopping)


def _edit(batch: PostgresBatch, command: cmd.Edit) -> Reply:
    """Change fields of messages; what the command leaves out stays."""
    columns = command.options  # their names are those of the options
    if (headers := columns.get("headers")) is not None:
        columns = {**columns, "headers": batch.json(headers)}
    if command.data is not UNSET:
        columns = {**columns, "data": f"\\x{command.data.hex()}", "is_json": command.json}
    return _change(batch, "edit", command, edit=columns)


def _postpone(batch: PostgresBatch, command: cmd.Postpone) -> Reply:
    """Let messages be due at other times."""
    priority = None if command.priority is None else {"priority": command.priority}
    return _change(batch, "postpone", command, edit=priority)


def _bury(batch: PostgresBatch, command: cmd.BuryCommand) -> Reply:
    """Make dead letters of messages that are held, by lease, and then of others, by id."""
    names_only_unheld = command.ids and not command.leases
    held = Outcomes([]) if names_only_unheld else _change(batch, "bury", command)
    if not command.ids:
        return held
    # Without leases, since `_change` would go by these.
    unheld = _change(batch, "bury_unheld", msgspec.structs.replace(command, leases=[]))
    return Outcomes(held.outcomes + unheld.outcomes, held.wake)


def _configure(batch: PostgresBatch, command: cmd.Configure) -> Reply:
    """Set what the command gives, and return all settings."""
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
        overdue=command.overdue,
        limits=unless_default(limits, None, integers),
        until=command.paused_until,
        lasting=command.paused_for,
    )
    return QueueSettings(
        paused=row.paused,
        paused_until=row.paused_until,
        keep=row.keep,
        wake=row.wakes,
        history=row.history,
        result_ttl=row.result_ttl,
        overdue=row.overdue,
        **dict(zip(LIMITS, row.limits, strict=True)),
    )


def _close_group(batch: PostgresBatch, command: cmd.CloseGroup) -> Reply:
    """Close a group, and return until when it is closed."""
    ((until, lsn),) = batch.call(
        "_close_group", command.queue, batch.now, command.group, command.keep
    )
    batch.positions[command.queue] = int.from_bytes(lsn)
    return GroupsClosed([ClosedGroup(until, command.group)])


def _reopen_group(batch: PostgresBatch, command: cmd.ReopenGroup) -> Reply:
    """Open a group, and return until when it was closed, if it was."""
    ((until, lsn),) = batch.call("_reopen_group", command.queue, batch.now, command.group)
    batch.positions[command.queue] = int.from_bytes(lsn)
    return GroupsClosed([] if until is None else [ClosedGroup(until, command.group)])


def _closed_groups(batch: PostgresBatch, command: cmd.ClosedGroups) -> Reply:
    """Return a page of the closed groups, in the order in which they open."""
    after = command.after or ClosedGroup(0, "")
    one_more = command.limit + 1  # tells whether there is another page
    rows = batch.call(
        "_closed_groups", command.queue, batch.now, after.until, after.group, one_more
    )
    groups = [ClosedGroup(row.until, row.group) for row in rows]
    return GroupsClosed(groups[: command.limit], more=len(groups) > command.limit)


def _delete(batch: PostgresBatch, command: cmd.Delete) -> Reply:
    """Delete a queue; if that is not empty, say what is in it."""
    ((deleted,),) = batch.call("_delete", command.queue, batch.now)
    if deleted:
        return Deleted(True)
    counts = count(batch, cmd.Count(command.queue))
    return Deleted(False, counts.sizes, counts.kept)


def _by(verb: str) -> Callable[[PostgresBatch, Any], Reply]:
    """Return what executes commands that are one verb of `_change`."""
    return lambda batch, command: _change(batch, verb, command)


_REMEMBERING = (
    cmd.Put,
    cmd.Reschedule,
    cmd.Postpone,
    cmd.Edit,
    cmd.Claim,
    cmd.Extend,
    cmd.Ack,
    cmd.Renew,
    cmd.RetryCommand,
    cmd.Release,
    cmd.Revive,
)
"""Commands whose function remembers its answer; see also `remembers`."""

_EXECUTORS: dict[type, Callable[[PostgresBatch, Any], Reply]] = {
    cmd.Cancel: _cancel,
    cmd.Reschedule: _by("reschedule"),
    cmd.Postpone: _postpone,
    cmd.Edit: _edit,
    cmd.Claim: claim,
    cmd.Extend: _by("extend"),
    cmd.Ack: _by("ack"),
    cmd.Renew: _by("renew"),
    cmd.RetryCommand: _by("retry"),
    cmd.BuryCommand: _bury,
    cmd.Release: _by("release"),
    cmd.Revive: _by("revive"),
    cmd.Find: find,
    cmd.History: history,
    cmd.ListEnded: list_ended,
    cmd.Scan: scan,
    cmd.Count: count,
    cmd.ForecastCommand: forecast,
    cmd.Explain: explain,
    cmd.Configure: _configure,
    cmd.Purge: _purge,
    cmd.CloseGroup: _close_group,
    cmd.ReopenGroup: _reopen_group,
    cmd.ClosedGroups: _closed_groups,
    cmd.Delete: _delete,
    cmd.Queues: queues,
}
