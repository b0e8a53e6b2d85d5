"""A sorted set of somebody else's, as home-made delay queues have it: member, and time as score."""

from collections.abc import Sequence
from typing import NamedTuple

from bide.model.errors import NotAStore
from bide.queue.foreign_redis import ForeignRedis

_REMOVE = """
local count = 0
for i = 1, #ARGV, 2 do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    count = count + redis.call('ZREM', KEYS[1], ARGV[i])
  end
end
return count
"""
# A member that was given another score meanwhile is another message: it stays.


class Entry(NamedTuple):
    """A member and its score, both as the server writes them."""

    member: bytes
    score: bytes


class SortedSet(ForeignRedis):
    """A sorted set on a server that need not know bide, of any version.

    Args:
        url: of the server, in one of the forms in which stores are named.
        key: of the set.

    Raises:
        InvalidArgument: the URL is of another form.
        StoreError: the server cannot be reached.
        NotAStore: the key holds something else.
    """

    def __init__(self, url: str, key: str | bytes) -> None:
        super().__init__(url)
        self._key = key
        kind = self.ask("TYPE", key)
        if kind not in (b"zset", b"none"):
            self.close()
            raise NotAStore(
                f"{self.shown}: {key!r} is a {kind.decode()}, not a sorted set; it was left alone"
            )

    def size(self) -> int:
        """Return how many members it has; 0 also when there is no such key."""
        count: int = self.ask("ZCARD", self._key)
        return count

    def page(self, low: bytes, skip: int, count: int) -> list[Entry]:
        """Return up to `count` members of a score from `low` on, after the first `skip` of them."""
        flat = self.ask("ZRANGEBYSCORE", self._key, low, "+inf", "WITHSCORES", "LIMIT", skip, count)
        return [Entry(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)]

    def remove(self, entries: Sequence[Entry]) -> int:
        """Remove members that still have the score that they are told with; return how many had."""
        if not entries:
            return 0
        flat = [part for entry in entries for part in entry]
        count: int = self.ask("EVAL", _REMOVE, 1, self._key, *flat)
        return count
