"""Whether an operation costs more when more is pending."""

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator

import bide
from benchmarks.core.store import BODY, folder, queue_in
from benchmarks.figure import Figure

__all__ = ["FEW", "MEASUREMENTS", "compare"]

FEW, MANY = 1_000, 1_000_000
ROUNDS = 300

Operation = Callable[[bide.Queue, int], object]


def _claim_and_ack(queue: bide.Queue, number: int) -> None:
    queue.put(BODY)
    (delivery,) = queue.claim(1)
    delivery.ack()


OPERATIONS: dict[str, Operation] = {  # reads first: the disk is still busy with the filling
    "get": lambda queue, n: queue.get(f"m{n * 7919 % FEW}"),
    "counts": lambda queue, n: queue.counts(),
    "peek": lambda queue, n: queue.peek(10),
    "reschedule": lambda queue, n: queue.reschedule(f"m{n * 7919 % FEW}", delay=86_400 + n),
    "cancel + put": lambda queue, n: (
        queue.cancel(f"m{n % FEW}"),
        queue.put(BODY, id=f"m{n % FEW}", delay=86_400),
    ),
    "put": lambda queue, n: queue.put(BODY, delay=86_400 + n % 3_600),
    "put + claim + ack": _claim_and_ack,
}


def growth() -> Iterator[Figure]:
    """Each operation with a million pending, against a thousand."""
    with folder() as few_path, folder() as many_path:
        with queue_in(few_path) as few, queue_in(many_path) as many:
            _fill(few, FEW)
            _fill(many, MANY)
            os.sync()  # or the kernel writes back 400 MB while single commits are timed
            yield from compare(few, many)


def compare(few: bide.Queue, many: bide.Queue) -> Iterator[Figure]:
    """Time each operation on both queues in turn; both have the messages m0 to m999."""
    for name, operation in OPERATIONS.items():
        yield _compare(name, operation, few, many)


def _fill(queue: bide.Queue, count: int) -> None:
    """Put messages due over a week; the thousand that are named lie scattered among them."""
    step = count // FEW
    numbers = itertools.count()
    for first in range(0, count, 1_000):
        queue.put_many(
            [
                bide.NewMessage(
                    body=BODY,
                    delay=3_600 + number * 7919 % 604_800,
                    id=f"m{number // step}" if number % step == 0 else None,
                )
                for number in itertools.islice(numbers, min(1_000, count - first))
            ]
        )


def _compare(name: str, operation: Operation, few: bide.Queue, many: bide.Queue) -> Figure:
    for warm in range(FEW):
        operation(few, warm)
        operation(many, warm)
    times: dict[int, list[float]] = {FEW: [], MANY: []}
    for number in range(ROUNDS):
        for size, queue in ((FEW, few), (MANY, many)):
            start = time.perf_counter()
            operation(queue, number)
            times[size].append((time.perf_counter() - start) * 1e6)
    base, value = statistics.median(times[FEW]), statistics.median(times[MANY])
    ratio = value / base
    return Figure(
        f"{name}, 1 M pending against 1 k",
        value,
        "us",
        base,
        ratio,
        "at most 1.3 times",
        ratio <= 1.3,
    )


MEASUREMENTS = (growth,)
