"""How fast messages come out."""

import statistics
import time
from collections.abc import Iterator

import bide
from benchmarks.core.store import BODY, WEEK, folder, random_dues
from benchmarks.figure import Figure
from bide.testing.clock import FakeClock

__all__ = ["MEASUREMENTS"]

PENDING = 200_000
START = 1_800_000_000


def claim_and_ack() -> Iterator[Figure]:
    """Claim 500 and ack them, again and again, from 200,000 that are due."""
    cases = (("constant delay", False, 100_000), ("due at random over a week", True, 25_000))
    for kind, spread, least in cases:
        rates = [rate for _ in range(2) for rate in _drain(spread)]
        rate = statistics.median(rates)
        yield Figure(
            f"claim(500) + ack, {kind}", rate, "/s", goal=f"{least:,} /s", met=rate >= least
        )


def _drain(spread: bool) -> list[float]:
    """Return the rates of draining the first half, ten thousand at a time."""
    with folder() as path:
        clock = FakeClock(START * 1000)
        with bide.Queue("work", f"sqlite:///{path / 'bide.db'}", clock=clock) as queue:
            dues = (
                random_dues(PENDING, START) if spread else [START + n / 1e4 for n in range(PENDING)]
            )
            for first in range(0, PENDING, 1_000):
                queue.put_many(
                    [bide.NewMessage(body=BODY, at=due) for due in dues[first : first + 1_000]]
                )
            clock.advance(WEEK + 60)
            rates = []
            for _ in range(10):
                start = time.perf_counter()
                for _ in range(20):
                    deliveries = queue.claim(500)
                    assert all(queue.ack(deliveries))
                rates.append(10_000 / (time.perf_counter() - start))
            return rates


MEASUREMENTS = (claim_and_ack,)
