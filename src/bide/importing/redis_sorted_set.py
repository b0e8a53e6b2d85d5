"""Import from a sorted set in Redis whose scores are due times."""

import hashlib
import math
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, get_args

import msgspec

from bide.importing.server_url import check_redis
from bide.importing.source import SetMember
from bide.lane.steps import find_all, outcomes_of
from bide.model import body as bodies
from bide.model.commands import Put, Reschedule
from bide.model.errors import InvalidArgument
from bide.model.identity import check_name
from bide.model.limits import check_whole
from bide.model.message import Item, Message
from bide.model.parts import in_bytes
from bide.model.replies import Outcome
from bide.model.times import LATEST
from bide.queue.results import only_outcome
from bide.queue.sync import Queue, check_blocking

Scores = Literal["auto", "s", "ms"]
"""What the scores are: Unix seconds, Unix milliseconds, or either, by their size."""

Bodies = Literal["auto", "json", "text", "bytes"]
"""What the members are: JSON, text, bytes, or the first of these that fits."""

MILLISECONDS = 1e11
"""Scores from here on are milliseconds (of 1973 and later), smaller ones are seconds."""

EXAMPLES = 100
"""How many of the refused members are listed."""


class LoadedSet(msgspec.Struct):
    """What an import from a sorted set did. True if no member was refused."""

    stored: int = 0
    """Messages that are new in the queue."""
    kept: int = 0
    """Members whose messages are in the queue from an earlier run."""
    rescheduled: int = 0
    """Of these, the ones with a new due time, because the member's score has changed."""
    removed: int = 0
    """Members that were removed from the set, with `remove=True`."""
    refused: int = 0
    """Members that cannot be messages; they stay in the set."""
    reasons: dict[str, str] = {}
    """Of the first hundred of these: the member, and why."""
    left: int = 0
    """Members that were in the set at the end."""

    def __bool__(self) -> bool:
        return self.refused == 0

    def refuse(self, member: bytes, reason: str) -> None:
        """Count a member that cannot be a message."""
        self.refused += 1
        if len(self.reasons) < EXAMPLES:
            self.reasons[member.decode(errors="backslashreplace")[:200]] = reason


def load_sorted_set(
    queue: Queue,
    url: str,
    key: str,
    *,
    scores: Scores = "auto",
    body: Bodies = "auto",
    id_field: str | None = None,
    remove: bool = False,
    dry_run: bool = False,
    batch: int = 500,
    found: Callable[[int], object] | None = None,
    progress: Callable[[int], object] | None = None,
) -> LoadedSet:
    """Put a message for each member of a sorted set in Redis, due at its score.

    The same member always gets the same id, so an import can be repeated while the messages are in
    the queue; a message whose score has changed since is rescheduled.

    Args:
        queue: where the messages go, in any store.
        url: of the Redis with the set, in one of the forms in which stores are named, but for a
            cluster. It may be older than bide needs for a store.
        key: of the set.
        scores: Unix seconds ("s"), Unix milliseconds ("ms"), or "auto": those below 100,000,000,000
            are seconds.
        body: what members are: "json", "text", "bytes", or "auto", the first that each can be.
        id_field: of members that are JSON objects, the field whose value becomes the id. Otherwise
            the member itself is the id if it is a plain word, and else a hash of it. So two sets
            with a plain member in common need two queues.
        remove: remove each member from the set once its message is stored, unless its score has
            changed in between.
        dry_run: only count.
        batch: how many members are read at a time.
        found: called at the beginning with the number of members.
        progress: called after each batch with its number of members.

    Raises:
        InvalidArgument: an argument is invalid.
        StoreError: one of the stores failed; call it again to go on.

    Example:
        >>> import bide
        >>> orders = bide.Queue("orders", "memory://taken-over")
        >>> bide.load_sorted_set(orders, "redis://localhost:1?reconnect=1ms", "delayed")
        Traceback (most recent call last):
        bide.model.errors.StoreUnavailable: redis://localhost:1?reconnect=1ms: no connection ...
        >>> orders.close()
    """
    check_blocking("load_sorted_set takes a", queue)
    for name, value, known in (("scores", scores, Scores), ("body", body, Bodies)):
        if value not in get_args(known):
            raise InvalidArgument(f"{name}={value!r} must be one of {', '.join(get_args(known))}")
    check_whole(batch, "batch", 1, 10_000)
    check_redis(url)
    from bide.importing.foreign_redis import SortedSet

    reader = _Reader(key, scores, body, id_field, queue._builder.max_body)
    with closing(SortedSet(url, key)) as source:
        if found is not None:
            found(source.size())
        removes = remove and not dry_run
        run = _Run(queue, reader, source.remove if removes else None, dry_run=dry_run)
        # Pages are by score, not by place: programs may add members before those that were read.
        lowest_score, skip = b"-inf", 0
        while page := source.page(lowest_score, skip, batch):
            removed = run.take(page)
            # The next page may begin with more members of the last score: skip those that stayed.
            last_score = page[-1].score
            stayed = sum(entry.score == last_score and entry not in removed for entry in page)
            if last_score == lowest_score:  # the members that were skipped have this score, too
                stayed += skip
            lowest_score, skip = last_score, stayed
            if progress is not None:
                progress(len(page))
        run.loaded.left = source.size()
    return run.loaded


