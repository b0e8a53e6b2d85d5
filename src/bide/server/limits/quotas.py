"""Quotas: how much a namespace may put and transfer, and how much it may have in the store.

They hold for all processes of a server together, and for each server of a store separately.

Messages are not counted for each request. What this server puts is added to the last count; what
has left the store is noticed by the next count. A slow count is not repeated soon.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from bide.clock import SYSTEM_CLOCK, Clock
from bide.lane.lane import Lane
from bide.logs import logger
from bide.model import commands as cmd
from bide.model.identity import split_name
from bide.model.internal_queues import InternalQueue, internal_queue
from bide.model.limits import MAX_NAME
from bide.model.message import Item, stored_size
from bide.model.past import PastCommand
from bide.model.replies import Counts, Found, Names, expect
from bide.model.runs import Run
from bide.model.times import LATEST
from bide.model.undoing import Bulk, Undo
from bide.observing.heartbeat import LARGEST, READ_MOST, REGISTER
from bide.server.access.admission import Admission
from bide.server.access.rights import Caller
from bide.server.limits.admitted import (
    Admitted,
    bytes_left_by,
    dead_letters_of,
    shortened,
    with_short_reasons,
)
from bide.server.limits.slow_reads import SlowReads
from bide.server.limits.usage import Usage
from bide.server.problem import Problem, invalid
from bide.server.settings import Quota, Settings
from bide.server.shared_state import NEVER, Measure, NamespaceUsage, QuotaUsage, SharedState
from bide.tasks import cancel

COUNT_EVERY = 10.0
"""Seconds between two counts of the messages of a namespace that has room."""

RECOUNT_EVERY = 1.0
"""The least number of seconds between two counts, of messages or bytes, if there seems no room."""

WEIGH_EVERY = 60.0
"""The least number of seconds between two counts of bytes for requests about the usage."""

PAUSE_FACTOR = 20
"""A count is repeated after this many times its duration at the earliest."""

REPORT_BYTES = 256 * 1024
"""Bytes of requests and answers after which a process reports them to the others; earlier if a
namespace may carry less in a tenth of a second."""

MOST_WAITING = 32
"""How many namespaces may wait for other processes at a time."""

_UNCOUNTED = (
    InternalQueue.WORKERS,
    InternalQueue.DECLARED,
    InternalQueue.UNDO,
    InternalQueue.RECOVERY,
)
"""Queues that count for no quota of queues and messages: reports of workers, declared settings,
undo records, and who recovers a queue."""

DECLARATION_SIZE = 2_048
"""The most bytes that the declared settings of a queue take, its name included."""


_log = logger("bide.server")


@dataclass(eq=False)
class Quotas:
    """Admits puts and changes, or refuses them with the reason.

    Args:
        settings: the settings with the quotas.
        lane: counts messages.
        slow_reads: counts bytes.
        state: what the processes of a server share: how much namespaces have used.
        admission: knows whether requests need tokens; then namespaces have default quotas.
        clock: the clock that due times are compared with.
    """

    settings: Settings
    lane: Lane
    slow_reads: SlowReads
    state: SharedState
    admission: Admission | None = None
    clock: Clock = SYSTEM_CLOCK
    _known_queues: dict[str | None, set[str]] = field(default_factory=dict, init=False)
    """The full names of the queues that a namespace has or had."""
    _maker_locks: defaultdict[str | None, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock), init=False
    )
    """By namespace: held while a request makes new queues there."""
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    """The loop that begins counts; `None` before `begin`."""
    _makers: dict[str | None, asyncio.Task[Any] | None] = field(default_factory=dict, init=False)
    """By namespace: the request that holds its lock."""
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(MOST_WAITING, "bide-make-queues"), init=False
    )
    """They wait while another process makes new queues in a namespace."""
    counts_under_way: dict[tuple[Measure, str | None], asyncio.Task[None]] = field(
        default_factory=dict, init=False
    )
    """By measure and namespace."""
    _once_counted: set[tuple[Measure, str | None]] = field(default_factory=set, init=False)
    """Measures and namespaces that this process has counted at least once."""
    _unreported_bytes: dict[str | None, int] = field(default_factory=dict, init=False)
    """By namespace: bytes of requests and answers that are not yet in `shared`."""
    _report_at: dict[tuple[str | None, bool], float] = field(default_factory=dict, init=False)
    """By namespace, and whether requests need tokens: from how many bytes on these are reported."""
    _refused_until: dict[str | None, float] = field(default_factory=dict, init=False)
    """By namespace that transferred too much: the time until which it is refused, in seconds of the
    monotonic clock."""

    @property
    def shared(self) -> QuotaUsage:
        """How much namespaces have used."""
        return self.state.usage

    @property
    def _requires_tokens(self) -> bool:
        """Whether requests need tokens."""
        return self.admission is not None and self.admission.requires_tokens

    @property
    def any(self) -> bool:
        """Whether anything is limited at all."""
        return bool(self.settings.quotas) or self._requires_tokens

    def of(self, namespace: str | None) -> Quota:
        """Return what a namespace may use."""
        return self.settings.quota(namespace, requires_tokens=self._requires_tokens)

    async def usage(self, caller: Caller) -> Usage:
        """Return how much a caller's namespace uses, with its messages of at most a second ago."""
        quota = self.of(caller.namespace)
        await self._count(caller.namespace, "messages", RECOUNT_EVERY)
        await self._count(caller.namespace, "stored", WEIGH_EVERY)
        with self.shared.of(caller.namespace) as use:
            messages, stored = int(use.messages.value), int(use.stored.value)
        names = await self._names(caller)
        if not caller.of_all_queues:  # the figures of other queues are none of its business
            messages = await self._total("messages", names)
            stored = await self._total("stored", names)
        return Usage(
            namespace=caller.namespace,
            messages=messages,
            max_messages=quota.pending,
            stored_bytes=stored,
            max_stored_bytes=quota.stored,
            queues=len(names),
            max_queues=quota.queues,
            max_message_bytes=quota.max_body,
            max_rate=quota.rate,
            max_bytes_per_second=quota.byte_rate,
            longest_delay=quota.longest_delay,
            max_subscriptions=quota.subscriptions,
            max_push_concurrency=quota.push_concurrency,
        )

    async def admit(
        self, caller: Caller, commands: Sequence[cmd.Command | Bulk | Undo | PastCommand]
    ) -> Admitted:
        """Admit commands. An edit counts as if all its bytes were new; other changes do not.

        Results and reasons, which queues remember, and undo records are counted. They are never
        refused, except for changes that can be repeated without end; but in a namespace without
        room, results are dropped and reasons cut to a line.

        Args:
            caller: the caller.
            commands: the commands, with the full names of queues.

        Returns:
            The commands to execute within its context: until then, other requests leave them room.

        Raises:
            Problem: messages are too many, too large, or too far ahead.
        """
        if not self.any:
            return Admitted(commands)
        admitted = Admitted(commands)
        try:
            await self._admit(caller.namespace, admitted)
        except BaseException:
            admitted.close()
            raise
        return admitted

    async def _admit(self, namespace: str | None, admitted: Admitted) -> None:
        """Admit commands; `admitted` then has those to execute, and what is to be done at the end.

        Raises:
            Problem: a command is refused.
        """
        makers: list[cmd.Put | cmd.Configure | cmd.CloseGroup] = []  # may make queues that count
        undo_bytes = 0
        for command in admitted.commands:
            if not isinstance(command, (cmd.Put, cmd.Configure, cmd.CloseGroup)):
                continue
            internal = internal_queue(command.queue)
            if internal not in _UNCOUNTED:
                makers.append(command)
            elif isinstance(command, cmd.Put) and internal is InternalQueue.UNDO:
                undo_bytes += sum(map(stored_size, command.items))
            elif isinstance(command, cmd.Put):
                await self._admit_uncounted(command, internal)
        if makers:
            await self._admit_queues(namespace, {command.queue for command in makers}, admitted)
        if puts := [command for command in makers if isinstance(command, cmd.Put)]:
            items = [item for put in puts for item in put.items]
            # With a version, a put replaces messages, and adds none.
            added = sum(len(put.items) for put in puts if put.if_version is None)
            await self._admit_messages(namespace, items, added, admitted)
        closings = sum(isinstance(command, cmd.CloseGroup) for command in makers)
        if closings:  # a closed group counts as a message
            await self._admit_messages(namespace, (), closings, admitted)
        for command in admitted.commands:
            await self._admit_change(namespace, command, admitted)
        await self._count_leavings(namespace, admitted, undo_bytes)

    async def _admit_change(self, namespace: str | None, command: Any, admitted: Admitted) -> None:
        """Admit a command if it changes messages: their due times, or their contents."""
        if isinstance(command, Bulk) and command.verb in ("reschedule", "postpone", "revive"):
            at = max(command.dues, default=command.at)
            self._check_each(namespace, [_item_at(command.ids, at, command.delay)])
            # It adds nothing, but is refused while the namespace has too much.
            await self._admit_messages(namespace, (), 0, admitted)
        elif isinstance(command, cmd.Reschedule):
            self._check_each(namespace, [_item_at(command.ids, command.at, command.delay)])
        elif isinstance(command, cmd.Postpone) and command.dues:
            self._check_each(namespace, [_item_at(command.ids, max(command.dues), 0)])
        elif isinstance(command, cmd.Revive):
            self._check_each(namespace, [_item_at(command.ids, None, command.delay)])
        elif isinstance(command, cmd.Edit):
            edited = Item(
                "",
                command.data or b"",
                at=command.at,
                delay=command.delay or 0,
                group=command.group or None,
                headers=command.headers or None,
                run=command.run or None,
            )
            if stored_size(edited):
                await self._admit_messages(namespace, [edited] * len(command.ids), 0, admitted)
            else:  # only the due time is new
                later_ones = [Item("", b"", at=time.due) for time in command.times if time.due]
                self._check_each(namespace, [edited, *later_ones])

    async def _admit_uncounted(self, command: cmd.Put, internal: InternalQueue | None) -> None:
        """Admit reports of workers or declared settings: no quota counts them, so they are few."""
        noun, fix = "reports of workers", "stop some workers"
        size = max(map(stored_size, command.items), default=0)
        # In the register of the whole store, larger reports are read as well.
        is_of_namespace = internal is InternalQueue.WORKERS and command.queue != REGISTER
        if is_of_namespace and size > LARGEST + MAX_NAME:
            raise Problem(
                "too-large", f"the report of a worker takes {LARGEST:,} bytes at most", field="body"
            )
        if internal is InternalQueue.DECLARED:
            noun, fix = "declarations of settings", "cancel those of queues that are gone"
            if size > DECLARATION_SIZE:
                raise Problem(
                    "too-large",
                    f"the declared settings of a queue take {DECLARATION_SIZE:,} bytes at most",
                    field="body",
                )
        counts = expect(Counts, await self.lane.acall(cmd.Count(command.queue)))
        count = counts.sizes.total + counts.kept
        if count + len(command.items) <= READ_MOST:
            return
        # Messages that replace others add none.
        ids = [item.id for item in command.items]
        replaced = expect(Found, await self.lane.acall(cmd.Find(command.queue, ids))).messages
        if None in replaced:
            raise _exceeded(
                f"{command.queue} has {count:,} {noun}, and may have {READ_MOST:,}; {fix}"
            )

    async def _count_leavings(
        self, namespace: str | None, admitted: Admitted, undo_bytes: int
    ) -> None:
        """Count what commands leave in the store: results, reasons, and bytes of undo records.

        Without room for it, let the commands leave less.
        """
        size = undo_bytes + sum(map(bytes_left_by, admitted.commands))
        if not size:
            return
        most = self.of(namespace).stored
        if self._add_stored(namespace, size, most):
            return
        await self._count(namespace, "stored", RECOUNT_EVERY)
        if self._add_stored(namespace, size, most):
            return
        admitted.commands = [shortened(command) for command in admitted.commands]
        size = undo_bytes + sum(map(bytes_left_by, admitted.commands))
        self._add_stored(namespace, size, most=None)

    def begin(self) -> None:
        """Count what runs leave in the store if a claim finds out that they are over."""
        self._loop = asyncio.get_running_loop()
        self.lane.bound_runs = self.bound_runs

    def bound_runs(self, queue: str, commands: list[cmd.Command]) -> list[cmd.Command]:
        """Count the dead letters of runs, and what else these leave, as for a settling request.

        They are never refused, so that messages repeat in a full namespace as well; without room
        the reasons are cut to a line. The thread that executes the claim calls this.

        Args:
            queue: of the runs.
            commands: those that end the runs and plan the next ones.

        Returns:
            The commands to execute.
        """
        namespace, _ = split_name(queue)
        if not self.any or self.shared.is_closed or self._loop is None:
            return commands
        letters = dead_letters_of(commands)
        size = sum(map(stored_size, letters)) + sum(map(bytes_left_by, commands))
        if letters:
            with self.shared.of(namespace) as use:
                use.messages.value += len(letters)
                use.messages.added += len(letters)
        if not size or self._add_stored(namespace, size, self.of(namespace).stored):
            return commands
        # Messages may have left the store, and a claim does not wait for a count.
        self._loop.call_soon_threadsafe(self._count_again, namespace)
        bounded = [with_short_reasons(command) for command in commands]
        size = sum(map(stored_size, dead_letters_of(bounded))) + sum(map(bytes_left_by, bounded))
        self._add_stored(namespace, size, most=None)
        return bounded

    def _count_again(self, namespace: str | None) -> None:
        """Begin a count of bytes if it is due, and the server does not end."""
        if self._loop is not None:
            self._begin_count_if_due(namespace, "stored", RECOUNT_EVERY)

    def _add_stored(self, namespace: str | None, size: int, most: int | None) -> bool:
        """Count bytes that are stored, unless they would be more than `most` with all others.

        Returns:
            Whether they were counted; always with `None` for `most`.
        """
        with self.shared.of(namespace) as use:
            if most is not None and use.stored.value + size > most:
                return False
            use.stored.value += size
            use.stored.added += size
        return True

    async def _admit_messages(
        self, namespace: str | None, items: Sequence[Item], added: int, admitted: Admitted
    ) -> None:
        """Admit messages, of which `added` are new.

        Raises:
            Problem: they are too many or too large, or come too fast.
        """
        quota = self.of(namespace)
        size = self._check_each(namespace, items)
        most_messages = quota.pending if quota.pending is not None and added else float("inf")
        most_bytes = float("inf") if quota.stored is None else quota.stored
        if most_messages != float("inf"):
            await self._count(namespace, "messages", COUNT_EVERY, waits=False)
        with self.shared.of(namespace) as use:
            are_too_many = use.messages.value + added > most_messages
            are_too_large = use.stored.value + size > most_bytes
            was_never_counted = use.stored.after == NEVER
        # What seems to have no room is counted again: messages may have left the store.
        if are_too_many:
            await self._count(namespace, "messages", RECOUNT_EVERY)
        if quota.stored is not None and was_never_counted:
            self._begin_count(namespace, "stored")  # nothing waits for the first count
        elif are_too_large:
            await self._count(namespace, "stored", RECOUNT_EVERY)
        # First: a count that begins now must know of them, or find them in the store.
        self.state.under_way.add(namespace, added, size)
        admitted.callback(self.state.under_way.add, namespace, -added, -size)
        with self.shared.of(namespace) as use:
            if use.messages.value + added > most_messages:
                raise _exceeded(
                    f"the namespace may have {most_messages:,} messages and has "
                    f"{use.messages.value:,.0f}, dead and kept ones included: no room for "
                    f"{added:,} more; let some be consumed, cancel or purge some, or ask for a "
                    "larger quota (pending)"
                )
            if use.stored.value + size > most_bytes:
                raise _exceeded(
                    f"the messages of the namespace may take {most_bytes:,} bytes and take "
                    f"{use.stored.value:,.0f}, dead and kept ones included; let some be consumed, "
                    "cancel or purge some, or ask for a larger quota (stored)"
                )
            if quota.rate is not None and items:
                self._take_rate(use, quota.rate, len(items))
            for amount, increase in ((use.messages, added), (use.stored, size)):
                amount.value += increase
                amount.added += increase

    def _check_each(self, namespace: str | None, items: Sequence[Item]) -> int:
        """Check each message by itself; return how many bytes all take.

        Raises:
            Problem: one is too large, or too far ahead.
        """
        quota, now = self.of(namespace), self.clock.now()
        total = 0
        for item in items:
            size = stored_size(item)
            total += size
            if quota.max_body is not None and size > quota.max_body:
                raise Problem(
                    "too-large",
                    f"body, headers, group and id of {_name_of(item)} take {size:,} bytes, the "
                    f"namespace may use {quota.max_body:,} for a message; store them elsewhere and "
                    "put a reference, or ask for a larger quota (max_body)",
                    field="body",
                )
            delay_ms = item.delay if item.at is None else item.at - now
            if delay_ms > quota.longest_ms and not _is_held(item):
                raise invalid(
                    "delay" if item.at is None else "at",
                    f"the namespace may put messages up to {quota.longest_delay} ahead; let "
                    f"{_name_of(item)} be due sooner, or ask for a larger quota (longest_delay)",
                )
        return total

    def carried(self, namespace: str | None, size: int) -> None:
        """Count bytes of a request or an answer."""
        self._unreported_bytes[namespace] = total = self._unreported_bytes.get(namespace, 0) + size
        if total >= self._report_at.get((namespace, self._requires_tokens), 0):
            self.settle(namespace)

    def settle(self, namespace: str | None) -> None:
        """Report the bytes counted here to the other processes, and take theirs into account."""
        total = self._unreported_bytes.pop(namespace, 0)
        rate = self.of(namespace).byte_rate
        bytes_of_a_tenth = REPORT_BYTES if rate is None else rate / 10
        self._report_at[namespace, self._requires_tokens] = min(REPORT_BYTES, bytes_of_a_tenth)
        if rate is None or self.shared.is_closed:
            return
        with self.shared.of(namespace) as use:
            now = time.monotonic()
            # A bucket that fills by `rate` per second, up to those of one second.
            use.byte_allowance = min(rate, use.byte_allowance + (now - use.byte_at) * rate) - total
            use.byte_at = now
            if use.byte_allowance < 0:
                seconds_until_zero = -use.byte_allowance / rate
                self._refused_until[namespace] = now + seconds_until_zero

    def may_carry(self, namespace: str | None) -> None:
        """Check that a namespace has not transferred too many bytes.

        Raises:
            Problem: it has; the text says when to try again.
        """
        wait = self._refused_until.get(namespace, NEVER) - time.monotonic()
        # It may have no rate any more: the server needs no tokens since.
        rate = self.of(namespace).byte_rate if wait > 0 else None
        if rate is None:
            self._refused_until.pop(namespace, None)
            return
        raise Problem(
            "rate-limited",
            f"requests and answers of the namespace may take {rate:,g} bytes a second; try again "
            f"in {_in_tenths(wait)} s, or ask for a larger quota (byte_rate)",
            headers={"retry-after": str(ceil(wait)), "connection": "close"},
        )

    def _take_rate(self, use: NamespaceUsage, rate: float, count: int) -> None:
        """Take tokens from a bucket that fills by `rate` per second up to those of one second.

        Raises:
            Problem: it has too few; the text says when to try again.
        """
        now = time.monotonic()
        full = max(rate, 1.0)
        use.allowance, use.at = min(full, use.allowance + (now - use.at) * rate), now
        # A batch larger than a full bucket is admitted, and leaves it below zero.
        if use.allowance < min(count, full):
            wait = (min(count, full) - use.allowance) / rate
            raise Problem(
                "rate-limited",
                f"the namespace may put {rate:g} messages a second; try again in "
                f"{_in_tenths(wait)} s",
                headers={"retry-after": str(ceil(wait))},
            )
        use.allowance -= count

    async def _admit_queues(
        self, namespace: str | None, wanted: Set[str], admitted: Admitted
    ) -> None:
        """Admit queues, by their full names: new ones only while there is room.

        While a request makes new queues, no other request of any process makes some in the same
        namespace: it would count on the same room.
        """
        most = self.of(namespace).queues
        if most is None or wanted <= self._known_queues.get(namespace, set()):
            return
        task = asyncio.current_task()
        if self._makers.get(namespace) is not task:  # else an undo within a batch that makes queues
            await self._begin_to_make(namespace, admitted)
            self._makers[namespace] = task
        if wanted <= self._known_queues.get(
            namespace, set()
        ):  # another request has made them meanwhile
            return
        names = await self._names(Caller(namespace, frozenset()))
        queues = set(names)
        self._known_queues[namespace] = queues
        if len(queues | wanted) > most and not wanted <= queues:
            raise _exceeded(
                f"the namespace may have {most:,} queues and has {len(queues):,}; use these, "
                "delete empty ones, or ask for a larger quota (queues)",
                "queue",
            )
        queues.update(wanted)

    async def exclusive(self, namespace: str | None) -> Admitted:
        """Return a context in which only this request makes queues or subscriptions in a namespace.

        Otherwise several requests, perhaps in several processes, could each use the last room.
        """
        admitted = Admitted(())
        await self._begin_to_make(namespace, admitted)
        return admitted

    async def _begin_to_make(self, namespace: str | None, admitted: Admitted) -> None:
        """Wait until no other request makes queues in a namespace, and keep others from it.

        A lock of asyncio is for the requests of this process, a byte of a file for other processes.
        The end of `admitted` releases both.
        """
        lock, columns = self._maker_locks[namespace], self.state.columns
        await lock.acquire()
        loop = asyncio.get_running_loop()
        holding = loop.run_in_executor(self._threads, columns.hold, namespace)
        try:
            byte = await asyncio.shield(holding)
        except BaseException:  # the thread still waits: no other request may hold it before

            def give_up(_: object) -> None:
                if not holding.cancelled() and holding.exception() is None:
                    columns.release(holding.result())
                lock.release()

            holding.add_done_callback(give_up)
            raise

        def end() -> None:
            self._makers.pop(namespace, None)
            columns.release(byte)
            lock.release()

        admitted.callback(end)

    async def _count(
        self, namespace: str | None, measure: Measure, every: float, *, waits: bool = True
    ) -> None:
        """Count what a namespace has, unless the last count is recent.

        Args:
            namespace: the namespace.
            measure: what is counted.
            every: how many seconds old the last count may be.
            waits: whether to wait for a count that is under way, and not only for the first one.
        """
        key = measure, namespace
        self._begin_count_if_due(namespace, measure, every)
        if key in self.counts_under_way and (waits or key not in self._once_counted):
            await asyncio.shield(self.counts_under_way[key])

    def _begin_count_if_due(self, namespace: str | None, measure: Measure, every: float) -> None:
        """Begin a count, unless the last one is recent; see `_count`."""
        with self.shared.of(namespace) as use:
            is_due = time.monotonic() > use.amount(measure).after + every
        if is_due:
            self._begin_count(namespace, measure)

    def _begin_count(self, namespace: str | None, measure: Measure) -> None:
        """Begin a count, unless this process counts already; other processes begin none."""
        key = measure, namespace
        if key in self.counts_under_way:
            return
        with self.shared.of(namespace) as use:  # for a time only: this process may die meanwhile
            use.amount(measure).after = time.monotonic() + WEIGH_EVERY

        def report_failure(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.warning(
                    "namespace %r: its %s cannot be counted: %s", namespace, measure, error
                )
                if not self.shared.is_closed:
                    with self.shared.of(namespace) as use:  # so that it is repeated soon
                        use.amount(measure).after = time.monotonic()

        task = asyncio.create_task(self._recount(namespace, measure))
        self.counts_under_way[key] = task
        task.add_done_callback(report_failure)

    async def _recount(self, namespace: str | None, measure: Measure) -> None:
        """Count what is in the store, and add what was put since, or is under way."""
        began = time.monotonic()
        try:
            names = await self._names(Caller(namespace, frozenset()), records=True)
            queues = self._known_queues.setdefault(namespace, set())
            queues.update(name for name in names if internal_queue(name) not in _UNCOUNTED)
            # Read last, so that what is put while the store is counted may count twice, but is
            # never missed.
            with self.shared.of(namespace) as use:
                added_before = use.amount(measure).added
            open_messages, open_bytes = self.state.under_way.of(namespace)
            under_way = open_messages if measure == "messages" else open_bytes
            total = await self._total(measure, names)
            with self.shared.of(namespace) as use:
                now = time.monotonic()
                amount = use.amount(measure)
                amount.value = total + under_way + amount.added - added_before
                amount.after = now + PAUSE_FACTOR * (now - began)
            self._once_counted.add((measure, namespace))
        finally:  # a callback would be too late for a request that needs a new count at once
            self.counts_under_way.pop((measure, namespace), None)

    async def close(self) -> None:
        """End the counts that are under way."""
        if self.lane.bound_runs == self.bound_runs:  # else another server of this process has it
            self.lane.bound_runs = None
        self._loop = None
        await cancel(self.counts_under_way.values())
        self._threads.shutdown(wait=False)

    async def _names(self, caller: Caller, *, records: bool = False) -> list[str]:
        """Return the full names of a caller's queues, without that of declared settings.

        Args:
            caller: the caller.
            records: whether to return also those with undo records.
        """
        all_names = expect(Names, await self.lane.acall(cmd.Queues(caller.prefix("")))).names
        names: list[str] = []
        for name in all_names:
            internal = internal_queue(name)
            if internal is InternalQueue.UNDO:
                is_wanted = records
            else:
                is_wanted = internal is not InternalQueue.DECLARED and caller.own(name) is not None
            if is_wanted:
                names.append(name)
        return names

    async def _total(self, measure: Measure, names: Sequence[str]) -> int:
        """Return how many messages, or bytes, are in queues."""
        if measure == "stored":
            replies = [await self.slow_reads.read(cmd.Count(name, stored=True)) for name in names]
            return sum(expect(Counts, reply).stored or 0 for reply in replies)
        replies = [await self.lane.acall(cmd.Count(name)) for name in names]
        counts_of_queues = [expect(Counts, reply) for reply in replies]
        return sum(counts.sizes.total + counts.kept + counts.closed for counts in counts_of_queues)


def _item_at(ids: Sequence[str] | None, at: int | None, delay: int) -> Item:
    """Return an item with the due time that messages get, to check how far ahead it is.

    Args:
        ids: the ids of the messages; error texts show the first. `None`: all that match.
        at: the due time in Unix milliseconds; `None`: after `delay`.
        delay: the delay in milliseconds.
    """
    return Item(ids[0] if ids else "", b"", at=at, delay=delay)


def _name_of(item: Item) -> str:
    """Return the name of a message in error texts."""
    return repr(item.id) if item.id else "it"  # an edit does not say it


def _in_tenths(wait: float) -> str:
    """Return seconds as text, rounded up: who waits for so long does not come too early."""
    return f"{ceil(wait * 10) / 10:.1f}"


def _is_held(item: Item) -> bool:
    """Return whether a message repeats and is held: its due time says only that it waits."""
    return item.at == LATEST and item.run is not None and Run.of(item.run).held


def _exceeded(text: str, field: str | None = None) -> Problem:
    return Problem("quota-exceeded", text, field=field)
