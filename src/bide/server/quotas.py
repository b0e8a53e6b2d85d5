"""Quotas: how much a namespace may put, and how many messages it may have.

They hold for all processes of a server together, and for each server on a store by itself.
"""

import time
from collections.abc import Callable, Sequence

import msgspec

from bide.lane.lane import Lane
from bide.model.commands import Count, Queues
from bide.model.message import Item, size_of
from bide.model.replies import Counts, Names
from bide.server.problem import Problem
from bide.server.quota_usage import NamespaceUsage, QuotaUsage
from bide.server.rights import ALL_QUEUES, Caller
from bide.server.settings import Quota, Settings
from bide.targets.http.subscription import Subscription

__all__ = ["Quotas", "Usage"]

COUNT_EVERY = 10.0
"""How often, in seconds, the messages of a namespace are counted while it has room. Meanwhile what
is put is added."""

RECOUNT_EVERY = 1.0
"""How often they are counted at most when it seems to have none."""


class Usage(msgspec.Struct, kw_only=True):
    """What a namespace uses, and how much it may use; `null` where nothing is limited."""

    namespace: str | None
    """`null`: the whole store."""
    messages: int
    """How many messages are in its queues, dead and kept ones included; for a token of some queues:
    in these."""
    max_messages: int | None
    """How many may be."""
    max_message_bytes: int | None
    """How many bytes a message may take: body, headers, group and id."""
    max_rate: float | None
    """How many messages may be put a second."""
    longest_delay: str | float | None
    """How far ahead a message may be due."""
    max_subscriptions: int | None
    max_push_concurrency: int | None
    """How many requests its subscriptions may have under way together."""


class Quotas:
    """Lets puts through, or says why not.

    Args:
        settings: what each namespace may use.
        lane: where its messages are counted.
        usage: what they have used, shared by the processes of a server.
        asks: tells whether the server asks for tokens; then namespaces have default quotas.
    """

    def __init__(
        self,
        settings: Settings,
        lane: Lane,
        usage: QuotaUsage | None = None,
        asks: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._asks = asks
        self._lane = lane
        self._usage = usage or QuotaUsage()

    @property
    def any(self) -> bool:
        """Whether anything is limited at all."""
        return self._asks() or bool(self._settings.quotas)

    def of(self, namespace: str | None) -> Quota:
        """Return what a namespace may use."""
        return self._settings.quota(namespace, asks=self._asks())

    async def usage(self, caller: Caller) -> Usage:
        """Return what a caller's namespace uses, counted within the last second."""
        quota = self.of(caller.namespace)
        await self._count(caller, RECOUNT_EVERY)
        with self._usage.of(caller.namespace) as use:
            messages = int(use.pending)
        if not caller.of_all_queues:
            messages = await self._pending(caller)
        return Usage(
            namespace=caller.namespace, messages=messages, max_messages=quota.pending,
            max_message_bytes=quota.max_body, max_rate=quota.rate,
            longest_delay=quota.longest_delay, max_subscriptions=quota.subscriptions,
            max_push_concurrency=quota.push_concurrency,
        )  # fmt: skip

    async def admit(self, caller: Caller, items: Sequence[Item], now: int) -> None:
        """Let messages through.

        Raises:
            Problem: they are too many, too large, or too far ahead.
        """
        self.bound(caller, items, now)
        quota = self.of(caller.namespace)
        if quota.pending is not None:
            await self._count(caller, COUNT_EVERY)
            with self._usage.of(caller.namespace) as use:
                seems_full = use.pending + len(items) > quota.pending
            if seems_full:
                await self._count(caller, RECOUNT_EVERY)
        with self._usage.of(caller.namespace) as use:
            if quota.pending is not None:
                self._room(use, quota.pending, len(items))
            if quota.rate is not None:
                self._pace(use, quota.rate, len(items))
            use.pending += len(items)

    def bound(self, caller: Caller, items: Sequence[Item], now: int) -> None:
        """Look at messages alone, however many there are.

        Raises:
            Problem: one is too large, or too far ahead.
        """
        quota = self.of(caller.namespace)
        for item in items:
            size = size_of(item) + len((item.group or "").encode())
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
                raise Problem(
                    "invalid-argument",
                    f"the namespace may put messages up to {quota.longest_delay} ahead; put "
                    f"{item.id!r} later, or ask for a larger quota",
                    field="delay" if item.at is None else "at",
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
            raise Problem(
                "quota-exceeded",
                f"the namespace may have {quota.subscriptions:,} subscriptions and has "
                f"{len(others):,}; delete one, or ask for a larger quota",
            )
        if quota.push_concurrency is not None:
            left = quota.push_concurrency - sum(one.concurrency for one in others)
            if concurrency > left:
                raise Problem(
                    "quota-exceeded",
                    f"the subscriptions of the namespace may have {quota.push_concurrency:,} "
                    f"requests under way together, of which {max(0, left):,} are left; take a "
                    "smaller concurrency, or ask for a larger quota",
                    field="concurrency",
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
                headers={"retry-after": str(max(1, round(wait)))},
            )
        use.allowance -= count

    async def _count(self, caller: Caller, every: float) -> None:
        """Count the messages of a namespace, unless a process has done so `every` seconds ago."""
        moment = time.monotonic()
        with self._usage.of(caller.namespace) as use:
            if moment - use.counted <= every:
                return
            use.counted = moment
        pending = await self._pending(msgspec.structs.replace(caller, queues=ALL_QUEUES))
        with self._usage.of(caller.namespace) as use:
            use.pending = pending

    def _room(self, use: NamespaceUsage, most: int, count: int) -> None:
        if use.pending + count > most:
            raise Problem(
                "quota-exceeded",
                f"the namespace may have {most:,} messages and has {use.pending:,.0f}, dead and "
                "kept ones included; let some be consumed, cancel or purge some, or ask for a "
                "larger quota (pending)",
            )

    async def _pending(self, caller: Caller) -> int:
        names = await self._lane.acall(Queues(caller.prefix("")))
        assert isinstance(names, Names)
        total = 0
        for name in names.names:
            if caller.own(name) is None:
                continue
            counts = await self._lane.acall(Count(name))
            assert isinstance(counts, Counts)
            total += counts.sizes.total + counts.kept
        return total