class _Content(NamedTuple):
    """A member as a body."""

    data: bytes
    is_json: bool
    value: object = None
    """What a member that is JSON says; `None` for any other one."""


class _Reader(NamedTuple):
    """Makes messages of members; see `load_sorted_set` for what its fields are."""

    key: str
    scores: Scores
    body: Bodies
    id_field: str | None
    max_body: int

    def item(self, entry: SetMember) -> Item:
        """Return the message of a member.

        Raises:
            InvalidArgument: its content, id or score cannot be those of a message.
        """
        member = entry.member
        content = self._content(member)
        id = self._id(member, content.value)
        return Item(id, content.data, json=content.is_json, at=self._due(float(entry.score)))

    def _content(self, member: bytes) -> "_Content":
        """Return a member as a body.

        Raises:
            InvalidArgument: it is too large, or not what members are said to be.
        """
        if len(member) > self.max_body:
            raise InvalidArgument(f"it has {len(member)} bytes, more than a body may have")
        # Of "auto", the first that fits; any member fits "bytes".
        for form in ("json", "text") if self.body == "auto" else (self.body,):
            try:
                if form == "text":
                    data, is_json = bodies.encode(member.decode(), self.max_body)
                    return _Content(data, is_json)
                if form == "json":
                    value: object = None
                    with suppress(RecursionError):  # then its depth is refused
                        value = msgspec.json.decode(member)
                    bodies.check_depth(member)
                    return _Content(member.strip(), is_json=True, value=value)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if form == self.body:
                    raise InvalidArgument(f"it is no {form} ({error})") from None
        return _Content(member, is_json=False)

    def _id(self, member: bytes, value: object) -> str:
        """Return the id of a member's message.

        Args:
            member: as it is in the set.
            value: that of a member that is JSON.

        Raises:
            InvalidArgument: its field cannot be an id.
        """
        if self.id_field is not None:
            field_value = value.get(self.id_field) if isinstance(value, dict) else None
            # `True` is an `int` in Python.
            if not isinstance(field_value, (str, int)) or isinstance(field_value, bool):
                raise InvalidArgument(f"it has no field {self.id_field!r} that could be an id")
            return check_name(str(field_value))
        try:
            if not member.startswith((b"{", b"[", b'"')):
                return check_name(member.decode())
        except (InvalidArgument, UnicodeDecodeError):
            pass  # then its id is a hash
        digest = hashlib.sha256(self.key.encode() + b"\0" + member).hexdigest()
        return f"zset-{digest[:32]}"

    def _due(self, score: float) -> int:
        """Return a score as a due time in Unix milliseconds.

        Raises:
            InvalidArgument: it is no time of bide.
        """
        in_ms = self.scores == "ms" or (self.scores == "auto" and abs(score) >= MILLISECONDS)
        due = score if in_ms else score * 1000
        if not math.isfinite(due) or not 0 <= due <= LATEST:
            unit = "milliseconds" if in_ms else "seconds"
            raise InvalidArgument(f"its score {score:.17g} is not a time in Unix {unit}")
        return round(due)


