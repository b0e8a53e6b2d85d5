"""Who reads and writes the settings that apps declare: each token, those of its own queues."""

from bide.model import commands as cmd
from bide.model.past import PastCommand
from bide.model.undoing import Bulk, Undo
from bide.server.access.rights import Caller


def is_about_own_queues(command: cmd.Command | Bulk | Undo | PastCommand, caller: Caller) -> bool:
    """Tell whether a command reads or writes only what was declared for queues of the caller.

    The messages of the queue of declarations have the names of queues as ids.

    Args:
        command: one for the queue of declarations, with the caller's name of that queue.
        caller: the caller.
    """
    match command:
        case cmd.Find():
            names = command.ids
        case cmd.Put():
            names = [item.id for item in command.items]
        case _:
            return False
    namespace, slash, _ = command.queue.rpartition("/")
    return all(caller.sees(f"{namespace}{slash}{name}") for name in names)
