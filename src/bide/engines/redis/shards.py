"""Shards: in which one a message is, and of how many each queue is made."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bide.engines.redis.calls import CREATING, Call, ShardMismatch
from bide.model.commands import Command, Configure
from bide.model.errors import StoreError
from bide.model.times import LIMITS

Send = Callable[[Sequence[Call]], list[Any]]
"""Sends calls in one round, and returns what each answered, errors as values."""

_log = logging.getLogger("bide.redis")


class ShardedQueue:
    """What an engine knows of a queue of several shards.

    Args:
        queue: its name.
        count: of how many shards it is made.
    """

    def __init__(self, queue: str, count: int) -> None:
        self.queue = queue
        self.count = count
        self.enrolled = False
        """Whether the shards may believe that this lane waits."""
        self._next = 0
        self._token = 0
        self._out: set[int] = set()

    def take_numbers(self, count: int) -> int:
        """Return the place of the first of messages that are put now, among those of all shards."""
        self._next += count
        return self._next - count

    def see_number(self, following: int) -> None:
        """Note that the next message of a shard gets this number or a higher one."""
        self._next = max(self._next, following)

    def highest_token(self, tokens: Iterable[int]) -> int:
        """Return the highest token that is known, these included."""
        self._token = max([self._token, *tokens])
        return self._token

    def leave_out(self, shard: int, error: StoreError) -> None:
        """Note that a claim goes on without a shard; log it once."""
        if shard not in self._out:
            self._out.add(shard)
            _log.warning(
                "queue %s: shard %d of %d is left out by claims until it is back (%s)",
                self.queue, shard, self.count, error,
            )  # fmt: skip

    def take_in(self, shard: int) -> None:
        """Note that a shard answers; log it if it was left out."""
        if shard in self._out:
            self._out.discard(shard)
            _log.warning("queue %s: shard %d of %d is back", self.queue, shard, self.count)


class ShardMap:
    """Of how many shards the queues are made that an engine has met.

    Args:
        wanted: of how many to make queues that are not there yet.
    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self.known: dict[str, ShardedQueue | None] = {}
        """What is known of the queues of several shards; `None`: a queue has one."""

    def meet(self, command: Command, send: Send) -> None:
        """Find out about the queue of a command; make one that is to have limits, of one shard."""
        if _limits(command):
            for found, _ in _ask(command.queue, 1, 1, send) or [(1, 0)]:
                self.learn(command.queue, found, send)
        if command.queue not in self.known:
            self.learn(command.queue, self._wanted, send)

    def learn(self, queue: str, shards: int, send: Send) -> None:
        """Note of how many shards a queue is made."""
        known = self.known.setdefault(queue, None)
        if shards == (1 if known is None else known.count):
            return
        self.known[queue] = sharded = ShardedQueue(queue, shards) if shards > 1 else None
        if sharded is not None:
            told = _ask(queue, shards, "", send)
            for _, following in told:
                sharded.see_number(following)
            self.learn(queue, next((found for found, _ in told if found), shards), send)

    def settle(self, calls: Sequence[Call], answers: list[Any], send: Send) -> None:
        """Send calls again whose shards are not there, or left over; the first one decides.

        Args:
            calls: what was sent.
            answers: what came back, which this corrects.
            send: sends calls.
        """
        left = [at for at, call in enumerate(calls) if _is_open(call, answers[at])]
        while left:
            queue, shards = calls[left[0]].queue, calls[left[0]].shards
            places = [at for at in left if calls[at].queue == queue]
            left = [at for at in left if calls[at].queue != queue]
            creating = any(calls[at].script in CREATING for at in places)
            (first,) = send([Call("shards", queue, (shards if creating else "",), 0, "")])
            if not isinstance(first, StoreError) and first[2] not in (0, shards):
                first = ShardMismatch(first[2])
            if isinstance(first, StoreError):
                corrected = [first] * len(places)
            else:
                if first[2] > 0:
                    _ask(queue, first[2], shards, send)
                corrected = send([
                    calls[at]._replace(shards=shards if calls[at].script in CREATING else "")
                    for at in places
                ])  # fmt: skip
                both = zip(places, corrected, strict=True)
                left += [at for at, answer in both if _is_open(calls[at], answer)]
            for at, answer in zip(places, corrected, strict=True):
                answers[at] = answer


def _is_open(call: Call, answer: object) -> bool:
    """Tell whether it is for the first shard to say of how many the queue is made."""
    return isinstance(answer, ShardMismatch) and (call.shard > 0 or answer.shards == 0)


def _limits(command: Command) -> bool:
    """Tell whether a command sets limits, which need all groups of the queue in one shard."""
    return isinstance(command, Configure) and any(getattr(command, name) for name in LIMITS)


def _ask(queue: str, shards: int, wanted: int | str, send: Send) -> list[tuple[int, int]]:
    """Ask shards of how many there are, and for their next number, as far as they answer.

    Those that are not there are made if `wanted` says of how many.
    """
    calls = [Call("shards", queue, (wanted,), shard, "") for shard in range(shards)]
    told = [answer for answer in send(calls) if not isinstance(answer, StoreError)]
    return [(found, following) for _now, _change, found, following in told]
