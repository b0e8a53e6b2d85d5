"""Shards: which one a message is in, and how many each queue has."""

from dataclasses import dataclass, field

from bide.engines.bounded_dict import BoundedDict
from bide.engines.redis.calls import ScriptCall, without_errors
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
    """The highest token of a lease that is known."""
    enrolled: bool = False
    """Whether the shards may believe that this lane waits."""
    left_out: set[int] = field(default_factory=set)
    """The numbers of the shards without which claims go on."""

    def note(self, shard: int, error: StoreError | None) -> None:
        """Note whether a claim goes on without a shard, which has failed with `error`, or has not.

        Log it if that is new.
        """
        if (shard in self.left_out) == (error is not None):
            return
        if error is not None:
            self.left_out.add(shard)
            change = f"is left out by claims until it is back ({error})"
        else:
            self.left_out.remove(shard)
            change = "is back"
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
        """By name: queues that this process has used."""

    def find(self, queue: str, shards_of_new: int = 0, now: int | None = None) -> ShardedQueue:
        """Ask the store for the number of shards of a queue, which may not exist.

        Args:
            queue: its name.
            shards_of_new: the number to keep for a new queue, which is made; 0: none is made.
            now: see `CallSender.send`.

        Raises:
            StoreError: the store cannot be reached, or cannot keep the number.
        """
        kept_numbers = self._sender.each_copy("ZSCORE", NUMBERS, queue)
        kept = next((int(number) for number in kept_numbers if number is not None), 0)
        # It is new, or a server has lost what it kept.
        if shards_of_new and None in kept_numbers:
            self._sender.each_copy("ZADD", QUEUES, 0, queue)
            if not kept:  # the first shard decides between processes that make it at once
                self._sender.send([ScriptCall("make", queue, (), 0, shards_of_new)], now)
                (made,) = without_errors(self._sender.plain([("HGET", meta_key(queue), "shards")]))
                kept = int(made or shards_of_new)
            self._sender.each_copy("ZADD", NUMBERS, kept, queue)
            self._make(queue, kept, now)  # else others make it while a large put goes on
        known = self.known.get(queue)
        if known is None or known.count != (kept or self._usual):
            known = self.known[queue] = ShardedQueue(queue, kept or self._usual)
        known.kept = kept > 0
        if kept > 1:  # what this process puts follows what is there, in whatever shard
            commands = [("HGET", meta_key(queue, shard), "seq") for shard in range(kept)]
            answers = self._sender.plain(commands, hurried=True)
            # Of a shard that does not answer or is empty, nothing is known.
            places = [int(each) for each in answers if type(each) is bytes and each.isdigit()]
            known.next = max([known.next, *places])
        return known

    def make(self, queue: str, shards: int, now: int | None) -> None:
        """Make a queue again, which the store may have lost, and those shards that are not there.

        Raises:
            StoreError: the store cannot be reached, or cannot keep the number.
        """
        self._make(queue, self.find(queue, shards, now).count, now)

    def _make(self, queue: str, shards: int, now: int | None) -> None:
        """Make those shards that are not there; one that fails is made when it is used."""
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
    """Return the names of the queues that exist and begin with a prefix, sorted.

    Raises:
        StoreError: none of the copies tells them.
    """
    names: set[bytes] = set()
    # A range of names: "[" before the first one, "(" before one that is not in it.
    low, high = f"[{prefix}".encode(), f"({prefix}".encode() + b"\xff"  # no name has this byte
    while low:
        pages = sender.each_copy("ZRANGEBYLEX", QUEUES, low, high, "LIMIT", 0, PAGE)
        names.update(*pages)
        full_pages = [page for page in pages if len(page) == PAGE]
        low = min([b"(" + page[-1] for page in full_pages], default=b"")
    queues = sorted(name.decode() for name in names)
    # The name of a queue that was deleted stays in the list; its shards have no token then.
    existing = _with_token(sender, [(queue, 0) for queue in queues])
    if sender.clustered and (missing := [queue for queue in queues if queue not in existing]):
        # The node of the first shard may have come back empty: the others tell.
        kept_numbers = zip(*sender.each_copy("ZMSCORE", NUMBERS, *missing), strict=True)
        numbers = [max(map(int, filter(None, kept)), default=0) for kept in kept_numbers]
        existing |= _with_token(
            sender,
            [
                (queue, shard)
                for queue, number in zip(missing, numbers, strict=True)
                for shard in range(1, number)
            ],
        )
    return [queue for queue in queues if queue in existing]


def _with_token(sender: CallSender, shards: list[tuple[str, int]]) -> set[str]:
    """Return the queues of which one of these shards exists.

    In a cluster, one whose node is away is believed to exist.
    """
    commands = [("HEXISTS", meta_key(queue, shard), "token") for queue, shard in shards]
    answers = sender.plain(commands, hurried=sender.clustered)
    if not sender.clustered:
        without_errors(answers)
    return {queue for (queue, _), exists in zip(shards, answers, strict=True) if exists}
