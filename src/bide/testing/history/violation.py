"""A promise that was broken: which one, for which message, and its story."""

from types import MappingProxyType

import msgspec

KINDS = MappingProxyType(
    {
        "lost": "a message was confirmed, and was neither done nor cancelled nor left",
        "early": "a message was delivered before its due time, by the store's clock",
        "cancelled": "a message was delivered after a cancel that returned true",
        "closed": "a message was delivered after its group was closed",
        "acked": "a message was delivered after its ack",
        "acked twice": "two acks of one message returned true",
        "acked and cancelled": "an ack and a cancel of one message returned true",
        "two holders": "a message was claimed while another lease was valid",
        "token": "a later claim has no greater token",
        "unexplained": "a message was delivered twice, though its holder acked within its lease",
        "never put": "a message was delivered that nobody put",
        "altered": "a message was delivered with another body",
        "not gone": "a message was left at the end, though it was acked or cancelled",
        "clock": "the clock of the store was set",
        "audit": "the counters of the store cannot be what the journals tell",
    }
)
"""The kinds of violations, and what each means."""


class Violation(msgspec.Struct, frozen=True):
    """A promise that was broken."""

    kind: str
    """One of `KINDS`."""
    what: str
    """What happened, as a sentence."""
    id: str | None = None
    """The message; `None`: it is about the whole queue."""
    story: tuple[str, ...] = ()
    """Everything that the journals tell of the message, in the order of time, a line each. With
    many violations only the first have one."""

    def __str__(self) -> str:
        return "\n".join([self.what, *(f"  {line}" for line in self.story)])
