"""What `Queue` and `AsyncQueue` have in common: a name, a lane, and when it was closed."""

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from bide.clock import SYSTEM_CLOCK, Clock
from bide.engines.registry import DEFAULT_URL, mask
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.model.body import MAX_BODY
from bide.model.commands import Configure, Retry
from bide.model.errors import Closed, InvalidArgument
from bide.model.identity import check_name
from bide.model.moments import Duration, milliseconds
from bide.queue.arguments import Arguments
from bide.queue.delivery import Held, leases

__all__ = ["Face", "detour"]

_faces: "weakref.WeakSet[Face]" = weakref.WeakSet()
_detours: list[tuple[Lane, Clock]] = []


class Face:
    """A queue's name, and the way to its store.

    Args:
        name: of the queue: 1 to 128 letters, digits and `_ . : -`.
        url: of the store; the environment's `BIDE_URL`, or else `sqlite:///bide.db`.
        keep: how long acked messages are remembered, so that their ids are refused; stored with the
            queue, for all who use it. `None` leaves it as it is.
        max_body: how many bytes an encoded body may take.
        holder: by what name this worker is known to others; its host and process by default.
        clock: for tests; see `bide.testing.FakeClock`.
    """

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        keep: Duration | None = None,
        max_body: int = MAX_BODY,
        holder: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if url is not None and not isinstance(url, str):
            raise InvalidArgument(
                f"url={url!r} must be a str; for a file write 'sqlite:///path/to/bide.db'"
            )
        self._ask = Arguments(name, max_body)
        self._url = url or os.environ.get("BIDE_URL") or DEFAULT_URL
        self._to_keep = None if keep is None else milliseconds(keep, "keep")
        self._holder = None if holder is None else check_name(holder, "holder")
        self._own_clock = clock
        if _detours and clock is SYSTEM_CLOCK:
            self._go(*_detours[-1])
        else:
            self._go(open_lane(self._url, clock), clock)
        self._users = [name]  # one, until it is closed
        _faces.add(self)

    def _go(self, lane: Lane, clock: Clock) -> None:
        """Be at a store, by a clock."""
        self._lane = lane
        self._clock = clock
        self._keep = self._to_keep  # this store has not been told

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._ask.queue

    @property
    def url(self) -> str:
        """The store's URL, with a password hidden."""
        return mask(self._url)

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<{type(self).__name__} {self.name!r} at {self.url}{closed}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be sent to another process; make one there, with the "
            "same name and URL"
        )

    @property
    def _closed(self) -> bool:
        return not self._users

    def _configuration(self, keep: int) -> Configure:
        """Return what sets what the constructor was told; sent once, before the first change."""
        return Configure(self.name, keep=keep)

    def _retrying(self, deliveries: Sequence[Held], delay: Duration, reason: str) -> Retry:
        return self._ask.retry(leases(deliveries), delay, reason, self._clock.now())

    def _was_closed(self) -> Closed:
        return Closed(f"queue {self.name!r} was closed; make a new one to go on")

    def _close(self) -> None:
        try:
            self._users.pop()  # by one thread only, whoever else closes at the same time
        except IndexError:
            return
        self._lane.release(self)
        if all(self._lane is not lane for lane, _ in _detours):
            close_lane(self._lane)


@contextmanager
def detour(lane: Lane, clock: Clock) -> Iterator[None]:
    """Lead every queue of this process to one store and one clock while the block runs.

    For tests: queues that a program has made before, often when it was imported, come along, and so
    do those it makes meanwhile. A queue that was given a clock of its own stays where it is.
    """
    before = {
        face: (face._lane, face._clock)
        for face in list(_faces)
        if face._own_clock is SYSTEM_CLOCK and not face._closed
    }
    _detours.append((lane, clock))
    for face in before:
        face._go(lane, clock)
    try:
        yield
    finally:
        _detours.remove((lane, clock))
        for face in [face for face in list(_faces) if face._lane is lane]:
            home = before.pop(face, None)
            if home is not None:
                face._go(*home)
                if face._closed:
                    close_lane(face._lane)
            elif not face._closed:
                face._go(open_lane(face._url, SYSTEM_CLOCK), SYSTEM_CLOCK)
