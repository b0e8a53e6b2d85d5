"""What is going to happen in the demo: when each order comes, when it times out, who pays when."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["LEASE", "QUEUE", "Order", "Plan"]

QUEUE = "orders"

LEASE = 2.0
"""After so many seconds without an ack, a worker's orders go to another."""

PAID = 0.78
"""The part of the orders that is paid well in time."""
LAST_MOMENT = 0.04
"""The part that is paid within 10 ms of its time-out, before it or after it: races."""

RUSHES = (0.4, 0.55, 0.7)
"""When, as parts of the whole time, many orders come that all time out at the same moment."""


@dataclass(frozen=True)
class Order:
    """One customer's order."""

    id: str
    opens: float
    """When it is put, in seconds from the beginning."""
    timeout: float
    pays: float | None = None
    """When its customer pays."""
    rush: bool = False


@dataclass(frozen=True)
class Plan:
    """The size of a demo."""

    orders: int
    seconds: float
    """For how long orders come."""
    workers: int
    seed: int = 1

    @property
    def longest(self) -> float:
        """The longest time-out, in seconds."""
        return min(4.0, max(1.0, self.seconds / 2))

    @property
    def shortest(self) -> float:
        """The shortest time-out, in seconds."""
        return self.longest / 4

    def timeline(self) -> Iterator[Order]:
        """Return the orders in the order in which they come."""
        chance = random.Random(self.seed)
        rush_size = max(3, self.orders // 100)
        rushes = [int(part * self.orders) for part in RUSHES]
        for number in range(self.orders):
            id = f"order-{number + 1:05}"
            opens = self.seconds * number / self.orders
            rush = next((first for first in rushes if first <= number < first + rush_size), None)
            if rush is not None:
                opens = self.seconds * rush / self.orders
                yield Order(id, opens, self.shortest, rush=True)
                continue
            timeout = chance.uniform(self.shortest, self.longest)
            fate = chance.random()
            if fate < PAID:
                yield Order(id, opens, timeout, opens + timeout * chance.uniform(0.1, 0.95))
            elif fate < PAID + LAST_MOMENT:
                yield Order(id, opens, timeout, opens + timeout + chance.uniform(-0.01, 0.01))
            else:
                yield Order(id, opens, timeout)
