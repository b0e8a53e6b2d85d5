"""A caller of one engine, for the cases of the suite: a method per command, and a clock."""

from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar

from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model import replies as rep
from bide.model.ended import End, Ended
from bide.model.message import Item, Message, Progress, State
from bide.testing.conformance.watch import StoreWatch, audit

START = 1_700_000_000_000
"""When each case begins, in Unix milliseconds: 2023-11-14 22:13:20 UTC."""

HOUR = 3_600_000
"""In milliseconds."""
RICH: dict[str, Any] = {
    "data": b'"x"',
    "json": False,
    "priority": 9,
    "expires": 50,
    "attempts": 3,
    "group": "g",
    "headers": {"a": "ü"},
}
"""All options of a message, and none as it is by default."""

RULE = '{"cron":"0 9 * * *","timezone":"Europe/Berlin"}'
OTHER_RULE = '{"every":"1h"}'
RUNS = [f"2030-01-0{day}T08:00:00.000Z" for day in (1, 2, 3)]
"""Rules by which messages repeat, and runs: a store does not read them, but a server does."""

R = TypeVar("R", bound=rep.Reply)


def leases(claimed: rep.Claimed) -> list[cmd.Lease]:
    """Return the leases that a claim gave."""
    return [cmd.Lease(message.id, claimed.token) for message in claimed.messages]


def ids_of(reply: rep.Claimed | rep.Page) -> list[str]:
    """Return the ids of the messages of a reply, in their order."""
    return [message.id for message in reply.messages]


def done(outcomes: list[rep.Outcome]) -> list[bool]:
    """Return what was done, outcome by outcome."""
    return [outcome.done for outcome in outcomes]


def numbered(count: int, start: int = 0, prefix: str = "m") -> list[str]:
    """Return so many ids, from a number on, that sort as their numbers do."""
    return [f"{prefix}{number:05}" for number in range(start, start + count)]


