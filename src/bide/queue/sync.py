"""The queue for threads."""

import asyncio
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from time import monotonic
from typing import Any, Self, TypeVar, overload

from bide.exports import Imported, load_steps, to_lines
from bide.lane.lane import Lane
from bide.lane.steps import Steps, find_all, run_steps
from bide.model.commands import Command, Count, Delete, Explain, Put, Scan
from bide.model.ended import End
from bide.model.errors import InvalidArgument, WrongContext
from bide.model.identity import check_name
from bide.model.message import Message, State
from bide.model.replies import Counts, Explained, Outcome, Page
from bide.model.times import Duration, Moment
from bide.model.undoing import Undone
from bide.observing import spans
from bide.observing.explanation import Explanation, look_further
from bide.queue.arguments import wait_seconds
from bide.queue.changing import Changes
from bide.queue.delivery import Delivery, Take
from bide.queue.detour import detours
from bide.queue.results import Audit, Forecast, deleted, first_of, following, must_be_new, result_in
from bide.undoing.changes import steps_of, whole_undo
from bide.within import carry_out

T = TypeVar("T")


class Queue(Changes):
    """A queue of messages that bide their time. Safe to share between threads.

    Args:
        name: of the queue: 1 to 128 letters, digits and `_ . : -`.
        url: of the store; the environment's `BIDE_URL`, or else `sqlite:///bide.db`.
        keep: how long acked messages are remembered, so that their ids are refused; stored with the
            queue, for all who use it. `None` leaves it as it is.
        history, result_ttl, limit, rate, group_limit, group_rate: as for `configure`; stored like
            `keep`.
        max_body: how many bytes an encoded body may take.
        holder: by what name this worker is known to others; its host and process by default.
        actor: who changes messages and settings, in at most 64 bytes; `holder` by default.
        clock: for tests; see `bide.testing.FakeClock`.

    Raises:
        InvalidArgument: an argument is invalid; the error names it, the reason and the fix.

    Every method may raise `StoreError` when the store fails, and `Closed` after `close`.

    Example:
        >>> import bide
        >>> orders = bide.Queue("orders", "memory://")
        >>> print(orders.put({"order": 42}, delay="30m", id="order-42").state)
        delayed
        >>> bool(orders.cancel("order-42"))
        True
    """

    def close(self) -> None:
        """Close the queue. Claims that wait in other threads raise `Closed`."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def explain(self, id: str) -> Explanation:
        """Tell why a message is where it is: when it is due, what it waits for, or who holds it.

        Args:
            id: of the message.

        Returns:
            The explanation: `sentence` for people, `reasons` and `facts` for programs. Its cost
            does not depend on how many messages are pending.

        Example:
            >>> from bide import Queue
            >>> orders = Queue("unpaid", "memory://")
            >>> outcome = orders.put({"order": 42}, delay="30m", id="order-42")
            >>> orders.explain("order-42").reasons
            ('delayed',)
        """
        return self._run(_explaining(self.name, check_name(id), self._lane))

    def get(self, id: str) -> Message | None:
        """Read a message; `None` if there is none with this id."""
        return self._ask(self._builder.find(id), lambda reply: reply.messages[0])

    def peek(self, count: int = 10) -> list[Message]:
        """Read the messages that are delivered next, without claiming them.

        What has fallen due since the last claim is read by due time. A claim sorts it by priority.
        """
        command = self._builder.scan("next", None, None, None, count, name="count")
        return self._run(first_of(command, count))

    def scan(
        self,
        state: State | None = None,
        *,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        page: int = 500,
    ) -> Iterator[Message]:
        """Read any number of messages, lazily, in flat memory, without blocking workers.

        Args:
            state: only messages in this state, in its order (delayed: by due time). With none, all
                messages in no order: none that is there throughout is missed; one that moves
                meanwhile may come again.
            group: only those of this group,
            after: that are due at this time or later,
            before: that are due before this time.
            page: how many are read at a time.
        """
        return self._walk(self._builder.scan(state, group, after, before, page))

    def claim(
        self, count: int = 1, *, wait: Duration | None = None, lease: Duration = 30
    ) -> list[Delivery]:
        """Claim up to `count` due messages, each for the length of a lease.

        Args:
            count: how many at most.
            wait: how long to wait for the first due message; by default not at all.
            lease: after so long without an ack they go to another worker.

        Returns:
            Deliveries: highest priority first, then oldest; empty if nothing was due in time.
        """
        reply = self._do(self._builder.claim(count, lease, self._holder), wait_seconds(wait))
        return [Delivery(self, m, reply.token, reply.now) for m in reply.messages]

    def take(
        self, *, wait: Duration | None = None, lease: Duration = 30, retry: Duration = 10
    ) -> "Take":
        """Claim one message for the length of a `with` block.

        The block begins when a message is due. Its end acks the message, an exception retries it,
        unless you settled the delivery yourself.

        Args:
            wait: how long to wait for a message; by default for ever.
            lease: after so long the message goes to another worker.
            retry: the delay before the next attempt after an exception.

        Raises:
            Empty: on entering, nothing was due in time.
            LeaseLost: on leaving, the lease was over before the block.

        Example:
            >>> orders = Queue("orders", "memory://")
            >>> outcome = orders.put("pay me")
            >>> with orders.take(wait=5) as delivery:
            ...     print(delivery.body)
            pay me
        """
        return Take(self, wait, lease, retry)

    def counts(self) -> Counts:
        """Count the messages in each state, and all changes since the queue exists."""
        return self._do(Count(self.name))

    def audit(self) -> Audit:
        """Check, on the live store, that every message is accounted for. Reads all of them."""
        return self._ask(Count(self.name, recount=True), partial(Audit.of, self.name))

    def forecast(self, bucket: Duration = "1m", horizon: Duration = "1h") -> Forecast:
        """Count how many messages fall due when, without reading them.

        Args:
            bucket: the length of a span.
            horizon: how far to look ahead; later messages are counted together.
        """
        command = self._builder.forecast(bucket, horizon)
        return self._ask(command, partial(Forecast.of, bucket_ms=command.bucket))

    def dead(self) -> Iterator[Message]:
        """Read the dead letters, oldest first: `scan("dead")`."""
        return self.scan("dead")

    def pause(self) -> None:
        """Stop claims from this queue, in every process, until `resume`. Puts continue."""
        return self._ask(self._builder.configure(paused=True), lambda _: None)

    def resume(self) -> None:
        """Let messages be claimed again."""
        return self._ask(self._builder.configure(paused=False), lambda _: None)

    def delete(self) -> bool:
        """Delete the queue, with its settings and counters; a later put makes it again.

        Returns:
            True if it was deleted, False if there is no such queue.

        Raises:
            NotEmpty: it holds messages, or remembers acked or expired ones.
        """
        return self._ask(Delete(self.name), partial(deleted, self.name))

    def export(self) -> Iterator[str]:
        """Return the queue as lines of JSON, while it is in use; `load` reads them.

        A message that a worker holds is included: it is ready after an import.
        """
        return self._walk(Scan(self.name), to_lines)

    def load(self, lines: Iterable[str | bytes]) -> Imported:
        """Put the messages of an `export`. Ids that exist are kept.

        Raises:
            InvalidArgument: a line is invalid; the error says which. Lines before the last commit
                (one per thousand, or per 8 MiB) were put.
        """
        return self._run(load_steps(lines, self.name, self._builder.max_body))

    def history(self, id: str) -> list[End]:
        """Read how messages with an id have ended, the newest first: the last 20.

        A queue remembers this for as long as its setting `history` says; see `configure`.
        """
        return self._ask(self._builder.history(id), lambda reply: reply.ends)

    @overload
    def result(self, id: str, *, wait: Duration | None = None) -> Any: ...
    @overload
    def result(self, id: str, *, wait: Duration | None = None, type: type[T]) -> T: ...
    def result(self, id: str, *, wait: Duration | None = None, type: Any = Any) -> Any:
        """Return the result of a message: what its handler returned, or `ack` was given.

        A queue keeps results for as long as its setting `result_ttl` says; see `configure`.

        Args:
            id: of the message.
            wait: how long to wait for its end; by default not at all.
            type: to decode the result into, as for bodies.

        Returns:
            The result; `None` if it was acked without one.

        Raises:
            NotEnded: the message is still in the queue.
            NotAcked: it died, expired, was cancelled or purged; its `end` says more.
            NotRemembered: there is no such message, and nothing is remembered of it.
            InvalidArgument: the result does not fit `type`.
        """
        seconds = wait_seconds(wait)
        command = self._builder.history(id, watch=bool(seconds))
        return self._ask(command, lambda reply: result_in(id, reply, type), seconds)

    def undo(self, undo: str) -> Undone:
        """Take back a bulk change that was made with `undo=True`, up to ten minutes ago.

        Args:
            undo: the token: `Undoable.undo`.

        Returns:
            How many messages are restored. Messages whose id was put again, or that a worker has
            got since, are counted apart and stay as they are. A second time restores nothing.

        Raises:
            NothingToUndo: the token is none of this queue, the change changed nothing, or ten
                minutes have passed.
        """
        return self._run_composed(whole_undo(self.name, undo, self._builder.actor))

    def _do(self, command: Command, wait: float | None = None, within: object = None) -> Any:
        """Execute a command and return its reply."""
        if within is not None and (guest := self._guest(command, within)) is not None:
            with self._joining(command) as commands:
                return carry_out(within, guest, commands, self._now())[-1]
        if not self._users:
            raise self._was_closed()
        if asyncio._get_running_loop() is not None:
            raise WrongContext(
                "bide.Queue blocks, and this thread runs an event loop, which would stop; use "
                "bide.AsyncQueue here (the same methods, with await)"
            )
        lane = self._lane if detours else self._home
        if self._to_set is not None and self._set_in is not lane and not command.only_reads:
            lane.call(self._to_set, self)
            self._set_in = lane
        if type(command) is Put and spans.library in sys.modules and monotonic() > spans.none_until:
            with spans.sending(command) as traced:
                return lane.call(traced, self)
        return lane.call(command, self, wait)

    def _ask(self, command: Command, result_of: Callable[[Any], T], wait: float | None = None) -> T:
        return result_of(self._do(command, wait))

    def _one(self, command: Command, within: object = None, *, new: bool = False) -> Outcome:
        (outcome,) = self._do(command, None, within).outcomes
        return must_be_new(outcome) if new else outcome

    def _run(self, steps: Steps[T], **options: Any) -> T:
        return run_steps(steps, partial(self._do, **options))

    def _walk(
        self, scan: Scan | None, of: Callable[[list[Message]], Iterable[Any]] = iter
    ) -> Iterator[Any]:
        """Yield what there is of the messages of a scan, page by page."""
        while scan is not None:
            page: Page = self._do(scan)
            yield from of(page.messages)
            scan = following(scan, page)

    def _find_all(self, ids: Iterable[str]) -> dict[str, Message]:
        return self._run(find_all(self.name, ids))

    def _run_composed(self, steps: Generator[Any, Any, T]) -> T:
        takes_back = self._lane.capabilities.takes_back
        return run_steps(steps, lambda part: self._run(steps_of(part, takes_back=takes_back)))


def _explaining(queue: str, id: str, lane: Lane) -> Steps[Explanation]:
    """Explain where a message is, by what the store and the workers' reports say."""
    facts: Explained = yield Explain(queue, id)
    facts = yield from look_further(queue, id, facts, around=lane.capabilities.shared)
    return Explanation(id, queue, facts)


def check_blocking(beginning: str, *queues: object) -> None:
    """Check that each queue is a `Queue`; an error text begins with `beginning`.

    Raises:
        InvalidArgument: one of them is a name, or an `AsyncQueue`.
    """
    for queue in queues:
        if not isinstance(queue, Queue):
            raise InvalidArgument(
                f"{beginning} bide.Queue, not a {type(queue).__name__}: "
                "bide.Queue('orders', 'sqlite:///bide.db')"
            )
