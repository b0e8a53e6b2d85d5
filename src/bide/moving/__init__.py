"""Moves queues from store to store, live: no message is lost or delivered by both.

No transaction spans two stores, so each message goes in steps, each of them one command:

1. the source sets the message aside as a dead letter with a mark, unless a worker holds it;
2. the target gets a copy that no worker can claim: a dead letter with the same mark;
3. the source deletes the message: this settles where it is;
4. the target delivers its copy.

A mover that dies leaves marks. A copy in the target goes on with step 3: if the message is no
longer set aside in the source, because it was revived or replaced there, it stays there and the
copy is deleted. A message with a mark in the source and no copy goes on with step 2. The source can
deliver until step 1 and the target from step 4 on, so never both. Every step can be done twice.
"""

from bide.moving.mover import Mover, move
from bide.moving.steps import Moved

__all__ = ["Moved", "Mover", "move"]
