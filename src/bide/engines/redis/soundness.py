"""Messages whose records cannot be read, for `bide doctor`: by commands that change nothing.

The engine is not used for it: it makes the store, and loads its functions on the server.
"""

from collections.abc import Callable, Iterator
from typing import Any

import redis

from bide.engines.findings import Finding, of_messages
from bide.engines.redis.keys import LAYOUT, QUEUES, SHARDS, VERSION, copies, meta_key, records_key
from bide.engines.redis.queue_names import read_names
from bide.engines.redis.records import DAMAGED, read_record
from bide.engines.redis.settings import Settings

FEWEST, MOST = 16, 1_000
"""How many records are asked for at a time, the first time and at most."""

ROOM = 1 << 20
"""Bytes of records that are asked for at a time, about."""


def soundness(client: Any, settings: Settings, longest: float) -> Iterator[Finding]:
    """Look at messages for some seconds.

    Args:
        client: of redis-py, for the server or the cluster.
        settings: of the store.
        longest: for how many seconds.
    """
    looked_at = _looked_at(client.execute_command, clustered=settings.cluster is not None)
    try:
        yield from of_messages(looked_at, longest, settings.shown, "records", "keys")
    except redis.RedisError as error:
        yield Finding(
            "warning",
            f"the messages could not be looked at ({error})",
            "those that cannot be read are not found",
            "ask as a user who may use the commands that the access rights of bide list",
        )


Send = Callable[..., Any]
"""Sends a command, and returns what comes back."""


def _looked_at(send: Send, *, clustered: bool) -> Iterator[str | None]:
    """Yield what cannot be read, and `None` after each page of records."""
    versions, names = (copies(key) if clustered else (key,) for key in (VERSION, QUEUES))
    if {send("GET", key) for key in versions} - {None} != {b"%d" % LAYOUT}:
        return  # there is no store, or one that this bide cannot read
    for queue in sorted(set().union(*(read_names(send, key) for key in names))):
        for shard in range(SHARDS):
            if not send("EXISTS", meta_key(queue, shard)):
                break
            yield from _records(send, queue, records_key(queue, shard))


def _records(send: Send, queue: str, key: bytes) -> Iterator[str | None]:
    cursor, count = 0, FEWEST
    while True:
        cursor, records = send("HSCAN", key, cursor, "COUNT", count)
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
