"""A message as a store has it, and its state."""

import msgspec

from bide.model.commands import Where
from bide.model.message import IN_TRANSIT, Failure, Item, Message, Progress, State
from bide.model.rank import delayed_rank
from bide.model.replies import Outcome


class Record(msgspec.Struct, frozen=True, gc=False):
    """A message as a store has it, and its state. It never changes: a change is another record."""

    # Fields without a text are those of `Message`. The first six are given by position, the others
    # by name, because that is faster: see `Message`.
    seq: int
    """The number of the record in its queue: it never changes, and orders messages of one rank."""
    id: str
    data: bytes
    json: bool
    due: int
    priority: int
    attempt: int
    attempts: int
    expires: int | None
    group: str | None
    headers: dict[str, str] | None
    failures: tuple[Failure, ...]
    created: int | None
    planned: int | None = None
    asked: int | None = None
    rule: str | None = None
    run: str | None = None
    state: State | None = None
    """As the record is stored: a message that is due stays "delayed" until a claim sees it."""
    rank: int = 0
    """Its order within the state: see `bide.model.rank`."""
    token: int | None = None
    """While it is leased, the number of the claim."""
    holder: str | None = None
    until: int | None = None
    since: int | None = None
    """While it is leased, when the worker got it, in Unix milliseconds."""
    extended: int = 0
    """How often the worker has extended its lease."""
    stopping: str | None = None
    """The actor that has asked the holder to stop; empty: it has no name; `None`: none has."""
    progress: Progress | None = None
    ended: int | None = None
    successor: Item | None = None

    @property
    def is_used_up(self) -> bool:
        """Whether it repeats, and its run has no attempt left: who claims it plans the next run."""
        return self.run is not None and self.attempt >= self.attempts

    @classmethod
    def of(cls, item: Item, due: int, seq: int, created: int | None) -> "Record":
        """Return the new record of an item: it waits, or is a dead letter if an import says so.

        Args:
            item: to be stored.
            due: when it is due, in Unix milliseconds.
            seq: the number of the record.
            created: when its id was first put, unless the item itself says so; `None`: unknown.
        """
        if item.created is not None:
            created = item.created or None  # 0: an import does not know it
        rank = delayed_rank(due, item.priority) if item.died is None else item.died
        return cls(
            seq,
            item.id,
            item.data,
            item.json,
            due,
            item.priority,
            attempt=item.attempt,
            attempts=item.attempts,
            expires=item.expires,
            group=item.group,
            headers=item.headers,
            failures=item.failures,
            created=created,
            rule=item.rule,
            run=item.run,
            rank=rank,
            state="delayed" if item.died is None else "dead",
            ended=item.died,
        )

    def state_at(self, now: int) -> State | None:
        """Return the state as users see it: a delayed message that is due is ready."""
        return "ready" if self.state == "delayed" and self.due <= now else self.state

    def outcome(self, done: bool, now: int) -> Outcome:
        """Return the outcome of a command that has left this record; `done` as in `Outcome`."""
        until = self.until if self.state == "leased" else self.ended
        return Outcome(self.id, done, self.state_at(now), self.due, until, self.holder)

    def is_still(self, if_version: str | None) -> bool:
        """Return whether the record has the version that a command names, if it names one."""
        # Neither the queue nor the time is a part of the version.
        return if_version is None or self.message("", self.due).version == if_version

    def is_late(self, now: int) -> bool:
        """Return whether the message is too late to be delivered.

        One that repeats is claimed, and who claims it plans its next run.
        """
        if self.run is not None:
            return False
        return self.expires is not None and now > self.due + self.expires

    @property
    def in_transit(self) -> bool:
        """Whether a move has made it a dead letter: it has not ended; a change would be lost."""
        if self.state != "dead" or not self.failures:
            return False
        return self.failures[-1].reason.startswith(IN_TRANSIT)

    def claimed(self, queue: str, holder: str, until: int) -> Message:
        """Return the record as the message that a worker gets, who holds it until a time.

        Apart from `message`, because a claim makes many: this builds each only once.
        """
        return Message(
            self.id,
            queue,
            self.data,
            self.json,
            self.due,
            self.priority,
            attempt=self.attempt + 1,
            attempts=self.attempts,
            state="leased",
            expires=self.expires,
            group=self.group,
            headers=self.headers,
            failures=self.failures,
            holder=holder,
            until=until,
            planned=self.planned,
            created=self.created,
            asked=self.asked,
        ).with_rule(self.rule, self.run)

    def message(self, queue: str, now: int) -> Message:
        """Return the record as a message of a queue, in the state that users see at `now`."""
        state = self.state_at(now)
        assert state is not None
        message = Message(
            self.id,
            queue,
            self.data,
            self.json,
            self.due,
            self.priority,
            attempt=self.attempt,
            attempts=self.attempts,
            state=state,
            expires=self.expires,
            group=self.group,
            headers=self.headers,
            failures=self.failures,
            ended=self.ended,
            planned=self.planned,
            created=self.created,
            asked=self.asked,
            rule=self.rule,
            run=self.run,
        )
        if state != "leased":
            return message
        return msgspec.structs.replace(
            message,
            attempt=self.attempt + 1,
            holder=self.holder,
            until=self.until,
            successor=self.successor,
            stopping=self.stopping,
            progress=self.progress,
        )


def matches(record: Record, where: Where | None) -> bool:
    """Return whether the record matches the rule."""
    return where is None or (
        (where.group is None or record.group == where.group)
        and (where.after is None or record.due >= where.after)
        and (where.before is None or record.due < where.before)
    )
