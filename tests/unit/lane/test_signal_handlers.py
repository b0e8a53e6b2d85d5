"""What a signal handler asks for while it interrupts a command of its own thread is refused.

It would wait for the command that waits for it.
"""

import signal
from collections.abc import Callable, Iterator

import pytest

import bide
from bide.testing.clock import FakeClock
from tests.start import START


class Striking(FakeClock):
    """Sends a signal from within the next command."""

    armed = False

    def now(self) -> int:
        if self.armed:
            self.armed = False
            signal.raise_signal(signal.SIGUSR1)
        return super().now()


@pytest.fixture
def clock() -> Striking:
    return Striking(START)


@pytest.fixture
def orders(clock: Striking) -> Iterator[bide.Queue]:
    with bide.Queue("orders", "memory://", clock=clock) as orders:
        orders.put(1, id="before")
        yield orders


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], object]], object]]:
    """Sets what the signal calls; a test that waits for itself ends."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = [signal.signal(number, late) for number in (signal.SIGUSR1, signal.SIGALRM)]
    signal.alarm(20)
    yield lambda call: signal.signal(signal.SIGUSR1, lambda *_: call())
    signal.alarm(0)
    signal.signal(signal.SIGUSR1, before[0])
    signal.signal(signal.SIGALRM, before[1])


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.put(2),
        lambda queue: queue.claim(),
        lambda queue: queue.undo("0" * 26),
        lambda queue: queue.close(),
    ],
    ids=["put", "claim", "undo", "close"],
)
def test_it_is_refused_and_the_queue_works_on(
    orders: bide.Queue,
    clock: Striking,
    on_signal: Callable[[Callable[[], object]], object],
    call: Callable[[bide.Queue], object],
) -> None:
    on_signal(lambda: call(orders))
    clock.armed = True
    with pytest.raises(bide.WrongContext, match=r"signal handler .* set a flag there or raise"):
        orders.put(1, id="interrupted")
    assert orders.put(1, id="after")
    assert orders.audit()
