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
from functools import partial
from math import ceil
from typing import Any, Literal

from bide.clock import SYSTEM_CLOCK, Clock
from bide.lane.lane import Lane
from bide.logs import logger
from bide.model import commands as cmd
from bide.model.internal_queues import InternalQueue, internal_queue
from bide.model.message import Item, stored_size
from bide.model.replies import Counts, Found, Names, expect
from bide.model.undoing import Bulk, Undo
from bide.observing.heartbeat import READ_MOST
from bide.server.access.admission import Admission
from bide.server.access.rights import Caller
from bide.server.limits.admitted import Admitted, left_by, shortened
from bide.server.limits.slow_reads import SlowReads
from bide.server.limits.usage import Usage
from bide.server.problem import Problem, invalid
from bide.server.settings import Quota, Settings
from bide.server.shared_state import NEVER, NamespaceUsage, QuotaUsage, SharedState
from bide.tasks import cancel

COUNT_EVERY = 10.0
"""Seconds between two counts of the messages of a namespace that has room."""

RECOUNT_EVERY = 1.0
"""The least number of seconds between two counts, of messages or bytes, if there seems no room."""

WEIGH_EVERY = 60.0
"""The least number of seconds between two counts of bytes for requests about the usage."""

SHARE = 20
"""A count is repeated after this many times its duration at the earliest."""

CARRIED = 256 * 1024
"""Bytes of requests and answers after which a process reports them to the others; earlier if a
namespace may carry less in a tenth of a second."""

WAITING = 32
"""How many namespaces may wait for other processes at a time."""

_UNCOUNTED = (InternalQueue.WORKERS, InternalQueue.DECLARED, InternalQueue.UNDO)
"""Queues that count for no quota of queues and messages: reports of workers, declared settings, and
undo records."""

DECLARATION_SIZE = 2_048
"""The most bytes that the declared settings of a queue take, its name included."""

