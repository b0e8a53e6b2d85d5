"""`bide undo`: take back a bulk change that was made with --undo, up to ten minutes ago."""

import click
import msgspec

from bide.cli import option
from bide.cli.command import on_store
from bide.cli.output import DONE, NOTHING, Output, plural
from bide.cli.store import CommandStore
from bide.model.errors import NothingToUndo


@on_store(option.queue, click.argument("token"))
def undo(store: CommandStore, out: Output, queue: str, token: str) -> bool:
    """Take back a bulk change that was made with --undo, up to ten minutes ago.

    Messages come back as they were. Those whose id was put again since, or that a worker has
    claimed since, stay as they are. A second undo restores nothing. The exit code is 1 if nothing
    was restored.

    \b
    In a pipe and in JSON:
      restored  as before the change
      taken     the id was put again, or the message was changed, since then
      claimed   a worker has claimed it since then, or it has ended
      unknown   it is not certain that it was changed: a process died meanwhile
      again     it was taken back before

    \b
    Example:
      bide cancel mail --group order:42 --undo
      bide undo mail 01kb2n8m7dzz4r6y0t5v9x3h1q
    """
    try:
        undone = store.queue(queue).undo(token)
    except NothingToUndo:
        store.must_have(queue)
        raise
    facts = msgspec.structs.asdict(undone)
    del facts["following"]
    unchanged = {
        "whose id was put again or that were changed since": undone.taken,
        "that a worker has claimed since, or that have ended": undone.claimed,
        "that may not have been changed": undone.unknown,
        "that were taken back before": undone.again,
    }
    mark = DONE if undone.restored else NOTHING
    out.report(facts, mark, f"{plural(undone.restored, 'message')} restored")
    if out.terminal:
        for reason, count in unchanged.items():
            if count:
                out.text((f"left as they are: {plural(count, 'message')} {reason}", "dim"))
    return undone.restored > 0
