"""Takes over the pending messages of other queues on Redis: Celery, RQ, arq, Huey and BullMQ.

No transaction spans the source and the store, so each message goes in steps:

1. the source's message leaves its queue for a hash beside it, in one step of its server: from here
   on no worker of the source gets it;
2. the message is put into the store, as a row of an outbox: the store puts a row only once;
3. the entry in the hash is deleted.

A run that dies leaves entries in the hash. The next run goes on with step 2 for these.
"""

from bide.importing.takeover import TakenOver, take_over

__all__ = ["TakenOver", "take_over"]
