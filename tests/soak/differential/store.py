"""A store that sequences are played on, with a clock that they move."""

from collections.abc import Callable

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.lane.lane import Lane
from bide.testing.clock import FakeClock

__all__ = ["Store", "memory"]


class Store:
    """A store.

    Args:
        name: its kind.
        open_engine: opens it.
        server_clock: if a server keeps the time: its clock.
    """

    def __init__(
        self,
        name: str,
        open_engine: Callable[[], Engine],
        server_clock: FakeClock | None = None,
    ) -> None:
        self.name = name
        self._clock = FakeClock()
        self._server_clock = server_clock
        self.lane = Lane(open_engine, self._clock)
        """The way to the store, which is opened with the first command."""
        self.lane.users.append(None)  # the store: else queues of other tests would close it

    def begin(self, now: int) -> None:
        """Set the clock to the time at which a sequence begins."""
        self._clock.set_wall(now)
        self.advance(0)

    def advance(self, ms: int) -> None:
        """Let time pass.

        A server only gets another time: its connections, which time out, live in real time.
        """
        self._clock.advance(ms / 1_000)
        if self._server_clock is not None:
            self._server_clock.set_wall(self._clock.now())


def memory() -> Store:
    """Return an empty store in memory, the specification of the others."""
    return Store("memory", MemoryEngine)
