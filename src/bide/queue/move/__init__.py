"""Moving queues from store to store, live: nothing lost, nothing doubled, whoever dies when.

No transaction spans two stores, so each message goes in steps, each of them one command:

1. the target gets a copy that nobody can claim: a dead letter with a mark;
2. the source sets the message aside with the same mark, unless somebody holds it or it is gone;
3. where that was done the copy gets the message as the source has it now, and another mark,
   "taken"; where it was not the copy is deleted;
4. the source deletes what it has set aside: this settles where the message is;
5. the target lets its copy be delivered.

Whoever dies in between leaves marks, and they say it all. A copy with the first mark goes on with
step 3 if its message is set aside, and is deleted if not: somebody has claimed, cancelled or
changed it. A taken copy goes on with step 4. The source can deliver until step 2 and the target
from step 5 on, so never both. Every step can be done twice, also by two runs at a time.
"""

from bide.queue.move.mover import Moved, Mover, move

__all__ = ["Moved", "Mover", "move"]
