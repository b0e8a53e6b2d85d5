"""Messages whose records cannot be read, for `bide doctor`: by commands that change nothing.

The engine is not used for it: it makes the store, and loads its functions on the server.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import redis

from bide.engines.findings import Finding, of_messages
from bide.engines.redis.keys import LAYOUT, QUEUES, SHARDS, VERSION, copies, meta_key, records_key
from bide.engines.redis.queue_names import PAGE
from bide.engines.redis.records import DAMAGED, read_record
from bide.engines.redis.settings import Settings

FEWEST, MOST = 16, 1_000
"""How many records are asked for at a time, the first time and at most."""

ROOM = 1 << 20
"""Bytes of records that are asked for at a time, about."""


def soundness(
    clients: Sequence["redis.Redis"], settings: Settings, longest: float
) -> Iterator[Finding]:
    """Look at messages for some seconds.

    Args:
        clients: of all servers that have some; they answer with bytes.
        settings: of the store.
        longest: for how many seconds.
    """
    store = _Store(clients, clustered=settings.cluster is not None)
    try:
        yield from of_messages(store.looked_at(), longest, settings.shown, "records", "keys")
    except redis.RedisError as error:
        yield Finding(
            "warning",
            f"the messages could not be looked at ({error})",
            "those that cannot be read are not found",
            "ask as a user who may use the commands that the access rights of bide list",
        )


class _Store:
    """The messages of a store."""

    def __init__(self, clients: Sequence["redis.Redis"], *, clustered: bool) -> None:
        self._clients = clients
        self._copies = copies if clustered else lambda key: (key,)

    def looked_at(self) -> Iterator[str | None]:
        """Yield what cannot be read, and `None` after each page of records."""
        versions = {self._ask("GET", key) for key in self._copies(VERSION)} - {None}
        if versions != {b"%d" % LAYOUT}:  # there is no store, or one that this bide cannot read
            return
        for queue in sorted(self._names()):
            for shard in range(SHARDS):
                if not self._ask("EXISTS", meta_key(queue, shard)):
                    break
                yield from self._records(queue, records_key(queue, shard))

    def _names(self) -> set[str]:
        names: set[str] = set()
        for key in self._copies(QUEUES):
            low, more = b"-", True
            while more:
                found = self._ask("ZRANGEBYLEX", key, low, "+", "LIMIT", 0, PAGE) or []
                names.update(name.decode() for name in found)
                more = len(found) == PAGE
                low = b"(" + found[-1] if more else low
        return names

    def _records(self, queue: str, key: bytes) -> Iterator[str | None]:
        cursor, count = 0, FEWEST
        while True:
            answer = self._ask("HSCAN", key, cursor, "COUNT", count)
            if answer is None:  # a resharding moves it
                return
            cursor, records = answer
            for id, record in records.items():
                name = id.decode(errors="backslashreplace")
                try:
                    read_record(queue, name, record, 0)
                except DAMAGED:
                    yield f"{name!r} in queue {queue!r}"
            yield None
            if not cursor:
                return
            size = sum(map(len, records.values())) // (len(records) or 1) + 1
            count = min(max(ROOM // size, FEWEST), MOST)

    def _ask(self, *command: Any) -> Any:
        """Ask the server that has a key; return `None` if none has it."""
        for client in self._clients:
            try:
                return client.execute_command(*command)  # type: ignore[no-untyped-call]
            except redis.exceptions.MovedError:
                continue
        return None
