"""Takes over the pending messages of other queues on Redis: Celery, RQ, arq, Huey and BullMQ.

No transaction spans the source and the store, so each message goes in steps:

1. the source's message leaves its queue for a hash beside it, in one step of its server: from here
   on no worker of the source gets it;
2. the store gets a copy that no worker can claim: a dead letter with a mark;
3. the entry in the hash is deleted: this settles where the message is;
4. the store delivers its copy.

A run that dies leaves entries in the hash, and marks. The next run goes on with step 2 for what is
in the hash, and with step 4 for what has a mark and is not. Every step can be done twice.
"""

from bide.queue.takeover.run import TakenOver, take_over

__all__ = ["TakenOver", "take_over"]
