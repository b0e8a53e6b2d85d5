"""The queue for threads. `AsyncQueue` has the same methods, and awaits what they return."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from msgspec import UNSET, UnsetType

from bide.lane.steps import LongSteps, first_of, following, run_steps
from bide.model.commands import (
    Cancel,
    Command,
    Count,
    Delete,
    ListEnded,
    Purge,
    Put,
    Reschedule,
    Revive,
    Scan,
    Where,
)
from bide.model.ended import End, Ended, Ending
from bide.model.errors import InvalidArgument, StoreBusy, WrongContext
from bide.model.identity import check_name
from bide.model.limits import BULK
from bide.model.message import ATTEMPTS, Message, NewMessage, State
from bide.model.replies import ClosedGroup, Counts, EndedPage, Outcome, Page, QueueSettings
from bide.model.times import Duration, Moment, Rate, to_datetime
from bide.queue import spans
from bide.queue.arguments import (
    OnConflict,
    check_no_rule,
    check_running,
    check_undo,
    one_or_several,
    wait_seconds,
)
from bide.queue.base import SETTLES, BaseQueue
from bide.queue.delivery import CURRENT, Delivery, Held, Take, ack_command, leases, note_settled
from bide.queue.results import (
    Audit,
    Cancelled,
    Closing,
    Forecast,
    Imported,
    all_outcomes,
    deleted,
    new_outcome,
    only_outcome,
)
from bide.queue.steps import (
    closing,
    editing,
    ending,
    exported,
    loading,
    putting,
    repeated,
    rescheduling,
    resulting,
    reviving,
    stopping,
    stopping_all,
)

if TYPE_CHECKING:
    from bide.model.past import Past
    from bide.model.recovery import Overdue, Recovered, Recovery
    from bide.model.repeat import Repeat
    from bide.model.undoing import Undoable, Undone
    from bide.model.window import Window
    from bide.observing.explanation import Explanation

T = TypeVar("T")


class Queue(BaseQueue):
    """A queue of messages that bide their time. Safe to share between threads.

    Args:
        name: of the queue: 1 to 128 letters, digits and `_ . : -`.
        url: of the store; the environment's `BIDE_URL`, or else `sqlite:///bide.db`.
        keep: how long acked messages are remembered, so that their ids are refused. This and the
            next seven are settings of the queue: the first command stores them, for all who use it.
            `None` leaves one as it is, 0 switches it off; `configure` changes them later.
        history: how long the queue remembers how messages ended, by whom, and their attempts.
        result_ttl: how long it remembers the results of messages.
        limit: how many messages of the queue may be leased at a time, over all workers.
        rate: how many may be delivered: per second, or a string such as "100/m".
        group_limit: `limit` for each group.
        group_rate: `rate` for each group.
        overdue: what becomes of what is overdue after a gap without claims, such as
            "spread 10m"; see `bide.model.recovery`.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the queue. Claims that wait in other threads raise `Closed`."""
        self._close()

    def put(
        self,
        body: Any,
        *,
        delay: Duration | None = None,
        at: Moment | str | None = None,
        timezone: str | None = None,
        id: str | None = None,
        priority: int = 0,
        expires: Duration | None = None,
        attempts: int = ATTEMPTS,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        on_conflict: OnConflict | Literal["raise"] = "keep",
        if_version: str | None = None,
        latest: Duration | None = None,
        spread: Duration | None = None,
        repeat: "Repeat | None" = None,
        window: "Window | None" = None,
        within: object = None,
    ) -> Outcome:
        """Store a message until it is due. Once this returns, the message is safe.

        Args:
            body: any JSON value, or bytes; or a `NewMessage` or a `Job`, which have their own
                options.
            delay: how long from now until it is due: seconds, a `timedelta`, or "1h30m".
            at: the due time instead: an aware `datetime`, Unix seconds, or text in ISO 8601 with an
                offset. A time in the past is due at once, as is a message with neither.
            timezone: the zone of a local date, such as "Europe/Paris": then `at` is a text as
                "2027-03-28 09:00", or a naive `datetime`. The message keeps both, and moves if the
                rules of the zone change. A time that the clocks skip is right after the gap, and
                one that they show twice is the first one.
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
            spread: how long after the due time it is due at the latest: at a time within this span
                that is always the same for the id. Messages for one instant, such as midnight, are
                spread evenly over it.
            repeat: by which rule it repeats: `bide.Cron` or `bide.Every`. It is first due at the
                first time of the rule, unless `delay` or `at` says when. Each run ends as a
                message does, and the next one takes its place under the same id.
            window: the hours in which it is delivered, a `bide.Window`. What cannot be delivered in
                them waits for the next opening, also after a failure, a revival or an outage.
            within: your connection to the store's own database; the message joins its transaction.
                If the store is elsewhere, the put waits in an outbox in that database.

        Returns:
            The outcome: `id`, `due`, and whether it was stored; if not, the state of the message
            that exists. Through an outbox it is pending: neither true nor false.

        Raises:
            InvalidArgument: an argument is invalid; the error names it, the reason and the fix.
            AlreadyExists: the id exists, with `on_conflict="raise"`.
            WrongConnection: `within` is to another database, or has no transaction.
        """
        message = NewMessage(
            body,
            delay=delay,
            at=at,
            timezone=timezone,
            id=id,
            priority=priority,
            expires=expires,
            attempts=attempts,
            group=group,
            headers=headers,
            latest=latest,
            spread=spread,
            repeat=repeat,
            window=window,
        )
        command = self._builder.put_one(message, on_conflict, if_version)
        result_of = new_outcome if on_conflict == "raise" else only_outcome
        return self._execute(command, partial(result_of, command), within=within)

    def put_many(
        self,
        messages: Iterable[Any],
        *,
        delay: Duration | None = None,
        at: Moment | str | None = None,
        timezone: str | None = None,
        priority: int = 0,
        expires: Duration | None = None,
        attempts: int = ATTEMPTS,
        group: str | None = None,
        on_conflict: OnConflict = "keep",
        spread: Duration | None = None,
        repeat: "Repeat | None" = None,
        window: "Window | None" = None,
        within: object = None,
    ) -> list[Outcome]:
        """Store many messages with one commit: all of them or, if that fails, none.

        Args:
            messages: `NewMessage` or `Job` objects, each with its own options, or plain bodies.
            delay: of plain bodies, like the next nine: how long from now until they are due.
            at: the due time instead: an aware `datetime`, or Unix seconds.
            timezone: of a local date, such as "Europe/Paris": `at` is then a text such as
                "2027-03-28 09:00", or a naive `datetime`.
            priority: 0 to 255; among due messages, higher goes first.
            expires: how long after its due time a message is still worth delivering.
            attempts: how often each is delivered at most before it becomes a dead letter.
            group: a name that they share, to cancel them together.
            spread: how long after the due time each is due at the latest, at a time of its own.
            repeat: by which rule each repeats: `bide.Cron` or `bide.Every`.
            window: in which hours each is delivered: a `bide.Window`.
            on_conflict: if an id exists: "keep" the message, or "replace" it unless a worker holds
                it.
            within: your connection to the store's own database; the messages join its transaction.
                If the store is elsewhere, they wait in an outbox in that database.

        Returns one outcome per message, in their order.
        """
        shared = NewMessage(
            body=None,
            delay=delay,
            at=at,
            timezone=timezone,
            priority=priority,
            expires=expires,
            attempts=attempts,
            group=group,
            spread=spread,
            repeat=repeat,
            window=window,
        )
        command = self._builder.put_many(messages, shared, on_conflict)
        return self._run(putting(command), within=within)

    def get(self, id: str) -> Message | None:
        """Read a message; `None` if there is none with this id."""
        return self._execute(self._builder.find(id), lambda reply: reply.messages[0])

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
            state: only messages in this state, in its order (delayed: by due time); one that
                leaves the state meanwhile and returns, as when a worker claims and releases it, may
                be missed. With none, all messages in no order: none that is there throughout is
                missed; one that moves meanwhile may come again.
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
        return self._execute(
            command,
            lambda reply: [Delivery(self, m, reply.token, reply.now) for m in reply.messages],
            wait=wait_seconds(wait),
        )

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

    def ack(
        self, deliveries: Sequence[Held[Any]], results: Sequence[Any] | None = None
    ) -> list[Outcome]:
        """Ack many deliveries with one commit; the outcome is false where the lease was over."""
        command = ack_command(self._builder, deliveries, results)
        return self._execute(command, partial(note_settled, command, deliveries))

    def retry(
        self, deliveries: Sequence[Held[Any]], delay: Duration = 0, reason: str = ""
    ) -> list[Outcome]:
        """Return many deliveries for another attempt, with one commit.

        Args:
            deliveries: as `claim` returns them. After its last attempt, one is a dead letter.
            delay: how long from now until they are due.
            reason: what went wrong; stored with each message.

        Returns:
            One outcome per delivery; false where the lease was over.
        """
        command = self._builder.retry(leases(deliveries), delay, reason)
        return self._execute(command, partial(note_settled, command, deliveries))

    def bury(self, deliveries: Sequence[Held[Any]], reason: str = "") -> list[Outcome]:
        """Make many deliveries dead letters, with one commit.

        Args:
            deliveries: as `claim` returns them.
            reason: why; stored with each message.

        Returns:
            One outcome per delivery; false where the lease was over.
        """
        command = self._builder.bury(leases(deliveries), reason)
        return self._execute(command, partial(note_settled, command, deliveries))

    @overload
    def release(self, what: str, *, reason: str | None = None) -> Outcome: ...
    @overload
    def release(self, what: Sequence[Held[Any]]) -> list[Outcome]: ...
    def release(
        self, what: str | Sequence[Held[Any]], *, reason: str | None = None
    ) -> Outcome | list[Outcome]:
        """Return many deliveries with one commit; or end the lease of a message by its id.

        Args:
            what: deliveries: their messages are ready at once, and no attempt is counted. Or the id
                of a message whose worker does not return it. That counts as a failed attempt: it is
                ready again, or dead.
            reason: for an id: stored with the message; "released by NAME" when missing.
        """
        if isinstance(what, str):
            end_lease = self._builder.end_lease(what, reason)
            return self._execute(end_lease, partial(only_outcome, end_lease))
        command = self._builder.release(leases(what))
        return self._execute(command, partial(note_settled, command, what))

    def extend(self, deliveries: Sequence[Held[Any]], lease: Duration = 30) -> list[Outcome]:
        """Extend many leases with one commit: each ends `lease` from now.

        Returns:
            One outcome per delivery; false where the lease was over.
        """
        command = self._builder.extend(leases(deliveries), lease)
        return self._execute(command, partial(all_outcomes, command))

    @overload
    def cancel(
        self,
        id: str,
        *,
        if_due: Moment | None = None,
        if_version: str | None = None,
        running: bool = False,
        wait: Duration | None = None,
        within: object = None,
    ) -> Outcome: ...
    @overload
    def cancel(
        self,
        *,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        dry_run: bool = False,
        running: Literal[False] = False,
        within: object = None,
    ) -> int: ...
    @overload
    def cancel(
        self,
        *,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        dry_run: bool = False,
        running: Literal[True],
        within: object = None,
    ) -> Cancelled: ...
    @overload
    def cancel(
        self,
        *,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        undo: Literal[True],
    ) -> "Undoable": ...
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
        undo: bool = False,
        running: bool = False,
        wait: Duration | None = None,
        within: object = None,
    ) -> "Outcome | int | Cancelled | Undoable":
        """Cancel a message that no worker holds; or all of a group, or of a time span.

        By id, the successor of a message that a worker holds (see `put`, `latest`) is removed; by
        group or span it stays.

        With `running`, the worker of a message that is held is asked to stop: an async handler is
        cancelled, a plain one finds `delivery.lost` set and gets `StopRequested` at its next call
        of bide. Unless it still acks, the message counts as cancelled, whatever else its worker
        does.

        Args:
            id: of the message.
            if_due: only if this is still its due time.
            if_version: only the version that you saw, by its `Message.version`.
            group: instead of an id: all messages of this group that no worker holds,
            after: and that are due at this time or later,
            before: and that are due before this time.
            dry_run: only count them.
            undo: by group or span: let it be taken back for ten minutes, see `undo`.
            running: also messages that workers hold.
            wait: of one that is running: how long to wait until it has ended.
            within: your connection to the store's own database; the cancel joins its transaction.
                If the store is elsewhere, the cancel waits in an outbox in that database.

        Returns:
            By id an `Outcome`: true if the message is gone for good, else it says where it is;
            through an outbox it is pending: neither true nor false, as is one that is "stopping".
            By group or span, how many were cancelled, 1,000 in each commit; with `running` the
            number says how many are `stopping`; with `undo`, 500, and the number has the token to
            take it back.
        """
        if running or wait is not None:
            check_running(running, wait, id, undo, within)
        if id is not None:
            check_no_rule(group, after, before, dry_run)
            command = self._builder.cancel([id], if_due, if_version, running=running)
            check_undo(undo, several=False, dry_run=dry_run, within=within)
            if wait is not None:
                return self._run(stopping(command, waits=True), wait=wait_seconds(wait))
            return self._execute(command, partial(only_outcome, command), within=within)
        if if_due is not None or if_version is not None:
            raise InvalidArgument("if_due= and if_version= are for one message: give its id")
        command = self._builder.cancel_where(group, after, before, dry_run, running=running)
        check_undo(undo, several=True, dry_run=dry_run, within=within)
        if undo:
            return self._undoable(command)
        if running:
            return self._run(stopping_all(command), within=within)
        return self._run(repeated(command), within=within)

    def cancel_many(self, ids: Iterable[str], *, running: bool = False) -> list[Outcome]:
        """Cancel messages by id, with one commit.

        Args:
            ids: of the messages.
            running: also those that workers hold: their workers are asked to stop.

        Returns:
            One outcome per id: true if the message is gone for good, else it says where it is.
        """
        command = self._builder.cancel(ids, None, running=running)
        return self._execute(command, partial(all_outcomes, command))

    def close_group(
        self,
        group: str,
        *,
        keep: Duration = "1d",
        running: bool = False,
        within: object = None,
    ) -> Closing:
        """Close a group: cancel what waits in it, and refuse what is put into it.

        So no message of it is delivered any more, also none whose put is overtaken by this call.
        What would come back to wait in the group is cancelled: by a retry, the end of a lease, a
        revive, an edit. To repeat it is safe, and needed if it raises: it may be half done. A group
        that is closed for longer stays so.

        Args:
            group: its name.
            keep: for how long, by the store's clock.
            running: also ask the workers of messages that are held to stop, see `cancel`.
            within: your connection to the store's own database; the call joins its transaction. If
                the store is elsewhere, it waits in an outbox in that database.

        Returns:
            How many messages were cancelled, 1,000 in each commit. With `running`, the number says
            how many are `stopping`.

        Example:
            >>> orders = Queue("orders", "memory://closing")
            >>> cancelled = orders.close_group("order:42", keep="1d")
            >>> bool(orders.put("time-out", delay="30m", group="order:42"))
            False
        """
        command = self._builder.close_group(group, keep)
        return self._run(closing(command, running=running), within=within)

    def reopen_group(self, group: str, *, within: object = None) -> bool:
        """Open a closed group, so that messages can be put into it.

        What was cancelled or refused does not come back.

        Args:
            group: its name.
            within: your connection to the store's own database; the call joins its transaction. If
                the store is elsewhere, it waits in an outbox in that database.

        Returns:
            Whether it was closed.
        """
        command = self._builder.reopen_group(group)
        return self._execute(command, lambda reply: bool(reply.groups), within=within)

    def closed_groups(
        self, *, after: ClosedGroup | None = None, limit: int = 1_000
    ) -> list[ClosedGroup]:
        """Return the groups that are closed, those first that open first.

        Args:
            after: those that follow this one, the last one of an earlier call.
            limit: how many at most.
        """
        command = self._builder.closed_groups(after, limit)
        return self._execute(command, lambda reply: reply.groups)

    @overload
    def reschedule(
        self,
        id: str,
        *,
        delay: Duration | None = None,
        at: Moment | str | None = None,
        timezone: str | None = None,
        if_due: Moment | None = None,
        if_version: str | None = None,
        within: object = None,
    ) -> Outcome: ...
    @overload
    def reschedule(
        self,
        *,
        delay: Duration | None = None,
        at: Moment | str | None = None,
        timezone: str | None = None,
        group: str,
        after: Moment | None = None,
        before: Moment | None = None,
        dry_run: bool = False,
    ) -> int: ...
    @overload
    def reschedule(
        self,
        *,
        delay: Duration | None = None,
        at: Moment | str | None = None,
        timezone: str | None = None,
        group: str,
        after: Moment | None = None,
        before: Moment | None = None,
        undo: Literal[True],
    ) -> "Undoable": ...
    def reschedule(
        self,
        id: str | None = None,
        *,
        delay: Duration | None = None,
        at: Moment | str | None = None,
        timezone: str | None = None,
        if_due: Moment | None = None,
        if_version: str | None = None,
        group: str | None = None,
        after: Moment | None = None,
        before: Moment | None = None,
        dry_run: bool = False,
        undo: bool = False,
        within: object = None,
    ) -> "Outcome | int | Undoable":
        """Change when a message is due that no worker holds; or when those of a group are.

        Args:
            id: of the message.
            delay: how long from now until it is due.
            at: the due time instead.
            timezone: of a local date, such as "Europe/Paris": `at` is then a text such as
                "2027-03-28 09:00", or a naive `datetime`; not with `undo` and `within`. A message
                that repeats moves to that time, and keeps its rule.
            if_due: only if this is still its due time.
            if_version: only the version that you saw, by its `Message.version`.
            group: instead of an id: all messages of this group that no worker holds,
            after: and that are due at this time or later,
            before: and that are due before this time.
            dry_run: only count them.
            undo: of a group: let it be taken back for ten minutes, see `undo`.
            within: by id: your connection to the store's own database; the call joins its
                transaction. If the store is elsewhere, it waits in an outbox in that database.

        Returns:
            By id an `Outcome`: true if it was changed, else it says where the message is. By group,
            how many were changed, up to 1,000 in each commit; messages that join the group
            meanwhile may be left out.
        """
        date = None
        if timezone is not None:
            from bide.queue import dates  # here: most programs give no local dates

            dates.check_alone(undo=undo, within=within is not None)
            date = dates.date_of(delay, at, timezone)
            at = to_datetime(date.at)
        if id is not None:
            check_no_rule(group, after, before, dry_run)
            command = self._builder.reschedule([id], delay, at, if_due, if_version)
            check_undo(undo, several=False, dry_run=dry_run, within=within)
            if date is not None:
                return self._run(dates.dating(command, date))
            return self._execute(command, partial(only_outcome, command), within=within)
        if group is None:
            raise InvalidArgument("reschedule needs an id, or group=")
        if if_due is not None or if_version is not None or within is not None:
            raise InvalidArgument(
                "if_due=, if_version= and within= are for one message: give its id"
            )
        command = self._builder.reschedule([], delay, at, None)
        check_undo(undo, several=True, dry_run=dry_run, within=within)
        if undo:
            return self._undoable(command, where=self._builder.where(group, after, before))
        scan = self._builder.scan(None, group, after, before, BULK)
        if dry_run:
            from bide.queue.dry_run import look_at_reschedule

            return self._run(look_at_reschedule(scan))
        if date is not None:
            return self._run(dates.dating_all(command, scan, date))
        return self._run(rescheduling(command, scan))

    def edit(
        self,
        id: str,
        *,
        body: Any = UNSET,
        priority: int | UnsetType = UNSET,
        expires: Duration | UnsetType | None = UNSET,
        attempts: int | UnsetType = UNSET,
        group: str | UnsetType | None = UNSET,
        headers: Mapping[str, str] | UnsetType | None = UNSET,
        repeat: "Repeat | UnsetType | None" = UNSET,
        window: "Window | UnsetType | None" = UNSET,
        delay: Duration | None = None,
        at: Moment | str | None = None,
        timezone: str | None = None,
        if_version: str | None = None,
    ) -> Outcome:
        """Change fields of a message that no worker holds: delayed, ready or dead.

        All else stays: the due time, the attempts made, the failures, and a dead letter stays dead.

        Args:
            id: of the message.
            body: any JSON value, or bytes.
            priority: 0 to 255; among due messages, higher goes first.
            expires: how long after its due time it is still worth delivering; `None`: for ever.
            attempts: how often it is delivered at most, those made included.
            group: the name that it shares with others; `None`: it is in no group.
            headers: text that travels beside the body, in place of all headers; `None`: no headers.
            repeat: by which rule it repeats from now on; with `None` it repeats no longer.
            window: the hours in which it is delivered from now on; with `None` at any time. A
                message that repeats goes on to do so.
            delay: how long from now until it is due; not of a dead letter, see `revive`.
            at: the due time instead.
            timezone: of a local date, such as "Europe/Paris": `at` is then a text such as
                "2027-03-28 09:00", or a naive `datetime`; not together with `repeat`.
            if_version: only the version that you saw, by its `Message.version`.

        Returns:
            The outcome: true if it was changed, else it says where the message is.

        Example:
            >>> import bide
            >>> orders = bide.Queue("edited", "memory://")
            >>> outcome = orders.put({"order": 42}, id="order-42", group="shop", delay="1h")
            >>> bool(orders.edit("order-42", priority=5, group=None))
            True
        """
        changes: dict[str, Any] = {
            "body": body,
            "delay": delay,
            "priority": priority,
            "expires": expires,
            "attempts": attempts,
            "group": group,
            "headers": headers,
        }
        if timezone is None:
            rules = {"repeat": repeat, "window": window}
            steps = editing(self._builder, id, if_version=if_version, at=at, **rules, **changes)
            return self._run(steps)
        from bide.queue import dates

        dates.check_alone(repeat=repeat is not UNSET, window=window is not UNSET)
        date = dates.date_of(delay, at, timezone)
        command = self._builder.edit(
            [id], at=to_datetime(date.at), if_version=if_version, **{**changes, "delay": None}
        )
        return self._run(dates.dating(command, date))

    def hold(self, id: str) -> Outcome:
        """Let no run of a message that repeats be due until `resume(id)`. It stays as it is.

        Returns:
            The outcome: true if it is held now; else it says where the message is.

        Raises:
            InvalidArgument: the message does not repeat.

        Example:
            >>> import bide
            >>> reminders = bide.Queue("reminders", "memory://")
            >>> outcome = reminders.put("stand up", id="ann", repeat=bide.Every("1h"))
            >>> bool(reminders.hold("ann"))
            True
            >>> reminders.get("ann").held
            True
        """
        from bide.queue.repeating import holding  # here: most programs put nothing that repeats

        return self._run(holding(self._builder, id))

    def run_now(self, id: str) -> Outcome:
        """Let a message that repeats run now, once more than its rule says.

        A run that is due already, or waits to be retried, is that run. A run that has no attempt
        left becomes a dead letter, and another one follows it at once. A message that is held runs
        once, and stays held. While a worker holds the message, nothing changes.

        Returns:
            The outcome: true if it is due now; else it says where the message is.

        Raises:
            InvalidArgument: the message does not repeat.
        """
        from bide.queue.repeating import running_now

        return self._run(running_now(self._builder, id))

    def backfill(self, id: str, *, after: Moment, before: Moment) -> list[Outcome]:
        """Put the runs of a message that repeats whose times are in a span, such as a past one.

        Each is a message of its own, whose id is that of the message, "@" and the time: it is put
        once. It does not repeat, and is due at its time: at once if that has passed. Runs that the
        message itself is still going to deliver are left out.

        Args:
            id: of the message that repeats.
            after: from this time on.
            before: up to this time; a run at this time is not put. There may be 10,000 runs at
                most, and their bodies may take 64 MiB together.

        Returns:
            One outcome for each run, in the order of their times.

        Raises:
            InvalidArgument: the message is not there, does not repeat, or there are too many runs.
        """
        from bide.queue.repeating import backfilling

        return self._run(backfilling(self._builder, id, after, before))

    def undo(self, undo: str) -> "Undone":
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
        from bide.undoing.changes import taking_back  # here: most programs take nothing back

        return self._run(taking_back(self.name, undo, self._builder.actor, self._lane))

    def overdue(self) -> "Overdue":
        """Look at what is overdue: how many messages, how late, of which groups. Reads all of them.

        Example:
            >>> import bide
            >>> mails = bide.Queue("overdue", "memory://")
            >>> outcome = mails.put("hello", at=1_700_000_000)
            >>> mails.overdue().messages
            1
        """
        from bide.undoing.recovering import looking  # here: most programs never recover

        return self._run(looking(self.name))

    def recover(self, plan: "Recovery | str", *, dry_run: bool = False) -> "Recovered":
        """Carry out a plan for what is overdue, such as after an outage of all workers.

        Messages keep the time for which they were planned: lateness and `expires` count from it.
        What is changed meanwhile stays as it is. `undo` takes it back, for ten minutes.

        Args:
            plan: a `bide.Recovery`, or text such as "drop 6h, spread 10m".
            dry_run: only say what it would do.

        Returns:
            How many messages were dropped, moved and left, until when, and the token for `undo`.

        Raises:
            InvalidArgument: it is no plan.

        Example:
            >>> import bide
            >>> mails = bide.Queue("late", "memory://")
            >>> outcomes = mails.put_many(["a", "b", "c"], at=1_700_000_000)
            >>> recovered = mails.recover(bide.Recovery(spread="10m"))
            >>> recovered.moved, mails.undo(recovered.undo).restored
            (3, 3)
        """
        from bide.model.recovery import plan_of

        return self._recovered(plan_of(plan, "plan"), dry_run)

    def dead(self) -> Iterator[Message]:
        """Read the dead letters, oldest first: `scan("dead")`."""
        return self.scan("dead")

    @overload
    def revive(self, ids: Iterable[str] | None = None, *, delay: Duration = 0) -> list[Outcome]: ...
    @overload
    def revive(
        self, ids: Iterable[str] | None = None, *, delay: Duration = 0, undo: Literal[True]
    ) -> "Undoable": ...
    @overload
    def revive(
        self, ids: Iterable[str] | None = None, *, delay: Duration = 0, dry_run: Literal[True]
    ) -> int: ...
    def revive(
        self,
        ids: Iterable[str] | None = None,
        *,
        delay: Duration = 0,
        undo: bool = False,
        dry_run: bool = False,
    ) -> "list[Outcome] | int | Undoable":
        """Return dead letters (by default all) to the queue, due after `delay`.

        They get all their attempts again. With `undo` it can be taken back, see `undo`; returns how
        many then. With `dry_run` it only counts them.
        """
        check_undo(undo, several=True, dry_run=dry_run, within=None)
        if not undo and not dry_run:
            return self._run(reviving(self._builder, ids, delay))
        ids_to_revive = None if ids is None else one_or_several(ids)
        command = self._builder.revive(ids_to_revive or [], delay)
        if undo:
            return self._undoable(command, by_id=ids is not None)
        from bide.queue.dry_run import look_at_dead  # here: most programs try nothing out

        return self._run(look_at_dead(self.name, ids_to_revive))

    @overload
    def purge(
        self, *, state: State, before: Moment | None = None, dry_run: bool = False
    ) -> int: ...
    @overload
    def purge(
        self, *, state: State, before: Moment | None = None, undo: Literal[True]
    ) -> "Undoable": ...
    def purge(
        self,
        *,
        state: State,
        before: Moment | None = None,
        undo: bool = False,
        dry_run: bool = False,
    ) -> "int | Undoable":
        """Delete the messages of a state, 1,000 in each commit. Returns how many.

        What a worker holds is left, also if it was in the state when the purge began and returns to
        it; and what enters the state while the purge runs may be.

        Args:
            state: delayed, ready or dead; acked or expired: forget these messages and their ids.
            before: only those that entered the state (delayed, ready: are due) before this time.
            undo: let it be taken back for ten minutes, see `undo`; not for acked and expired ones.
                Delayed and ready messages count as cancelled then.
            dry_run: only count them. With `before`, and for acked and expired ones, it reads all
                messages of the state.
        """
        command = self._builder.purge(state, before)
        check_undo(undo, several=True, dry_run=dry_run, within=None)
        if dry_run:
            from bide.queue.dry_run import look_at_purge

            return self._run(look_at_purge(command))
        if undo:
            return self._undoable(command)
        return self._run(repeated(command))

    def configure(
        self,
        *,
        keep: Duration | None = None,
        history: Duration | None = None,
        result_ttl: Duration | None = None,
        limit: int | None = None,
        rate: Rate | None = None,
        group_limit: int | None = None,
        group_rate: Rate | None = None,
        overdue: "Recovery | str | None" = None,
    ) -> QueueSettings:
        """Change settings of the queue, for all who use it; 0 switches one off.

        Args:
            keep: how long acked messages are remembered, so that their ids are refused.
            history: how long the queue remembers how messages ended, by whom, and their attempts.
                Their ids are free.
            result_ttl: how long it remembers the results of messages.
            limit: how many messages of the queue may be leased at a time, over all workers.
            rate: how many may be delivered: per second, or a string such as "100/m". In any span
                of `w` seconds at most `rate * (w + 0.01) + 1` are.
            group_limit: `limit` for each group; messages without a group are not bound by it.
            group_rate: `rate` for each group.
            overdue: what becomes of messages that are overdue after a gap in which nobody claimed:
                a `bide.Recovery`, or text such as "drop 6h, spread 10m". The worker that comes
                first applies it.

        With a limit or a rate, groups share fairly among messages of equal priority.

        Returns:
            All settings: times in milliseconds, a rate as its interval in microseconds.

        Example:
            >>> import bide
            >>> calls = bide.Queue("calls", "memory://")
            >>> calls.configure(rate="100/m", group_limit=1).rate
            600000
        """
        command = self._builder.settings(
            keep=keep,
            history=history,
            result_ttl=result_ttl,
            limit=limit,
            rate=rate,
            group_limit=group_limit,
            group_rate=group_rate,
            overdue=overdue,
        )
        return self._execute(command)

    def pause(
        self, *, until: Moment | None = None, lasting: Duration | None = None
    ) -> QueueSettings:
        """Stop claims from this queue, in every process, until `resume`. Puts continue.

        Args:
            until: when the pause ends by itself: an aware `datetime`, or Unix seconds.
            lasting: the same, as the time from now.

        Returns:
            The settings of the queue; `paused_until` is when the pause ends, in Unix milliseconds.
            A queue that is paused already has this end from now on, or none.
        """
        return self._execute(self._builder.pause(until, lasting))

    @overload
    def resume(self) -> None: ...
    @overload
    def resume(self, id: str) -> Outcome: ...
    def resume(self, id: str | None = None) -> Outcome | None:
        """Let messages of the queue be claimed again; or let a message that is held repeat again.

        Args:
            id: of a message that repeats and is held: its next run is the first one from now on.

        Returns:
            With an id, the outcome: true if it is held no longer; else it says where the message
            is.

        Raises:
            InvalidArgument: the message does not repeat.
        """
        if id is not None:
            from bide.queue.repeating import resuming

            return self._run(resuming(self._builder, id))
        return self._execute(self._builder.configure(paused=False), lambda _: None)

    def delete(self) -> bool:
        """Delete the queue, with its settings and counters; a later put makes it again.

        Returns:
            True if it was deleted, False if there is no such queue.

        Raises:
            NotEmpty: it holds messages, or remembers acked or expired ones.
        """
        return self._execute(Delete(self.name), partial(deleted, self.name))

    def counts(self) -> Counts:
        """Count the messages in each state, and all changes since the queue exists."""
        return self._execute(Count(self.name))

    def audit(self) -> Audit:
        """Check, on the live store, that every message is accounted for. Reads all of them."""
        return self._execute(Count(self.name, recount=True), partial(Audit.of, self.name))

    def forecast(
        self, bucket: Duration = "1m", horizon: Duration = "1h", *, repeats: bool = False
    ) -> Forecast:
        """Count how many messages fall due when, without reading them.

        Args:
            bucket: the length of a span.
            horizon: how far to look ahead; later messages are counted together.
            repeats: of messages that repeat count all runs up to the horizon, not the next one
                only. That reads the messages that wait.
        """
        command = self._builder.forecast(bucket, horizon)
        if repeats:
            from bide.queue.repeating import forecasting

            return self._run(forecasting(command, self._builder.now()))
        return self._execute(command, partial(Forecast.of, bucket_ms=command.bucket))

    def past(self, span: Duration = "24h", by: Literal["minute", "hour"] | None = None) -> "Past":
        """Look at what has happened: how much was put, done and failed, and how late it was.

        Workers and servers record the counters of all queues once a minute. Minutes are kept for 24
        hours, hours for 30 days. Of a store with more than 100 queues those are recorded in which
        most has happened.

        Args:
            span: how far to look back.
            by: the length of a slot; by default minutes for three hours or less, else hours.

        Raises:
            InvalidArgument: the span is longer than slots of this length are kept.

        Example:
            >>> import bide
            >>> orders = bide.Queue("orders", "memory://")
            >>> len(orders.past("1h").slots)
            60
        """
        from bide.model.past import past_command  # here: most programs look at no past
        from bide.observing.past import reading_past

        lane = self._lane
        steps = reading_past(
            past_command(self.name, span, by),
            lambda name: name == self.name,
            has_server=lambda: lane.capabilities.has_server,
        )
        return self._run(steps)

    def explain(self, id: str) -> "Explanation":
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
        from bide.observing.circumstances import explaining  # here: most programs do not ask

        return self._run(explaining(self.name, check_name(id), self._lane))

    def history(self, id: str) -> list[End]:
        """Read how messages with an id have ended, the newest first: the last 20.

        A queue remembers this for as long as its setting `history` says; see `configure`.

        Args:
            id: of the message; of one that repeats, these are the ends of its runs. To see
                one run, add "@" and its time: "ann/weekly@2026-03-09T08:00:00.000Z".
        """
        return self._run(ending(self._builder.history(id)))

    def ended(
        self,
        how: Ending | None = None,
        *,
        after: Moment | None = None,
        before: Moment | None = None,
    ) -> Iterator[Ended]:
        """Read which messages have ended: each id once, with its last end, the oldest end first.

        A queue remembers this for as long as its setting `history` says; without it, nothing. It is
        read lazily. Ends of the same millisecond come in the order of their ids.

        Args:
            how: only messages whose last end was "acked", "cancelled", "expired", "dead",
                "purged" or "moved".
            after: only messages whose last end was at this time or later.
            before: only messages whose last end was before this time.

        Returns:
            The messages, each a `bide.Ended`.

        Raises:
            InvalidArgument: an argument is invalid.

        Example:
            >>> import bide
            >>> mails = bide.Queue("mails", "memory://", history="7d", actor="ann")
            >>> outcome = mails.put({"to": "ada"}, id="reminder-42", delay="1h")
            >>> outcome = mails.cancel("reminder-42")
            >>> [(end.id, end.how, end.by) for end in mails.ended()]
            [('reminder-42', 'cancelled', 'ann')]
        """
        return self._walk(self._builder.list_ended(how, after, before))

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
            type: to decode the result into: a dataclass, a `TypedDict`, a model of pydantic, or a
                plain type such as `list[int]`.

        Returns:
            The result; `None` if it was acked without one.

        Raises:
            NotEnded: the message is still in the queue; the text says what its worker reports, or
                what follows after a lease that is over.
            NotAcked: it died, expired, was cancelled, purged or moved; its `end` says more.
            NotRemembered: there is no such message, and nothing is remembered of it.
            InvalidArgument: the result does not fit `type`; or `wait` is given, and the id is that
                of one run of a message that repeats, which has not ended.
        """
        seconds = wait_seconds(wait)
        command = self._builder.history(id, watch=bool(seconds))
        return self._run(resulting(command, type), wait=seconds)

    def export(self) -> Iterator[str]:
        """Return the queue as lines of JSON, while it is in use; `load` reads them.

        A message that a worker holds is included: it is ready after an import.
        """
        return self._walk(Scan(self.name), exported)

    def load(self, lines: Iterable[str | bytes]) -> Imported:
        """Put the messages of an `export`. Ids that exist are kept.

        Raises:
            InvalidArgument: a line is invalid; the error says which. Lines before the last commit
                (one per thousand, or per 8 MiB) were put.
        """
        return self._run(loading(lines, self.name, self._builder.max_body))

    def _undoable(
        self,
        command: Cancel | Purge | Reschedule | Revive,
        *,
        where: Where | None = None,
        by_id: bool = False,
    ) -> "Undoable":
        """Make a bulk change that can be taken back; return how many messages were changed.

        Args:
            command: what changes.
            where: which messages, if the command itself has no rule.
            by_id: only the messages whose ids the command names.
        """
        from bide.undoing.changes import changing  # here: most programs take nothing back

        return self._run(changing(command, self._lane, where=where, by_id=by_id))

    def _recovered(self, plan: "Recovery", dry_run: bool) -> "Recovered":
        """Carry out a plan."""
        from bide.undoing.changes import in_store  # here: most programs recover nothing
        from bide.undoing.recovering import recovering

        execute = in_store(self._lane)
        actor = self._builder.actor
        return self._run(recovering(self.name, plan, execute, actor=actor, dry_run=dry_run))

    def _execute(
        self,
        command: Command,
        result_of: Callable[[Any], Any] | None = None,
        *,
        wait: float | None = None,
        within: object = None,
    ) -> Any:
        """Execute a command; return its reply, or what `result_of` makes of it.

        Args:
            command: the command.
            result_of: what the caller gets of the reply.
            wait: how many seconds a claim, or a read of an end, waits.
            within: the user's connection, in whose transaction it is executed.
        """
        if (work := CURRENT.get()) is not None and type(command) not in SETTLES:
            work.raise_if_stopping()
        if within is not None and (guest := self._guest(command, within)) is not None:
            from bide.within import carry_out  # here: most programs join no transaction

            if self._settings_go_apart(guest, command):
                with suppress(StoreBusy):  # the transaction itself has made the queue: it joins
                    self._send_settings()
            with self._joining(command) as commands:
                reply = carry_out(within, guest, commands, self._now())[-1]
            return reply if result_of is None else result_of(reply)
        if not self._users:
            raise self._was_closed()
        if asyncio._get_running_loop() is not None:
            raise WrongContext(
                "bide.Queue blocks, and this thread runs an event loop, which would stop; use "
                "bide.AsyncQueue here (the same methods, with await), or of a task: await aput(...)"
            )
        lane = self._lane
        if self._unsent_settings is not None and not command.only_reads:
            self._send_settings()
        if type(command) is Put and spans.are_possible():
            with spans.sending(command) as traced_command:
                reply = lane.call(traced_command, self)
            # Behind the span: a refusal such as `AlreadyExists` is an answer, and no failed put.
            return reply if result_of is None else result_of(reply)
        return lane.call(command, self, wait, result_of)

    def _send_settings(self) -> None:
        """Send the settings of this object, unless another caller is doing so."""
        with self._settings_to_send() as settings:
            if settings is not None:
                self._lane.call(settings, self)

    def _run(self, steps: LongSteps[T], *, wait: float | None = None, within: object = None) -> T:
        """Execute the commands of some steps; return their result."""
        if self._closed:  # there may be no command
            raise self._was_closed()
        return run_steps(steps, partial(self._execute, wait=wait, within=within))

    def _walk(
        self,
        scan: Scan | ListEnded | None,
        elements_of: Callable[[list[Any]], Iterable[Any]] = iter,
    ) -> Iterator[Any]:
        """Yield what `elements_of` makes of the messages of a list, page by page."""
        while scan is not None:
            page: Page | EndedPage = self._execute(scan)
            yield from elements_of(page.messages)
            scan = following(scan, page)


def check_blocking(beginning: str, *queues: object) -> None:
    """Check that each queue is a `Queue`; an error text begins with `beginning`.

    Raises:
        InvalidArgument: one of them is a name, or an `AsyncQueue`.
    """
    for queue in queues:
        if not isinstance(queue, Queue):
            raise InvalidArgument(
                f"{beginning} bide.Queue, not {type(queue).__name__}: "
                "bide.Queue('orders', 'sqlite:///bide.db')"
            )
