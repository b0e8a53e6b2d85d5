"""The steps by which messages leave the source; any of them may be the last one of a run."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from bide.engines.registry import mask
from bide.importing.source import SourceEntry, SourceQueue
from bide.lane.steps import outcomes_of
from bide.model.commands import Origin, Put
from bide.model.errors import AlreadyMoving
from bide.model.identity import new_id, new_ids
from bide.model.message import Item
from bide.model.parts import in_bytes
from bide.queue.sync import Queue

LEASE = 15_000
"""Milliseconds after which another run may go on with what a dead one left."""

PATIENCE = LEASE / 1000 + 2
"""Seconds that a run waits for the lock of the source."""

_BEHIND_ALL_ROWS = "z"
"""Greater than any row: these begin with a digit."""

_GUARD = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""

# Each of the scripts below comes behind the guard.

_TAKE = """
local took = {}
for i = 3, #ARGV, 6 do
  local key, kind, side, member, row, entry = unpack(ARGV, i, i + 5)
  local gone = kind == 'zset' and redis.call('ZREM', key, member)
    or kind == 'list' and redis.call('LREM', key, side, member)
  if gone == 1 then redis.call('HSET', KEYS[2], row, entry) end
  took[#took + 1] = gone
end
return took
"""

_DONE = """
for i = 3, #ARGV do redis.call('HDEL', KEYS[2], ARGV[i]) end
for i = 3, #KEYS do redis.call('DEL', KEYS[i]) end
return 1
"""

_BACK = """
local key, kind, side, member, row, score = unpack(ARGV, 3, 8)
if redis.call('HDEL', KEYS[2], row) == 0 then return 0 end
if kind == 'zset' then
  redis.call('ZADD', key, score, member)
else
  redis.call(side == '-1' and 'RPUSH' or 'LPUSH', key, member)
end
return 1
"""


class Ready(NamedTuple):
    """A message that can be taken over."""

    entry: SourceEntry
    item: Item


def _arguments_of(entry: SourceEntry) -> list[object]:
    """Return an entry for scripts: its place (key, kind, side of a list), its member and row."""
    place = entry.place
    return [place.key, place.kind, -1 if place.oldest_last else 1, entry.member, entry.row]


_decode = msgspec.msgpack.Decoder(SourceEntry).decode


class Transit:
    """Carries messages from a source to a queue, while it holds the lock of the source.

    Args:
        source: the source.
        name: of the source, for its keys: the library and the queue.
        target: where messages go.
    """

    def __init__(self, source: SourceQueue, name: str, target: Queue) -> None:
        self._redis = source.redis
        self._source = source
        self._target = target
        self._target_url = mask(target._absolute_url)
        """What entries say of the store of the target."""
        self._lock_key = f"bide:import:{name}:run".encode()
        """Has the run that may take messages out of the source."""
        self._transit_key = f"bide:import:{name}".encode()
        """The hash beside the source: entries in transit, by their rows."""
        self._run = new_id()
        """Identifies this run."""
        # Each run has an outbox of its own: no other one, of this source or of another, makes the
        # store forget what this one has put, however long its entries stay in transit.
        self._outbox = f"import:{self._run}"
        """The outbox by whose rows the store knows the messages that this run takes."""
        # A hash, since the name of an outbox has a length and characters of its own.
        digest = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
        self._shared_outbox = f"import.{digest}"
        """That of entries that name none."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of this source. That of a dead run ends after `LEASE`.

        Raises:
            AlreadyMoving: another run has it.
        """
        end = time.monotonic() + PATIENCE
        try:
            while not self._redis.ask("SET", self._lock_key, self._run, "NX", "PX", LEASE):
                if time.monotonic() >= end:
                    raise AlreadyMoving(
                        f"another import takes messages out of {self._redis.shown}; wait until it "
                        "is done, or stop it and run this again"
                    )
                time.sleep(0.2)
            yield
        finally:
            if self._redis.ask("GET", self._lock_key) == self._run.encode():
                self._redis.ask("DEL", self._lock_key)

    def entries(self) -> list[SourceEntry]:
        """Return the entries that an interrupted run has left in transit, in order.

        Raises:
            AlreadyMoving: they go to another queue, which may have some of their messages already.
        """
        entries = list(map(self._read, self._redis.ask("HVALS", self._transit_key)))
        for entry in entries:
            if (entry.queue, entry.url) != (self._target.name, self._target_url):
                raise AlreadyMoving(
                    f"an import into {entry.queue} at {entry.url} was interrupted, and messages "
                    "are in transit there; finish it first, by the same import again"
                )
        return sorted(entries, key=attrgetter("outbox", "row"))

    def _read(self, value: bytes) -> SourceEntry:
        """Return an entry of the hash."""
        entry = _decode(value)
        if entry.outbox:
            return entry
        # From a version that noted neither the outbox nor the target.
        return self._bound(entry)._replace(outbox=self._shared_outbox)

    def _bound(self, entry: SourceEntry) -> SourceEntry:
        """Return an entry that this run takes to its target."""
        return entry._replace(outbox=self._outbox, queue=self._target.name, url=self._target_url)

    def take(self, ready: Sequence[Ready]) -> list[Ready]:
        """Step 1: take messages out of the source; return those that were still there."""
        if not ready:
            return []
        with_rows = [
            Ready(self._bound(entry)._replace(row=id), item)
            for (entry, item), id in zip(ready, new_ids(len(ready)), strict=True)
        ]
        arguments: list[object] = []
        for entry, _ in with_rows:
            arguments += [*_arguments_of(entry), msgspec.msgpack.encode(entry)]
        removals = self._eval(_TAKE, [], arguments)
        return [message for message, removed in zip(with_rows, removals, strict=True) if removed]

    def carry(self, taken: Sequence[Ready]) -> list[Ready]:
        """Put messages, and drop their entries; return those whose id the queue has already.

        These are where they were in the source.

        Args:
            taken: in the order of `entries`.
        """
        if not taken:
            return []
        outcomes = self._target._run(outcomes_of(*self._puts(taken)))
        existing = [
            message
            for message, outcome in zip(taken, outcomes, strict=True)
            if not outcome and outcome.state != "forwarded"  # that was put by an interrupted run
        ]
        for message in reversed(existing):  # the oldest last: it is the first again
            self.put_back(message.entry)
        self.drop([message.entry for message in taken if message not in existing])
        return existing

    def _puts(self, taken: Sequence[Ready]) -> Iterator[Put]:
        """Yield the commands that put messages, with their rows."""
        for outbox, group in groupby(taken, key=lambda message: message.entry.outbox):
            messages = list(group)
            # The entries of the batches before this one were dropped. Those of another run may be
            # in transit for longer; and if that run only stalls, it is still about to put some.
            before = messages[0].entry.row if outbox == self._outbox else ""
            rows = (message.entry.row for message in messages)
            for items in in_bytes(message.item for message in messages):
                origin = Origin(outbox, list(islice(rows, len(items))), before)
                yield Put(self._target.name, items, origin=origin)

    def forget(self) -> None:
        """Let the store forget the rows of this run, all of whose entries were dropped."""
        origin = Origin(self._outbox, [], _BEHIND_ALL_ROWS)
        self._target._execute(Put(self._target.name, [], origin=origin))

    def drop(self, entries: Sequence[SourceEntry]) -> None:
        """Step 3: delete entries of the hash, and the keys of their messages."""
        keys = [key for entry in entries for key in self._source.keys(entry)]
        self._eval(_DONE, keys, [entry.row for entry in entries])

    def put_back(self, entry: SourceEntry) -> None:
        """Put an entry back where it was in the source."""
        self._eval(_BACK, [], [*_arguments_of(entry), repr(entry.score)])

    def _eval(self, script: str, keys: Sequence[bytes], arguments: Sequence[object]) -> Any:
        """Run a script if this run still has the lock; that extends the lock.

        Args:
            script: what comes behind the guard.
            keys: its `KEYS[3]` and so on; the first two are those of the lock and of the hash.
            arguments: its `ARGV[3]` and so on; the first two are for the guard.

        Raises:
            AlreadyMoving: another run has the lock.
        """
        all_keys = [self._lock_key, self._transit_key, *keys]
        reply = self._redis.ask(
            "EVAL", _GUARD + script, len(all_keys), *all_keys, self._run, LEASE, *arguments
        )
        if reply is None:  # the `false` of the guard
            raise AlreadyMoving(
                "this import made no progress for too long, and another has taken over; run it "
                "again"
            )
        return reply
