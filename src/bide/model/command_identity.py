"""The identity of a command that may be sent again, so that a store executes it once.

A reply can be lost after its command was executed. The sender then repeats the command with the
same identity, and the store returns the answer that it remembers instead of executing it twice.
(Request numbers of a client: Oki and Liskov, "Viewstamped Replication", 1988.)
"""

from collections.abc import Sequence

import msgspec

MAX_SENDER = 64
"""The longest name of a sender, in characters."""


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Names one command of one sender.

    A sender has at most one batch under way: it sends the next number when each command of the
    batch before it has an answer, or was given up.
    """

    sender: str
    """`owner:name`, in at most `MAX_SENDER` characters. The name is random. A store bounds the
    number of senders that it remembers of one owner."""
    number: int
    """Of the batch, from 1: it grows with each batch of the sender."""
    place: int
    """Of the command in its batch, from 0."""
    repeated: bool = False
    """Whether the command was sent before, and perhaps executed."""

    @property
    def owner(self) -> str:
        """The part of the sender before the colon."""
        return self.sender.partition(":")[0]

    @property
    def name(self) -> str:
        """The part of the sender behind the colon."""
        return self.sender.partition(":")[2]


Identities = Sequence[Identity | None] | None
"""One for each command of a batch. `None`: the command is not sent again under an identity."""
