"""Change many messages so that it can be taken back for ten minutes, and take it back.

Before a part of the messages is changed, a record of them is put into a queue of its own, due in
ten minutes. Then they are changed, each only if it still is as the record has it, and a second
message marks which were. What has a record and no mark is never restored: a process died between
the two, and a message that was not changed may have been delivered.
"""

from bide.queue.undoing.bulk import Undoable

__all__ = ["Undoable"]
