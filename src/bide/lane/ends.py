"""Ends of messages: what a reply tells of them, and under which name they are waited for."""

from bide.model.commands import Command
from bide.model.ended import PENDING, end_of
from bide.model.replies import Claimed, Ends, Outcomes, Reply


def is_empty(reply: Reply) -> bool:
    """Tell whether a reply is one to wait after: no message, or one that has not ended."""
    if isinstance(reply, Claimed):
        return not reply.messages
    return isinstance(reply, Ends) and reply.state in PENDING


def ended(command: Command, reply: Reply | None) -> list[str]:
    """Return the names of the ends that a reply tells of, as `end_of` makes them."""
    if isinstance(reply, Outcomes):
        ids = [one.id for one in reply.outcomes if one.done and one.state not in PENDING]
    elif isinstance(reply, Claimed):
        ids = [one.id for one in reply.died]
    else:
        return []
    return [end_of(command.queue, id) for id in ids]
