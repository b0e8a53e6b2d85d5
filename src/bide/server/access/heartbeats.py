"""What a worker may write to the register of workers: its own report, and nothing else.

Each worker reports that it is alive, whatever queues its token is for. So this way into a queue is
narrow: a report of the form that bide's workers send, about queues that the token is for.
"""

from collections.abc import Awaitable, Callable

from bide.model import commands as cmd
from bide.model.errors import AccessDenied, InvalidArgument
from bide.model.internal_queues import InternalQueue
from bide.model.message import Item
from bide.model.past import PastCommand
from bide.model.replies import Found, Reply, expect
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


async def denial_of_report(
    command: cmd.Command | Bulk | Undo | PastCommand,
    caller: Caller,
    ask: Callable[[cmd.Command], Awaitable[Reply]],
) -> AccessDenied | None:
    """Return why a command may not replace or delete the report that is there; `None`: it may.

    A worker's own report is about queues that its token is for. A report that cannot be read, or is
    overdue, protects nobody.

    Args:
        command: the command, with the name of its queue in the store.
        caller: who sends it.
        ask: reads the store.
    """
    if caller.of_all_queues or caller.may("admin"):
        return None
    if not isinstance(command, cmd.Put | cmd.Cancel) or command.only_reads:
        return None
    if not InternalQueue.WORKERS.matches(command.queue):
        return None
    ids = [item.id for item in command.items] if isinstance(command, cmd.Put) else command.ids
    if not ids:
        return None
    reply = expect(Found, await ask(cmd.Find(command.queue, ids)))
    for message in reply.messages:
        if message is None or message.state != "delayed":
            continue
        try:
            report = decode_report(message.data)
        except InvalidArgument:
            continue
        if not all(map(caller.sees, queues_of(report))):
            return AccessDenied(
                f"{message.id!r} is the report of a worker of queues that the token is not for; "
                "a worker replaces and deletes its own"
            )
    return None


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
