"""The commonest home-made delay queues on Redis, each done as it is usually done, and bide.

Messages are ids with a body; `handle` is called with each id by a thread of `consumers`.
"""

import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import uuid4

import bide
from benchmarks.core.store import BODY
from benchmarks.redis.store import BATCH

__all__ = ["Bide", "Design", "Locked", "Polling", "TwoStructures"]

CONSUMERS = 4
POLL = 1.0
SOME = 100

Handle = Callable[[str], None]


class Design(Protocol):
    """A delay queue."""

    def put(self, messages: Sequence[tuple[str, float]]) -> None:
        """Store ids with their due moments, in Unix seconds."""

    def cancel(self, id: str) -> object:
        """Take a message back."""

    def consumers(self, handle: Handle, stop: threading.Event) -> list[threading.Thread]:
        """Return the threads that consume until `stop` is set."""


def _threads(count: int, work: Callable[[], None]) -> list[threading.Thread]:
    return [threading.Thread(target=work, daemon=True) for _ in range(count)]


class Polling:
    """A sorted set of ids by due moment, and a hash of bodies.

    Every consumer reads what is due, up to a hundred, and has whatever it is the one to remove.
    It looks again at once as long as it finds something, else every second.
    """

    def __init__(self, client: Any, url: str) -> None:
        self.client = client

    def put(self, messages: Sequence[tuple[str, float]]) -> None:
        """Store ids with their due moments."""
        pipeline = self.client.pipeline(transaction=False)
        pipeline.zadd("poll:due", dict(messages))
        pipeline.hset("poll:body", mapping={id: BODY for id, _ in messages})
        pipeline.execute()

    def cancel(self, id: str) -> object:
        """Take a message back."""
        if not self.client.zrem("poll:due", id):
            return False
        return self.client.hdel("poll:body", id)

    def consumers(self, handle: Handle, stop: threading.Event) -> list[threading.Thread]:
        """Return the threads that consume."""

        def work() -> None:
            while not stop.is_set():
                found = self.client.zrangebyscore("poll:due", 0, time.time(), 0, SOME)
                for id in found:
                    if self.client.zrem("poll:due", id):
                        self.client.hget("poll:body", id)
                        handle(id.decode())
                        self.client.hdel("poll:body", id)
                if not found:
                    stop.wait(POLL)

        return _threads(CONSUMERS, work)


class Locked(Polling):
    """The same sets behind one lock, and a ready list.

    A mover moves what is due to the list every second; consumers take one message at a time from
    there. Each of them holds the lock meanwhile, and tries for it every millisecond.
    """

    def _locked(self, work: Callable[[], Any]) -> Any:
        token = uuid4().hex
        while not self.client.set("lock", token, nx=True, px=10_000):
            time.sleep(0.001)
        try:
            return work()
        finally:
            self.release(keys=["lock"], args=[token])

    def __init__(self, client: Any, url: str) -> None:
        super().__init__(client, url)
        self.release = client.register_script(
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"
        )

    def _move(self) -> int:
        found = self.client.zrangebyscore("poll:due", 0, time.time(), 0, SOME)
        if found:
            self.client.rpush("poll:ready", *found)
            self.client.zrem("poll:due", *found)
        return len(found)

    def _take(self) -> Any:
        id = self.client.lpop("poll:ready")
        if id is not None:
            self.client.hget("poll:body", id)
        return id

    def consumers(self, handle: Handle, stop: threading.Event) -> list[threading.Thread]:
        """Return the mover and the threads that consume."""

        def move() -> None:
            while not stop.is_set():
                if self._locked(self._move) < SOME:
                    stop.wait(POLL)

        def work() -> None:
            while not stop.is_set():
                id = self._locked(self._take)
                if id is None:
                    stop.wait(0.05)
                    continue
                handle(id.decode())
                self.client.hdel("poll:body", id)

        return [*_threads(1, move), *_threads(CONSUMERS, work)]


