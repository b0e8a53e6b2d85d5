"""Pauses: until when claims get nothing from a queue."""

from bide.engines.storage import StoredQueue
from bide.model.commands import Configure
from bide.model.replies import Pause


def pause_of(queue: StoredQueue) -> Pause | None:
    """Return the pause in which a queue is now; `None`: it is not paused.

    A pause with an end is over then, whether or not a command has noted that.
    """
    if not queue.row.paused:
        return None
    pauses = queue.pauses()
    pause = pauses[-1] if pauses else Pause(None)  # an older bide noted no pauses
    return pause if pause.lasts(queue.now) else None


def pause_or_resume(queue: StoredQueue, command: Configure) -> int | None:
    """Begin or end a pause, or change when it ends.

    Returns:
        When messages can be claimed again, in Unix milliseconds; `None`: it says nothing new.
    """
    if command.paused is None:
        return None
    before, until = pause_of(queue), command.pause_end(queue.now)
    is_paused = command.paused and (until is None or until > queue.now)
    queue.row.paused = int(is_paused)
    if not is_paused:
        if before is None:
            return None
        until = queue.now
    has_record = before is not None and before.since is not None
    if has_record:
        queue.end_pause(until)
    elif is_paused and (before is None or until is not None):
        queue.begin_pause(until, command.actor)
    return until