class Driver:
    """Executes commands on an engine at `now`, which only `wait` moves.

    Args:
        engine: that executes them.
        queue: of the commands.
        watched: check every command against the lifecycle, and audit the queue after it. That
            scans the queue several times, so cases with thousands of messages do without.
    """

    def __init__(self, engine: Engine, queue: str = "q", *, watched: bool = True) -> None:
        self.engine = engine
        self.queue = queue
        self.now = START
        self.wake: int | None = None
        """When the last command that changes says that there is more to claim."""
        self._watch = StoreWatch(engine) if watched else None

    def wait(self, ms: int) -> Self:
        """Let time pass; return this driver."""
        self.now += ms
        return self

    def apart(self, queue: str) -> "Driver":
        """Return a caller of another queue of the same store."""
        other = Driver(self.engine, queue)
        other._watch = self._watch
        return other

    def batch(self, *commands: cmd.Command) -> list[rep.Reply]:
        """Execute commands as one batch."""
        return self.engine.execute(commands, self.now)

    def ask(self, command: cmd.Command, reply_type: type[R]) -> R:
        """Execute one command; its reply must be of a type."""
        if self._watch is None:
            (reply,) = self.batch(command)
        else:
            reply = self._watch.execute(command, self.now)
        return rep.expect(reply_type, reply)

    # Commands that change. Each returns its outcomes, and sets `wake`.

    def outcomes(self, command: cmd.Command) -> list[rep.Outcome]:
        """Execute a command that names messages."""
        reply = self.ask(command, rep.Outcomes)
        self.wake = reply.wake
        return reply.outcomes

    def put(
        self,
        *ids: str,
        on_conflict: Any = "keep",
        if_version: str | None = None,
        origin: cmd.Origin | None = None,
        **fields: Any,
    ) -> list[rep.Outcome]:
        """Put messages that differ only in their id."""
        items = [Item(**{"id": id, "data": b"1", **fields}) for id in ids]
        return self.outcomes(cmd.Put(self.queue, items, on_conflict, if_version, origin))

    def put_items(self, items: Iterable[Item]) -> list[rep.Outcome]:
        """Put messages."""
        return self.outcomes(cmd.Put(self.queue, list(items)))

    def replace(self, *ids: str, **fields: Any) -> list[rep.Outcome]:
        """Put messages, and replace those that wait or are dead."""
        return self.put(*ids, on_conflict="replace", **fields)

    def claim(self, count: int = 10, lease: int = 1_000, **fields: Any) -> rep.Claimed:
        """Claim messages."""
        return self.ask(cmd.Claim(self.queue, count, lease, "w1", **fields), rep.Claimed)

    def hold(self, count: int = 10, lease: int = 1_000) -> list[cmd.Lease]:
        """Claim messages, and return their leases."""
        return leases(self.claim(count, lease))

    def take(self, count: int = 10, lease: int = 1_000) -> list[str]:
        """Claim messages, and return their ids."""
        return ids_of(self.claim(count, lease))

    def take_all(self, count: int = 500, lease: int = HOUR) -> list[str]:
        """Claim until nothing comes, and return the ids in their order."""
        ids = []
        while taken := self.take(count, lease):
            assert len(taken) <= count
            ids += taken
        return ids

    def lease(self, id: str, **fields: Any) -> cmd.Lease:
        """Put a message that is due, and claim it."""
        self.put(id, **fields)
        (held,) = self.hold(1)
        assert held.id == id
        return held

    def ack(self, *held: cmd.Lease, results: Sequence[bytes | None] = ()) -> list[rep.Outcome]:
        """Ack messages."""
        return self.outcomes(cmd.Ack(self.queue, list(held), list(results)))

    def renew(
        self, *held: cmd.Lease, next: Sequence[cmd.NextRun | None], **fields: Any
    ) -> list[rep.Outcome]:
        """End the runs of messages that repeat."""
        return self.outcomes(cmd.Renew(self.queue, list(held), list(next), **fields))

    def retry(self, *held: cmd.Lease, **fields: Any) -> list[rep.Outcome]:
        """Return messages for another attempt."""
        return self.outcomes(cmd.RetryCommand(self.queue, list(held), **fields))

    def bury(self, *held: cmd.Lease, reason: str = "") -> list[rep.Outcome]:
        """Make messages dead letters."""
        return self.outcomes(cmd.BuryCommand(self.queue, list(held), reason))

    def release(
        self, *ids: str, reason: str = "released", holder: str | None = None
    ) -> list[rep.Outcome]:
        """End leases of any worker, or of one."""
        return self.outcomes(cmd.Release(self.queue, list(ids), reason, holder))

    def set_aside(self, *ids: str, **fields: Any) -> list[rep.Outcome]:
        """Make dead letters of messages that no worker holds, as a move does."""
        return self.outcomes(cmd.BuryCommand(self.queue, ids=list(ids), **fields))

    def extend(self, *held: cmd.Lease, lease: int | None = 1_000) -> list[rep.Outcome]:
        """Extend leases."""
        return self.outcomes(cmd.Extend(self.queue, list(held), lease))

    def report(self, *held: cmd.Lease, lease: int | None = None, done: float) -> list[rep.Outcome]:
        """Report how far workers have come."""
        reports: list[Progress | None] = [Progress(done, 100, "rows")] * len(held)
        return self.outcomes(cmd.Extend(self.queue, list(held), lease, reports))

    def cancel(self, *ids: str, **fields: Any) -> list[rep.Outcome]:
        """Cancel messages by id."""
        return self.outcomes(cmd.Cancel(self.queue, list(ids), **fields))

    def cancel_where(
        self, *, dry_run: bool = False, running: bool = False, **where: Any
    ) -> rep.Affected:
        """Cancel messages by a rule."""
        rule = cmd.Where(**where)
        command = cmd.Cancel(self.queue, where=rule, dry_run=dry_run, running=running)
        return self.ask(command, rep.Affected)

    def reschedule(self, *ids: str, **fields: Any) -> list[rep.Outcome]:
        """Change when messages are due."""
        return self.outcomes(cmd.Reschedule(self.queue, list(ids), **fields))

    def postpone(self, *ids: str, **fields: Any) -> list[rep.Outcome]:
        """Let messages be due at other times, and keep the planned ones."""
        return self.outcomes(cmd.Postpone(self.queue, list(ids), **fields))

    def edit(self, *ids: str, **fields: Any) -> list[rep.Outcome]:
        """Change what is named of messages."""
        return self.outcomes(cmd.Edit(self.queue, list(ids), **fields))

    def revive(self, *ids: str, **fields: Any) -> list[rep.Outcome]:
        """Revive dead letters."""
        return self.outcomes(cmd.Revive(self.queue, list(ids), **fields))

    def configure(self, **fields: Any) -> rep.QueueSettings:
        """Change settings."""
        settings = self.ask(cmd.Configure(self.queue, **fields), rep.QueueSettings)
        self.wake = settings.wake
        return settings

    def purge(self, state: State, before: int | None = None, **fields: Any) -> rep.Affected:
        """Delete the messages of a state."""
        return self.ask(cmd.Purge(self.queue, state, before, **fields), rep.Affected)

    def delete(self) -> rep.Deleted:
        """Delete the queue."""
        return self.ask(cmd.Delete(self.queue), rep.Deleted)

    # Commands that only read.

    def find(self, *ids: str) -> list[Message | None]:
        """Find messages by id."""
        return self.ask(cmd.Find(self.queue, list(ids)), rep.Found).messages

    def get(self, id: str) -> Message:
        """Return a message that exists."""
        (message,) = self.find(id)
        assert message is not None, f"{id} is not there"
        return message

    def shows(self, id: str, **fields: Any) -> Message:
        """Return a message that exists; it must have these fields."""
        message = self.get(id)
        assert {name: getattr(message, name) for name in fields} == fields
        return message

    def state(self, id: str) -> State | None:
        """Return the state of a message, `None` if it is not there."""
        (message,) = self.find(id)
        return message.state if message is not None else None

    def refusal(self, id: str) -> rep.Outcome:
        """Return the outcome of a command that may not change a message as it is now."""
        message = self.get(id)
        until = message.until if message.until is not None else message.ended
        return rep.Outcome(id, False, message.state, message.due, until, message.holder)

    def page(self, state: Any = None, cursor: str | None = None, **fields: Any) -> rep.Page:
        """Return one page of a scan."""
        return self.ask(cmd.Scan(self.queue, state, cursor=cursor, **fields), rep.Page)

    def messages(self, state: Any = None, limit: int = 500, **fields: Any) -> list[Message]:
        """Walk through all pages of a scan, and return the messages."""
        messages: list[Message] = []
        cursor = None
        while True:
            page = self.page(state, cursor, limit=limit, **fields)
            assert len(page.messages) <= limit
            messages += page.messages
            if page.cursor is None:
                return messages
            assert page.cursor != cursor, "a scan returns the same cursor again"
            cursor = page.cursor

    def ids(self, state: Any = None, **fields: Any) -> list[str]:
        """Walk through all pages of a scan, and return the ids."""
        return [message.id for message in self.messages(state, **fields)]

    def scan(self, state: Any = None, limit: int = 500, **where: Any) -> list[str]:
        """Return the ids of a state, or of those that match a rule."""
        return self.ids(state, limit=limit, where=cmd.Where(**where) if where else None)

    def counts(self) -> rep.Counts:
        """Count and audit."""
        return audit(self.engine, self.queue, self.now)

    def count(self, **fields: Any) -> rep.Counts:
        """Count, without an audit."""
        return self.ask(cmd.Count(self.queue, **fields), rep.Counts)

    def stored(self) -> int:
        """Return how many bytes the queue takes."""
        return self.count(stored=True).stored or 0

    def history(self, id: str, **fields: Any) -> rep.Ends:
        """Return what a queue remembers of an id."""
        return self.ask(cmd.History(self.queue, id, **fields), rep.Ends)

    def ends(self, id: str, **fields: Any) -> list[End]:
        """Return how messages with an id ended."""
        return self.history(id, **fields).ends

    def ended_page(self, **fields: Any) -> rep.EndedPage:
        """Return a page of the messages that have ended."""
        return self.ask(cmd.ListEnded(self.queue, **fields), rep.EndedPage)

    def ended(self, **fields: Any) -> list[Ended]:
        """Return the messages that have ended, of all pages."""
        ended: list[Ended] = []
        cursor = None
        while True:
            page = self.ended_page(cursor=cursor, **fields)
            ended += page.messages
            if page.cursor is None:
                return ended
            assert page.cursor != cursor, "a page goes on where it began"
            cursor = page.cursor

    def forecast(self, bucket: int, buckets: int) -> rep.Forecasted:
        """Count what falls due when."""
        return self.ask(cmd.ForecastCommand(self.queue, bucket, buckets), rep.Forecasted)

    def explain(self, id: str | None = None) -> rep.Explained:
        """Return what tells why a message is where it is."""
        return self.ask(cmd.Explain(self.queue, id), rep.Explained)

    def explains(self, id: str, **fields: Any) -> None:
        """See that an explanation has these fields."""
        explained = self.explain(id)
        assert {name: getattr(explained, name) for name in fields} == fields

    def queues(self, prefix: str = "") -> list[str]:
        """Name the queues."""
        return self.ask(cmd.Queues(prefix), rep.Names).names
