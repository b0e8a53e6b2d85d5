"""The mark of a message in transit, and what a message looks like on each side of the way."""

import msgspec

from bide.model.message import KEPT_FAILURES, Failure, Item, Message, remember

__all__ = [
    "as_copy", "as_item", "as_letter", "as_taken", "in_transit", "is_marked", "is_taken", "mark",
    "same_letter",
]  # fmt: skip

_TRANSIT = "in transit by bide move "


def mark(token: str) -> str:
    """Return what stands as the last failure of a message that a move has set aside."""
    return _TRANSIT + token


def _taken(token: str) -> str:
    return f"{mark(token)}, taken from its source"


def is_marked(message: Message | None, token: str) -> bool:
    """Tell whether the move with this token has set the message aside."""
    return message is not None and message.state == "dead" and message.error == mark(token)


def is_taken(message: Message | None, token: str) -> bool:
    """Tell whether a copy knows that the source has set the message aside."""
    return message is not None and message.state == "dead" and message.error == _taken(token)


def in_transit(message: Message) -> bool:
    """Tell whether any move has set the message aside, whichever it was."""
    return message.state == "dead" and (message.error or "").startswith(_TRANSIT)


def as_copy(message: Message, token: str, now: int) -> Item:
    """Return what the target gets first: all of the message, as a dead letter with a mark."""
    marked = remember(message.failures, Failure(message.attempt, now, "", mark(token)))
    return message.as_item(marked, now)


def as_taken(item: Item, token: str, now: int) -> Item:
    """Return a copy that knows that the source has set the message aside, and has its content."""
    taken = remember(item.failures, Failure(item.attempt, now, "", _taken(token)))
    return msgspec.structs.replace(item, failures=taken, died=now)


def as_item(parked: Message, seen: Message | None = None) -> Item:
    """Return a message that was set aside as it was before.

    Args:
        parked: with the mark as its last failure.
        seen: the same before it was set aside, if known: the mark may have pushed out its oldest
            failure.
    """
    failures = parked.failures[:-1]
    full = seen is not None and len(seen.failures) == KEPT_FAILURES
    if seen is not None and full and seen.failures[1:] == failures:
        failures = seen.failures
    return parked.as_item(failures, None)


def as_letter(message: Message) -> Item:
    """Return a dead letter as it is, with the moment at which it died."""
    return message.as_item(message.failures, message.ended)


def same_letter(one: Message, other: Message | None) -> bool:
    """Tell whether two dead letters are one, brought over by an earlier run."""
    return other is not None and other.state == "dead" and as_letter(one) == as_letter(other)
