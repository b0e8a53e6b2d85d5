"""Calls that time out in greenlets: python -m tests.system.faults.greenlets URL HITS.

Prints false answers, and what the store contradicts; then the number of calls that were struck.
"""

from gevent import monkey

monkey.patch_all()

import random  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Literal, TypeVar  # noqa: E402

import gevent  # noqa: E402

from bide.threads import deaths  # noqa: E402
from tests.system.faults.ledger import Ledger  # noqa: E402
from tests.system.faults.strikes import Struck, own_threads  # noqa: E402

R = TypeVar("R")

GREENLETS = 3
"""How many greenlets call at the same time, so that batches have calls of several."""

SHORTEST, LONGEST = 1e-5, 0.05
"""The bounds, in seconds, of the time-out of a call."""


class Timeouts:
    """Has calls time out wherever their greenlet waits then; about half of them."""

    def __init__(self) -> None:
        self.hits = 0
        self._random = random.Random(1)
        self._reach = 0.001

    def during(self, call: Callable[[], R]) -> R | Literal[Struck.STRUCK]:
        """Return the answer of a call, or that it timed out."""
        timeout = gevent.Timeout(self._random.uniform(SHORTEST, self._reach))
        timeout.start()
        try:
            answer = call()
        except gevent.Timeout as error:
            if error is not timeout:
                raise
            self.hits += 1
            self._reach = min(self._reach * 1.03, LONGEST)
            return Struck.STRUCK
        finally:
            timeout.close()
        self._reach = max(self._reach * 0.97, 2 * SHORTEST)
        return answer


def main(url: str, hits: int) -> None:
    strikes = Timeouts()
    ledger = Ledger(url, strikes, wait=0.01, releases=True)

    def call() -> None:
        while strikes.hits < hits:
            ledger.turn()
            gevent.sleep(0)

    gevent.joinall([gevent.spawn(call) for _ in range(GREENLETS)], raise_error=True)
    assert own_threads()
    assert deaths.total() == 0
    for problem in ledger.problems():
        print(problem)
    print(strikes.hits)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
