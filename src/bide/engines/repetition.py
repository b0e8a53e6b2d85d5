"""What a store remembers of a command with an identity, and what its repetition gets.

A store keeps one `Answers` for each sender: those of its last batch.
"""

import msgspec

from bide.engines.port import Identity
from bide.model.errors import OutcomeUnknown
from bide.model.replies import (
    Affected,
    Claimed,
    Deleted,
    Ends,
    GroupsClosed,
    Outcomes,
    QueueSettings,
    Reply,
)


class HeldClaim(msgspec.Struct, frozen=True, gc=False, tag="held"):
    """What is remembered of a claim: its reply without the messages, and their ids.

    The messages themselves are read again, those that the claim still holds.
    """

    reply: Claimed
    ids: list[str]


class NotKept(msgspec.Struct, frozen=True, gc=False, tag="not_kept"):
    """An answer that is too large to be remembered."""


Kept = Outcomes | Affected | QueueSettings | GroupsClosed | Deleted | HeldClaim | NotKept


class Answers(msgspec.Struct, frozen=True, gc=False):
    """What a store remembers of a sender."""

    number: int
    """Of its last batch."""
    kept: dict[int, Kept]
    """The answers of that batch, by the place of the command."""


def recall(identity: Identity, answers: Answers | None) -> Kept | None:
    """Return the answer that a store remembers of a command; `None`: execute the command.

    Args:
        identity: of the command.
        answers: what the store remembers of the sender.

    Raises:
        OutcomeUnknown: the command may have been executed, and its answer is not known. It must
            not be executed now.
    """
    if answers is None:
        if identity.repeated:
            raise OutcomeUnknown(
                "the connection was lost after the command was sent, and the store does not "
                "remember its sender: the command may have been carried out or not"
            )
        return None
    if identity.number > answers.number:
        return None
    if identity.number < answers.number:
        raise OutcomeUnknown(
            "the command arrived after later commands of its sender, which had given up on it; it "
            "was not carried out now, but may have been before"
        )
    kept = answers.kept.get(identity.place)
    if isinstance(kept, NotKept):
        raise OutcomeUnknown(
            "the command was carried out, but its reply was lost, and was too large to be "
            "remembered: look at the messages to see what it did"
        )
    return kept


def remember(identity: Identity, reply: Reply, answers: Answers | None) -> Answers | None:
    """Return what a store remembers of a sender once a command of it was executed.

    Of a claim, it remembers the ids of its messages alone.
    Not remembered is what may be asked again under the same identity, by a caller that waits: a
    claim without messages, and whether a message has ended.
    """
    if isinstance(reply, Ends) or (isinstance(reply, Claimed) and not reply.messages):
        return answers
    kept: Kept
    if isinstance(reply, Claimed):
        ids = [message.id for message in reply.messages]
        kept = HeldClaim(msgspec.structs.replace(reply, messages=[]), ids)
    else:
        assert isinstance(reply, Outcomes | Affected | QueueSettings | GroupsClosed | Deleted), (
            reply
        )
        kept = reply
    earlier = answers.kept if answers is not None and answers.number == identity.number else {}
    return Answers(identity.number, {**earlier, identity.place: kept})
