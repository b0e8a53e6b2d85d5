"""How each command is executed."""

from collections.abc import Callable
from typing import Any

import msgspec

from bide.engines.execution import changing, reading
from bide.engines.execution.claiming import claim
from bide.engines.origins import executed_once
from bide.engines.repetition import HeldClaim, Kept, NotKept
from bide.engines.storage import QueueStore
from bide.model import commands as cmd
from bide.model.message import Message
from bide.model.replies import Outcomes, Reply

Verb = Callable[[QueueStore[Any], Any], Reply]
"""How one type of command is executed on a store."""


def _by_name(store: QueueStore[Any], command: Any) -> Outcomes:
    """Change each message that a command names; the rules say how."""
    names = getattr(command, command.named_by)
    return changing.change_each(store.open(command.queue), command, names)


VERBS: dict[type[cmd.Command], Verb] = {
    cmd.Put: lambda store, command: store.put(command),
    cmd.Cancel: changing.cancel,
    cmd.Reschedule: _by_name,
    cmd.Postpone: _by_name,
    cmd.Edit: _by_name,
    cmd.Claim: claim,
    cmd.Extend: _by_name,
    cmd.Ack: changing.ack,
    cmd.Renew: _by_name,
    cmd.RetryCommand: _by_name,
    cmd.BuryCommand: changing.bury,
    cmd.Release: _by_name,
    cmd.Revive: _by_name,
    cmd.Find: reading.find,
    cmd.Scan: reading.scan,
    cmd.Count: reading.count,
    cmd.ForecastCommand: reading.forecast,
    cmd.Explain: reading.explain,
    cmd.History: reading.history,
    cmd.ListEnded: reading.list_ended,
    cmd.Configure: changing.configure,
    cmd.Purge: changing.purge,
    cmd.CloseGroup: changing.close_group,
    cmd.ReopenGroup: changing.reopen_group,
    cmd.ClosedGroups: reading.closed_groups,
    cmd.Delete: changing.delete,
    cmd.Queues: reading.queues,
}


def execute(store: QueueStore[Any], command: cmd.Command) -> Reply:
    """Execute a command; skip messages whose outbox rows its queue remembers."""
    verb = VERBS[type(command)]
    if not isinstance(command, (cmd.Put, cmd.Cancel, cmd.Reschedule)) or command.origin is None:
        return verb(store, command)
    origin = command.origin
    known_rows = set(store.open(command.queue).forwarded(origin))
    reply, new_rows = executed_once(command, origin, known_rows, lambda rest: verb(store, rest))
    if new_rows:  # looked up again, since a put may have made the queue
        store.look(command.queue).remember_forwarded(origin.outbox, new_rows)
    return reply


def answer_again(store: QueueStore[Any], queue: str, kept: Kept) -> Reply:
    """Return a remembered answer; of a claim with the messages that it still holds."""
    assert not isinstance(kept, NotKept)
    if not isinstance(kept, HeldClaim):
        return kept
    stored_queue, reply = store.look(queue), kept.reply
    messages: list[Message] = [
        record.message(queue, stored_queue.now)
        for record in stored_queue.read(kept.ids)
        if record is not None and record.state == "leased" and record.token == reply.token
    ]
    return msgspec.structs.replace(reply, messages=messages)
