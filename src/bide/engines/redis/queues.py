"""Shards: which one a message is in, and how many each queue has."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bide.engines.bounded_dict import BoundedDict
from bide.engines.redis.calls import CREATING, Call, ShardMismatch, raised
from bide.engines.redis.layout import QUEUES, meta_key
from bide.engines.redis.sender import Sender
from bide.model.errors import StoreError

Send = Callable[[Sequence[Call], int | None], list[Any]]

_log = logging.getLogger("bide.redis")


@dataclass
class ShardedQueue:
    """What an engine knows of a queue of several shards."""

    queue: str
    count: int
    """The number of its shards."""
    next: int = 0
    """The place of the next message that is put, among those of all shards."""
    token: int = 0
    """The highest token that is known."""
    enrolled: bool = False
    """Whether the shards may believe that this lane waits."""
    out: set[int] = field(default_factory=set)
    """Shards without which claims go on."""

    def leave_out(self, shard: int, error: StoreError) -> None:
        """Note that a claim goes on without a shard; log it once."""
        if shard not in self.out:
            self.out.add(shard)
            _log.warning(
                "queue %s: shard %d of %d is left out by claims until it is back (%s)",
                self.queue, shard, self.count, error,
            )  # fmt: skip

    def take_in(self, shard: int) -> None:
        """Note that a shard answers; log it if it was left out."""
        if shard in self.out:
            self.out.discard(shard)
            _log.warning("queue %s: shard %d of %d is back", self.queue, shard, self.count)


class ShardMap:
    """The number of shards of each queue that an engine has used.

    Args:
        send: sends calls in one round, and returns the answer of each, errors as values.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.known: BoundedDict[str, ShardedQueue] = BoundedDict()

    def learn(self, queue: str, shards: int, now: int | None) -> None:
        """Note the number of shards of a queue, unless the shards name another one."""
        known = self._ask(queue, shards, "", now) if shards > 1 else []
        self.known[queue] = ShardedQueue(queue, shards, max((n for _, n in known), default=0))
        found = next((found for found, _ in known if found), shards)
        if found != shards:
            self.learn(queue, found, now)

    def settle(self, calls: Sequence[Call], answers: list[Any], now: int | None) -> None:
        """Send calls again whose shards are not there, or left over; the first one decides.

        Args:
            calls: what was sent.
            answers: what came back, which this corrects.
            now: see `Sender.send`.
        """
        left = [at for at, answer in enumerate(answers) if isinstance(answer, ShardMismatch)]
        while left:
            queue, shards = said = calls[left[0]].queue, calls[left[0]].shards
            places = [at for at in left if (calls[at].queue, calls[at].shards) == said]
            left = [at for at in left if at not in places]
            creating = any(calls[at].script in CREATING for at in places)
            wanted = shards if creating else ""
            corrected = self._send([Call("shards", queue, (wanted,), 0, "")], now) * len(places)
            if not isinstance(corrected[0], StoreError):
                found = corrected[0][2]
                corrected = [ShardMismatch(found)] * len(places)
                if found in (0, shards):
                    self._ask(queue, found, shards, now)
                    # Those that create nothing need no shard that could not be made.
                    again = [
                        calls[at]._replace(shards=shards if calls[at].script in CREATING else "")
                        for at in places
                    ]
                    corrected = self._send(again, now)
                    # A shard that was deleted meanwhile: others may have done their part.
                    both = zip(places, corrected, strict=True)
                    left += [at for at, answer in both if isinstance(answer, ShardMismatch)]
            for at, answer in zip(places, corrected, strict=True):
                answers[at] = answer

    def _ask(
        self, queue: str, shards: int, wanted: int | str, now: int | None
    ) -> list[tuple[int, int]]:
        """Ask shards for the number of shards, and for their next number, as far as they answer.

        Missing ones are made, as shards of `wanted`, unless it is empty.
        """
        calls = [Call("shards", queue, (wanted,), shard, "") for shard in range(shards)]
        answers = [a for a in self._send(calls, now) if not isinstance(a, StoreError)]
        return [(found, following) for _now, _change, found, following in answers]


PAGE = 500
"""The number of names that are read at a time."""


def read_names(send: Callable[..., Any], key: bytes, prefix: bytes = b"") -> list[str]:
    """Return the names at a key that begin so, sorted."""
    names: list[str] = []
    low = b"[" + prefix if prefix else b"-"
    while True:
        found = send("ZRANGEBYLEX", key, low, b"+", "LIMIT", 0, PAGE)
        mine = [name for name in found if name.startswith(prefix)]
        names += [name.decode() for name in mine]
        if len(mine) < PAGE:
            return names
        low = b"(" + mine[-1]


def add_names(sender: Sender, queues: Iterable[str]) -> None:
    """Add names of queues to those of the store.

    Raises:
        StoreError: none of the copies took them.
    """
    members = [part for queue in queues for part in (0, queue)]
    sender.each_copy(QUEUES, lambda send, key: send("ZADD", key, *members))


def names_of_queues(sender: Sender, prefix: str) -> list[str]:
    """Return the names of the queues that exist and begin so, sorted.

    Raises:
        StoreError: none of the copies tells them.
    """
    start = prefix.encode()
    copies = sender.each_copy(QUEUES, lambda send, key: read_names(send, key, start))
    names = sorted(set().union(*copies))
    asked = [("HEXISTS", meta_key(name), "token") for name in names]
    there = sender.plain_all(asked, hurried=sender.clustered)
    if not sender.clustered:
        raised(there)  # else a queue whose node is away is believed to exist
    return [name for name, exists in zip(names, there, strict=True) if exists]
