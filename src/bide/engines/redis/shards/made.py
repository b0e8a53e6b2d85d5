"""What an engine knows of the queues that are made of several shards."""

import logging
from collections import Counter
from collections.abc import Iterable

from bide.engines.redis.verbs.put import LONG, PLACES, SIZE
from bide.model.errors import StoreError
from bide.model.message import Item

__all__ = ["Made"]

_log = logging.getLogger("bide.redis")


class _Block:
    """Messages whose numbers stand in one chunk, each shard's in one call."""

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._ids: set[str] = set()
        self._counts: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()

    def has_room(self, item: Item, shard: int, most: int, number: int) -> bool:
        return (
            number // PLACES == self._chunk
            and item.id not in self._ids
            and self._counts[shard] < most
            and self._sizes[shard] + len(item.data) <= SIZE
        )

    def add(self, item: Item, shard: int) -> None:
        self._ids.add(item.id)
        self._counts[shard] += 1
        self._sizes[shard] += len(item.data)


class Made:
    """How a queue is made, and what was last seen of it.

    Args:
        queue: its name.
        count: of how many shards it is made.
    """

    def __init__(self, queue: str, count: int) -> None:
        self.queue = queue
        self.count = count
        self.enrolled = False
        """Whether the shards may believe that somebody here waits."""
        self._next = 1
        self._block: _Block | None = None
        self._aligned = False
        self._token = 0
        self._out: set[int] = set()

    def begin(self, count: int) -> None:
        """So many messages are going to be put together."""
        self._block = None
        self._aligned = count >= LONG

    def number(self, item: Item, shard: int, most: int) -> int:
        """Return the number of the next message: by these they stand as they were put.

        A shard goes on to its next chunk of numbers when it has written many into one. All
        shards go on together if they are given what stands in one chunk at once.

        Args:
            item: the message.
            shard: where it goes to.
            most: how many messages a shard is given at once.
        """
        if self._block is not None and not self._block.has_room(item, shard, most, self._next):
            self._block, self._aligned = None, True
        if self._block is None:
            if self._aligned:
                self._next = -(-self._next // PLACES) * PLACES
            self._block = _Block(self._next // PLACES)
        self._block.add(item, shard)
        self._next += 1
        return self._next - 1

    def seen(self, following: int) -> None:
        """The next message in a shard has this number at least."""
        self._next = max(self._next, following)

    def token_above(self, tokens: Iterable[int]) -> int:
        """Return the highest token that is known, these included."""
        self._token = max([self._token, *tokens])
        return self._token

    def leave_out(self, shard: int, error: StoreError) -> None:
        """A claim goes on without a shard; say so once."""
        if shard not in self._out:
            self._out.add(shard)
            _log.warning(
                "queue %s: shard %d of %d is left out by claims until it is back (%s)",
                self.queue, shard, self.count, error,
            )  # fmt: skip

    def take_in(self, shard: int) -> None:
        """A shard answers; say so if it was left out."""
        if shard in self._out:
            self._out.discard(shard)
            _log.warning("queue %s: shard %d of %d is back", self.queue, shard, self.count)