What = Literal["messages", "stored"]
"""What is counted: messages, or their bytes, which takes longer."""

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
    _queues: dict[str | None, set[str]] = field(default_factory=dict, init=False)
    """The full names of the queues that a namespace has or had."""
    _making: defaultdict[str | None, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock), init=False
    )
    """By namespace: held while a request makes new queues there."""
    _makers: dict[str | None, asyncio.Task[Any] | None] = field(default_factory=dict, init=False)
    """The requests that hold these locks."""
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(WAITING, "bide-make-queues"), init=False
    )
    """They wait while another process makes new queues in a namespace."""
    _counting: dict[tuple[What, str | None], asyncio.Task[None]] = field(
        default_factory=dict, init=False
    )
    _counted: set[tuple[What, str | None]] = field(default_factory=set, init=False)
    """What this process has counted at least once."""
    _carried: dict[str | None, int] = field(default_factory=dict, init=False)
    """Bytes of requests and answers that are not yet in `shared`."""
    _report_at: dict[tuple[str | None, bool], float] = field(default_factory=dict, init=False)
    """By namespace, and whether requests need tokens: from how many bytes on these are reported."""
    _exhausted: dict[str | None, float] = field(default_factory=dict, init=False)
    """The time until which a namespace is refused that transferred too much."""

    @property
    def shared(self) -> QuotaUsage:
        """How much namespaces have used."""
        return self.state.usage

    @property
    def _asks(self) -> bool:
        return self.admission is not None and self.admission.asks

    @property
    def any(self) -> bool:
        """Whether anything is limited at all."""
        return bool(self.settings.quotas) or self._asks

    def of(self, namespace: str | None) -> Quota:
        """Return what a namespace may use."""
        return self.settings.quota(namespace, asks=self._asks)

    async def usage(self, caller: Caller) -> Usage:
        """Return how much a caller's namespace uses, with its messages of at most a second ago."""
        quota = self.of(caller.namespace)
        await self._count(caller.namespace, "messages", RECOUNT_EVERY)
        await self._count(caller.namespace, "stored", WEIGH_EVERY)
        with self.shared.of(caller.namespace) as use:
            messages, stored = int(use.messages.value), int(use.stored.value)
        names = await self._names(caller)
        if not caller.of_all_queues:
            messages, stored = [await self._sum(what, names) for what in ("messages", "stored")]
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
        self, caller: Caller, commands: Sequence[cmd.Command | Bulk | Undo]
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
        admitted = Admitted(commands)
        if not self.any:
            return admitted
        try:
            await self._admit(caller.namespace, admitted)
        except BaseException:
            admitted.end()
            raise
        return admitted

    async def _admit(self, namespace: str | None, admitted: Admitted) -> None:
        commands = admitted.commands
        makes: list[cmd.Put | cmd.Configure] = []
        records = 0
        for command in commands:
            if not isinstance(command, (cmd.Put, cmd.Configure)):
                continue
            internal = internal_queue(command.queue)
            if internal not in _UNCOUNTED:
                makes.append(command)
            elif isinstance(command, cmd.Put) and internal is InternalQueue.UNDO:
                records += sum(map(stored_size, command.items))
            elif isinstance(command, cmd.Put):
                await self._let_some(command, internal)
        if makes:
            await self._let_in(namespace, {command.queue for command in makes}, admitted)
        if puts := [command for command in makes if isinstance(command, cmd.Put)]:
            items = [item for put in puts for item in put.items]
            added = sum(len(put.items) for put in puts if put.if_version is None)
            await self._let(namespace, items, added, admitted)
        for command in commands:
            if isinstance(command, Bulk) and command.verb in ("reschedule", "revive"):
                self._bound(namespace, [_moved(command.ids, command.at, command.delay)])
                await self._let(namespace, (), 0, admitted)
            elif isinstance(command, cmd.Reschedule):
                self._bound(namespace, [_moved(command.ids, command.at, command.delay)])
            elif isinstance(command, cmd.Revive):
                self._bound(namespace, [_moved(command.ids, None, command.delay)])
            elif isinstance(command, cmd.Edit):
                edited = Item(
                    "",
                    command.data or b"",
                    at=command.at,
                    delay=command.delay or 0,
                    group=command.group or None,
                    headers=command.headers or None,
                )
                if stored_size(edited):
                    await self._let(namespace, [edited] * len(command.ids), 0, admitted)
                else:
                    self._bound(namespace, [edited])
        await self._leave(namespace, admitted, records)

    async def _let_some(self, command: cmd.Put, internal: InternalQueue | None) -> None:
        """Admit reports of workers or declared settings: no quota counts them, so they are few."""
        what, fix = "reports of workers", "stop some workers"
        if internal is InternalQueue.DECLARED:
            what, fix = "declarations of settings", "cancel those of queues that are gone"
            if max(map(stored_size, command.items), default=0) > DECLARATION_SIZE:
                raise Problem(
                    "too-large",
                    f"the declared settings of a queue take {DECLARATION_SIZE:,} bytes at most",
                    field="body",
                )
        counts = expect(Counts, await self.lane.acall(cmd.Count(command.queue)))
        there = counts.sizes.total + counts.kept
        if there + len(command.items) <= READ_MOST:
            return
        ids = [item.id for item in command.items]
        known = expect(Found, await self.lane.acall(cmd.Find(command.queue, ids))).messages
        if None in known:
            raise _exceeded(
                f"{command.queue} has {there:,} {what}, and may have {READ_MOST:,}; {fix}"
            )

    async def _leave(self, namespace: str | None, admitted: Admitted, records: int) -> None:
        """Count what commands leave in the store: results, reasons, and bytes of undo records."""
        size = records + sum(map(left_by, admitted.commands))
        if not size:
            return
        stored = self.of(namespace).stored
        if self._add_stored(namespace, size, stored):
            return
        await self._count(namespace, "stored", RECOUNT_EVERY)
        if self._add_stored(namespace, size, stored):
            return
        admitted.commands = [shortened(command) for command in admitted.commands]
        self._add_stored(namespace, records + sum(map(left_by, admitted.commands)), None)

    def _add_stored(self, namespace: str | None, size: int, most: int | None) -> bool:
        """Count bytes that are stored, unless they would be more than `most`; tell whether."""
        with self.shared.of(namespace) as use:
            if most is not None and use.stored.value + size > most:
                return False
            use.stored.value += size
            use.stored.added += size
        return True

    async def _let(
        self, namespace: str | None, items: Sequence[Item], added: int, admitted: Admitted
    ) -> None:
        """Admit messages, of which `added` are new."""
        quota = self.of(namespace)
        size = self._bound(namespace, items)
        messages = quota.pending if quota.pending is not None and added else float("inf")
        stored = float("inf") if quota.stored is None else quota.stored
        if messages != float("inf"):
            await self._count(namespace, "messages", COUNT_EVERY, waits=False)
        with self.shared.of(namespace) as use:
            many, unweighed = use.messages.value + added > messages, use.stored.after == NEVER
            heavy = use.stored.value + size > stored
        if many:
            await self._count(namespace, "messages", RECOUNT_EVERY)
        if quota.stored is not None and unweighed:
            self._begin(namespace, "stored")  # nothing waits for the first count
        elif heavy:
            await self._count(namespace, "stored", RECOUNT_EVERY)
        # First: a count that begins now must know of them, or find them in the store.
        self.state.under_way.add(namespace, added, size)
        admitted.at_end(partial(self.state.under_way.add, namespace, -added, -size))
        with self.shared.of(namespace) as use:
            if use.messages.value + added > messages:
                raise _exceeded(
                    f"the namespace may have {messages:,} messages and has "
                    f"{use.messages.value:,.0f}, dead and kept ones included; let some be "
                    "consumed, cancel or purge some, or ask for a larger quota (pending)"
                )
            if use.stored.value + size > stored:
                raise _exceeded(
                    f"the messages of the namespace may take {stored:,} bytes and take "
                    f"{use.stored.value:,.0f}, dead and kept ones included; let some be consumed, "
                    "cancel or purge some, or ask for a larger quota (stored)"
                )
            if quota.rate is not None and items:
                self._pace(use, quota.rate, len(items))
            for amount, more in ((use.messages, added), (use.stored, size)):
                amount.value += more
                amount.added += more

    def _bound(self, namespace: str | None, items: Sequence[Item]) -> int:
        """Check each message by itself; return how many bytes all take."""
        quota, now = self.of(namespace), self.clock.now()
        total = 0
        for item in items:
            total += (size := stored_size(item))
            if quota.max_body is not None and size > quota.max_body:
                raise Problem(
                    "too-large",
                    f"body, headers, group and id of {_name_of(item)} take {size:,} bytes, the "
                    f"namespace may use {quota.max_body:,} for a message; store them elsewhere and "
                    "put a reference, or ask for a larger quota (max_body)",
                    field="body",
                )
            ahead = item.delay if item.at is None else item.at - now
            if ahead > quota.longest_ms:
                raise invalid(
                    "delay" if item.at is None else "at",
                    f"the namespace may put messages up to {quota.longest_delay} ahead; put "
                    f"{_name_of(item)} later, or ask for a larger quota",
                )
        return total

    def carried(self, namespace: str | None, size: int) -> None:
        """Count bytes of a request or an answer."""
        self._carried[namespace] = total = self._carried.get(namespace, 0) + size
        if total >= self._report_at.get((namespace, self._asks), 0):
            self.settle(namespace)

    def settle(self, namespace: str | None) -> None:
        """Report the bytes counted here to the other processes, and take theirs into account."""
        total = self._carried.pop(namespace, 0)
        rate = self.of(namespace).byte_rate
        self._report_at[namespace, self._asks] = min(CARRIED, (rate or CARRIED * 10) / 10)
        if rate is None or self.shared.is_closed:
            return
        with self.shared.of(namespace) as use:
            now = time.monotonic()
            use.byte_allowance = min(rate, use.byte_allowance + (now - use.byte_at) * rate) - total
            use.byte_at = now
            if use.byte_allowance < 0:
                self._exhausted[namespace] = now - use.byte_allowance / rate

    def may_carry(self, namespace: str | None) -> None:
        """Admit a request, unless the namespace has transferred too many bytes.

        Raises:
            Problem: it has; the text says when to try again.
        """
        wait = self._exhausted.get(namespace, NEVER) - time.monotonic()
        if wait <= 0:
            self._exhausted.pop(namespace, None)
            return
        rate = self.of(namespace).byte_rate
        raise Problem(
            "rate-limited",
            f"requests and answers of the namespace may take {rate:,g} bytes a second; try again "
            f"in {wait:.1f} s, or ask for a larger quota (byte_rate)",
            headers={"retry-after": str(ceil(wait)), "connection": "close"},
        )

    def _pace(self, use: NamespaceUsage, rate: float, count: int) -> None:
        """Take tokens from a bucket that fills by `rate` per second up to those of one second."""
        now = time.monotonic()
        full = max(rate, 1.0)
        use.allowance, use.at = min(full, use.allowance + (now - use.at) * rate), now
        # A batch larger than a full bucket is admitted, and leaves it below zero.
        if use.allowance < min(count, full):
            wait = (min(count, full) - use.allowance) / rate
            raise Problem(
                "rate-limited",
                f"the namespace may put {rate:g} messages a second; try again in {wait:.1f} s",
                headers={"retry-after": str(ceil(wait))},
            )
        use.allowance -= count

    async def _let_in(self, namespace: str | None, wanted: Set[str], admitted: Admitted) -> None:
        """Admit queues, by their full names: new ones only while there is room.

        While a request makes new queues, no other request of any process makes some in the same
        namespace: it would count on the same room.
        """
        most = self.of(namespace).queues
        if most is None or wanted <= self._queues.get(namespace, set()):
            return
        task = asyncio.current_task()
        if self._makers.get(namespace) is not task:  # else an undo within a batch that makes queues
            await self._begin_to_make(namespace, admitted)
            self._makers[namespace] = task
        if wanted <= self._queues.get(namespace, set()):  # another request has made them meanwhile
            return
        names = await self._names(Caller(namespace, frozenset()))
        known = self._queues[namespace] = set(names)
        if len(known | wanted) > most and not wanted <= known:
            raise _exceeded(
                f"the namespace may have {most:,} queues and has {len(known):,}; use these, "
                "delete empty ones, or ask for a larger quota (queues)",
                "queue",
            )
        known.update(wanted)

    async def alone(self, namespace: str | None) -> Admitted:
        """Return a context in which no other request makes queues or subscriptions in a namespace.

        Else several requests, perhaps of several processes, would use the same room.
        """
        admitted = Admitted(())
        await self._begin_to_make(namespace, admitted)
        return admitted

    async def _begin_to_make(self, namespace: str | None, admitted: Admitted) -> None:
        """Wait until no other request makes queues in a namespace, and keep others from it."""
        lock, columns = self._making[namespace], self.state.columns
        await lock.acquire()
        hold = asyncio.get_running_loop().run_in_executor(self._threads, columns.hold, namespace)
        try:
            byte = await asyncio.shield(hold)
        except BaseException:  # the thread still waits: no other request may hold it before

            def give_up(_: object) -> None:
                if not hold.cancelled() and hold.exception() is None:
                    columns.release(hold.result())
                lock.release()

            hold.add_done_callback(give_up)
            raise

        def end() -> None:
            self._makers.pop(namespace, None)
            columns.release(byte)
            lock.release()

        admitted.at_end(end)

    async def _count(
        self, namespace: str | None, what: What, every: float, *, waits: bool = True
    ) -> None:
        """Count what a namespace has, unless the last count is recent.

        Args:
            namespace: the namespace.
            what: what is counted.
            every: how many seconds old the last count may be.
            waits: whether to wait for a count that is under way, and not only for the first one.
        """
        key = what, namespace
        with self.shared.of(namespace) as use:
            due = time.monotonic() > getattr(use, what).after + every
        if due:
            self._begin(namespace, what)
        if key in self._counting and (waits or key not in self._counted):
            await asyncio.shield(self._counting[key])

    def _begin(self, namespace: str | None, what: What) -> None:
        if (key := (what, namespace)) in self._counting:
            return
        with self.shared.of(namespace) as use:  # in case this process dies meanwhile
            getattr(use, what).after = time.monotonic() + WEIGH_EVERY

        def over(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.warning("namespace %r: its %s cannot be counted: %s", namespace, what, error)
                if not self.shared.is_closed:
                    with self.shared.of(namespace) as use:  # so that it is repeated soon
                        getattr(use, what).after = time.monotonic()

        self._counting[key] = asyncio.create_task(self._measure(namespace, what))
        self._counting[key].add_done_callback(over)

    async def _measure(self, namespace: str | None, what: What) -> None:
        began = time.monotonic()
        try:
            names = await self._names(Caller(namespace, frozenset()), records=True)
            queues = self._queues.setdefault(namespace, set())
            queues.update(name for name in names if internal_queue(name) not in _UNCOUNTED)
            with self.shared.of(namespace) as use:  # last: what is put meanwhile is counted twice
                before = getattr(use, what).added
            open_messages, open_bytes = self.state.under_way.of(namespace)
            under_way = open_messages if what == "messages" else open_bytes
            counted = await self._sum(what, names)
            with self.shared.of(namespace) as use:
                amount = getattr(use, what)
                amount.value = counted + under_way + amount.added - before
                amount.after = (now := time.monotonic()) + SHARE * (now - began)
            self._counted.add((what, namespace))
        finally:  # a callback would be late for who needs a new count at once
            self._counting.pop((what, namespace), None)

    async def close(self) -> None:
        """End the counts that are under way."""
        await cancel(self._counting.values())
        self._threads.shutdown(wait=False)

    async def _names(self, caller: Caller, *, records: bool = False) -> list[str]:
        """Return the full names of a caller's queues, without that of declared settings.

        Args:
            caller: the caller.
            records: whether to return also those with undo records.
        """
        names = expect(Names, await self.lane.acall(cmd.Queues(caller.prefix("")))).names
        counted: list[str] = []
        for name in names:
            internal = internal_queue(name)
            if internal is InternalQueue.UNDO:
                counts = records
            else:
                counts = internal is not InternalQueue.DECLARED and caller.own(name) is not None
            if counts:
                counted.append(name)
        return counted

    async def _sum(self, what: What, names: Sequence[str]) -> int:
        """Return how many messages, or bytes, are in queues."""
        if what == "stored":
            replies = [await self.slow_reads.read(cmd.Count(name, stored=True)) for name in names]
            return sum(expect(Counts, reply).stored or 0 for reply in replies)
        counted = [expect(Counts, await self.lane.acall(cmd.Count(name))) for name in names]
        return sum(counts.sizes.total + counts.kept for counts in counted)


def _moved(ids: Sequence[str] | None, at: int | None, delay: int) -> Item:
    """Return what stands for messages that get a due time: by ids, or by a rule."""
    return Item(ids[0] if ids else "", b"", at=at, delay=delay)


def _name_of(item: Item) -> str:
    return repr(item.id) if item.id else "it"  # of an edit there is no id


def _exceeded(text: str, field: str | None = None) -> Problem:
    return Problem("quota-exceeded", text, field=field)
