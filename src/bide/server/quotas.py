"""Quotas: how much a namespace may put and transfer, and what it may have in the store.

They hold for all processes of a server together, and for each server on a store by itself.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import ceil

import msgspec

from bide.clock import SYSTEM_CLOCK, Clock
from bide.model.commands import Command, Edit, Put, Reschedule
from bide.model.message import Item, stored_size
from bide.model.undoing import Bulk, Undo
from bide.observing.heartbeat import is_register
from bide.server.problem import Problem, invalid
from bide.server.quota_counts import (
    COUNT_EVERY,
    RECOUNT_EVERY,
    WEIGH_EVERY,
    QuotaCounts,
)
from bide.server.quota_usage import NamespaceUsage, QuotaUsage
from bide.server.rights import ALL_QUEUES, Caller
from bide.server.settings import Quota, Settings
from bide.targets.http.subscription import Subscription

CARRIED = 256 * 1024
"""Bytes of requests and answers after which a process tells the others of them."""


class Usage(msgspec.Struct, kw_only=True):
    """What a namespace uses, and how much it may use; `null` where nothing is limited."""

    namespace: str | None
    """`null`: the whole store."""
    messages: int
    """How many messages are in its queues, dead and kept ones included; for a token of some queues:
    in these."""
    max_messages: int | None
    """How many may be."""
    stored_bytes: int
    """How many bytes these messages take at most: what was counted within the last minute, and what
    this server has put since."""
    max_stored_bytes: int | None
    queues: int
    """How many queues it has."""
    max_queues: int | None
    max_message_bytes: int | None
    """How many bytes a message may take: body, headers, group and id."""
    max_rate: float | None
    """How many messages may be put a second."""
    max_bytes_per_second: float | None
    """How many bytes its requests and answers may take a second."""
    longest_delay: str | float | None
    """How far ahead a message may be due."""
    max_subscriptions: int | None
    max_push_concurrency: int | None
    """How many requests its subscriptions may have under way together."""


@dataclass(eq=False)
class Quotas:
    """Lets puts through, or says why not.

    Args:
        settings: what each namespace may use.
        counts: of what they have, in the store.
        shared: what they have used, shared by the processes of a server.
        asks: tells whether the server asks for tokens; then namespaces have default quotas.
        clock: tells how far ahead a due time is.
    """

    settings: Settings
    counts: QuotaCounts
    shared: QuotaUsage
    asks: Callable[[], bool] = lambda: False
    clock: Clock = SYSTEM_CLOCK
    _carried: dict[str | None, int] = field(default_factory=dict, init=False)
    """Bytes that were not told of yet."""
    _exhausted: dict[str | None, float] = field(default_factory=dict, init=False)
    """Until when a namespace that carried too much is refused."""

    @property
    def any(self) -> bool:
        """Whether anything is limited at all."""
        return self.asks() or bool(self.settings.quotas)

    def of(self, namespace: str | None) -> Quota:
        """Return what a namespace may use."""
        return self.settings.quota(namespace, asks=self.asks())

    async def usage(self, caller: Caller) -> Usage:
        """Return what a caller's namespace uses, its messages as counted within the last second."""
        quota = self.of(caller.namespace)
        whole = msgspec.structs.replace(caller, queues=ALL_QUEUES)
        await self.counts.count(whole, RECOUNT_EVERY)
        await self.counts.weigh(whole, WEIGH_EVERY)
        with self.shared.of(caller.namespace) as use:
            messages, stored = int(use.pending), int(use.stored)
        queues = len(await self.counts.names(caller))
        if not caller.of_all_queues:
            messages, stored = await self.counts.of_some(caller)
        return Usage(
            namespace=caller.namespace, messages=messages, max_messages=quota.pending,
            stored_bytes=stored, max_stored_bytes=quota.stored, queues=queues,
            max_queues=quota.queues, max_message_bytes=quota.max_body, max_rate=quota.rate,
            max_bytes_per_second=quota.byte_rate, longest_delay=quota.longest_delay,
            max_subscriptions=quota.subscriptions, max_push_concurrency=quota.push_concurrency,
        )  # fmt: skip

    async def admit(
        self, caller: Caller, commands: Sequence[Command | Bulk | Undo], *, there: bool = False
    ) -> None:
        """Let commands through. What an edit adds counts as if it were new; other changes do not.

        Args:
            caller: who gives them.
            commands: their queues have full names.
            there: whether the messages of puts are in the queues already, and are only changed.

        Raises:
            Problem: messages are too many, too large, or too far ahead.
        """
        if not self.any:
            return
        puts = [command for command in commands if isinstance(command, Put)]
        if puts:
            items = [item for put in puts for item in put.items]
            await self._let(caller, {put.queue for put in puts}, items, there=there)
        for command in commands:
            if isinstance(command, Reschedule) and command.ids:
                moved = Item(command.ids[0], b"", at=command.at, delay=command.delay)
                self._bound(caller, [moved])
            elif isinstance(command, Edit):
                edited = Item(
                    "", command.data or b"", at=command.at, delay=command.delay or 0,
                    group=command.group or None, headers=command.headers or None,
                )  # fmt: skip
                if stored_size(edited):
                    await self._let(caller, (), [edited] * len(command.ids), there=True)
                else:
                    self._bound(caller, [edited])

    async def _let(
        self, caller: Caller, queues: Collection[str], items: Sequence[Item], *, there: bool
    ) -> None:
        """Let messages into queues, by their full names."""
        size = self._bound(caller, items)
        added = 0 if there else len(items)
        quota = self.of(caller.namespace)
        whole = msgspec.structs.replace(caller, queues=ALL_QUEUES)
        if quota.queues is not None and queues:
            await self._let_in(whole, queues, quota.queues)
        if quota.pending is not None and added:
            await self.counts.count(whole, COUNT_EVERY)
            with self.shared.of(caller.namespace) as use:
                seems_full = use.pending + added > quota.pending
            if seems_full:
                await self.counts.count(whole, RECOUNT_EVERY)
        if quota.stored is not None:
            await self.counts.keep_weighed(whole, quota.stored - size)
        with self.shared.of(caller.namespace) as use:
            if quota.pending is not None and added and use.pending + added > quota.pending:
                raise _exceeded(
                    f"the namespace may have {quota.pending:,} messages and has "
                    f"{use.pending:,.0f}, dead and kept ones included; let some be consumed, "
                    "cancel or purge some, or ask for a larger quota (pending)"
                )
            if quota.stored is not None and use.stored + size > quota.stored:
                raise _exceeded(
                    f"the messages of the namespace may take {quota.stored:,} bytes and take "
                    f"{use.stored:,.0f}, dead and kept ones included; let some be consumed, cancel "
                    "or purge some, or ask for a larger quota (stored)"
                )
            if quota.rate is not None:
                self._pace(use, quota.rate, len(items))
            use.pending += added
            use.stored += size
            use.added += size

    def _bound(self, caller: Caller, items: Sequence[Item]) -> int:
        """Look at messages alone, however many there are; return how many bytes they take."""
        quota, now = self.of(caller.namespace), self.clock.now()
        total = 0
        for item in items:
            total += (size := stored_size(item))
            if quota.max_body is not None and size > quota.max_body:
                raise Problem(
                    "too-large",
                    f"body, headers, group and id of {item.id!r} take {size:,} bytes, the "
                    f"namespace may use {quota.max_body:,} for a message; store them elsewhere and "
                    "put a reference, or ask for a larger quota (max_body)",
                    field="body",
                )
            ahead = item.delay if item.at is None else item.at - now
            if ahead > quota.longest_ms:
                raise invalid(
                    "delay" if item.at is None else "at",
                    f"the namespace may put messages up to {quota.longest_delay} ahead; put "
                    f"{item.id!r} later, or ask for a larger quota",
                )
        return total

    def carried(self, namespace: str | None, size: int) -> None:
        """Count the bytes of a request or an answer."""
        total = self._carried.get(namespace, 0) + size
        self._carried[namespace] = total
        if total < CARRIED:
            return
        del self._carried[namespace]
        if (rate := self.of(namespace).byte_rate) is None or self.shared.is_closed:
            return
        with self.shared.of(namespace) as use:
            now = time.monotonic()
            use.byte_allowance = min(rate, use.byte_allowance + (now - use.byte_at) * rate) - total
            use.byte_at = now
            if use.byte_allowance < 0:
                self._exhausted[namespace] = now - use.byte_allowance / rate

    def may_carry(self, namespace: str | None) -> None:
        """Let a request through, unless those before it took too many bytes.

        Raises:
            Problem: they did; it says when to try again.
        """
        if not self._exhausted or namespace not in self._exhausted:
            return
        left = self._exhausted[namespace] - time.monotonic()
        if left <= 0:
            del self._exhausted[namespace]
            return
        rate = self.of(namespace).byte_rate
        raise Problem(
            "rate-limited",
            f"requests and answers of the namespace may take {rate:,g} bytes a second; try again "
            f"in {left:.1f} s, or ask for a larger quota (byte_rate)",
            headers={"retry-after": str(ceil(left)), "connection": "close"},
        )

    def subscribe(
        self, namespace: str | None, known: Sequence[Subscription], name: str, concurrency: int
    ) -> None:
        """Let a subscription be made or changed.

        Args:
            namespace: whose it is.
            known: those that the namespace has.
            name: which one.
            concurrency: how many requests it is to have under way.

        Raises:
            Problem: the namespace would have too many, or too many requests under way.
        """
        quota = self.of(namespace)
        others = [one for one in known if one.name != name]
        if quota.subscriptions is not None and len(others) >= quota.subscriptions:
            raise _exceeded(
                f"the namespace may have {quota.subscriptions:,} subscriptions and has "
                f"{len(others):,}; delete one, or ask for a larger quota"
            )
        if quota.push_concurrency is not None:
            left = quota.push_concurrency - sum(one.concurrency for one in others)
            if concurrency > left:
                raise _exceeded(
                    f"the subscriptions of the namespace may have {quota.push_concurrency:,} "
                    f"requests under way together, of which {max(0, left):,} are left; take a "
                    "smaller concurrency, or ask for a larger quota",
                    "concurrency",
                )

    def _pace(self, use: NamespaceUsage, rate: float, count: int) -> None:
        """A bucket that fills by `rate` a second and holds a second's worth."""
        moment = time.monotonic()
        full = max(rate, 1.0)
        use.allowance = min(full, use.allowance + (moment - use.at) * rate)
        use.at = moment
        # A batch larger than the bucket goes when the bucket is full, and is paid for afterwards.
        if use.allowance < min(count, full):
            wait = (min(count, full) - use.allowance) / rate
            raise Problem(
                "rate-limited",
                f"the namespace may put {rate:g} messages a second; try again in {wait:.1f} s",
                headers={"retry-after": str(ceil(wait))},
            )
        use.allowance -= count

    async def _let_in(self, caller: Caller, queues: Collection[str], most: int) -> None:
        """Let messages into queues that there are, and into new ones while there is room."""
        known = self.counts.queues.get(caller.namespace)
        if known is not None and known.issuperset(queues):
            return
        new = {queue for queue in queues if not is_register(queue)}
        if known is None or len(known | new) > most:
            known = self.counts.queues[caller.namespace] = set(await self.counts.names(caller))
        if len(known | new) > most and not known.issuperset(new):
            raise _exceeded(
                f"the namespace may have {most:,} queues and has {len(known):,}; use these, delete "
                "empty ones, or ask for a larger quota (queues)",
                "queue",
            )
        known.update(new)


def _exceeded(text: str, field: str | None = None) -> Problem:
    return Problem("quota-exceeded", text, field=field)
