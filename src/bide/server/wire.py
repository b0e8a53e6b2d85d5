"""Requests and answers: the structs from which the OpenAPI description is made.

Requests give times as ISO 8601 with a zone or as Unix seconds, and durations as "1h30m" or in
seconds; answers have Unix milliseconds. A body is any JSON value under `body`, or bytes in base64
under `bytes`.
"""

from contextlib import suppress
from datetime import date, datetime
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_HTTP_MESSAGES, MAX_LEASE_TOKEN
from bide.model.message import MAX_PROGRESS_TEXT, Message, Name, Options, Progress, State
from bide.model.repeat import MAX_TIMES, Missed, Repeat, repeat
from bide.model.replies import Counts, Flow, Outcome, QueueSettings, Sizes
from bide.model.runs import Run
from bide.model.times import Moment, limits_of
from bide.model.window import LONGEST_HOURS, MAX_HOLIDAYS, Window
from bide.server.problem import naming_server, within

Span = Annotated[
    float | str,
    Meta(
        description="A length of time: seconds, or numbers with the units ms, s, m, h, d, w.",
        examples=["30m", "1h30m", 90],
    ),
]
When = Annotated[
    float | str,
    Meta(
        description="A time: ISO 8601 with a zone, or Unix seconds.",
        examples=["2030-01-01T09:00:00Z", 1893456000],
    ),
]


Prefix = Annotated[str, Meta(max_length=128, pattern="^[A-Za-z0-9_.:-]*$")]
"""The prefix of names of queues."""


