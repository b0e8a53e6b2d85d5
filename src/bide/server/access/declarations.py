"""Who reads and writes the settings that apps declare: each token, those of its own queues."""

from bide.model import commands as cmd
from bide.model.internal_queues import InternalQueue
from bide.model.undoing import Bulk, Undo
from bide.server.access.rights import Caller


def is_about_own_queues(
    command: cmd.Command | Bulk | Undo, internal: InternalQueue | None, caller: Caller
) -> bool:
    """Tell whether a command reads or writes only what was declared for queues of the caller.

    The messages of the queue of declarations have the names of queues as ids.

    Args:
        command: the command, with the caller's name of its queue.
        internal: the internal queue that it is for; `None`: a queue of users.
        caller: the caller.
    """
    if internal is not InternalQueue.DECLARED:
        return False
    match command:
        case cmd.Find():
            names = command.ids
        case cmd.Put():
            names = [item.id for item in command.items]
        case _:
            return False
    namespace, slash, _ = command.queue.rpartition("/")
    return all(caller.sees(f"{namespace}{slash}{name}") for name in names)
