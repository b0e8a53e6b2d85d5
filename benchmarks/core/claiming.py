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
BURST = 50_000


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


def bursts() -> Iterator[Figure]:
    """The same, of 50,000 due at one instant, in turn with as many due over five seconds."""
    pairs = [(_drain_burst(0), _drain_burst(5)) for _ in range(5)]
    value, base = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(burst / spread for burst, spread in pairs)
    name = "claim(500) + ack, due at one instant, against due over 5 s"
    yield Figure(name, value, "/s", base, ratio, ">= 0.9", ratio >= 0.9)


def _drain_burst(seconds: float) -> float:
    """Return the rate of draining messages that fall due within so many seconds."""
    with folder() as path:
        clock = FakeClock(START * 1000)
        with bide.Queue("work", f"sqlite:///{path / 'bide.db'}", clock=clock) as queue:
            for first in range(0, BURST, 1_000):
                numbers = range(first, first + 1_000)
                queue.put_many(
                    bide.NewMessage(BODY, at=START + 60 + n / BURST * seconds) for n in numbers
                )
            clock.advance(120)
            start = time.perf_counter()
            while deliveries := queue.claim(500):
                assert all(queue.ack(deliveries))
            return BURST / (time.perf_counter() - start)


MEASUREMENTS = (claim_and_ack, bursts)
