"""Replies: what a store answers, one reply a command."""

from datetime import datetime

import msgspec

from bide.model.message import Message, State
from bide.model.times import to_datetime

__all__ = [
    "Affected", "Claimed", "Counts", "Deleted", "Died", "Flow", "Forecasted", "Found", "Names",
    "Outcome", "Outcomes", "Page", "Reply", "Settings", "Sizes",
]  # fmt: skip


class Outcome(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What became of one message. True when what was asked was done.

    Example:
        >>> kept = Outcome("order-42", False, "leased", until=1_700_000_000_000, holder="web1:431")
        >>> bool(kept)
        False
        >>> print(kept)
        order-42 is held by web1:431 until 2023-11-14 22:13:20 UTC
    """

    id: str
    done: bool
    """Whether the message was changed as asked."""
    state: State | None = None
    """The state it is in now; `None`: there is no such message (never was, or it is gone)."""
    due: int | None = None
    """When it is due, in Unix milliseconds."""
    until: int | None = None
    """When its lease lapses, if it is leased; when it ended, if it is dead, acked or expired."""
    holder: str | None = None
    """Who holds it, if it is leased."""

    def __bool__(self) -> bool:
        return self.done

    @property
    def due_at(self) -> datetime | None:
        """`due` as an aware `datetime`."""
        return None if self.due is None else to_datetime(self.due)

    def __str__(self) -> str:
        when = f"{to_datetime(self.until):%Y-%m-%d %H:%M:%S} UTC" if self.until is not None else ""
        match self.state:
            case None:
                return f"{self.id} is {'no longer' if self.done else 'not'} in the queue"
            case "leased":
                return f"{self.id} is held by {self.holder} until {when}"
            case "delayed" | "ready" if self.due is not None:
                return (
                    f"{self.id} is {self.state}, due {to_datetime(self.due):%Y-%m-%d %H:%M:%S} UTC"
                )
            case _:
                return f"{self.id} is {self.state}" + (f" since {when}" if when else "")


class Outcomes(msgspec.Struct, frozen=True, gc=False, tag="outcomes", omit_defaults=True):
    """One outcome a message, in the order in which they were named."""

    outcomes: list[Outcome]
    wake: int | None = None
    """From when on (Unix milliseconds) a claim finds something, if that is sooner than before."""


class Died(msgspec.Struct, frozen=True, gc=False):
    """A message that became a dead letter because the lease of its last attempt expired."""

    id: str
    attempts: int
    """How many attempts it had."""
    holder: str
    """Who held it last."""


class Claimed(msgspec.Struct, frozen=True, gc=False, tag="claimed", omit_defaults=True):
    """The messages that are leased now."""

    messages: list[Message]
    token: int
    now: int
    """The store's clock at the claim."""
    next: float | None = None
    """If no message came: in how many milliseconds to ask again; `None`: not before a new put.

    Moments are whole milliseconds, and clocks are finer: parts of one count, or whoever waits would
    come half a millisecond late on average."""
    died: list[Died] = []
    """The messages that this claim made dead letters while it collected expired leases."""


class Found(msgspec.Struct, frozen=True, gc=False, tag="found"):
    """The messages that were asked for, `None` for each that is not there.

    Of the first ids only, if all of them would be larger than `Find.max_bytes`: ask for the others.
    """

    messages: list[Message | None]


class Page(msgspec.Struct, frozen=True, gc=False, tag="page"):
    """Some messages, and where the next page begins (`None`: there is none)."""

    messages: list[Message]
    cursor: str | None


class Affected(msgspec.Struct, frozen=True, gc=False, tag="affected"):
    """How many messages a rule found, and whether more are left."""

    count: int
    more: bool = False


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """How many messages are in each state."""

    delayed: int = 0
    ready: int = 0
    leased: int = 0
    dead: int = 0

    @property
    def total(self) -> int:
        """All that are in the queue."""
        return self.delayed + self.ready + self.leased + self.dead


class Flow(msgspec.Struct, frozen=True, gc=False):
    """What has happened in a queue since it exists, each counted with the change itself."""

    put: int = 0
    acked: int = 0
    cancelled: int = 0
    expired: int = 0
    purged: int = 0
    died: int = 0
    revived: int = 0
    retried: int = 0
    lapsed: int = 0

    @property
    def gone(self) -> int:
        """All messages that have left the queue."""
        return self.acked + self.cancelled + self.expired + self.purged


class Counts(msgspec.Struct, frozen=True, gc=False, tag="counts", omit_defaults=True):
    """How many messages are where, and what has become of the others."""

    sizes: Sizes
    flow: Flow
    kept: int = 0
    """Messages that are remembered though they are gone: acked ones, expired ones."""
    paused: bool = False
    keep: int = 0
    oldest: int | None = None
    """The due moment of the message that has waited longest, if one is due."""
    recount: Sizes | None = None
    """With `Count(recount=True)`: the messages themselves, counted in the same snapshot."""
    strays: int | None = None
    """With `Count(recount=True)`: messages in no state or in two. Always 0 in a sound store."""
    stored: int | None = None
    """With `Count(stored=True)`: the bytes of all messages, kept ones included: body, id, group,
    headers, failures, and up to 200 more for each, as the store keeps them."""


class Forecasted(msgspec.Struct, frozen=True, gc=False, tag="forecasted"):
    """How many messages fall due when."""

    start: int
    """Where the first bucket begins: the store's now, or the whole hour before it where buckets are
    an hour or longer. The first then counts only what is not yet due."""
    overdue: int
    """Due already."""
    buckets: list[int]
    later: int
    """Due after the last bucket."""


class Settings(msgspec.Struct, frozen=True, gc=False, tag="settings", omit_defaults=True):
    """What is set for a queue."""

    paused: bool
    keep: int
    wake: int | None = None


class Deleted(msgspec.Struct, frozen=True, gc=False, tag="deleted", omit_defaults=True):
    """Whether a queue was deleted, and if not, what is in it."""

    done: bool
    sizes: Sizes = Sizes()
    """The messages in it; all zero where there is no such queue."""
    kept: int = 0
    """The acked and expired messages that it remembers."""


class Names(msgspec.Struct, frozen=True, gc=False, tag="names"):
    """Names of queues."""

    names: list[str]


Reply = (
    Outcomes | Claimed | Found | Page | Affected | Counts | Forecasted | Settings | Deleted | Names
)
