"""Eight processes put and claim on one file: nobody may ever see that it is locked.

python -m tests.soak.faults.eight_processes --seconds 60
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import NamedTuple

import bide

PROCESSES = 8

LEAST = 200
"""Turns of each process, however slow the machine is."""


class Tally(NamedTuple):
    """What one process did; times in seconds."""

    put: int
    acked: int
    longest: float
    """The longest that a single call took."""
    errors: list[str]


class Result(NamedTuple):
    """What all of them did."""

    seconds: float
    put: int
    acked: int
    longest: float
    errors: list[str]
    audit: bide.Audit


def run(url: str, seconds: float) -> Result:
    """Let eight processes work for so long, and add up what they did."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bide"])
    tallies: SimpleQueue[Tally] = context.SimpleQueue()
    began = time.monotonic()
    processes = [
        context.Process(target=_work, args=(url, seconds, number, tallies), daemon=True)
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    told = [tallies.get() for _ in processes]
    for process in processes:
        process.join()
    took = time.monotonic() - began
    with bide.Queue("orders", url) as orders:
        audit = orders.audit()
    return Result(
        took,
        sum(tally.put for tally in told),
        sum(tally.acked for tally in told),
        max(tally.longest for tally in told),
        [error for tally in told for error in tally.errors],
        audit,
    )


def _work(url: str, seconds: float, number: int, tallies: "SimpleQueue[Tally]") -> None:
    put = acked = turn = 0
    longest = 0.0
    errors: list[str] = []
    end = time.monotonic() + seconds
    with bide.Queue("orders", url, holder=f"w{number}") as orders:
        while (now := time.monotonic()) < end or turn < LEAST:
            turn += 1
            try:
                if turn % 2:
                    put += sum(o.done for o in orders.put_many(range(turn % 7 + 1)))
                else:
                    deliveries = orders.claim(10)
                    acked += sum(o.done for o in orders.ack(deliveries)) if deliveries else 0
            except bide.StoreError as error:
                errors.append(f"{type(error).__name__}: {error}")
            longest = max(longest, time.monotonic() - now)
    tallies.put(Tally(put, acked, longest, errors))


def main(arguments: Sequence[str] | None = None) -> int:
    """Work for as long as is asked for, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args(arguments).seconds
    with tempfile.TemporaryDirectory() as folder:
        result = run(f"sqlite:///{Path(folder).absolute()}/bide.db", seconds)
    print(
        f"{PROCESSES} processes, {result.seconds:.1f} s: {result.put:,} put, {result.acked:,} "
        f"acked ({(result.put + result.acked) / result.seconds:,.0f} messages a second); the "
        f"longest call took {result.longest * 1000:,.0f} ms; {len(result.errors)} errors; "
        f"the audit {'balances' if result.audit else 'does NOT balance'}"
    )
    for error in result.errors[:5]:
        print(error)
    if result.longest > 15:
        print("somebody waited for half of the time-out")
    return 1 if result.errors or not result.audit or result.longest > 15 else 0


if __name__ == "__main__":
    raise SystemExit(main())
