"""What a worker may write to the register of workers: its own report, and nothing else.

Each worker reports that it is alive, whatever queues its token is for. So this way into a queue is
narrow: a report of the form that bide's workers send, about queues that the token is for.
"""

from bide.model import commands as cmd
from bide.model.errors import AccessDenied, InvalidArgument
from bide.model.message import Item
from bide.model.past import PastCommand
from bide.model.undoing import Bulk, Undo
from bide.observing.heartbeat import LARGEST, SILENT, decode_report, queues_of
from bide.server.access.rights import Caller


def check_heartbeat(command: cmd.Command | Bulk | Undo | PastCommand, caller: Caller) -> None:
    """Check a command that writes to a register of workers.

    Raises:
        AccessDenied: it is not what a worker sends, and the caller is no admin.
    """
    if command.only_reads or caller.may("admin"):
        return
    match command:
        case cmd.Put(on_conflict="replace", if_version=None, origin=None) if (
            len(command.items) <= 1
        ):
            for item in command.items:
                _check_report(item, caller)
        case cmd.Cancel(ids=[_], where=None, origin=None):  # its own report, when it stops
            pass
        case cmd.Purge(state="ready", ids=None):  # reports of processes that have been silent
            pass
        case _:
            raise AccessDenied(
                f"queue={command.queue!r} has the reports of workers; a worker puts or cancels its "
                "own, and everything else needs the right 'admin'"
            )


def _check_report(item: Item, caller: Caller) -> None:
    """Check the report of a worker.

    Raises:
        AccessDenied: it is not one, or is about queues that the token is not for.
    """
    without_options = Item(item.id, item.data, delay=SILENT)
    if item != without_options or len(item.data) > LARGEST:
        raise AccessDenied(
            "this is not the report of a worker: it has one message without options, due in "
            f"{SILENT // 1000} s, of at most {LARGEST:,} bytes"
        )
    try:
        report = decode_report(item.data)
    except InvalidArgument as error:
        raise AccessDenied(f"this is not the report of a worker: {error}") from None
    for queue in sorted(queues_of(report)):
        if not caller.sees(queue):
            raise AccessDenied(
                f"the report is about queue={queue[:100]!r}, and the token is for the queues "
                f"{', '.join(caller.queues)}"
            )
