"""The queue for threads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, overload

from bide.model import replies
from bide.model.commands import Count, Delete
from bide.model.message import ATTEMPTS, Message, NewMessage, State
from bide.model.replies import Claimed, Counts, Found, Outcome, Outcomes, Settings
from bide.model.times import Duration, Moment
from bide.queue.changing import BlockingChanges, repeated
from bide.queue.delivery import Delivery, leases
from bide.queue.ending import BlockingEndings
from bide.queue.results import Audit, Forecast, deleted, in_parts, must_be_new
from bide.queue.take import Take
from bide.queue.transfer import REMEMBERED, Imported, commands_of, to_line
from bide.queue.undoing.faces import Undoable, bulk_of, check_undo, reviving
from bide.queue.undoing.looking import look_at_dead, look_at_purge
from bide.queue.values import OnConflict, one_or_several, wait_seconds


class Queue(BlockingChanges, BlockingEndings):
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
        InvalidArgument: what was given cannot be; the error says why and what helps.

    Every method may raise `StoreError` when the store fails, and `Closed` after `close`.

    Example:
        >>> import bide
        >>> orders = bide.Queue("orders", "memory://")
        >>> print(orders.put({"order": 42}, delay="30m", id="order-42").state)
        delayed
        >>> bool(orders.cancel("order-42"))
        True
    """

    def put(
        self,
        body: Any,
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        id: str | None = None,
        priority: int = 0,
        expires: Duration | None = None,
        attempts: int = ATTEMPTS,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        on_conflict: OnConflict | Literal["raise"] = "keep",
        if_version: str | None = None,
        latest: Duration | None = None,
        within: object = None,
    ) -> Outcome:
        """Store a message until it is due. Once this returns, the message is safe.

        Args:
            body: any JSON value, or bytes; or a `NewMessage`, which has its own options.
            delay: how long from now until it is due: seconds, a `timedelta`, or "1h30m".
            at: the due time instead: an aware `datetime`, or Unix seconds. A time in the past is
                due at once, as is a message with neither.
            id: your own name for it, 1 to 512 bytes; generated when missing.
            priority: 0 to 255; among due messages, higher goes first.
            expires: how long after its due time it is still worth delivering.
            attempts: how often it is delivered at most before it becomes a dead letter.
            group: a name that several messages share, to cancel them together.
            headers: text that travels beside the body.
            on_conflict: if the id exists: "keep" the message, "replace" it unless a worker holds
                it, or "raise".
            if_version: with "replace": only the message that you saw, by its `Message.version`.
            latest: with "replace", an id and `delay`: each put of the id moves its due time, but
                never to later than this after the first put since the id was free. If a worker
                holds the message, what you put follows it when the lease ends (debounce).
            within: your connection to the store's own database; the message joins its transaction.

        Returns:
            The outcome: `id`, `due`, and whether it was stored; if not, the state of the message
            that exists.

        Raises:
            InvalidArgument: an argument is invalid; the error names it, the reason and the fix.
            AlreadyExists: the id exists, with `on_conflict="raise"`.
            WrongConnection: `within` is to another database, or has no transaction.
        """
        message = NewMessage(
            body, delay=delay, at=at, id=id, priority=priority, expires=expires,
            attempts=attempts, group=group, headers=headers, latest=latest,
        )  # fmt: skip
        command = self._builder.put_one(message, on_conflict, if_version)
        outcome = self._do(Outcomes, command, within=within).outcomes[0]
        return must_be_new(outcome) if on_conflict == "raise" else outcome

    def put_many(
        self,
        messages: Iterable[Any],
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        priority: int = 0,
        expires: Duration | None = None,
        attempts: int = ATTEMPTS,
        group: str | None = None,
        on_conflict: OnConflict = "keep",
        within: object = None,
    ) -> list[Outcome]:
        """Store many messages with one commit: all of them or, if that fails, none.

        Args:
            messages: `NewMessage` objects, each with its own options, or plain bodies.
            delay, at, priority, expires, attempts, group: of plain bodies, as for `put`.
            on_conflict: if an id exists: "keep" or "replace".
            within: as for `put`.

        Returns one outcome per message, in their order.
        """
        shared = NewMessage(
            body=None, delay=delay, at=at, priority=priority, expires=expires, attempts=attempts,
            group=group,
        )  # fmt: skip
        command = self._builder.put_many(messages, shared, on_conflict)
        if not command.items:
            if not self._users:
                raise self._was_closed()
            return []
        return self._do(Outcomes, command, within=within).outcomes

    def get(self, id: str) -> Message | None:
        """Read a message; `None` if there is none with this id."""
        return self._do(Found, self._builder.find(id)).messages[0]

    def peek(self, count: int = 10) -> list[Message]:
        """Read the messages that are delivered next, without claiming them."""
        command = self._builder.scan("next", None, None, None, count)
        return list(islice(self._walk(command), count))

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
                messages in no order; one that moves meanwhile may come twice. None is missed,
                except one that moves during a scan by `after` or `before`.
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
        command = self._builder.claim(count, lease, self._holder)
        reply = self._do(Claimed, command, wait_seconds(wait))
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
        seconds = wait_seconds(wait)
        return Take(self, float("inf") if seconds is None else seconds, lease, retry)

    def ack(
        self, deliveries: Sequence[Delivery], results: Sequence[Any] | None = None
    ) -> list[Outcome]:
        """Ack many deliveries with one commit; the outcome is false where the lease was over."""
        return self._settle(deliveries, self._builder.ack(leases(deliveries), results))

    def retry(
        self, deliveries: Sequence[Delivery], delay: Duration = 0, reason: str = ""
    ) -> list[Outcome]:
        """Retry many deliveries with one commit; see `Delivery.retry`."""
        return self._settle(deliveries, self._builder.retry(leases(deliveries), delay, reason))

    def bury(self, deliveries: Sequence[Delivery], reason: str = "") -> list[Outcome]:
        """Make many deliveries dead letters with one commit; see `Delivery.bury`."""
        return self._settle(deliveries, self._builder.bury(leases(deliveries), reason))

    @overload
    def release(self, what: str, *, reason: str | None = None) -> Outcome: ...
    @overload
    def release(self, what: Sequence[Delivery]) -> list[Outcome]: ...
    def release(
        self, what: str | Sequence[Delivery], *, reason: str | None = None
    ) -> Outcome | list[Outcome]:
        """Return many deliveries with one commit; or end the lease of a message by its id.

        Args:
            what: deliveries, as for `Delivery.release`; or the id of a message whose worker does
                not return it. That counts as a failed attempt: it is ready again, or dead.
            reason: for an id: stored with the message; "released by NAME" when missing.
        """
        if isinstance(what, str):
            command = self._builder.end_lease(what, reason)
            return self._do(Outcomes, command).outcomes[0]
        return self._settle(what, self._builder.release(leases(what)))

    def extend(self, deliveries: Sequence[Delivery], lease: Duration = 30) -> list[Outcome]:
        """Extend many leases with one commit; see `Delivery.extend`."""
        return self._do(Outcomes, self._builder.extend(leases(deliveries), lease)).outcomes

    def counts(self) -> Counts:
        """Count the messages in each state, and all changes since the queue exists."""
        return self._do(Counts, Count(self.name))

    def audit(self) -> Audit:
        """Check, on the live store, that every message is accounted for. Reads all of them."""
        return Audit.of(self.name, self._do(Counts, Count(self.name, recount=True)))

    def forecast(self, bucket: Duration = "1m", horizon: Duration = "1h") -> Forecast:
        """Count how many messages fall due when, without reading them.

        Args:
            bucket: the length of a span.
            horizon: how far to look ahead; later messages are counted together.
        """
        command = self._builder.forecast(bucket, horizon)
        return Forecast.of(self._do(replies.Forecasted, command), command.bucket)

    def dead(self) -> Iterator[Message]:
        """Read the dead letters, oldest first: `scan("dead")`."""
        return self.scan("dead")

    @overload
    def revive(self, ids: Iterable[str] | None = None, *, delay: Duration = 0) -> list[Outcome]: ...
    @overload
    def revive(
        self, ids: Iterable[str] | None = None, *, delay: Duration = 0, undo: Literal[True]
    ) -> Undoable: ...
    @overload
    def revive(
        self, ids: Iterable[str] | None = None, *, delay: Duration = 0, dry_run: Literal[True]
    ) -> int: ...
    def revive(
        self, ids: Iterable[str] | None = None, *, delay: Duration = 0, undo: bool = False,
        dry_run: bool = False,
    ) -> list[Outcome] | int:  # fmt: skip
        """Return dead letters (by default all) to the queue, due after `delay`.

        They get all their attempts again. With `undo` it can be taken back, see `undo`; returns how
        many then. With `dry_run` it only counts them.
        """
        check_undo(undo, True, dry_run, None)
        if undo or dry_run:
            bulk = reviving(self._builder, ids, delay)
            if undo:
                return self._bulk(bulk)
            return self._run(look_at_dead(self.name, bulk.ids))
        if ids is None:
            ids = [message.id for message in self.dead()]
        chosen = one_or_several(ids)
        return [
            outcome
            for part in in_parts(chosen)
            for outcome in self._do(Outcomes, self._builder.revive(part, delay)).outcomes
        ]

    def pause(self) -> None:
        """Stop claims from this queue, in every process, until `resume`. Puts continue."""
        self._do(Settings, self._builder.configure(paused=True))

    def resume(self) -> None:
        """Let messages be claimed again."""
        self._do(Settings, self._builder.configure(paused=False))

    @overload
    def purge(
        self, *, state: State, before: Moment | None = None, dry_run: bool = False
    ) -> int: ...
    @overload
    def purge(
        self, *, state: State, before: Moment | None = None, undo: Literal[True]
    ) -> Undoable: ...
    def purge(
        self, *, state: State, before: Moment | None = None, undo: bool = False,
        dry_run: bool = False,
    ) -> int:  # fmt: skip
        """Delete the messages of a state, 1,000 in each commit. Returns how many.

        Args:
            state: delayed, ready or dead; acked or expired: forget these messages and their ids.
            before: only those that entered the state (delayed, ready: are due) before this time.
            undo: let it be taken back for ten minutes, see `undo`; not for acked and expired ones.
                Delayed and ready messages count as cancelled then.
            dry_run: only count them. With `before`, and for acked and expired ones, it reads all
                messages of the state.
        """
        command = self._builder.purge(state, before)
        check_undo(undo, True, dry_run, None)
        if dry_run:
            return self._run(look_at_purge(command))
        return self._bulk(bulk_of(command)) if undo else self._run(repeated(command))

    def delete(self) -> bool:
        """Delete the queue, with its settings and counters; a later put makes it again.

        Returns:
            True if it was deleted, False if there is no such queue.

        Raises:
            NotEmpty: it holds messages, or remembers acked or expired ones.
        """
        return deleted(self.name, self._do(replies.Deleted, Delete(self.name)))

    def export(self) -> Iterator[str]:
        """Return the queue as lines of JSON, while it is in use; `load` reads them.

        A message that a worker holds is included: it is ready after an import.
        """
        return (to_line(message) for message in self.scan() if message.state not in REMEMBERED)

    def load(self, lines: Iterable[str | bytes]) -> Imported:
        """Put the messages of an `export`. Ids that exist are kept.

        Raises:
            InvalidArgument: a line is invalid; the error says which. Lines before the last commit
                (one per thousand) were put.
        """
        imported = Imported()
        for command in commands_of(lines, self._builder):
            imported = imported.plus(self._do(Outcomes, command).outcomes)
        return imported
