"""A store for one test: all queues of the program use it, and it records puts."""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, Self

import msgspec

from bide.engines.port import Engine, Identities
from bide.engines.registry import opener
from bide.lane.lane import Lane
from bide.lane.steps import first_of, run_steps
from bide.model import body as bodies
from bide.model.commands import Command, Put, Scan
from bide.model.ended import PENDING
from bide.model.errors import Closed, InvalidArgument
from bide.model.internal_queues import is_internal
from bide.model.message import Item, Message, State
from bide.model.replies import Outcome, Outcomes, Reply
from bide.model.runs import named_run
from bide.model.times import Duration, Moment, milliseconds, to_datetime, unix
from bide.queue.arguments import check_state
from bide.queue.base import all_queues_in
from bide.queue.sync import Queue
from bide.testing.clock import FakeClock
from bide.testing.faults import EngineWrapper

PAGE = 500
"""How many messages are read at a time."""

SHOWN = 10
"""How many puts a failed assertion lists."""


class _Anything:
    def __repr__(self) -> str:
        return "anything"


ANY: Any = _Anything()
"""Matches any value in an assertion."""


class PutRecord(msgspec.Struct, frozen=True):
    """One message that was put, and the outcome."""

    queue: str
    id: str
    body: Any
    """The body as a consumer gets it."""
    moment: int
    """When it was put, in Unix milliseconds."""
    due: int
    """When it falls due, in Unix milliseconds."""
    priority: int
    expires: int | None
    """Milliseconds after `due` for which it is worth delivering."""
    attempts: int
    group: str | None
    headers: Mapping[str, str] | None
    outcome: Outcome
    """What the put returned: false if the id existed and was kept."""

    @classmethod
    def of(cls, queue: str, item: Item, moment: int, outcome: Outcome) -> "PutRecord":
        """Return the record of an item that was put."""
        due = moment + item.delay if item.at is None else item.at
        if outcome.done:
            # With `latest` it may be due earlier than it asked; while a worker holds the message,
            # what was put is its successor.
            due = next(time for time in (outcome.successor, outcome.due, due) if time is not None)
        return cls(
            queue=queue,
            id=item.id,
            body=bodies.decode(item.data, item.json),
            moment=moment,
            due=due,
            priority=item.priority,
            expires=item.expires,
            attempts=item.attempts,
            group=item.group,
            headers=item.headers,
            outcome=outcome,
        )

    @property
    def delay(self) -> float:
        """Seconds from the put to the due time; never negative."""
        return max(0, self.due - self.moment) / 1000

    @property
    def due_at(self) -> datetime:
        """`due` as an aware `datetime`."""
        return to_datetime(self.due)

    def __str__(self) -> str:
        refusal = "" if self.outcome.done else f", not stored: {self.outcome}"
        return f"id={self.id!r} body={self.body!r} (due {_shown(self.due_at)}{refusal})"


