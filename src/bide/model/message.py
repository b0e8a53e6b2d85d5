"""A message: as a user puts it, and as the store returns it."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from bide.model import body as bodies
from bide.model.errors import AccessDenied
from bide.model.limits import MAX_NAME, MAX_PUT_FAILURES, MAX_RULE, MAX_RUN
from bide.model.times import Duration, ExpiryMs, Moment, Ms, UnixMs, to_datetime

if TYPE_CHECKING:
    from bide.model.local_date import LocalDate
    from bide.model.repeat import Repeat
    from bide.model.window import Window

State = Literal["delayed", "ready", "leased", "dead", "acked", "expired"]

STATES: tuple[State, ...] = ("delayed", "ready", "leased", "dead", "acked", "expired")

ATTEMPTS = 10
"""The default maximum number of deliveries of a message."""

MAX_ATTEMPTS = 10_000
"""The largest value of `attempts`."""

MAX_ATTEMPT = 1 << 30
"""How often a message that is put may have been delivered. Deliveries add to it, and a store must
be able to keep the sum."""

JOB = "bide-job"
"""The header that names the job of a message."""

KEPT_FAILURES = 20
"""The number of its last failures that a message remembers."""

REASON_LENGTH = 8_192
"""The maximum length of a failure's reason in characters: its first line and its end."""

MAX_PROGRESS_TEXT = 200
"""The maximum length of the text of a report of progress, in characters; a longer one is cut."""

UNREADABLE = "the record of this message in the store cannot be read: its bytes are the body"
"""The failure of a message of which only the id can be read."""

LAPSED = "the lease lapsed: the holder died, hung, or needed longer than its lease"
"""The reason of a failure that no worker reported."""

IN_TRANSIT = "in transit by bide "
"""While a move carries a message, it is a dead letter whose last failure has a reason like this."""

EXPIRED_KEEP = 86_400_000
"""How many milliseconds an expired message can be read; longer if the queue keeps messages."""

FORGET = 1_000
"""The maximum number of messages that one command forgets."""

HELD = " held"
"""So ends `run` of a message that is held: no run is due until it is resumed."""

RUN_ENDED = "ended "
"""How `run` begins if that run has ended, and the next one is not planned yet."""


Name = Annotated[str, Meta(min_length=1, description="1 to 512 bytes, no control characters.")]


Priority = Annotated[
    int, Meta(ge=0, le=255, description="Higher goes first among messages that are due: 0 to 255.")
]
Attempts = Annotated[
    int,
    Meta(
        ge=1,
        le=MAX_ATTEMPTS,
        description="The maximum number of deliveries before it becomes a dead letter.",
    ),
]
Group = Annotated[Name, Meta(description="A name that several messages share, to cancel them by.")]


