"""One message that is put or taken back alone: what most callers do, at less cost.

The scripts `put_one` and `cancel_one` know the usual case, and do nothing where it is another; then
`put` and `cancel` follow. So this pays only where a command has a round trip of its own.
"""

from bide.engines.redis.records import is_plain, when, write
from bide.engines.redis.verbs.change import is_unconditional
from bide.engines.redis.verbs.job import Call
from bide.model.commands import Cancel, Command, Put
from bide.model.replies import Outcome, Outcomes

__all__ = ["answered", "call_of"]


def call_of(command: Command) -> Call | None:
    """Return the call that may do a command at less cost; `None` if there is none."""
    if type(command) is Put:
        items = command.items
        if len(items) != 1 or command.on_conflict != "keep" or not is_plain(items[0]):
            return None
        item = items[0]
        if item.at is None and not item.delay:  # who waits for it is to be told
            return None
        args = (when(item.at, item.delay), item.priority, item.id, write(item))
        return Call("put_one", command.queue, args)
    if type(command) is Cancel and len(command.ids) == 1 and is_unconditional(command):
        return Call("cancel_one", command.queue, command.ids)
    return None


def answered(command: Command, text: bytes) -> Outcomes:
    """Return the reply to a command whose call has done it."""
    if isinstance(command, Put):
        ready = text.endswith(b"!")
        due = int(text[:-1] if ready else text)
        id = command.items[0].id
        return Outcomes([Outcome(id, True, "ready" if ready else "delayed", due)], due)
    assert isinstance(command, Cancel)
    return Outcomes([Outcome(command.ids[0], True, None, int(text))])
