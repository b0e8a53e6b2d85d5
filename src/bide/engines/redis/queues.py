"""Shards: which one a message is in, and how many each queue has."""

from dataclasses import dataclass, field

from bide.engines.bounded_dict import BoundedDict
from bide.engines.redis.calls import ScriptCall, raised
from bide.engines.redis.layout import NUMBERS, QUEUES, meta_key
from bide.engines.redis.sender import CallSender
from bide.logs import logger
from bide.model.errors import StoreError

_log = logger("bide.redis")


@dataclass
class ShardedQueue:
    """What an engine knows of a queue, mostly because it is of several shards."""

    queue: str
    count: int
    """The number of its shards."""
    kept: bool = False
    """Whether the store keeps this number, else the queue is new."""
    next: int = 0
    """The place of the next message that is put, among those of all shards."""
    token: int = 0
    """The highest token that is known."""
    enrolled: bool = False
    """Whether the shards may believe that this lane waits."""
    out: set[int] = field(default_factory=set)
    """Shards without which claims go on."""

    def note(self, shard: int, error: StoreError | None) -> None:
        """Note whether a claim goes on without a shard; log it if that is new."""
        if (shard in self.out) == (error is not None):
            return
        self.out ^= {shard}
        change = f"is left out by claims until it is back ({error})" if error else "is back"
        _log.warning("queue %s: shard %d of %d %s", self.queue, shard, self.count, change)


class ShardMap:
    """The number of shards of each queue. The store keeps it for ever, also when it is deleted.

    Args:
        sender: sends commands to the store.
        usual: the number of shards of a new queue.
    """

    def __init__(self, sender: CallSender, usual: int) -> None:
        self._sender = sender
        self._usual = usual
        self.known: BoundedDict[str, ShardedQueue] = BoundedDict()

    def find(self, queue: str, new: int = 0, now: int | None = None) -> ShardedQueue:
        """Ask the store for the number of a queue, which may not exist.

        Args:
            queue: its name.
            new: the number to keep for a new queue, which is made; 0: none.
            now: see `CallSender.send`.

        Raises:
            StoreError: the store cannot be reached, or cannot keep the number.
        """
        kept_numbers = self._sender.each_copy("ZSCORE", NUMBERS, queue)
        kept = next((int(number) for number in kept_numbers if number is not None), 0)
        if new and None in kept_numbers:  # it is new, or a server has lost what it kept
            self._sender.each_copy("ZADD", QUEUES, 0, queue)
            if not kept:  # the first shard decides between processes that make it at once
                self._sender.send([ScriptCall("make", queue, (), 0, new)], now)
                (made,) = raised(self._sender.plain([("HGET", meta_key(queue), "shards")]))
                kept = int(made or new)
            self._sender.each_copy("ZADD", NUMBERS, kept, queue)
            self._make(queue, kept, now)  # else others make it while a large put goes on
        known = self.known.get(queue)
        if known is None or known.count != (kept or self._usual):
            known = self.known[queue] = ShardedQueue(queue, kept or self._usual)
        known.kept = kept > 0
        if kept > 1:  # what this process puts follows what is there, in whatever shard
            asked = [("HGET", meta_key(queue, shard), "seq") for shard in range(kept)]
            numbers_put = self._sender.plain(asked, hurried=True)
            numbers = [int(n) for n in numbers_put if type(n) is bytes and n.isdigit()]
            known.next = max([known.next, *numbers])
        return known

    def make(self, queue: str, shards: int, now: int | None) -> None:
        """Make a queue again, which the store may have lost, and those shards that are not there.

        Raises:
            StoreError: the store cannot be reached, or cannot keep the number.
        """
        self._make(queue, self.find(queue, shards, now).count, now)

    def _make(self, queue: str, shards: int, now: int | None) -> None:
        self._sender.send(
            [ScriptCall("make", queue, (), shard, shards) for shard in range(shards)], now
        )

    def forget(self, queue: str) -> None:
        """Ask the store again: it may have lost what it kept."""
        if (known := self.known.get(queue)) is not None:
            known.kept = False


PAGE = 500
"""The number of names that are read at a time."""


def names_of_queues(sender: CallSender, prefix: str) -> list[str]:
    """Return the names of the queues that exist and begin so, sorted.

    Raises:
        StoreError: none of the copies tells them.
    """
    encoded: set[bytes] = set()
    low, high = f"[{prefix}".encode(), f"({prefix}".encode() + b"\xff"  # no name has this byte
    while low:
        pages = sender.each_copy("ZRANGEBYLEX", QUEUES, low, high, "LIMIT", 0, PAGE)
        encoded.update(*pages)
        low = min([b"(" + page[-1] for page in pages if len(page) == PAGE], default=b"")
    names = sorted(name.decode() for name in encoded)
    asked = [("HEXISTS", meta_key(name), "token") for name in names]
    present = sender.plain(asked, hurried=sender.clustered)
    if not sender.clustered:
        raised(present)  # else a queue whose node is away is believed to exist
    return [name for name, exists in zip(names, present, strict=True) if exists]
