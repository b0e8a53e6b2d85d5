"""Replies: the answers of a store, one for each command."""

from collections.abc import Iterable
from datetime import datetime
from typing import ClassVar, Literal, TypeVar

import msgspec
from msgspec.structs import astuple

from bide.model.command_parts import Lease
from bide.model.ended import End, Ended
from bide.model.errors import OutcomePending
from bide.model.message import Failure, Message, Progress, State
from bide.model.times import UnixMs, to_datetime


class Outcome(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The outcome of a command for one message. True if it was changed as asked.

    Example:
        >>> kept = Outcome("order-42", False, "leased", until=1_700_000_000_000, holder="web1:431")
        >>> bool(kept)
        False
        >>> print(kept)
        order-42 is held by web1:431 until 2023-11-14 22:13:20 UTC

    What a method of a queue returns says what was asked for, too: "order-42 was not cancelled:
    worker web1:431 holds it until 2023-11-14 22:13:20 UTC".
    """

    id: str
    done: bool
    """Whether the message was changed as asked."""
    state: (
        State | Literal["stopping", "ending", "settling", "closed", "pending", "forwarded"] | None
    ) = None
    """Its state now; `None`: there is no such message.

    - "stopping": its worker was asked to stop (`cancel(running=True)`).
    - "ending": it repeats no more: a worker holds its last run (`cancel`).
    - "settling": its worker settles it in a transaction (`ack(within=)`) that is still open.
    - "closed": its group is closed (`close_group`): it was not stored, or was cancelled instead of
      being changed.
    - "pending": the command waits in an outbox or for a commit (`within=`).
    - "forwarded": its row of an outbox was executed before (`Origin`).

    To ask whether a command was done that is pending, or a cancel that is stopping, raises
    `OutcomePending`.
    """
    due: int | None = None
    """When it is due, in Unix milliseconds."""
    until: int | None = None
    """If it is leased, when its lease expires; if it is dead, acked or expired, since when; if its
    group is closed, until when."""
    holder: str | None = None
    """The worker that holds it, if it is leased."""
    successor: int | None = None
    """The due time of the successor (see `Message.successor`) that a put has stored, or a cancel
    removed, of a leased message."""

    def __bool__(self) -> bool:
        return self.done

    @property
    def due_at(self) -> datetime | None:
        """`due` as an aware `datetime`."""
        return None if self.due is None else to_datetime(self.due)

    def __str__(self) -> str:
        return f"{self.id} {self._place()}"

    def _place(self) -> str:
        """Say where the message is: "is ready, due ..."."""
        match self.state:
            case None:
                return f"is {'no longer' if self.done else 'not'} in the queue"
            case "leased":
                return f"is held by {self.holder} {self._lease()}"
            case "stopping":
                return f"is stopping: worker {self.holder} holds it {self._lease()}"
            case "ending":
                return f"ends with this run: worker {self.holder} holds it {self._lease()}"
            case "settling":
                return f"is being settled by {self.holder}, in a transaction that is still open"
            case "closed" if self.until is not None:
                return f"belongs to a group that is closed until {_utc(self.until)}"
            case "delayed" | "ready" | "pending" if self.due is not None:
                return f"is {self.state}, due {_utc(self.due)}"
            case _:
                return f"is {self.state}" + (
                    "" if self.until is None else f" since {_utc(self.until)}"
                )

    def _lease(self) -> str:
        """Say until when it is held, and what became of its successor."""
        until = "" if self.until is None else f"until {_utc(self.until)}"
        if self.successor is None:
            return until
        return f"{until}; its successor is {'stored' if self.done else 'cancelled'}"


def _utc(moment: int) -> str:
    """Return Unix milliseconds as text for people."""
    return f"{to_datetime(moment):%Y-%m-%d %H:%M:%S} UTC"


class CommandOutcome(Outcome, frozen=True, gc=False):
    """The outcome of a command as its caller gets it, where its text needs to say what was asked.

    It has no fields of its own, and equals the outcome of the store.
    """

    participle: ClassVar[str] = ""
    """What was to become of the message, such as "cancelled"."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Outcome):
            return NotImplemented
        return bool(astuple(self) == astuple(other))

    def __ne__(self, other: object) -> bool:  # that of structs compares their types
        return not self == other

    def __hash__(self) -> int:
        return hash(Outcome(*astuple(self)))

    def __str__(self) -> str:
        if self.done:
            return f"{self.id} is {self.participle}"
        return f"{self.id} was not {self.participle}: {self._obstacle()}"

    def _obstacle(self) -> str:
        """Say why the message was not changed."""
        if self.state == "leased":
            return f"worker {self.holder} holds it {self._lease()}"
        if self.state == "ending":
            return f"worker {self.holder} holds its last run {self._lease()}"
        if self.state == "settling":
            return f"worker {self.holder} settles it in a transaction that is still open"
        if self.state == "closed" and self.until is not None:
            return f"its group is closed until {_utc(self.until)}"
        return f"it {self._place()}"


class PutOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of a put."""

    participle: ClassVar[str] = "stored"


class CancelOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of a cancel.

    While the worker of the message is stopping, it is neither true nor false.
    """

    participle: ClassVar[str] = "cancelled"

    def __bool__(self) -> bool:
        if self.state == "stopping":
            raise OutcomePending(
                f"{self.id} is not cancelled yet: worker {self.holder} was asked to stop, and may "
                "still ack it. Check outcome.state == 'stopping', or wait for the end: "
                "cancel(id, running=True, wait='30s')"
            )
        return self.done

    def __str__(self) -> str:
        if self.state == "stopping":
            return f"{self.id} {self._place()}"
        return super().__str__()


class RescheduleOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of a reschedule."""

    participle: ClassVar[str] = "rescheduled"


class EditOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of an edit."""

    participle: ClassVar[str] = "edited"


class HoldOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of holding a message that repeats."""

    participle: ClassVar[str] = "held"


class ResumeOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of resuming a message that is held."""

    participle: ClassVar[str] = "resumed"


class RunNowOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of `run_now`."""

    participle: ClassVar[str] = "let run now"


class ExtendOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of extending a lease."""

    participle: ClassVar[str] = "extended"


class AckOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of an ack."""

    participle: ClassVar[str] = "acked"


class RetryOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of a retry."""

    participle: ClassVar[str] = "retried"


class BuryOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of burying a message."""

    participle: ClassVar[str] = "buried"


class ReleaseOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of releasing a message."""

    participle: ClassVar[str] = "released"


class ReviveOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of reviving a dead letter."""

    participle: ClassVar[str] = "revived"


class PurgeOutcome(CommandOutcome, frozen=True, gc=False):
    """The outcome of purging a message."""

    participle: ClassVar[str] = "purged"


class Outcomes(msgspec.Struct, frozen=True, gc=False, tag="outcomes", omit_defaults=True):
    """One outcome for each message, in the order of the command."""

    outcomes: list[Outcome]
    wake: int | None = None
    """When messages can be claimed (Unix milliseconds), if that is sooner than before."""

    @classmethod
    def of(cls, outcomes: list[Outcome], opens: Iterable[int] = ()) -> "Outcomes":
        """Return the outcomes of a change, with when the first of its messages can be claimed.

        Args:
            outcomes: one for each message.
            opens: when the limits of the queue allow a message again, in Unix milliseconds.
        """
        wake = min(opens, default=None)
        for outcome in outcomes:
            due = outcome.due
            is_earlier = due is not None and (wake is None or due < wake)
            if is_earlier and outcome.done and outcome.state in ("delayed", "ready"):
                wake = due
        return cls(outcomes, wake)


class Died(msgspec.Struct, frozen=True, gc=False):
    """A message that became a dead letter because the lease of its last attempt expired."""

    id: str
    attempts: int
    """The number of its attempts."""
    holder: str
    """The worker that held it last."""


class Claimed(msgspec.Struct, frozen=True, gc=False, tag="claimed", omit_defaults=True):
    """The messages that are leased now."""

    messages: list[Message]
    token: int
    now: int
    """The store's clock at the claim."""
    next: float | None = None
    """If no message came: in how many milliseconds to claim again; `None`: not before a new put.

    With fractions: rounded to whole milliseconds, a claim would be half a millisecond late on
    average."""
    died: list[Died] = []
    """The messages that this claim made dead letters while it collected expired leases."""
    results: bool = False
    """Whether the queue remembers the results of messages."""
    limited: bool = False
    """Whether the queue has limits, so that a message may have waited for one of them."""
    behind: bool = False
    """Whether a limited queue has due messages that no claim has sorted into lines yet, so that
    they are not served: claim again, with a `count` of 0 if there is no room."""
    calm: bool = False
    """Whether no change of another process was missed, nor can be soon: a claim that waits need not
    look again so often."""

    @property
    def leases(self) -> list[Lease]:
        """The lease of each message."""
        return [Lease(message.id, self.token, message.secret) for message in self.messages]


class Found(msgspec.Struct, frozen=True, gc=False, tag="found"):
    """The messages with these ids, `None` for each that does not exist.

    If all together are larger than `Find.max_bytes`, it has the first ids only: ask again for the
    others.
    """

    messages: list[Message | None]


class Page(msgspec.Struct, frozen=True, gc=False, tag="page"):
    """A page of messages, and the cursor of the next page (`None`: there is none)."""

    messages: list[Message]
    cursor: str | None


class Affected(msgspec.Struct, frozen=True, gc=False, tag="affected"):
    """How many messages a rule selected, and whether there are more."""

    count: int
    more: bool = False
    stopping: list[str] = []
    """By a cancel with `running`: the ids of those whose workers were asked to stop, which are not
    in the count."""


class ClosedGroup(msgspec.Struct, frozen=True, gc=False, order=True):
    """A group that is closed: what is put into it is refused."""

    until: UnixMs
    """When it opens again, in Unix milliseconds."""
    group: str
    """Its name."""

    @property
    def until_at(self) -> datetime:
        """`until` as an aware `datetime`."""
        return to_datetime(self.until)

    def __str__(self) -> str:
        return f"group {self.group} is closed until {_utc(self.until)}"


class GroupsClosed(msgspec.Struct, frozen=True, gc=False, tag="groups_closed", omit_defaults=True):
    """Groups that are closed, or were until this command opened them."""

    groups: list[ClosedGroup]
    more: bool = False
    """Whether a list goes on: ask again with the last one."""


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """How many messages are in each state."""

    delayed: int = 0
    ready: int = 0
    leased: int = 0
    dead: int = 0

    @property
    def total(self) -> int:
        """All messages in the queue."""
        return self.delayed + self.ready + self.leased + self.dead


SIZES = Sizes.__struct_fields__

GONE = ("acked", "cancelled", "expired", "purged", "moved")
"""The counters of `Flow` for messages that have left the queue."""


class Flow(msgspec.Struct, frozen=True, gc=False):
    """The changes of a queue since it exists; counted in the same transaction."""

    put: int = 0
    acked: int = 0
    cancelled: int = 0
    expired: int = 0
    purged: int = 0
    died: int = 0
    revived: int = 0
    retried: int = 0
    lapsed: int = 0
    moved: int = 0

    @property
    def gone(self) -> int:
        """All messages that have left the queue."""
        return sum(getattr(self, name) for name in GONE)


FLOW = Flow.__struct_fields__


class Counts(msgspec.Struct, frozen=True, gc=False, tag="counts", omit_defaults=True):
    """The number of messages in each state, and of all changes so far."""

    sizes: Sizes
    flow: Flow
    kept: int = 0
    """Messages that have left the queue and are remembered: acked and expired ones."""
    closed: int = 0
    """How many groups are closed."""
    paused: bool = False
    keep: int = 0
    """How long the queue keeps acked messages, in milliseconds; 0: not at all."""
    history: int = 0
    """How long the queue remembers how messages ended, in milliseconds."""
    result_ttl: int = 0
    """How long it remembers the results of messages, in milliseconds."""
    limit: int = 0
    """How many of its messages may be leased at a time; 0: no limit."""
    rate: int = 0
    """The shortest time from one delivery to the next, in microseconds; 0: no limit."""
    group_limit: int = 0
    group_rate: int = 0
    oldest: int | None = None
    """The due time of the message that has waited longest, if one is due."""
    recount: Sizes | None = None
    """With `Count(recount=True)`: the messages themselves, counted in the same snapshot."""
    strays: int | None = None
    """With `Count(recount=True)`: messages in no state or in two; 0 in a consistent store."""
    stored: int | None = None
    """With `Count(stored=True)`: the bytes of all messages, kept ones included: body, id, group,
    headers, failures, and up to 200 more for each, as the store keeps them. And those of what is
    remembered of messages that have ended."""
    paused_until: int | None = None
    """When its pause ends by itself, in Unix milliseconds; `None`: it does not."""
    overdue: str = ""
    """What becomes of messages that are overdue after an outage; empty: they are delivered."""


class Forecasted(msgspec.Struct, frozen=True, gc=False, tag="forecasted"):
    """How many messages are due when."""

    start: int
    """The start of the first bucket: the store's time, or for buckets of an hour or more the whole
    hour before it. The first bucket counts only messages that are not yet due."""
    overdue: int
    """Due by now."""
    buckets: list[int]
    """Due in each bucket: from its beginning on, and before its end."""
    later: int
    """Due at the end of the last bucket, or after it."""


AHEAD = 1_000
"""How many messages ahead of another one are counted."""

PAUSES = 10
"""The number of its last pauses that a queue remembers."""


class Pause(msgspec.Struct, frozen=True, gc=False):
    """A time in which nothing could be claimed from a queue."""

    since: int | None
    """Its start in Unix milliseconds; `None`: it is not known."""
    until: int | None = None
    """Its end, which may be in the future; `None`: the queue is paused until it is resumed."""
    actor: str | None = None
    """Who paused the queue, if known."""

    def lasts(self, now: int) -> bool:
        """Whether it has not ended by a time in Unix milliseconds."""
        return self.until is None or self.until > now


class Serving(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A worker that serves a queue."""

    holder: str
    """The name under which it claims."""
    places: int | None = None
    """How many messages of this queue it handles at a time; `None`: it did not say."""
    running: int = 0
    """How many it handles now, of this queue."""
    longest: str | None = None
    """The id of the message that it has handled for the longest time."""
    since: int | None = None
    """Since when, in Unix milliseconds."""
    hours: str | None = None
    """The hours of the window in which it handles messages of this queue; `None`: it has none."""
    timezone: str | None = None
    """The time zone of these hours."""
    opens: int | None = None
    """When its window opens, if that was closed; in Unix milliseconds."""

    def is_closed(self, now: int) -> bool:
        """Return whether it waits until its window opens."""
        return self.opens is not None and self.opens > now

    @property
    def busy(self) -> bool:
        """Whether all its places are taken."""
        return self.places is not None and self.running >= self.places


class Subscribed(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A subscription of a queue that sends nothing for now."""

    name: str
    paused: bool
    """Whether it was paused; else its circuit is open, because its receiver fails."""
    reason: str = ""
    """Why it was paused, or the last failure."""
    since: int | None = None
    """Since when the circuit is open, in Unix milliseconds."""
    until: int | None = None
    """When the receiver is tried again."""


class Limited(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What limit holds a ready message back."""

    by: Literal["limit", "rate", "group_limit", "group_rate"]
    """The name of the setting."""
    value: int
    """Its value; of a rate the interval in microseconds."""
    running: int
    """How many messages are leased: of the queue, or of the group."""
    until: int | None = None
    """Of a rate: when the next message may be delivered, in Unix milliseconds."""


class Explained(
    msgspec.Struct, frozen=True, gc=False, tag="explained", omit_defaults=True, kw_only=True
):
    """What a store knows about the place of a message. Times are Unix milliseconds."""

    now: int
    """The store's clock."""
    pauses: list[Pause] = []
    """The last pauses of the queue, the latest one last."""
    state: State | None = None
    """The state of the message; `None`: there is none."""
    due: int = 0
    planned: int | None = None
    """The due time of the put, if a retry or a release with a delay has changed `due`."""
    priority: int = 0
    attempt: int = 0
    """How often it was delivered."""
    attempts: int = 0
    """The maximum number of deliveries."""
    failure: Failure | None = None
    """The last failed attempt."""
    ahead: int | None = None
    """If it is ready: how many messages are delivered before it; in a limited queue how many of its
    group. `AHEAD` + 1 means more than `AHEAD`."""
    holder: str | None = None
    """The worker that holds it, if it is leased."""
    since: int | None = None
    """When that worker got it; `None`: it is not known."""
    extended: int = 0
    """How often the worker has extended its lease."""
    stopping: str | None = None
    """The actor that has asked the worker to stop; empty: it has no name; `None`: none has."""
    progress: Progress | None = None
    """The last report of the worker."""
    until: int | None = None
    """When the lease expires."""
    ended: int | None = None
    """When it became dead, acked or expired."""
    successor: int | None = None
    """When its successor is due (see `Message.successor`), if it has one."""
    end: End | None = None
    """If it is gone: how it ended, while the queue remembers that; not from the store itself."""
    workers: list[Serving] | None = None
    """Who serves the queue, if a server or the caller has looked."""
    subscriptions: list[Subscribed] | None = None
    """Which subscriptions of the queue send nothing, if a server or the caller has looked."""
    limited: Limited | None = None
    """The limit that holds a ready message back, if one does."""
    rule: str | None = None
    """If it repeats, by which rule, as text: see `Message.repeat`."""
    run: str | None = None
    """If it repeats, which run it is, as text."""


class QueueSettings(
    msgspec.Struct, frozen=True, gc=False, tag="settings", omit_defaults=True, kw_only=True
):
    """The settings of a queue."""

    paused: bool
    paused_until: int | None = None
    """When the pause ends by itself, in Unix milliseconds; `None`: it does not."""
    keep: int
    wake: int | None = None
    history: int = 0
    result_ttl: int = 0
    limit: int = 0
    """How many of its messages may be leased at a time; 0: no limit."""
    rate: int = 0
    """The shortest time from one delivery to the next, in microseconds; 0: no limit."""
    group_limit: int = 0
    group_rate: int = 0
    overdue: str = ""
    """What becomes of messages that are overdue after an outage; empty: they are delivered."""


class Ends(msgspec.Struct, frozen=True, gc=False, tag="ends", omit_defaults=True):
    """What is known of a message: its state if it is there, and how messages of its id ended."""

    state: State | None
    """`None`: it is not there. "delayed" while a move or an import has it in transit."""
    ends: list[End]
    """The newest first."""


class EndedPage(msgspec.Struct, frozen=True, gc=False, tag="ended_page", omit_defaults=True):
    """A page of messages that have ended, and the cursor of the next page (`None`: none)."""

    messages: list[Ended]
    cursor: str | None


class Deleted(msgspec.Struct, frozen=True, gc=False, tag="deleted", omit_defaults=True):
    """Whether a queue was deleted; if not, what it contains."""

    done: bool
    sizes: Sizes = Sizes()
    """Its messages; all zero if there is no such queue."""
    kept: int = 0
    """The acked and expired messages that it remembers."""


class Names(msgspec.Struct, frozen=True, gc=False, tag="names"):
    """Names of queues."""

    names: list[str]


_Read = Found | Page | Counts | Forecasted | Explained | Ends | EndedPage | GroupsClosed | Names
Reply = Outcomes | Claimed | Affected | QueueSettings | Deleted | _Read


T = TypeVar("T")


def expect(reply_type: type[T], reply: object) -> T:
    """Return a reply, which is of the type that its command has."""
    assert isinstance(reply, reply_type), f"a store answered {reply!r}"
    return reply