class RequestModel(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body or the query of a request. Unknown names are refused."""


class Selection(RequestModel, kw_only=True):
    """The messages that a request selects: all conditions that are given must hold."""

    group: Name | None = None
    after: When | None = None
    before: When | None = None

    @property
    def rule(self) -> tuple[str | None, Moment | None, Moment | None]:
        """The group and the range of due times."""
        return self.group, moment(self.after, "after"), moment(self.before, "before")


class RepeatRule(RequestModel):
    """By which rule a message repeats: `cron` or `every`, and its bounds."""

    cron: str | None = None
    """Minute, hour, day of the month, month and day of the week, such as "0 9 * * MON"."""
    timezone: str | None = None
    """The time zone of `cron`, such as "Europe/Berlin"; UTC without it."""
    every: Span | None = None
    """The period, at least 100 ms."""
    start: When | None = None
    """Not before this time. A period is counted from it, or else from 1970 in UTC."""
    until: When | None = None
    """Not after this time."""
    times: Annotated[int, Meta(ge=1, le=MAX_TIMES)] | None = None
    """How many runs there are."""
    missed: Missed = "once"
    """What becomes of runs whose time passes while no worker can begin them: "once": they are one
    run; "all": each is one, one after the other; "skip": they are left out."""
    grace: Span | None = None
    """How late a run may begin and is not missed; until the time of the next one without it."""

    @classmethod
    def of(cls, rule: str) -> Self:
        """Return the rule of a message as a request has it; empty: of a later version of bide."""
        try:
            fields = msgspec.json.decode(rule, type=dict[str, Any])
            fields.pop("window", None)
            return msgspec.convert(fields, cls)
        except msgspec.MsgspecError:
            return cls()

    @property
    def rule(self) -> Repeat:
        """The rule.

        Raises:
            Problem: the fields do not make a valid rule.
        """
        with within("repeat"), naming_server():
            return repeat(
                cron=self.cron,
                every=self.every,
                timezone=self.timezone,
                start=moment(self.start, "start"),
                until=moment(self.until, "until"),
                times=self.times,
                missed=self.missed,
                grace=self.grace,
            )


class WindowHours(RequestModel):
    """The hours of a week in which a message is delivered."""

    hours: Annotated[
        str,
        Meta(
            max_length=LONGEST_HOURS,
            examples=["Mon-Fri 09:00-18:00", "22:00-06:00", "Mon-Fri 09:00-12:00; Sat-Sun"],
        ),
    ]
    """Days and times; a time without a day is of each day, and a day without a time is a whole one.
    A time that ends before it begins ends on the next day."""
    timezone: str = "UTC"
    """The time zone of these hours and of the holidays, such as "Europe/Berlin"."""
    holidays: Annotated[list[date], Meta(max_length=MAX_HOLIDAYS)] = []
    """Days on which it is closed, such as "2026-12-25"."""

    @classmethod
    def of(cls, window: Window) -> Self:
        """Return a window as a request has it."""
        return cls(window.hours, window.timezone, list(window.holidays))

    @property
    def window(self) -> Window:
        """The window.

        Raises:
            Problem: the fields do not make a valid window.
        """
        with within("window"), naming_server():
            return Window(self.hours, self.timezone, self.holidays)


class PutOptions(Options, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a put; `Options` declares those that need no conversion."""

    delay: Span | None = None
    """How long from now until it is due. Not together with `at`; due at once without both."""
    at: When | None = None
    """When it is due; with `timezone` a local date, such as "2027-03-28 09:00"."""
    timezone: str | None = None
    """The time zone of `at`, such as "Europe/Paris": the message keeps date and zone, and moves if
    the rules of the zone change. A time that the clocks skip is right after the gap, and one that
    they show twice is the first one."""
    expires: Span | None = None
    """How long after its due time it is still worth delivering."""
    latest: Span | None = None
    """With an id, `delay` and `on_conflict` "replace": each put of the id moves its due time, but
    not further than this from the first put of the id. If the message is leased, the new one
    follows it when the lease ends."""
    spread: Span | None = None
    """How long after `delay` or `at` it is due at the latest: at a time within this span that is
    always the same for its id."""


class Given(PutOptions, kw_only=True):
    """A message to be put."""

    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    """Any JSON value."""
    raw: bytes | UnsetType = msgspec.field(default=UNSET, name="bytes")
    """Bytes, in base64, instead of `body`."""
    id: Name | None = None
    """A name of your own; made up when missing."""
    repeat: RepeatRule | None = None
    """By which rule it repeats. It is first due at the first time of the rule, unless `delay` or
    `at` says when. Each run ends as a message does, and the next one takes its place."""
    window: WindowHours | None = None
    """In which hours it is delivered. What cannot be delivered in them waits for the next
    opening."""
    headers: Annotated[
        msgspec.Raw,
        Meta(extra_json_schema={"type": "object", "additionalProperties": {"type": "string"}}),
    ] = msgspec.field(default_factory=msgspec.Raw)
    """Text that travels beside the body."""


class PutMany(RequestModel):
    """Messages to be put together: all are stored, or none."""

    messages: Annotated[list[Given], Meta(max_length=MAX_HTTP_MESSAGES)]
    on_conflict: Literal["keep", "replace"] = "keep"
    """What to do with a message whose id is there already."""


class Deliver(RequestModel):
    """How many due messages to claim, and for how long."""

    count: Annotated[int, Meta(ge=1, le=MAX_HTTP_MESSAGES)] = 1
    lease: Span = 30
    """How long they are yours."""
    wait: Span = 0
    """How long to wait for the first to fall due, if none is."""
    holder: Name | None = None
    """Your name, which others see."""


class LeaseOf(msgspec.Struct, forbid_unknown_fields=True):
    """Your lease of a message: both fields as the claim returned them."""

    id: Name
    token: (
        Annotated[int, Meta(ge=0, le=(1 << 53))] | Annotated[str, Meta(max_length=MAX_LEASE_TOKEN)]
    )


Leases = Annotated[list[LeaseOf], Meta(min_length=1, max_length=MAX_HTTP_MESSAGES)]


class Done(LeaseOf):
    """Your lease of a message that is done."""

    result: msgspec.Raw | UnsetType = UNSET
    """Its result, any JSON value up to 64 KiB; a queue with `result_ttl` remembers it."""


class SettleRequest(RequestModel):
    """Messages that a request is about, by their leases."""

    leases: Leases


class AckRequest(SettleRequest):
    """Messages that are done."""

    leases: Annotated[list[Done], Meta(min_length=1, max_length=MAX_HTTP_MESSAGES)]  # type: ignore[assignment]


class RetryRequest(SettleRequest):
    """Messages to be tried again."""

    delay: Span = 0
    reason: str = ""
    """The error; it is stored with the messages."""


class ExtendRequest(SettleRequest):
    """Messages whose leases are extended."""

    lease: Span = 30
    """How long from now."""


class ProgressOf(LeaseOf, kw_only=True):
    """Your lease of a message, and how far you have come with it."""

    done: float
    """How much is done, in units of your own."""
    of: float | None = None
    """How much there is to do, if that is known."""
    text: Annotated[str, Meta(max_length=MAX_PROGRESS_TEXT)] = ""
    """What is counted, or what you do now."""


class ReportRequest(SettleRequest):
    """Messages that are worked on, and how far that has come."""

    leases: Annotated[list[ProgressOf], Meta(min_length=1, max_length=MAX_HTTP_MESSAGES)]  # type: ignore[assignment]
    lease: Span | None = None
    """Also extend the leases: how long from now."""


class BuryRequest(SettleRequest):
    """Messages to become dead letters."""

    reason: str = ""


class ReleaseRequest(SettleRequest):
    """Messages to be returned without counting an attempt."""


class EndLeaseRequest(RequestModel):
    """Why a lease is ended."""

    reason: str | None = None
    """The reason to store with the message; by default "released by" and the caller's name."""


class EmptyRequest(RequestModel):
    """Nothing; the body may be left out."""


class FailureOut(msgspec.Struct, omit_defaults=True):
    """An attempt that did not end in an ack."""

    attempt: int
    moment: int
    """When it ended."""
    holder: str
    reason: str
    started: int | None = None
    """When the holder got the message, if that is known."""


class MessageOut(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message as it is at one time. Times are Unix milliseconds.

    It has all fields of `Options`. It does not inherit them, because then they came first.
    """

    id: str
    queue: str
    state: State
    due: int
    priority: int
    attempt: int
    """How many times it was delivered."""
    attempts: int
    """How many times it is delivered at most."""
    group: str | None = None
    token: str | None = None
    """In the answer to a claim: proves your lease; send it back whole with the ack. It begins with
    the fencing token, a growing number, up to the dot if there is one."""
    expires: int | None = None
    """How many milliseconds after `due` it is still worth delivering."""
    headers: dict[str, str] | None = None
    holder: str | None = None
    until: int | None = None
    """When the lease lapses."""
    stopping: str | None = None
    """Who has asked the holder to stop; "": somebody without a name; missing: nobody."""
    progress: Progress | None = None
    """The last report of the holder."""
    ended: int | None = None
    """When it became dead, acked or expired."""
    created: int | None = None
    """When it was first put; missing if unknown."""
    successor: int | None = None
    """The due time of the message that follows it when the lease ends; see `latest` of a put."""
    date: str | None = None
    """If it is planned for a local date: date and time, in `timezone`."""
    timezone: str | None = None
    """The time zone of `date`."""
    repeat: RepeatRule | None = None
    """By which rule it repeats, as a put has it, with times in ISO 8601; missing: it does not."""
    run_at: int | None = None
    """If it repeats: the time of this run by the rule, whenever it is delivered."""
    held: bool = False
    """Whether it repeats and is held: no run is due until it is resumed."""
    window: WindowHours | None = None
    """In which hours it is delivered, as a put has it; missing: at any time."""
    failures: list[FailureOut] = []
    body: msgspec.Raw | UnsetType = UNSET
    """The body, if it is JSON."""
    raw: bytes | UnsetType = msgspec.field(default=UNSET, name="bytes")
    """The body in base64, if it is not."""


class Messages(msgspec.Struct, omit_defaults=True):
    """Some messages, and where the next page begins."""

    messages: list[MessageOut]
    cursor: str | None = None
    """Send it with the next request; if it is missing, there is no next page."""


class ClaimedOut(msgspec.Struct, omit_defaults=True):
    """The messages that you lease now."""

    messages: list[MessageOut]
    now: int
    """The store's clock at the claim, in Unix milliseconds."""
    next: int | None = None
    """Without messages: in how many milliseconds the next one is due, if there is one."""


class OutcomesOut(msgspec.Struct):
    """The outcome of each message, in the order of the request."""

    outcomes: list[Outcome]


def due(at: str | float | None, timezone: str | None) -> Moment | str | None:
    """Convert the due time of a request: with a zone a local date, which is checked later.

    Raises:
        InvalidArgument: it is not a valid time, or has no zone.
    """
    return moment(at, "at") if timezone is None else at


def moment(value: str | float | None, name: str) -> Moment | None:
    """Convert a time of a request.

    Raises:
        InvalidArgument: it is not a valid time, or has no zone.
    """
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        return float(value)  # in a query, Unix seconds are text, too
    with suppress(ValueError):
        if (time := datetime.fromisoformat(value)).tzinfo is not None:
            return time
    raise InvalidArgument(
        f"{name}={value!r} is not a valid time; write ISO 8601 with a zone, as "
        "2030-01-01T09:00:00Z or 2030-01-01T09:00:00+08:00, or Unix seconds"
    )


def span(value: str | float) -> str | float:
    """Convert a duration of a query, where a plain number is text."""
    if isinstance(value, str) and value.replace(".", "", 1).isdecimal():
        return float(value)
    return value


def message_out(
    message: Message, queue: str, token: str | None = None, *, bodies: bool = True
) -> MessageOut:
    """Convert a message for an answer.

    Args:
        message: the message as the store returned it.
        queue: the caller's name of its queue.
        token: the token of its lease, in the answer to a claim.
        bodies: whether the caller may see its body and headers.
    """
    fields = {name: getattr(message, name) for name in _FIELDS_IN_COMMON}
    if not bodies:
        fields["headers"] = None
    elif message.json:
        fields["body"] = msgspec.Raw(message.data)
    else:
        fields["raw"] = message.data
    if (date := message.local_date) is not None:
        fields |= {"date": date.date, "timezone": date.timezone}
    if message.repeats:
        fields["repeat"] = RepeatRule.of(message.rule or "")
        with suppress(InvalidArgument):  # a later version of bide wrote it
            run = Run.of(message.run or "")
            fields |= {"run_at": run.at, "held": run.held}
    if message.rule is not None:
        with suppress(InvalidArgument):
            window = message.window
            fields["window"] = None if window is None else WindowHours.of(window)
    return MessageOut(
        **fields,
        queue=queue,
        token=token,
        successor=None if message.successor is None else message.successor.due(0),
        failures=[FailureOut(*msgspec.structs.astuple(failure)) for failure in message.failures],
    )


_FIELDS_IN_COMMON = [
    name
    for name in Message.__struct_fields__
    if name in MessageOut.__struct_fields__ and name not in ("queue", "failures", "successor")
]


class SettingsOut(msgspec.Struct):
    """The settings of a queue."""

    paused: bool = False
    paused_until: int | None = None
    """When the pause ends by itself, in Unix milliseconds; null: it does not."""
    keep: int = 0
    """Milliseconds for which acked messages are remembered."""
    history: int = 0
    """Milliseconds for which the queue remembers how messages ended."""
    result_ttl: int = 0
    """Milliseconds for which it remembers their results."""
    limit: int = 0
    """How many of its messages may be leased at a time; 0: no limit."""
    rate: str | None = None
    """How many messages may be delivered, such as "5/s"; null: no limit."""
    group_limit: int = 0
    """`limit` for each group."""
    group_rate: str | None = None
    """`rate` for each group."""
    overdue: str = ""
    """Its plan for what is overdue after a gap without workers, such as "drop 6h, spread 10m"."""

    @classmethod
    def of(cls, reply: QueueSettings | Counts) -> Self:
        """Convert the reply of a store."""
        fields = {name: getattr(reply, name) for name in cls.__struct_fields__}
        return cls(**fields | limits_of(reply))


class CountsOut(SettingsOut, kw_only=True, omit_defaults=True):
    """How many messages are in each state, how the others ended, and the queue's settings."""

    sizes: Sizes
    flow: Flow
    kept: int = 0
    """Acked and expired messages that are still remembered."""
    closed: int = 0
    """How many groups are closed."""
    oldest: int | None = None
    """The due time of the message that has waited longest, if one is due."""
    recount: Sizes | None = None
    """In an audit: the messages themselves, counted in the same snapshot."""
    strays: int | None = None
    """In an audit: messages in no state or in two. Always 0 in a sound store."""