class TwoStructures:
    """A sorted set of time-outs, and beside it a list of all messages in the order of their puts.

    A timer of the client moves a hundred due ones at a time to a ready list, on which consumers
    block, and sleeps until the next is due. Whatever leaves also has to be found in the list.
    """

    _MOVE = """
    local due = redis.call('zrangebyscore', KEYS[1], 0, ARGV[1], 'limit', 0, ARGV[2])
    for _, entry in ipairs(due) do
      redis.call('rpush', KEYS[3], string.sub(entry, 9))
      redis.call('lrem', KEYS[2], 1, entry)
    end
    if #due > 0 then redis.call('zrem', KEYS[1], unpack(due)) end
    return redis.call('zrange', KEYS[1], 0, 0, 'withscores')[2]
    """
    # An entry is eight bytes of chance and the message, and who cancels does not know the chance.
    _CANCEL = """
    for first = 0, redis.call('llen', KEYS[2]) - 1, 1000 do
      for _, entry in ipairs(redis.call('lrange', KEYS[2], first, first + 999)) do
        if string.sub(entry, 9) == ARGV[1] then
          redis.call('zrem', KEYS[1], entry)
          return redis.call('lrem', KEYS[2], 1, entry)
        end
      end
    end
    return 0
    """
    KEYS = ("two:timeouts", "two:all", "two:ready")

    def __init__(self, client: Any, url: str) -> None:
        self.client = client
        self._move = client.register_script(self._MOVE)
        self._cancel = client.register_script(self._CANCEL)
        self._number = 0
        self._changed = threading.Event()

    def put(self, messages: Sequence[tuple[str, float]]) -> None:
        """Store ids with their due moments."""
        entries = {}
        for id, due in messages:
            self._number += 1
            entries[struct.pack("Q", self._number) + id.encode() + b" " + BODY.encode()] = due
        pipeline = self.client.pipeline(transaction=False)
        pipeline.zadd(self.KEYS[0], entries)
        pipeline.rpush(self.KEYS[1], *entries)
        pipeline.execute()
        self._changed.set()  # what the channel of new heads does between processes

    def cancel(self, id: str) -> object:
        """Take a message back."""
        return self._cancel(keys=self.KEYS, args=[f"{id} {BODY}"])

    def consumers(self, handle: Handle, stop: threading.Event) -> list[threading.Thread]:
        """Return the timer and the threads that consume."""

        def move() -> None:
            while not stop.is_set():
                self._changed.clear()
                now = time.time()
                following = self._move(keys=self.KEYS, args=[now, SOME])
                pause = 1.0 if following is None else max(0.0, float(following) - time.time())
                self._changed.wait(min(pause, 1.0))

        def work() -> None:
            while not stop.is_set():
                taken = self.client.blpop([self.KEYS[2]], timeout=1)
                if taken is not None:
                    handle(taken[1].partition(b" ")[0].decode())

        return [*_threads(1, move), *_threads(CONSUMERS, work)]


class Bide:
    """bide, with consumers that claim up to a hundred and ack them together."""

    def __init__(self, client: Any, url: str) -> None:
        self.url = url
        self.queue = bide.Queue("compared", url)

    def put(self, messages: Sequence[tuple[str, float]]) -> None:
        """Store ids with their due moments."""
        for first in range(0, len(messages), BATCH):
            self.queue.put_many(
                [
                    bide.NewMessage(body=BODY, id=id, at=due)
                    for id, due in messages[first : first + BATCH]
                ]
            )

    def cancel(self, id: str) -> object:
        """Take a message back."""
        return self.queue.cancel(id)

    def consumers(self, handle: Handle, stop: threading.Event) -> list[threading.Thread]:
        """Return the threads that consume."""

        def work() -> None:
            while not stop.is_set():
                deliveries = self.queue.claim(SOME, wait=0.5)
                for delivery in deliveries:
                    handle(delivery.id)
                self.queue.ack(deliveries)

        return _threads(CONSUMERS, work)