@dataclass
class _Run:
    """One run over a set."""

    queue: Queue
    reader: _Reader
    remove: Callable[[Sequence[SetMember]], int] | None
    """Removes members whose messages are stored from the set; `None`: they stay."""
    dry_run: bool
    loaded: LoadedSet = field(default_factory=LoadedSet)
    _counted_ids: set[str] = field(default_factory=set)
    """In a dry run: the ids of the messages that a run would have put so far."""

    def take(self, page: Sequence[SetMember]) -> set[SetMember]:
        """Put the messages of some members, and return the members that were removed."""
        readable = list(self._readable(page))
        items = [item for _, item in readable]
        queue = self.queue
        if self.dry_run:
            existing = queue._run(find_all(queue.name, (item.id for item in items)))
            outcomes = [self._trial(item.id, existing) for item in items]
        else:
            puts = [Put(queue.name, part) for part in in_bytes(items)]
            outcomes = queue._run(outcomes_of(*puts))
            used_ids = [outcome.id for outcome in outcomes if not outcome.done]
            existing = queue._run(find_all(queue.name, used_ids))
        in_store: set[SetMember] = set()
        for (entry, item), outcome in zip(readable, outcomes, strict=True):
            if outcome.done:
                self.loaded.stored += 1
            elif not self._is_there(entry, item, existing.get(outcome.id)):
                continue
            in_store.add(entry)
        if self.remove is None:
            return set()
        self.loaded.removed += self.remove(list(in_store))
        return in_store

    def _trial(self, id: str, existing: Container[str]) -> Outcome:
        """Return the outcome that the put of a message would have."""
        is_new = id not in existing and id not in self._counted_ids
        if is_new:
            self._counted_ids.add(id)
        return Outcome(id, is_new)

    def _readable(self, page: Iterable[SetMember]) -> Iterable[tuple[SetMember, Item]]:
        """Yield the members that can be messages, with these; refuse the others."""
        for entry in page:
            try:
                yield entry, self.reader.item(entry)
            except InvalidArgument as error:
                self.loaded.refuse(entry.member, str(error))

    def _is_there(self, entry: SetMember, item: Item, message: Message | None) -> bool:
        """Tell whether the queue has the message of a member; reschedule it if it is to be.

        Args:
            entry: the member.
            item: its message.
            message: the one with this id; `None`: it was there, and is not any more, or, in a dry
                run, another member would have put it.
        """
        if message is None and not self.dry_run:  # it was delivered in between
            self.loaded.kept += 1
            return True
        if message is None or (message.data, message.json) != (item.data, item.json):
            self.loaded.refuse(entry.member, f"the queue has another message of the id {item.id!r}")
            return False
        # A leased message is in an attempt that has not failed yet.
        failed_attempts = message.attempt - (1 if message.state == "leased" else 0)
        # If an attempt has failed, its due time may be that of a retry.
        if message.due != item.at and failed_attempts <= 0:
            if not self._reschedule(entry, item, message):
                return False
            self.loaded.rescheduled += 1
        self.loaded.kept += 1
        return True

    def _reschedule(self, entry: SetMember, item: Item, message: Message) -> bool:
        """Give a message the due time of its member's score; return whether that was possible."""
        if message.state not in ("delayed", "ready"):
            reason = f"its message is {message.state}, with another due time"
            self.loaded.refuse(entry.member, reason)
            return False
        if self.dry_run:
            return True
        command = Reschedule(self.queue.name, [item.id], at=item.at)
        if self.queue._execute(command, partial(only_outcome, command)):
            return True
        self.loaded.refuse(entry.member, "its message has another due time and was just claimed")
        return False
