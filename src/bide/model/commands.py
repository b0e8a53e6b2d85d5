"""Commands: everything that can be asked of a store. Each is plural, and all or nothing.

Times are milliseconds: a moment is Unix time, a delay counts from the store's own now. What a user
may meet (no such message, a lease that is over) comes back as a reply, never as an exception, so
that one caller's bad luck does not spoil the batch it travels in.
"""

from typing import ClassVar, Literal

import msgspec

from bide.model.limits import BULK, MAX_BYTES, MAX_LEASE
from bide.model.message import Item, State

__all__ = [
    "BULK",
    "MAX_BYTES",
    "MAX_LEASE",
    "Ack",
    "Bury",
    "Cancel",
    "Claim",
    "Command",
    "Configure",
    "Count",
    "Extend",
    "Find",
    "Forecast",
    "Lease",
    "Purge",
    "Put",
    "Queues",
    "Release",
    "Reschedule",
    "Retry",
    "Revive",
    "Scan",
    "Where",
]


class Lease(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One worker's hold on one message.

    `token` is the fencing token: the number of the claim, which only grows within a queue and is
    never used twice. Whoever writes to a system of their own on behalf of a message can hand it
    over there to have late writers refused (Kleppmann, "How to do distributed locking", 2016).
    """

    id: str
    token: int


class Where(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Which messages, by what they have in common; all that is given must hold."""

    group: str | None = None
    after: int | None = None
    """Due at this moment or later."""
    before: int | None = None
    """Due before this moment."""


class _Command(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="command"):
    queue: str

    reads: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    @property
    def only_reads(self) -> bool:
        """Whether it changes nothing, so that it may run beside the writers."""
        return self.reads

    @property
    def weight(self) -> int:
        """How many messages it names, to keep batches within bounds."""
        return 1


class Put(_Command, frozen=True, tag="put"):
    """Store messages. One whose id is there already is kept or replaced, as `on_conflict` says.

    "revive" stores nothing new: it replaces dead letters, so that doing it twice is doing it once.

    Answers `Outcomes`, one outcome an item: done when it was stored (or replaced).
    `if_version`: replaces what still is of this version, and stores nothing new; for "replace".
    """

    items: list[Item]
    on_conflict: Literal["keep", "replace", "revive"] = "keep"
    if_version: str | None = None

    @property
    def weight(self) -> int:
        """The number of its messages."""
        return len(self.items)


class Cancel(_Command, frozen=True, tag="cancel"):
    """Take messages back before somebody holds them: by id, or by a rule, up to 1,000 at a time.

    Answers `Outcomes` by id, `Affected` by rule. `if_due`: only while due is still this;
    `if_version`: only while the message is still of this version. Both are for ids.
    """

    ids: list[str] = []
    if_due: int | None = None
    if_version: str | None = None
    where: Where | None = None
    dry_run: bool = False
    """Count what the rule finds, change nothing; without a rule it says nothing."""

    @property
    def only_reads(self) -> bool:
        """A dry run changes nothing."""
        return self.dry_run and self.where is not None

    @property
    def weight(self) -> int:
        """The number of its messages."""
        return len(self.ids) if self.where is None else BULK


class Reschedule(_Command, frozen=True, tag="reschedule"):
    """Move messages that nobody holds to another moment: `at`, or `delay` from now.

    Answers `Outcomes`. `if_due` and `if_version` as for `Cancel`.
    """

    ids: list[str]
    at: int | None = None
    delay: int = 0
    if_due: int | None = None
    if_version: str | None = None

    @property
    def weight(self) -> int:
        """The number of its messages."""
        return len(self.ids)


class Claim(_Command, frozen=True, tag="claim"):
    """Lease up to `count` due messages to `holder` for `lease` milliseconds. Answers `Claimed`.

    Also collects leases that have lapsed: their messages are ready again, or dead when their
    attempts are used up.
    """

    count: int
    lease: int
    holder: str
    max_bytes: int = MAX_BYTES
    """Lease no more messages than these bytes hold, but one in any case; see `size_of`."""

    repeatable: ClassVar[bool] = False

    @property
    def weight(self) -> int:
        """The number of messages it may lease."""
        return self.count


class _Settle(_Command, frozen=True):
    leases: list[Lease]

    repeatable: ClassVar[bool] = False

    @property
    def weight(self) -> int:
        """The number of its messages."""
        return len(self.leases)


class Extend(_Settle, frozen=True, tag="extend"):
    """Let leases lapse `lease` milliseconds from now instead. Answers `Outcomes` with `until`."""

    lease: int = 0

    repeatable: ClassVar[bool] = True


class Ack(_Settle, frozen=True, tag="ack"):
    """The messages are done: they leave the queue. Answers `Outcomes`."""


class Retry(_Settle, frozen=True, tag="retry"):
    """Give messages back, to be handed out again `delay` from now. Answers `Outcomes`.

    One whose attempts are used up becomes a dead letter instead.
    """

    delay: int = 0
    reason: str = ""
    release: bool = False
    """Hand back untouched: nobody has tried, so no attempt is counted. Without a delay it keeps
    its turn; with one it is due `delay` from now."""


class Bury(_Settle, frozen=True, tag="bury"):
    """Set messages aside as dead letters: held ones by lease, or by id what nobody holds.

    By id no attempt is counted; what is held or dead already stays as it is. Answers `Outcomes`.
    """

    leases: list[Lease] = []
    reason: str = ""
    ids: list[str] = []

    @property
    def weight(self) -> int:
        """The number of its messages."""
        return len(self.leases) + len(self.ids)


class Release(_Command, frozen=True, tag="release"):
    """End the leases of messages, whoever holds them.

    Counts as a failed attempt. The messages are ready again at once, or dead when their attempts
    are used up. Whoever held them can no longer settle them. Answers `Outcomes`: done where a lease
    was ended.
    """

    ids: list[str]
    reason: str = "released"

    @property
    def weight(self) -> int:
        """The number of its messages."""
        return len(self.ids)


class Revive(_Command, frozen=True, tag="revive"):
    """Make dead letters ready again, with all their attempts before them. Answers `Outcomes`."""

    ids: list[str]
    delay: int = 0

    @property
    def weight(self) -> int:
        """The number of its messages."""
        return len(self.ids)


class Find(_Command, frozen=True, tag="find"):
    """Look at messages by id. Answers `Found`, of the first ids only if all are too large."""

    ids: list[str]
    max_bytes: int = MAX_BYTES

    reads: ClassVar[bool] = True


class Scan(_Command, frozen=True, tag="scan"):
    """Look at messages, a page at a time. Answers `Page`.

    With a `state`, in rank order. With "next", what would be handed out next: ready, then delayed.
    Without a state no order is promised: a message that is there throughout is never missed, and
    one that moves meanwhile may come twice.
    """

    state: State | Literal["next"] | None = None
    where: Where | None = None
    cursor: str | None = None
    limit: int = 500
    max_bytes: int = MAX_BYTES
    """A page ends before its messages are larger than this together, but holds one in any case."""

    reads: ClassVar[bool] = True


class Count(_Command, frozen=True, tag="count"):
    """Tell how many messages are in each state, and what has become of all others.

    Answers `Counts`. With `recount`, counts the messages themselves beside the counters.
    """

    recount: bool = False

    reads: ClassVar[bool] = True


class Forecast(_Command, frozen=True, tag="forecast"):
    """Count what falls due in each of `buckets` spans of `bucket` milliseconds from now.

    Answers `Forecasted`.
    """

    bucket: int
    buckets: int

    reads: ClassVar[bool] = True


class Configure(_Command, frozen=True, tag="configure"):
    """Set what is given, leave the rest. Answers `Settings`.

    `keep`: for how many milliseconds an acked message and its id are remembered.
    """

    paused: bool | None = None
    keep: int | None = None


class Purge(_Command, frozen=True, tag="purge"):
    """Delete messages of a state that nobody holds, up to 1,000 at a time. Answers `Affected`.

    With `ids` it deletes dead letters by id, and answers `Outcomes`; `state` must be "dead" then.
    """

    state: State
    before: int | None = None
    """Only those that came into this state (delayed, ready: fall due) before this moment."""
    ids: list[str] | None = None

    @property
    def weight(self) -> int:
        """As many as it may delete."""
        return BULK if self.ids is None else len(self.ids)


class Queues(_Command, frozen=True, tag="queues"):
    """Name the queues that exist, sorted. Answers `Names`; `queue` is a prefix, or empty."""

    reads: ClassVar[bool] = True


Command = (
    Put
    | Cancel
    | Reschedule
    | Claim
    | Extend
    | Ack
    | Retry
    | Bury
    | Release
    | Revive
    | Find
    | Scan
    | Count
    | Forecast
    | Configure
    | Purge
    | Queues
)
