"""An old snapshot stays open while messages go in and out: claims must keep their speed.

`python -m tests.soak.postgres_bloat --seconds 120`. Deleted rows stay in the tables all the while.
Beside the load a transaction puts a message that is due at once, and commits after a minute: it
must be claimed then. Another process claims messages of another queue when they are due. Prints
what a claim costs the server and how late these messages are; ends with 1 if that grew too much.
Claims of a limited queue get slower meanwhile, as the documentation says: by no more than that.
"""

import argparse
import statistics
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

import bide
from benchmarks.redis.store import other
from benchmarks.redis.waiting import produce
from bide.engines.postgres import PostgresEngine, from_url
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Claimed, Counts
from bide.testing.engine_hooks import postgres_caller
from tests.postgres_server import PostgresServer, new_folder

RATE, BATCH = 2_000, 100
KEPT = 0.8
"""The share of their speed that claims must keep."""

LATE_RATE = 200
LATER, LATER_MS = 1.2, 2.0
"""How many times later, or how many milliseconds, messages may be with an old snapshot (p99)."""

LIMITED, SLOWER_MS = 2_000, 5.0
"""Messages of a limited queue that go through one by one, and by how many milliseconds of the
server's processor each thousand of them may make a claim and its ack slower."""

HELD = 60.0
"""Seconds that a transaction keeps its message."""

_BODY = b'"' + b"x" * 254 + b'"'


def _spent(process: int) -> float:
    """Return the processor time of a backend, in seconds."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


class Load:
    """Puts, claims and acks at an even pace, and notes what each claim costs the server."""

    def __init__(self, url: str) -> None:
        self.engine: PostgresEngine = from_url(urlsplit(url))()
        caller = postgres_caller(self.engine)
        assert caller is not None
        self._backend = caller.connection.info.backend_pid
        self._number = 0

    def run(self, seconds: float) -> list[float]:
        """Work for so long; return the costs of claims in microseconds a message."""
        costs: list[float] = []
        begin = time.monotonic()
        rounds = 0
        while (passed := time.monotonic() - begin) < seconds:
            time.sleep(max(0.0, rounds * BATCH / RATE - passed))
            rounds += 1
            self.put(*(f"m{self._number + n}" for n in range(BATCH)))
            self._number += BATCH
            self.engine.execute([cmd.Count("other")])  # hears of the wake-up of others
            spent = _spent(self._backend)
            ids = self.claim()
            costs.append((_spent(self._backend) - spent) * 1e6 / max(1, len(ids)))
        return costs

    def run_limited(self, count: int) -> float:
        """Let messages go through a limited queue one by one; return milliseconds of the last."""
        self.engine.execute([cmd.Configure("limited", limit=BATCH)])
        costs: list[float] = []
        for number in range(count):
            self.engine.execute([cmd.Put("limited", [Item(f"m{number}", _BODY)])])
            spent = _spent(self._backend)
            assert self.claim("limited", 1)
            costs.append((_spent(self._backend) - spent) * 1e3)
        return statistics.median(costs[-count // 20 :])

    def put(self, *ids: str) -> None:
        self.engine.execute([cmd.Put("q", [Item(id, _BODY) for id in ids])])

    def claim(self, queue: str = "q", count: int = BATCH) -> list[str]:
        """Claim and ack a batch."""
        (claimed,) = self.engine.execute([cmd.Claim(queue, count, 30_000, "w")])
        assert isinstance(claimed, Claimed)
        leases = [cmd.Lease(message.id, claimed.token) for message in claimed.messages]
        if leases:
            self.engine.execute([cmd.Ack(queue, leases)])
        return [lease.id for lease in leases]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120, help="with an old snapshot")
    seconds = parser.parse_args().seconds
    with new_folder() as folder:
        server = PostgresServer(folder)
        try:
            return _soak(server, seconds)
        finally:
            server.stop()


def _soak(server: PostgresServer, seconds: float) -> int:
    load = Load(server.url)
    load.run(seconds / 12)  # plans are made, pages are read
    limited_before = load.run_limited(LIMITED // 20)
    costs, late_before = _measure(load, server.url, seconds / 4)
    before = statistics.median(costs)
    with server.client() as old, old.transaction():
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM bide.queue")
        load.run(seconds / 2)
        costs, late_after = _measure(load, server.url, seconds / 4)
        after = statistics.median(costs)
        with psycopg.connect(server.url) as user, bide.Queue("q", server.url) as queue:
            assert queue.put(1, id="held", delay=0, within=user)
            load.run(HELD)
            user.commit()
        held = any("held" in load.claim() for _ in range(3))
        limited_after = load.run_limited(LIMITED)
    (counts,) = load.engine.execute([cmd.Count("q", recount=True)])
    assert isinstance(counts, Counts)
    load.engine.close()
    balances = counts.recount == counts.sizes and not counts.strays
    slower = (limited_after - limited_before) / LIMITED * 1_000
    sys.stdout.write(
        f"each 1,000 messages make a claim and an ack of a limited queue {slower:.2f} ms slower\n"
        f"claim and ack: {before:.1f} us a message before, {after:.1f} with an old snapshot\n"
        f"lateness, p99: {late_before:.1f} ms before, {late_after:.1f} ms with an old snapshot\n"
        f"the open transaction's message was claimed: {held}; the audit balances: {balances}\n"
    )
    punctual = late_after <= max(late_before * LATER, late_before + LATER_MS)
    return int(
        not (held and balances and punctual and slower <= SLOWER_MS and before / after >= KEPT)
    )


def _measure(load: Load, url: str, seconds: float) -> tuple[list[float], float]:
    """Return what claims cost, and the p99 of how late another process got messages meanwhile."""
    total = int(LATE_RATE * seconds)
    with bide.Queue("late", url) as putter, other("take", url, total) as result:
        producer = threading.Thread(target=produce, args=(putter, LATE_RATE, total))
        producer.start()
        costs = load.run(seconds)
        producer.join()
        return costs, float(result()["p99"])


if __name__ == "__main__":
    sys.exit(main())
