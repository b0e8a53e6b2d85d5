"""The queue for threads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, overload

from bide.model.commands import Configure, Count
from bide.model.message import ATTEMPTS, Message, NewMessage, State
from bide.model.moments import Duration, Moment
from bide.model.replies import Claimed, Counts, Forecasted, Found, Outcome, Outcomes, Settings
from bide.queue.answers import Audit, Forecast, in_parts, stored
from bide.queue.base import BlockingBase
from bide.queue.command_builder import OnConflict, one_or_several, own_name, wait_seconds
from bide.queue.delivery import Delivery, leases
from bide.queue.take import Take
from bide.queue.transfer import REMEMBERED, Imported, commands_of, to_line

__all__ = ["Queue"]


class Queue(BlockingBase):
    """A queue of messages that bide their time. Safe to share between threads.

    Args:
        name: of the queue: 1 to 128 letters, digits and `_ . : -`.
        url: of the store; the environment's `BIDE_URL`, or else `sqlite:///bide.db`.
        keep: how long acked messages are remembered, so that their ids are refused; stored with the
            queue, for all who use it. `None` leaves it as it is.
        max_body: how many bytes an encoded body may take.
        holder: by what name this worker is known to others; its host and process by default.
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
    ) -> Outcome:
        """Store a message until its moment. When this returns, the message is safe.

        Args:
            body: any JSON value, or bytes; or a `NewMessage`, which has its own options.
            delay: how long from now until it is due: seconds, a `timedelta`, or "1h30m".
            at: the moment at which it is due, instead: an aware `datetime`, or Unix seconds. A
                moment in the past is due at once. With neither it is due at once.
            id: a name of your own, 1 to 512 bytes; made up when missing.
            priority: 0 to 255; of what is due, higher goes out first.
            expires: how long after its due moment it is still worth delivering.
            attempts: how often it is handed out at most before it becomes a dead letter.
            group: a name that several messages share, to cancel them together.
            headers: text that travels beside the body.
            on_conflict: if the id is there already: "keep" what is there, "replace" it while nobody
                holds it, or "raise".
            if_version: with "replace": only what still is as you saw it, by its `Message.version`;
                nothing new is stored then.

        Returns:
            The outcome: its `id` and `due`, and whether it was stored; if not, the state of the
            message that was there before.

        Raises:
            InvalidArgument: an argument cannot be; the error says which, why, and what helps.
            AlreadyExists: the id is there already, with `on_conflict="raise"`.
        """
        message = NewMessage(
            body, delay=delay, at=at, id=id, priority=priority, expires=expires,
            attempts=attempts, group=group, headers=headers,
        )  # fmt: skip
        command = self._builder.put_one(message, on_conflict, if_version, self._clock.now())
        reply = self._do(Outcomes, command)
        return stored(reply.outcomes[0], on_conflict)

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
    ) -> list[Outcome]:
        """Store many messages with one commit: all of them or, if that fails, none.

        Args:
            messages: `NewMessage` objects, each with its own options; or plain bodies, which take
                the options given here.
            delay, at, priority, expires, attempts, group: of plain bodies, as for `put`.
            on_conflict: for ids that are there already: "keep" or "replace".

        Returns one outcome a message, in their order.
        """
        shared = NewMessage(
            body=None, delay=delay, at=at, priority=priority, expires=expires, attempts=attempts,
            group=group,
        )  # fmt: skip
        command = self._builder.put_many(messages, shared, on_conflict, self._clock.now())
        if not command.items:
            if not self._users:
                raise self._was_closed()
            return []
        return self._do(Outcomes, command).outcomes

    @overload
    def cancel(
        self, id: str, *, if_due: Moment | None = None, if_version: str | None = None
    ) -> Outcome: ...
    @overload
    def cancel(
        self,
        *,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        dry_run: bool = False,
    ) -> int: ...
    def cancel(
        self,
        id: str | None = None,
        *,
        if_due: Moment | None = None,
        if_version: str | None = None,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        dry_run: bool = False,
    ) -> Outcome | int:
        """Take a message back before somebody holds it; or all of a group, or of a span of time.

        Args:
            id: of the message.
            if_due: only while it is still due at this moment, so that you cancel what you saw.
            if_version: only while nobody has edited or moved it, by its `Message.version`.
            group: instead of an id: all messages of this group that nobody holds,
            after: and that fall due at this moment or later,
            before: and that fall due before this moment.
            dry_run: only count them.

        Returns:
            By id an `Outcome`: true when the message is gone for good, else it says where it is.
            By group or span, how many were cancelled, 1,000 in each commit.
        """
        command = self._builder.cancel_by(
            id, if_due, if_version, group=group, after=after, before=before, dry_run=dry_run
        )
        if id is None:
            return self._repeat(command)
        return self._do(Outcomes, command).outcomes[0]

    def cancel_many(self, ids: Iterable[str]) -> list[Outcome]:
        """Take messages back by id, with one commit. One outcome an id, as for `cancel`."""
        return self._do(Outcomes, self._builder.cancel(ids, None)).outcomes

    def reschedule(
        self,
        id: str,
        *,
        delay: Duration | None = None,
        at: Moment | None = None,
        if_due: Moment | None = None,
        if_version: str | None = None,
    ) -> Outcome:
        """Move a message that nobody holds to another moment.

        Args:
            id: of the message.
            delay: how long from now until it is due.
            at: the moment at which it is due, instead.
            if_due: only while it is still due at this moment.
            if_version: only while nobody has edited or moved it, by its `Message.version`.

        Returns:
            The outcome: true when it was moved; otherwise it says where the message is.
        """
        now = self._clock.now()
        command = self._builder.reschedule([id], delay, at, if_due, now, if_version)
        return self._do(Outcomes, command).outcomes[0]

    def get(self, id: str) -> Message | None:
        """Look at a message; `None` if there is none of this id."""
        return self._do(Found, self._builder.find(id)).messages[0]

    def peek(self, count: int = 10) -> list[Message]:
        """Look at what goes out next, without taking it: what is ready, then what falls due."""
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
        """Look at any number of messages, lazily, in flat memory, beside those who work.

        Args:
            state: only messages in this state, in its order (delayed: by due time). With none, all
                messages in no order; one that moves meanwhile may come twice, none is missed.
            group: only those of this group,
            after: that are due at this moment or later,
            before: that are due before this moment.
            page: how many are read at a time.
        """
        return self._walk(self._builder.scan(state, group, after, before, page))

    def claim(
        self, count: int = 1, *, wait: Duration | None = None, lease: Duration = 30
    ) -> list[Delivery]:
        """Take up to `count` due messages, each for the length of a lease.

        Args:
            count: how many at most.
            wait: how long to wait for the first one to fall due; by default not at all.
            lease: after so long without an ack they go to somebody else.

        Returns:
            What is due, weightiest first, then oldest; an empty list if nothing was due in time.
        """
        command = self._builder.claim(count, lease, self._holder)
        reply = self._do(Claimed, command, wait_seconds(wait))
        return [Delivery(self, m, reply.token, reply.now) for m in reply.messages]

    def take(
        self, *, wait: Duration | None = None, lease: Duration = 30, retry: Duration = 10
    ) -> "Take":
        """Take one message, to be used in a `with` block.

        The block waits until a message is due. Leaving it acks the message; an exception in it has
        the message tried again. Both are left to you if you settle the delivery yourself.

        Args:
            wait: how long to wait for a message; by default for ever.
            lease: after so long the message goes to somebody else.
            retry: how long to wait before the next attempt after an exception.

        Raises:
            Empty: on entering, when nothing fell due in time.
            LeaseLost: on leaving, when the lease was over before the block was.

        Example:
            >>> orders = Queue("orders", "memory://")
            >>> outcome = orders.put("pay me")
            >>> with orders.take(wait=5) as delivery:
            ...     print(delivery.body)
            pay me
        """
        seconds = wait_seconds(wait)
        return Take(self, float("inf") if seconds is None else seconds, lease, retry)

    def ack(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """Ack many deliveries with one commit.

        Returns:
            One outcome each: true when it was acked, false when its lease was over.
        """
        return self._settle(deliveries, self._builder.ack(leases(deliveries)))

    def retry(
        self, deliveries: Sequence[Delivery], delay: Duration = 0, reason: str = ""
    ) -> list[Outcome]:
        """Have many deliveries tried again with one commit; see `Delivery.retry`."""
        return self._settle(deliveries, self._retrying(deliveries, delay, reason))

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
        """Hand many deliveries back with one commit; or end the lease of a message by its id.

        Args:
            what: deliveries, as for `Delivery.release`; or the id of a message that a worker holds
                and does not give back. That counts as a failed attempt: it is ready again, or dead.
            reason: for an id: what the message remembers; "released by NAME" when missing.
        """
        if isinstance(what, str):
            command = self._builder.end_lease(what, reason, self._holder or own_name())
            return self._do(Outcomes, command).outcomes[0]
        return self._settle(what, self._builder.release(leases(what)))

    def extend(self, deliveries: Sequence[Delivery], lease: Duration = 30) -> list[Outcome]:
        """Hold many deliveries for longer with one commit; see `Delivery.extend`."""
        return self._do(Outcomes, self._builder.extend(leases(deliveries), lease)).outcomes

    def counts(self) -> Counts:
        """Count the messages in each state, and what has become of all others."""
        return self._do(Counts, Count(self.name))

    def audit(self) -> Audit:
        """Check that everything that was put is accounted for, on the live store.

        Returns:
            The audit: true when it adds up, else with its `problems`. Reads every message.
        """
        return Audit.of(self.name, self._do(Counts, Count(self.name, recount=True)))

    def forecast(self, bucket: Duration = "1m", horizon: Duration = "1h") -> Forecast:
        """Count how many messages fall due when, without listing them.

        Args:
            bucket: the length of a span.
            horizon: how far to look ahead; later messages are counted together.
        """
        command = self._builder.forecast(bucket, horizon)
        return Forecast.of(self._do(Forecasted, command), command.bucket)

    def dead(self) -> Iterator[Message]:
        """Look at the dead letters, oldest first; the same as `scan("dead")`."""
        return self.scan("dead")

    def revive(self, ids: Iterable[str] | None = None, *, delay: Duration = 0) -> list[Outcome]:
        """Have dead letters delivered again, with all attempts before them.

        Args:
            ids: which; all of them when missing.
            delay: how long from now until they are due.
        """
        if ids is None:
            ids = [message.id for message in self.dead()]
        chosen = one_or_several(ids)
        return [
            outcome
            for part in in_parts(chosen)
            for outcome in self._do(
                Outcomes, self._builder.revive(part, delay, self._clock.now())
            ).outcomes
        ]

    def pause(self) -> None:
        """Let nobody claim from this queue, in any process, until `resume`. Puts go on."""
        self._do(Settings, Configure(self.name, paused=True))

    def resume(self) -> None:
        """Let messages be claimed again."""
        self._do(Settings, Configure(self.name, paused=False))

    def purge(self, *, state: State, before: Moment | None = None) -> int:
        """Delete the messages of a state that nobody holds.

        Args:
            state: delayed, ready, dead, or what is remembered of acked and expired messages.
            before: only those that came into it (delayed, ready: fall due) before this moment.

        Returns:
            How many were deleted, 1,000 in each commit.
        """
        return self._repeat(self._builder.purge(state, before))

    def export(self) -> Iterator[str]:
        """Return the queue as lines of JSON, while it is in use; see `load`.

        A message that somebody holds is exported as well: it is ready again after an import.
        """
        return (to_line(message) for message in self.scan() if message.state not in REMEMBERED)

    def load(self, lines: Iterable[str | bytes]) -> Imported:
        """Put messages from lines that `export` made. What is there already is kept.

        Raises:
            InvalidArgument: a line is none of `export`'s; the error says which. Those before it,
                up to the last thousand, have been put.
        """
        imported = Imported()
        for command in commands_of(lines, self._builder):
            imported = imported.plus(self._do(Outcomes, command).outcomes)
        return imported
