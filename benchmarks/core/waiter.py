"""The other process: it claims, or waits for what is far off, and prints what it saw as JSON."""

import json
import sys
import time
from pathlib import Path

from benchmarks.core.store import IDLE_SECONDS, RATE, SECONDS, queue_in


def _claim(path: Path) -> object:
    late: list[float] = []
    with queue_in(path) as queue:
        while len(late) < RATE * SECONDS:
            deliveries = queue.claim(50, wait=10)
            now = time.time() * 1000
            late += [now - delivery.message.due for delivery in deliveries]
            queue.ack(deliveries)
    return late


def _idle(path: Path) -> object:
    with queue_in(path) as queue:
        queue.claim(10, wait=1)
        before = time.process_time()
        queue.claim(10, wait=IDLE_SECONDS)
        cpu = time.process_time() - before
    return {"cpu": cpu, "rss": _resident_mb()}


def _resident_mb() -> float:
    """Return the memory in use now; the maximum that `getrusage` tells is the parent's at first."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    role = {"claim": _claim, "idle": _idle}[sys.argv[1]]
    print(json.dumps(role(Path(sys.argv[2]))))