class Options(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The options of a message that Python, the command line and HTTP take in the same form.

    Bounds, defaults and help texts are declared here and nowhere else. Python arguments, HTTP and
    its OpenAPI description, `bide put`, import and move use them; see `bide.model.options`.
    """

    priority: Priority = 0
    attempts: Attempts = ATTEMPTS
    group: Group | None = None


class _Put(Options, kw_only=True):
    """The options of a put that Python, the command line and HTTP take in different forms."""

    delay: Duration | None = None
    at: Moment | str | None = None
    timezone: str | None = None
    id: str | None = None
    expires: Duration | None = None
    headers: Mapping[str, str] | None = None
    latest: Duration | None = None
    spread: Duration | None = None
    repeat: Any = None  # a `Repeat`, which most messages do not need to import
    window: Any = None  # a `Window`


class NewMessage(_Put):
    """One message to put, for `put_many` and sources.

    Args:
        body: any JSON value, or bytes.
        delay: how long from now until it is due; not together with `at`. Due at once by default.
        at: its due time: an aware `datetime`, or Unix seconds; with `timezone` a local date: a text
            or a naive `datetime`.
        timezone: the zone of a local date, such as "Europe/Paris".
        id: your own id, 1 to 512 bytes; random by default.
        priority: 0 to 255; higher goes first among messages that are due.
        expires: how long after its due time it may be delivered; without limit by default.
        attempts: the maximum number of deliveries; then it becomes a dead letter.
        group: a name that several messages share.
        headers: text beside the body.
        latest, spread, repeat, window: see `Queue.put`.

    Example:
        >>> NewMessage({"order": 42}, delay="30m", id="order-42").id
        'order-42'
    """

    body: Any


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One attempt that did not end in an ack."""

    attempt: Annotated[int, Meta(ge=0, le=2 * MAX_ATTEMPT)]
    """The number of the attempt, from 1; above `MAX_ATTEMPT` if that many were put with it."""
    moment: UnixMs
    """When it ended, in Unix milliseconds."""
    holder: Annotated[str, Meta(max_length=MAX_NAME)]
    """The worker that held the message: its host and process."""
    reason: Annotated[str, Meta(max_length=REASON_LENGTH)]
    """The reason that the worker gave."""
    started: UnixMs | None = None
    """When the worker got the message, in Unix milliseconds; `None`: it is not known, or no worker
    had it."""

    @property
    def lapsed(self) -> bool:
        """Whether the lease expired: no worker reported this failure.

        Example:
            >>> Failure(1, 1_700_000_000_000, "web1:431", LAPSED).lapsed
            True
        """
        return self.reason == LAPSED


class Progress(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How far a worker has come with a message, as it reports it.

    Example:
        >>> print(Progress(40, of=100, text="rows"))
        40 of 100 rows (40 %)
        >>> print(Progress(7))
        7
    """

    done: float
    """How much is done, in units of the worker's own."""
    of: float | None = None
    """How much there is to do; `None`: it is not known."""
    text: Annotated[str, Meta(max_length=MAX_PROGRESS_TEXT)] = ""
    """What is counted, or what the worker does now."""
    moment: UnixMs = 0
    """When the store got it, in Unix milliseconds; 0: it is under way to the store."""

    @property
    def percent(self) -> int | None:
        """How much of the whole is done, 0 to 100; `None`: it is not known."""
        if not self.of or self.of < 0:
            return None
        return max(0, min(100, int(100 * self.done / self.of)))

    def __str__(self) -> str:
        whole = "" if self.of is None else f" of {self.of:,.12g}"
        text = f" {self.text}" if self.text else ""
        share = "" if self.percent is None else f" ({self.percent} %)"
        return f"{self.done:,.12g}{whole}{text}{share}"


class Item(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """One message of a `Put` command: checked, its body encoded, times in milliseconds."""

    id: str
    data: bytes
    """The encoded body."""
    json: bool = True
    """Whether `data` is JSON; else the body is bytes."""
    at: UnixMs | None = None
    """When it is due; `None`: `delay` after the put, by the store's clock."""
    delay: Ms = 0
    priority: int = 0
    expires: ExpiryMs | None = None
    """How long after it is due it may be delivered; `None`: without limit."""
    attempts: int = ATTEMPTS
    group: str | None = None
    headers: dict[str, str] | None = None
    attempt: Annotated[int, Meta(ge=0, le=MAX_ATTEMPT)] = 0
    failures: Annotated[tuple[Failure, ...], Meta(max_length=MAX_PUT_FAILURES)] = ()
    died: UnixMs | None = None
    """Set by an import: the message is a dead letter since this time."""
    created: UnixMs | None = None
    """Set by an import: when the message was first put, in Unix milliseconds; 0: unknown."""
    latest: Ms | None = None
    """If it replaces a message: the latest due time, in milliseconds after the first put of the id.
    While a worker holds that message, the item is stored as its successor."""
    rule: Annotated[str, Meta(max_length=MAX_RULE)] | None = None
    """If its time follows a rule, which: see `bide.model.time_rule`. A store does not read it."""
    run: Annotated[str, Meta(max_length=MAX_RUN)] | None = None
    """If it repeats, which run it is. A store only knows that another run follows."""

    @property
    def has_past(self) -> bool:
        """Whether it was delivered or died before, as an import says."""
        return self.attempt > 0 or bool(self.failures) or self.died is not None

    def due(self, now: int, first: int | None = None) -> int:
        """Return when it is due if it is put now. Times are Unix milliseconds.

        Args:
            now: when it is put.
            first: when its id was first put; `None`: now. `latest` counts from then.
        """
        due = now + self.delay if self.at is None else self.at
        if self.latest is None:
            return due
        first_put = now if first is None else first
        return min(due, first_put + self.latest)

    def follows(self, on_conflict: str, if_version: str | None) -> bool:
        """Whether it is stored as the successor of the message of its id, if that is leased.

        A successor takes the place of an earlier one, and becomes a message when the lease ends.

        Args:
            on_conflict: as in the put.
            if_version: as in the put; a successor has no version to compare.
        """
        replaces = on_conflict == "replace" and if_version is None
        return replaces and self.latest is not None and self.died is None

    def follow(self, before: "Item | None", now: int) -> "Item":
        """Return the item as the successor of a leased message.

        Args:
            before: the successor that it replaces, if there is one.
            now: when it is put, in Unix milliseconds.
        """
        first = now if before is None or before.created is None else before.created
        return Item(
            id=self.id,
            data=self.data,
            json=self.json,
            at=self.due(now, first),
            delay=0,
            priority=self.priority,
            expires=self.expires,
            attempts=self.attempts,
            group=self.group,
            headers=self.headers,
            created=first,
            rule=self.rule,
            run=self.run,
        )


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message as the store returned it. Times are Unix milliseconds."""

    # A claim gives the first six by position and twelve by name: for a call with more names, Python
    # builds a dict, and takes five times as long.
    id: str
    queue: str
    data: bytes
    """The encoded body; `body` decodes it."""
    json: bool
    """Whether `data` is JSON; else the body is bytes."""
    due: int
    priority: int
    attempt: int
    """How often it was delivered."""
    attempts: int
    """The maximum number of deliveries."""
    state: State
    expires: int | None = None
    """How many milliseconds after `due` it may be delivered; `None`: without limit."""
    group: str | None = None
    headers: dict[str, str] | None = None
    failures: tuple[Failure, ...] = ()
    """The attempts that failed, oldest first; the last 20 are kept."""
    holder: str | None = None
    """The worker that holds it, while it is leased."""
    until: int | None = None
    """When the lease expires, while it is leased."""
    ended: int | None = None
    """When it became dead, acked or expired."""
    planned: int | None = None
    """The due time of the put, if a retry or a release with a delay has changed `due`."""
    created: int | None = None
    """When it was first put; `None`: it is not known, as of some imports. Whatever changes the
    message keeps this time. Once it has left the queue, a put of its id sets a new one."""
    successor: Item | None = None
    """What a put with `latest` has stored while the message was leased: it takes its place when the
    lease ends. `at` is when it is due, `created` when it was first put."""
    secret: str | None = None
    """In a claim from a server: the secret part of the token; see `Lease`."""
    asked: int | None = None
    """The due time that the last put, edit or reschedule asked for, if a revival has changed it."""
    stopping: str | None = None
    """Who has asked its worker to stop, while it is leased (see `Cancel.running`); empty: somebody
    who gave no name; `None`: nobody."""
    progress: Progress | None = None
    """The last report of its worker, while it is leased."""
    rule: str | None = None
    """If its time follows a rule, which one, as text: `repeat` and `window` read it."""
    run: str | None = None
    """If it repeats, which run it is, as text."""

    @property
    def body(self) -> Any:
        """The body, decoded at each access.

        Raises:
            UnreadableBody: something has stored JSON that cannot be read; `data` has its bytes.
            AccessDenied: a server withheld it.
        """
        return bodies.decode(self.data or self.seen_data, self.json)

    @property
    def seen_data(self) -> bytes:
        """`data`, unless a server withheld it.

        Raises:
            AccessDenied: a server withheld it; see `withheld`.
        """
        if not self.data and self.json:
            raise AccessDenied(
                f"the server withholds the body of {self.id!r}: the token has no right 'bodies'"
            )
        return self.data

    def as_item(self, failures: tuple[Failure, ...], died: int | None) -> Item:
        """Return the message for a put, with other failures.

        Args:
            failures: to be put with it.
            died: since when it is a dead letter, in Unix milliseconds; `None`: it is none.

        Raises:
            AccessDenied: a server withheld the body.
        """
        _ = self.seen_data  # raises if it was withheld
        return Item(
            id=self.id,
            data=self.data,
            json=self.json,
            at=self.due,
            delay=0,
            priority=self.priority,
            expires=self.expires_elsewhere(dead=died is not None),
            attempts=self.attempts,
            group=self.group,
            headers=self.headers,
            attempt=self.attempt,
            failures=failures,
            died=died,
            created=self.created or 0,
            rule=self.rule_elsewhere(),
            run=self.run,
        )

    def rule_elsewhere(self) -> str | None:
        """Return `rule` for a put of the message that leaves out `planned` and `asked`.

        A message that was put off keeps its local date.
        """
        edited = self.as_edited()
        if self.rule is None or self.repeats or edited.due == self.due:
            return self.rule
        from bide.model.time_rule import with_put_off  # here: most messages have no date

        return with_put_off(self.rule, edited.due, self.due)

    def expires_elsewhere(self, *, dead: bool) -> int | None:
        """Return `expires` for a put of the message that leaves out `planned`.

        A message that was put off has less of it left, and expires when it would have. A dead
        letter and one that repeats have all of it: it counts again after a revival, and for each
        run, where nothing says any more that this is the rest.

        Args:
            dead: whether it is put as a dead letter.
        """
        return self.as_edited().expires if dead or self.repeats else self.expires

    def with_rule(self, rule: str | None, run: str | None) -> "Message":
        """Return the message with a rule for its time, and a run; most messages have neither.

        Apart, because a call with all names is slow: see the fields.
        """
        if rule is None and run is None:
            return self
        return msgspec.structs.replace(self, rule=rule, run=run)

    @property
    def repeats(self) -> bool:
        """Whether another run follows, unless its rule says that this is the last one."""
        return self.run is not None

    @property
    def repeat(self) -> "Repeat | None":
        """The rule by which it repeats; `None`: it does not.

        Raises:
            InvalidArgument: this version does not know the rule, or its time zone.
        """
        from bide.model.time_rule import repeat_of  # here: most messages do not repeat

        return repeat_of(self.rule or "") if self.repeats else None

    @property
    def local_date(self) -> "LocalDate | None":
        """The date in a time zone for which it is planned; `None`: it has none.

        One that was rescheduled to another time since, without a zone, has none.
        """
        if self.rule is None or self.repeats:
            return None
        from bide.model.time_rule import date_of, time_rule_of

        planned = date_of(self.rule)
        if planned is None or not time_rule_of(self.rule).is_on_date(self.as_edited().due):
            return None
        return planned.local

    @property
    def window(self) -> "Window | None":
        """The window in which it is delivered; `None`: it has none.

        Raises:
            InvalidArgument: this version does not know the rule, or its time zone.
        """
        from bide.model.time_rule import window_of  # here: most messages have none

        return window_of(self.rule)

    @property
    def run_at(self) -> datetime | None:
        """If it repeats: the time of this run by the rule, whenever it is delivered."""
        if self.run is None:
            return None
        return datetime.fromisoformat(self.run.removeprefix(RUN_ENDED).partition(" ")[0])

    @property
    def held(self) -> bool:
        """Whether it repeats and is held, so that no run is due until it is resumed."""
        return self.run is not None and self.run.endswith(HELD)

    @property
    def due_at(self) -> datetime:
        """`due` as an aware `datetime`."""
        return to_datetime(self.due)

    @property
    def created_at(self) -> datetime | None:
        """`created` as an aware `datetime`."""
        return None if self.created is None else to_datetime(self.created)

    @property
    def version(self) -> str:
        """A text of 16 hexadecimal digits that changes whenever the message is edited.

        A put, a replacement, an edit and a reschedule change it, and nothing else: no claim, failed
        attempt, retry, lost lease, death or revival. Equal messages have equal versions. The due
        time of a message that repeats is no part of it: its rule is.
        """
        plain = self.as_edited()
        return version_of(plain, plain.due)

    def as_edited(self) -> "Message":
        """Return the message as its last put, edit or reschedule left it.

        `due` and `expires` are as they asked: a retry or a revival may have changed them.
        """
        if self.planned is None and self.asked is None:
            return self
        expires = self.expires
        if expires is not None and self.planned is not None:
            expires += self.due - self.planned  # a retry keeps the time at which it expires
        # A revival changes the due time after retries: what it notes is older.
        due = next(time for time in (self.asked, self.planned, self.due) if time is not None)
        return msgspec.structs.replace(self, due=due, expires=expires, planned=None, asked=None)

    @property
    def error(self) -> str | None:
        """The reason of the last failure, if there was one."""
        return self.failures[-1].reason if self.failures else None


def withheld(message: Message) -> Message:
    """Return a message without its body and headers, for a reader who may not see them."""
    successor = message.successor
    if successor is not None:
        successor = msgspec.structs.replace(successor, **_WITHHELD)
    return msgspec.structs.replace(message, **_WITHHELD, successor=successor)


_WITHHELD: dict[str, Any] = {"data": b"", "json": True, "headers": None}
"""The fields of a message whose body and headers a reader may not see; "" is not JSON."""


def version_of(message: Item | Message, due: int) -> str:
    """Return the version of a message that is due at `due` (Unix milliseconds).

    All that an edit can change is a part of it. Of a message that repeats, the rule stands for the
    due time; of another one, a rule is one more part. Redis computes the same in Lua.

    Example:
        >>> version_of(Item("order-42", b"1"), 1_700_000_000_000)
        'f01d96070ef47d4b'
    """
    group = (message.group or "").encode()
    headers = b"" if message.headers is None else msgspec.json.encode(message.headers)
    expires = "-" if message.expires is None else message.expires
    planned_by: object = due if message.run is None else message.rule
    own_rule = f" {message.rule}" if message.rule is not None and message.run is None else ""
    # The lengths in the line say where group and headers end in the text behind it.
    line = (
        f"{planned_by} {message.priority} {message.attempts} {expires} "
        f"{'j' if message.json else 'b'} {len(group)} {len(headers)}{own_rule}\n"
    )
    text = b"".join((line.encode(), group, headers, message.data))
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()[:16]


def unreadable(queue: str, id: str, stored: bytes, now: int) -> Message:
    """Return a message whose record cannot be read, as the dead letter that a claim makes of it.

    Args:
        queue: its queue.
        id: its id.
        stored: what the store has.
        now: Unix milliseconds.
    """
    failure = Failure(0, now, "", UNREADABLE)
    return Message(
        id=id,
        queue=queue,
        data=stored,
        json=False,
        due=now,
        priority=0,
        attempt=0,
        attempts=ATTEMPTS,
        state="dead",
        failures=(failure,),
        ended=now,
    )


class Stored(Protocol):
    """A message in any form that has these fields."""

    @property
    def id(self) -> str:
        """The id."""

    @property
    def group(self) -> str | None:
        """The group."""

    @property
    def data(self) -> bytes:
        """The encoded body."""

    @property
    def headers(self) -> dict[str, str] | None:
        """The headers."""

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The attempts that failed."""


def size_of(message: Item | Message | Stored) -> int:
    """Return the size of a message in a reply, in bytes: body, id, headers and failures.

    Example:
        >>> size_of(Item("order-42", b"[1,2,3]"))
        15
    """
    size = len(message.data) + len(message.id)
    if message.headers:
        size += len(msgspec.json.encode(message.headers))
    if message.failures:
        size += len(msgspec.json.encode(message.failures))
    return size


def stored_size(message: Item | Message | Stored) -> int:
    """Return how many bytes a message takes in a store: as `size_of`, and its group.

    Example:
        >>> stored_size(Item("é", b"[1]", group="42"))
        7
    """
    names = message.id + (message.group or "")
    return size_of(message) - len(message.id) + len(names.encode())  # `size_of` counts characters


def remember(failures: tuple[Failure, ...], failure: Failure) -> tuple[Failure, ...]:
    """Add a failure; drop the oldest if there are too many."""
    return (*failures[1 - KEPT_FAILURES :], failure)