def _differences(record: PutRecord, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in which a record differs; none if it matches."""
    actual = {name: getattr(record, name) for name in expected}
    return {name: value for name, value in actual.items() if not _is_same(value, expected[name])}


def _is_same(stored: Any, expected: Any) -> bool:
    """Tell whether a stored value is what a put of `expected` would have stored."""
    if stored == expected:
        return True
    try:
        data, is_json = bodies.encode(expected)
    except InvalidArgument:
        return False
    return bool(bodies.decode(data, is_json) == stored)


def _shown(value: Any) -> str:
    """Return the value of a field as an error shows it."""
    return value.isoformat(sep=" ") if isinstance(value, datetime) else repr(value)


def _listed(fields: Mapping[str, Any]) -> str:
    """Return fields as an error shows them."""
    return " ".join(f"{name}={_shown(value)}" for name, value in fields.items())


class Recorder(EngineWrapper):
    """Wraps an engine, and records puts.

    Args:
        engine: the engine that does the work. Closing this one closes it.
        puts: the list to add to.
    """

    def __init__(self, engine: Engine, puts: list[PutRecord]) -> None:
        super().__init__(engine)
        self._puts = puts

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        """Execute the commands, and record their puts."""
        replies = super().execute(commands, now, identities)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(command, Put) and isinstance(reply, Outcomes) and now is not None:
                self._puts += [
                    PutRecord.of(command.queue, item, now, outcome)
                    for item, outcome in zip(command.items, reply.outcomes, strict=True)
                    if not _is_dead_run(item)
                ]
        return replies


def _is_dead_run(item: Item) -> bool:
    """Return whether an item is a run that has died, which bide puts and not the program."""
    return item.died is not None and named_run(item.id) is not None


class ScratchStore:
    """A store for one test, and a clock that the test moves. The fixture `bide_store`.

    While it is open, every `Queue` and `AsyncQueue` of this process uses it and its clock, whatever
    their URL, including queues that were made when a module was imported. So a test never touches a
    real store. The exception is a queue that has its own clock. Whatever else opens a store by its
    URL, such as `bide.search` or a server, uses this one too.

    Args:
        url: of the store; by default an empty one in memory. A file must be new.
        clock: the clock that it uses.

    Raises:
        InvalidArgument: the URL names no store, or a store that uses only its own clock.

    Example:
        >>> import bide
        >>> orders = bide.Queue("orders", "sqlite:///production.db")
        >>> with ScratchStore() as store:
        ...     outcome = orders.put({"order": 42}, delay="30m", id="order-42")
        ...     store.assert_put("orders", {"order": 42}, delay="30m").id
        'order-42'
    """

    __test__ = False  # for pytest: this is not a class of tests

    def __init__(self, url: str = "memory://", clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.url = url
        self._puts: list[PutRecord] = []
        open_engine = opener(url)
        self.lane = Lane(lambda: Recorder(open_engine(), self._puts), self.clock)
        """The way to the store, for `bide.worker.process.runner.Runner`."""
        self._stack = ExitStack()
        """What is closed with the store."""

    def __enter__(self) -> Self:
        self._stack.callback(self.lane.close)
        if not self.lane.capabilities.caller_time:
            self._stack.close()
            raise InvalidArgument(
                f"{self.url.partition(':')[0]}:// uses its own clock, which no test can move; "
                "use memory://, or sqlite:/// with a file in tmp_path"
            )
        self._stack.enter_context(all_queues_in(self.lane))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def queue(self, name: str) -> Queue:
        """Return a queue in this store; it is closed with the store.

        Raises:
            Closed: the store is not open, so that the queue would be in a real one.
        """
        if not self.lane.stands_in:
            raise Closed(
                "this store is not open; use it in its block: with ScratchStore() as store:"
            )
        return self._stack.enter_context(Queue(name))

    def puts(self, queue: str | None = None) -> list[PutRecord]:
        """Return all puts in order, including messages that are gone.

        One that was not stored, since its id existed, is a put, too; its `outcome` is false.

        Args:
            queue: only those into this one; by default into any but the queues of bide itself.
        """
        if queue is None:
            return [record for record in self._puts if not is_internal(record.queue)]
        return [record for record in self._puts if record.queue == queue]

    def forget(self) -> None:
        """Forget the puts so far, so that assertions are about later ones."""
        self._puts.clear()

    def messages(self, queue: str, state: State | None = None) -> list[Message]:
        """Return the messages of a queue, of all states or of one; see `Queue.scan`."""
        checked = None if state is None else check_state(state)
        return run_steps(first_of(Scan(queue, checked, limit=PAGE), sys.maxsize), self.lane.call)

    def pending(self, queue: str) -> list[Message]:
        """Return the delayed, ready and leased messages, by due time, then id."""
        alive = [message for message in self.messages(queue) if message.state in PENDING]
        return sorted(alive, key=lambda message: (message.due, message.id))

    def dead(self, queue: str) -> list[Message]:
        """Return the dead letters of a queue, oldest first; their `error` is the cause."""
        return self.messages(queue, "dead")

    def assert_put(
        self,
        queue: str,
        body: Any = ANY,
        *,
        id: Any = ANY,
        delay: Duration | Any = ANY,
        at: Moment | Any = ANY,
        priority: Any = ANY,
        expires: Duration | Any = ANY,
        attempts: Any = ANY,
        group: Any = ANY,
        headers: Any = ANY,
        times: int | None = None,
    ) -> PutRecord:
        """Assert that such a message was put; if not, the error lists what was put.

        Arguments that you leave out match anything. The message may be handled or cancelled by now.

        Args:
            queue: the queue.
            body: what was put: a dict, a dataclass, a `Struct`. The stored forms are compared;
                `unittest.mock.ANY` matches any part.
            id, priority, attempts, group, headers, expires: the values that the put gave.
            delay: from the put to the due time, even if the put gave `at`.
            at: the due time, even if the put gave `delay`.
            times: the exact number of such puts, stored or not; by default one or more.

        Returns:
            The last such put.
        """
        __tracebackhide__ = True
        if times is not None and times < 1:
            raise InvalidArgument(f"times={times} must be 1 or more; for none use assert_not_put")
        if delay is not ANY:
            delay = milliseconds(delay or 0) / 1000
        if expires is not ANY and expires is not None:
            expires = milliseconds(expires, "expires")
        expected = {
            "body": body,
            "id": id,
            "delay": delay,
            "due_at": at if at is ANY else to_datetime(unix(at)),
            "priority": priority,
            "expires": expires,
            "attempts": attempts,
            "group": group,
            "headers": headers,
        }
        records = self._matching(queue, expected)
        if not records or times not in (None, len(records)):
            what = f"no such message was put into {queue!r}"
            if records:
                what = f"such puts into {queue!r}: {len(records)}, not {times}"
            raise AssertionError(self._complaint(what, expected, queue))
        return records[-1]

    def assert_not_put(self, queue: str, body: Any = ANY, *, id: Any = ANY) -> None:
        """Assert that no such message was put; without body and id, that none was."""
        __tracebackhide__ = True
        expected = {"body": body, "id": id}
        if self._matching(queue, expected):
            what = f"such a message was put into {queue!r}"
            raise AssertionError(self._complaint(what, expected, queue))

    def assert_dead(self, queue: str, *, id: str | None = None, error: str = "") -> Message:
        """Assert that a message is among the dead letters.

        Args:
            queue: the queue.
            id: its id; any by default.
            error: a regular expression that the reason of its last failure must contain.

        Returns:
            The dead letter.
        """
        __tracebackhide__ = True
        dead = self.dead(queue)
        for message in dead:
            if id in (None, message.id) and re.search(error, message.error or ""):
                return message
        wanted = f" {id!r}" if id else ""
        wanted += f" with an error like {error!r}" if error else ""
        lines = [f"{queue!r} has no dead letter{wanted}"]
        for message in dead:
            first_line, _, _ = (message.error or "").partition("\n")
            lines.append(f"    {message.id!r} is dead: {first_line}")
        if id is not None and id not in [message.id for message in dead]:
            states = [message.state for message in self.messages(queue) if message.id == id]
            lines.append(f"    {id!r} is {states[0] if states else 'not in the queue'}")
        raise AssertionError("\n".join(lines))

    def _matching(self, queue: str, expected: dict[str, Any]) -> list[PutRecord]:
        """Return the puts into a queue that match all expected fields."""
        fields = {name: value for name, value in expected.items() if value is not ANY}
        return [record for record in self.puts(queue) if not _differences(record, fields)]

    def _complaint(self, what: str, expected: dict[str, Any], queue: str) -> str:
        """Return the text of a failed assertion.

        Args:
            what: its first line.
            expected: the fields of the put that was looked for.
            queue: the queue, whose puts are listed.
        """
        fields = {name: value for name, value in expected.items() if value is not ANY}
        lines = [f"{what}:", f"    {_listed(fields) or 'anything at all'}"]
        records = self.puts(queue)
        if records:
            lines.append(f"what was put into {queue!r} ({len(records)}):")
            for number, record in enumerate(records[:SHOWN], 1):
                lines.append(f"{number:4}. {record}")
                if differences := _differences(record, fields):
                    lines.append(f"      differs in: {_listed(differences)}")
            if len(records) > SHOWN:
                lines.append(f"      ... and {len(records) - SHOWN} more")
        elif names := sorted({record.queue for record in self.puts()}):
            listed = ", ".join(map(repr, names))
            lines.append(f"nothing was put into {queue!r}; puts went to: {listed}")
        else:
            lines.append("nothing was put into any queue")
        return "\n".join(lines)
