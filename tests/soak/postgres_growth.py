"""Five million messages go in and out: the store must neither grow nor get slower.

`python -m tests.soak.postgres_growth --messages 5000000`. Prints size and speed of each window, and
ends with 1 if the last third is larger or slower by more than a fifth than the third before.
The first third is left out: the files grow until autovacuum has come round.
"""

import argparse
import statistics
import sys
import time

import bide
from benchmarks.core.store import BODY
from tests.postgres_server import PostgresServer, new_folder

BATCH = 500
WINDOWS = 30
FLAT = 0.2
"""By which share the size may grow, and the speed shrink."""

_SIZE = """
SELECT sum(pg_total_relation_size(oid)) FROM pg_class
WHERE relnamespace = 'bide'::regnamespace AND relkind = 'r'
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=5_000_000)
    messages = parser.parse_args().messages
    with new_folder() as folder:
        server = PostgresServer(folder, fsync="on", shared_buffers="256MB", max_wal_size="4GB")
        try:
            return _soak(server, messages)
        finally:
            server.stop()


def _soak(server: PostgresServer, messages: int) -> int:
    sizes: list[float] = []
    speeds: list[float] = []
    with bide.Queue("work", server.url) as queue, server.client() as client:
        for _ in range(WINDOWS):
            begin = time.monotonic()
            count = _through(queue, messages // WINDOWS)
            speeds.append(count / (time.monotonic() - begin))
            ((size,),) = client.execute(_SIZE).fetchall()
            sizes.append(float(size) / 1e6)
            sys.stdout.write(f"{speeds[-1]:9,.0f} messages/s, {sizes[-1]:7.1f} MB\n")
            sys.stdout.flush()
        audit = queue.audit()
    flat = _change("messages/s", speeds) >= 1 - FLAT and _change("MB", sizes) <= 1 + FLAT
    sys.stdout.write(f"the audit balances: {bool(audit)}\n")
    return int(not (flat and audit))


def _through(queue: bide.Queue, count: int) -> int:
    """Put, claim and ack so many messages; half of them wait while the others go through."""
    done = 0
    while done < count:
        queue.put_many([bide.NewMessage(body=BODY) for _ in range(2 * BATCH)])
        for _ in range(2):
            deliveries = queue.claim(BATCH)
            queue.ack(deliveries)
            done += len(deliveries)
    return done


def _change(unit: str, values: list[float]) -> float:
    """Return the last third as a share of the third before, by their medians."""
    third = len(values) // 3
    before = statistics.median(values[third : 2 * third])
    after = statistics.median(values[2 * third :])
    sys.stdout.write(f"{before:,.0f} {unit} in the second third, {after:,.0f} in the last\n")
    return after / before


if __name__ == "__main__":
    sys.exit(main())
