"""Commands: all requests to a store. Each may name many messages, and is all or nothing.

Times are milliseconds: a point in time is Unix time, a delay counts from the store's clock. A
result that a user must expect (no such message, a lease that is over) is a reply, not an exception,
so that it does not affect other commands of the batch.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import astuple

from bide.model.command_parts import Lease, NewTime, NextRun, Origin, Where
from bide.model.ended import Ending
from bide.model.limits import (
    BULK,
    MAX_BUCKETS,
    MAX_BYTES,
    MAX_COUNT,
    MAX_LEASE,
    MAX_PLAN,
    MAX_RULE,
    MAX_RUN,
)
from bide.model.message import Item, Priority, Progress, State
from bide.model.replies import (
    AckOutcome,
    BuryOutcome,
    CancelOutcome,
    ClosedGroup,
    EditOutcome,
    ExtendOutcome,
    Outcome,
    PurgeOutcome,
    PutOutcome,
    ReleaseOutcome,
    RescheduleOutcome,
    RetryOutcome,
    ReviveOutcome,
)
from bide.model.times import LATEST, SLOWEST, Ms, UnixMs

__all__ = [
    "BULK",
    "MAX_BYTES",
    "MAX_LEASE",
    "Ack",
    "BuryCommand",
    "Cancel",
    "Claim",
    "CloseGroup",
    "ClosedGroups",
    "Command",
    "Configure",
    "Count",
    "Delete",
    "Edit",
    "Explain",
    "Extend",
    "Find",
    "ForecastCommand",
    "History",
    "Lease",
    "ListEnded",
    "NewTime",
    "NextRun",
    "OnConflict",
    "Origin",
    "Postpone",
    "Purge",
    "Put",
    "Queues",
    "Release",
    "Renew",
    "ReopenGroup",
    "Reschedule",
    "RetryCommand",
    "Revive",
    "Scan",
    "Where",
]

_Strings = Annotated[list[str], Meta(max_length=MAX_COUNT)]
_Leases = Annotated[list[Lease], Meta(max_length=MAX_COUNT)]
_Number = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
_Bytes = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
_LeaseMs = Annotated[int, Meta(ge=1, le=MAX_LEASE)]
_Interval = Annotated[int, Meta(ge=0, le=SLOWEST)]

OnConflict = Literal["keep", "replace", "revive"]
"""What a put does if the id exists."""


class _OnQueue(
    msgspec.Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    tag_field="command",
    forbid_unknown_fields=True,
):
    queue: str


class _Command(_OnQueue, frozen=True, kw_only=True):
    actor: str | None = None
    """Who changes something, in at most 64 bytes: the name of a token, a user of an application, a
    process. Acks and failures name the holder of the lease instead."""

    only_reads: ClassVar[bool] = False
    """Whether it changes nothing, so that it may run at the same time as writes."""
    repeatable: ClassVar[bool] = False
    """Whether it may be executed twice although it changes something: its second answer is as true
    as the first."""

    named_by: ClassVar[str | None] = None
    """The field with one element for each message that it names."""
    outcome_type: ClassVar[type[Outcome]] = Outcome
    """What its outcomes become, so that their texts say what was asked for."""

    @property
    def weight(self) -> int:
        """The number of messages that it names or may change, which bounds batches."""
        return 1 if self.named_by is None else len(getattr(self, self.named_by))

    def worded_outcome(self, outcome: Outcome) -> Outcome:
        """Return an outcome with a text that says what was asked for: "a is cancelled"."""
        if outcome.state == "pending" or (outcome.state is not None and outcome.done):
            return outcome  # its text says where the message is now
        return self.outcome_type(*astuple(outcome))


class _ById(_Command, frozen=True):
    ids: _Strings

    named_by: ClassVar[str | None] = "ids"


class Put(_Command, frozen=True, tag="put"):
    """Store messages. If an id exists, `on_conflict` decides: keep or replace the stored message.

    "revive" stores nothing new: it replaces dead letters.

    Answers `Outcomes`, one outcome for each item: done if it was stored or replaced.
    `if_version`, for "replace": replaces a message of this version only, and stores nothing new.
    An item with `latest` is stored as the successor of a leased message; see `Item.follows`.
    """

    items: Annotated[list[Item], Meta(max_length=MAX_COUNT)]
    on_conflict: OnConflict = "keep"
    if_version: str | None = None
    origin: Origin | None = None

    named_by: ClassVar[str | None] = "items"
    outcome_type: ClassVar[type[Outcome]] = PutOutcome

    @property
    def stores_new(self) -> bool:
        """Whether it stores an item whose id is new; else it only replaces."""
        return self.on_conflict != "revive" and not self.if_version


class Cancel(_ById, frozen=True, tag="cancel"):
    """Cancel messages that no worker holds: by id, or by a rule, up to 1,000 at a time.

    Answers `Outcomes` by id, `Affected` by rule. For ids: `if_due` cancels only messages that are
    due at this time, `if_version` only messages of this version. Else it also removes successors,
    and a leased message that repeats does so no longer: its outcome has the state "ending".
    """

    ids: _Strings = []
    if_due: UnixMs | None = None
    if_version: str | None = None
    where: Where | None = None
    dry_run: bool = False
    """With a rule: count the messages, change nothing."""
    versions: _Strings = []
    """One for each id, as `if_version`; empty: none. Other commands take it in the same way."""
    origin: Origin | None = None
    """By id only. Other commands take it in the same way."""
    running: bool = False
    """Also ask the workers of leased messages to stop: see `bide.engines.rules.leases.stop`. Their
    outcomes have the state "stopping"; by a rule, `Affected.stopping` has their ids."""

    outcome_type: ClassVar[type[Outcome]] = CancelOutcome

    @property
    def only_reads(self) -> bool:  # type: ignore[override]
        """A dry run changes nothing."""
        return self.dry_run and self.where is not None

    @property
    def weight(self) -> int:
        """The number of its messages."""
        return len(self.ids) if self.where is None else BULK


class Reschedule(_ById, frozen=True, tag="reschedule"):
    """Change the due time of messages that no worker holds: `at`, or `delay` from now.

    Answers `Outcomes`. `if_due`, `if_version` and `versions` as for `Cancel`.
    """

    at: UnixMs | None = None
    delay: Ms = 0
    if_due: UnixMs | None = None
    if_version: str | None = None
    versions: _Strings = []
    origin: Origin | None = None

    outcome_type: ClassVar[type[Outcome]] = RescheduleOutcome


class Postpone(_ById, frozen=True, tag="postpone"):
    """Let messages that no worker holds be due at other times, as a retry with a delay does.

    Each keeps the time for which it was planned: its lateness and `expires` count from there, and
    it has no new version, but with a `priority`. Answers `Outcomes`.
    """

    dues: Annotated[list[UnixMs], Meta(max_length=MAX_COUNT)]
    """When each message is due from now on."""
    if_dues: Annotated[list[UnixMs], Meta(max_length=MAX_COUNT)] = []
    """For each message the time at which it must be due now; empty: any."""
    priority: Priority | None = None
    """The priority of all of them from now on; `None`: it stays."""

    outcome_type: ClassVar[type[Outcome]] = RescheduleOutcome


class Edit(_ById, frozen=True, tag="edit"):
    """Change fields of messages that no worker holds, dead letters included.

    All else stays: the attempts made, the failures, and the due time unless `at` or `delay` (from
    now) gives another one, which a dead letter cannot have. A dead letter in transit to another
    store (`IN_TRANSIT`) stays as it is. Answers `Outcomes`. `if_due`, `if_version` and `versions`
    as for `Cancel`.
    """

    data: bytes | UnsetType = UNSET
    json: bool = True
    """Whether `data` is JSON."""
    priority: int | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    expires: Ms | UnsetType | None = UNSET
    group: str | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType | None = UNSET
    rule: Annotated[str, Meta(max_length=MAX_RULE)] | UnsetType | None = UNSET
    run: Annotated[str, Meta(max_length=MAX_RUN)] | UnsetType | None = UNSET
    """Goes with `rule`: both, or neither."""
    at: UnixMs | None = None
    delay: Ms | None = None
    if_due: UnixMs | None = None
    if_version: str | None = None
    versions: _Strings = []
    times: Annotated[list[NewTime], Meta(max_length=MAX_COUNT)] = []
    """One for each id, instead of due time, rule and run; empty: none. The attempts stay."""

    outcome_type: ClassVar[type[Outcome]] = EditOutcome

    @property
    def options(self) -> dict[str, Any]:
        """The fields that it changes, except the body and the due time."""
        values = {name: getattr(self, name) for name in (*EDITED, "rule", "run")}
        return {name: value for name, value in values.items() if value is not UNSET}

    def due(self, now: int) -> int | None:
        """Return the new due time; `None`: it stays."""
        if self.at is not None or self.delay is None:
            return self.at
        return now + self.delay


EDITED = ("priority", "attempts", "expires", "group", "headers")
"""The fields that an `Edit` can change, besides body, due time and rule."""


class Claim(_Command, frozen=True, tag="claim"):
    """Lease up to `count` due messages to `holder` for `lease` milliseconds. Answers `Claimed`.

    Also ends expired leases: their messages are ready again, or dead if no attempt is left.
    """

    count: _Number
    lease: _LeaseMs
    holder: str
    max_bytes: _Bytes = MAX_BYTES
    """The maximum size of the messages together, in bytes (see `size_of`); one may be larger."""

    @property
    def weight(self) -> int:
        """The maximum number of messages that it leases."""
        return self.count


class _Settle(_Command, frozen=True):
    leases: _Leases

    named_by: ClassVar[str | None] = "leases"


class Extend(_Settle, frozen=True, tag="extend"):
    """Set the end of leases to `lease` ms from now. Answers `Outcomes` with `until`.

    The state "stopping" says that somebody has cancelled the message: its worker is to stop.
    """

    lease: _LeaseMs | None
    """`None`: it ends as before."""
    progress: Annotated[list[Progress | None], Meta(max_length=MAX_COUNT)] = []
    """A report for each message, `None` for those without; empty: none has one."""

    repeatable: ClassVar[bool] = True
    outcome_type: ClassVar[type[Outcome]] = ExtendOutcome


class Ack(_Settle, frozen=True, tag="ack"):
    """Acknowledge messages: they leave the queue. Answers `Outcomes`.

    One that repeats waits for who claims it next, and plans its next run: see `Renew`.

    A queue with `result_ttl` remembers the results.
    """

    results: Annotated[list[bytes | None], Meta(max_length=MAX_COUNT)] = []
    """The result of each message in JSON, `None` for those without; empty: none has one."""

    outcome_type: ClassVar[type[Outcome]] = AckOutcome


class Renew(_Settle, frozen=True, tag="renew"):
    """End the runs of messages that repeat: the next run of each takes its place.

    One that repeats no longer (it was cancelled, or has a successor, or its group is closed) ends.
    Answers `Outcomes`.
    """

    next: Annotated[list[NextRun | None], Meta(max_length=MAX_COUNT)]
    """The next run of each message; `None`: it was the last one, and the message ends."""
    how: Literal["acked", "dead", "expired", "ended"] = "acked"
    """How the runs end. "dead": a dead letter of each was put before, unless it is the last run.
    "expired": they were not delivered. "ended": they have ended before."""
    results: Annotated[list[bytes | None], Meta(max_length=MAX_COUNT)] = []
    """As for `Ack`."""

    outcome_type: ClassVar[type[Outcome]] = AckOutcome


class RetryCommand(_Settle, frozen=True, tag="retry"):
    """Return messages to the queue, due `delay` from now. Answers `Outcomes`.

    A message without attempts left becomes a dead letter instead.
    """

    delay: Ms = 0
    reason: str = ""
    release: bool = False
    """Count no attempt. Without a delay, a message keeps its due time. A reason is remembered as
    that of a failure."""

    @property
    def outcome_type(self) -> type[Outcome]:  # type: ignore[override]
        """A release counts no attempt, a retry does."""
        return ReleaseOutcome if self.release else RetryOutcome


class BuryCommand(_Settle, frozen=True, tag="bury"):
    """Make messages dead letters: leased ones by lease, others by id. Answers `Outcomes`.

    By id no attempt is counted, and leased or dead messages stay as they are.
    """

    leases: _Leases = []
    reason: str = ""
    """One that begins with `IN_TRANSIT` says that a move has the messages: they have no end."""
    ids: _Strings = []

    outcome_type: ClassVar[type[Outcome]] = BuryOutcome

    @property
    def weight(self) -> int:
        """The number of its messages."""
        return len(self.leases) + len(self.ids)


class Release(_ById, frozen=True, tag="release"):
    """End the leases of messages, of any worker. Answers `Outcomes`: done where a lease ended.

    Counts as a failed attempt. The messages are ready at once, or dead if no attempt is left. Their
    workers can no longer settle them.
    """

    reason: str = "released"
    holder: str | None = None
    """Only the leases of the worker of this name; `None`: of any."""

    outcome_type: ClassVar[type[Outcome]] = ReleaseOutcome


class Revive(_ById, frozen=True, tag="revive"):
    """Return dead letters to the queue, with all their attempts again. Answers `Outcomes`."""

    delay: Ms = 0
    versions: _Strings = []

    outcome_type: ClassVar[type[Outcome]] = ReviveOutcome


class Find(_ById, frozen=True, tag="find"):
    """Read messages by id. Answers `Found`, which has the first ids only if all are too large."""

    max_bytes: _Bytes = MAX_BYTES

    only_reads: ClassVar[bool] = True


class Scan(_Command, frozen=True, tag="scan"):
    """Read messages, a page at a time. Answers `Page`.

    With a `state`, in rank order. With "next", what is delivered next: ready, then delayed.
    Without a state no order is promised: a message that is there throughout is never missed, and
    one that moves meanwhile may be read again.
    """

    state: State | Literal["next"] | None = None
    where: Where | None = None
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_COUNT)] = 500
    max_bytes: _Bytes = MAX_BYTES
    """The maximum size of a page in bytes; it has at least one message."""
    prefix: str | None = None
    """Only messages whose id begins so; not together with a state or a rule. A store reads no
    others if it has `Capabilities.ids_ordered`, else it may read all."""

    only_reads: ClassVar[bool] = True


class Count(_Command, frozen=True, tag="count"):
    """Return the number of messages in each state, and of all changes so far. Answers `Counts`.

    With `recount` it also counts the messages, with `stored` it adds up their bytes: both read all.
    """

    recount: bool = False
    stored: bool = False

    only_reads: ClassVar[bool] = True


class ForecastCommand(_Command, frozen=True, tag="forecast"):
    """Count the messages due in each of `buckets` spans of `bucket` milliseconds from now.

    Answers `Forecasted`.
    """

    bucket: Annotated[int, Meta(ge=1, le=LATEST)]
    buckets: Annotated[int, Meta(ge=0, le=MAX_BUCKETS)]

    only_reads: ClassVar[bool] = True


class Explain(_Command, frozen=True, tag="explain"):
    """Read why a message is where it is. Answers `Explained`.

    Its cost does not depend on how many messages are pending.
    """

    id: str | None = None
    """`None`: only what concerns the whole queue."""

    only_reads: ClassVar[bool] = True


class History(_Command, frozen=True, tag="history"):
    """Read how messages with an id have ended. Answers `Ends`, with the newest first.

    A queue without `history` and `result_ttl` remembers nothing.
    """

    id: str
    max_bytes: _Bytes = MAX_BYTES
    """The maximum size of the reply in bytes; it has at least one end."""
    watch: bool = False
    """The caller waits for the end: the store notifies it, for a while."""

    repeatable: ClassVar[bool] = True

    @property
    def only_reads(self) -> bool:  # type: ignore[override]
        """To watch is to leave a note in the store."""
        return not self.watch


class ListEnded(_Command, frozen=True, tag="list_ended"):
    """Read which messages have ended: each id once, with its last end. Answers `EndedPage`.

    The first that ended comes first; those of one millisecond come in the order of their ids, by
    their bytes. The list has what `History` knows, so a queue without `history` and `result_ttl`
    has nothing. A page may have few, and a cursor: a store looks at so many ends at a time.
    """

    how: Ending | None = None
    """Only those whose last end was this."""
    after: UnixMs | None = None
    """Only those whose last end was at this time or later."""
    before: UnixMs | None = None
    """Only those whose last end was before this time."""
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_COUNT)] = 500
    max_bytes: _Bytes = MAX_BYTES
    """The maximum size of a page in bytes; it has at least one message, if one is there."""

    only_reads: ClassVar[bool] = True


class Configure(_Command, frozen=True, tag="configure"):
    """Change the settings that are given; 0: off. Answers `Settings`. Times are milliseconds.

    `keep`: how long an acked message and its id are remembered. A queue with one of the last four
    is a limited queue, in which groups share fairly (docs/howto/limits.md).
    """

    paused: bool | None = None
    paused_until: UnixMs | None = None
    """With `paused`: when the pause ends by itself; a time that is past ends it now."""
    paused_for: Ms | None = None
    """The same, as the time from now."""
    keep: Ms | None = None
    history: Ms | None = None
    """How long the queue remembers how messages ended. Their ids are free."""
    result_ttl: Ms | None = None
    """How long the queue remembers the results of messages, and how they ended."""
    limit: _Number | None = None
    """How many messages of the queue may be leased at a time."""
    rate: _Interval | None = None
    """The shortest time from one delivery to the next, in microseconds (see `bide.model.times`)."""
    group_limit: _Number | None = None
    """`limit` for each group. Messages without a group are not bound by it."""
    group_rate: _Interval | None = None
    """`rate` for each group. Messages without a group are not bound by it."""
    overdue: Annotated[str, Meta(max_length=MAX_PLAN)] | None = None
    """What becomes of messages that are overdue after an outage: a plan of `bide.model.recovery` as
    text, which no store reads; empty: they are delivered."""

    repeatable: ClassVar[bool] = True

    def pause_end(self, now: int) -> int | None:
        """Return when a pause that it begins now ends by itself; `None`: it does not."""
        return self.paused_until if self.paused_for is None else now + self.paused_for


class Purge(_Command, frozen=True, tag="purge"):
    """Delete messages of a state, up to 1,000 at a time. Answers `Affected`.

    With `ids` it deletes dead letters by id, and answers `Outcomes`; `state` must be "dead" then.
    `versions` as for `Cancel`.
    """

    state: State
    before: UnixMs | None = None
    """Only those that entered this state (delayed, ready: are due) before this time."""
    ids: _Strings | None = None
    versions: _Strings = []
    moved: bool = False
    """With `ids`: these are in another store now, and count as moved instead of purged."""

    outcome_type: ClassVar[type[Outcome]] = PurgeOutcome

    @property
    def weight(self) -> int:
        """The maximum number of messages that it deletes."""
        return BULK if self.ids is None else len(self.ids)


class CloseGroup(_Command, frozen=True, tag="close_group"):
    """Close a group for `keep` milliseconds: puts into it are refused, and it is not delivered.

    What would come back to wait in it is cancelled (see `bide.engines.rules.closing`), as is what a
    claim finds there. Cancels nothing else: a `Cancel` of the group has to follow. A group that is
    closed for longer stays so. The queue is made if it does not exist. Answers `GroupsClosed` with
    this group.
    """

    group: str
    keep: Annotated[int, Meta(ge=1, le=LATEST)]

    repeatable: ClassVar[bool] = True


class ReopenGroup(_Command, frozen=True, tag="reopen_group"):
    """Open a closed group again. Answers `GroupsClosed` with the group if it was closed."""

    group: str


class ClosedGroups(_Command, frozen=True, tag="closed_groups"):
    """List closed groups, those first that open first. Answers `GroupsClosed`."""

    after: ClosedGroup | None = None
    """Only those that come after it, which is the last one of a page."""
    limit: Annotated[int, Meta(ge=1, le=MAX_COUNT)] = 1_000

    only_reads: ClassVar[bool] = True


class Delete(_Command, frozen=True, tag="delete"):
    """Delete a queue that is empty, with its settings, counters and closed groups.

    Answers `Deleted`.

    A queue that holds or remembers messages stays as it is.
    """


class Queues(_Command, frozen=True, tag="queues"):
    """List the names of the queues, sorted. Answers `Names`; `queue` is a prefix, or empty."""

    only_reads: ClassVar[bool] = True


Command = (
    Put
    | Cancel
    | Reschedule
    | Postpone
    | Edit
    | Claim
    | Extend
    | Ack
    | Renew
    | RetryCommand
    | BuryCommand
    | Release
    | Revive
    | Find
    | Scan
    | Count
    | ForecastCommand
    | Explain
    | History
    | ListEnded
    | Configure
    | Purge
    | CloseGroup
    | ReopenGroup
    | ClosedGroups
    | Delete
    | Queues
)
