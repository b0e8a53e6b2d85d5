"""Claims that wait for due messages, and reads that wait for the end of one. They block no thread.

When a message is due, only the first claim that waits for its queue asks the store; if it
got messages, the next one asks (leader and followers, as in Java's `DelayQueue`). So two hundred
idle workers cost one timer.
"""

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bide.engines.port import Notifier
from bide.lane.inbox import FOREVER, Request
from bide.model.commands import History
from bide.model.replies import Claimed

LOOK_AGAIN = 1.0
"""Seconds after which the first waiting claim asks the store in any case.

A hint about a change can be lost (another container, a full buffer), and a wall clock can be set.
"""

CALM = 2.5
"""The same, where the store says that no change can be missed meanwhile."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """The claims that wait for one queue."""

    requests: deque[Request] = field(default_factory=deque)
    leader: Request | None = None
    interested: int = 0
    asking: int = 0
    asked: float = 0.0
    look_again: float = LOOK_AGAIN
    wake: float | None = None
    listed: float | None = None
    """The time of its entry in the heap of all queues: when it is due to ask, or earlier."""

    def moment(self) -> float | None:
        """Return when the first request should ask; `None` while one asks, and without requests."""
        if self.asking or not self.requests:
            return None
        soon = self.asked + self.look_again
        return soon if self.wake is None else min(self.wake, soon)


class WaitingClaims:
    """All waiting claims of a lane. Not thread-safe: the caller holds the lane's lock."""

    def __init__(self) -> None:
        self.queues: dict[str, _Waiting] = {}
        """By name: the queues with claims that wait, or that ask now; and awaited ends."""
        self._moments: list[tuple[float, int, _Waiting]] = []
        self._deadlines: list[tuple[float, int, Request]] = []
        self._numbers = itertools.count()
        self._left = 0
        self.watchers = 0
        """How many of them wait for the end of a message."""

    def __len__(self) -> int:
        return sum(len(waiting.requests) for waiting in self.queues.values())

    def enter(self, request: Request) -> None:
        """Add a claim before it asks: from now on no hint for its queue is missed."""
        waiting = self.queues.setdefault(request.awaits, _Waiting())
        waiting.interested += 1
        waiting.asking += 1
        request.entered = True
        self.watchers += isinstance(request.command, History)
        if request.deadline is not None and request.deadline != FOREVER:
            heapq.heappush(self._deadlines, (request.deadline, next(self._numbers), request))

    def has_asked(self, request: Request, now: float, *, closed: bool) -> bool:
        """Note that a claim has its reply; return whether it continues to wait, without messages.

        It waits until something is due, or for a hint; not if its caller has gone or has `closed`.
        """
        waits = request.empty and now < (request.deadline or 0)
        if not waits or closed or request.gone:
            self.leave(request, now, asked=True)
            return False
        reply = request.last = request.reply
        request.reply = None
        waiting = self.queues[request.awaits]
        waiting.asking -= 1
        waiting.asked = now
        waiting.look_again = CALM if isinstance(reply, Claimed) and reply.calm else LOOK_AGAIN
        if request is waiting.leader:  # it keeps its place
            waiting.requests.appendleft(request)
        else:
            waiting.requests.append(request)
        if isinstance(reply, Claimed) and reply.next is not None:
            wake = now + reply.next / 1000
            waiting.wake = wake if waiting.wake is None else min(wake, waiting.wake)
        self._list(waiting)
        return True

    def leave(self, request: Request, now: float, *, asked: bool) -> None:
        """Remove a settled claim; if it asked, the next one asks whether there is more."""
        waiting = self.queues[request.awaits]
        waiting.interested -= 1
        if asked:
            waiting.asking -= 1
            waiting.wake = now
            self._list(waiting)
        if not waiting.interested:
            del self.queues[request.awaits]
        request.entered = False
        self.watchers -= isinstance(request.command, History)
        self._left += 1
        if self._left > 64 + len(self._deadlines) // 2:  # most deadlines are of settled claims
            self._deadlines = [entry for entry in self._deadlines if entry[2].entered]
            heapq.heapify(self._deadlines)
            self._left = 0

    def wanted(self, batch: list[Request], now: float) -> list[Request]:
        """Return what to execute of a batch: all but the claims whose callers have gone.

        Otherwise callers with short timeouts fill a slow store with claims that only take messages
        from others and return them.
        """
        pointless = [request for request in batch if request.pointless]
        if not pointless:
            return batch
        for request in pointless:
            request.settled = True
            if request.entered:
                self.leave(request, now, asked=True)
        return [request for request in batch if not request.settled]

    def hint(self, queue: str, moment: float) -> bool:
        """Note when messages can be claimed; return whether a claim will ask sooner for it."""
        waiting = self.queues.get(queue)
        if waiting is None or (waiting.wake is not None and waiting.wake <= moment):
            return False
        waiting.wake = moment
        self._list(waiting)
        return True

    def due(self, now: float) -> list[Request]:
        """Return the claims that should ask now, the first of each queue."""
        due = []
        while (first := self._first()) is not None and first[0] <= now:
            waiting = first[1]
            waiting.wake = None
            waiting.asking += 1
            waiting.leader = waiting.requests.popleft()
            due.append(waiting.leader)
        return due

    def _list(self, waiting: _Waiting) -> None:
        """Enter a queue into the heap, unless it has an entry that is early enough."""
        moment = waiting.moment()
        if moment is not None and (waiting.listed is None or moment < waiting.listed):
            waiting.listed = moment
            heapq.heappush(self._moments, (moment, next(self._numbers), waiting))

    def _first(self) -> tuple[float, _Waiting] | None:
        """Return the earliest time and its queue; correct or drop the entries before it."""
        while self._moments:
            listed, _, waiting = self._moments[0]
            if listed == waiting.listed == waiting.moment():
                return listed, waiting
            heapq.heappop(self._moments)
            if listed == waiting.listed:
                waiting.listed = None
                self._list(waiting)
        return None

    def withdraw(self, request: Request, now: float) -> bool:
        """Remove a waiting claim; return False if it does not wait: it asks, or is settled."""
        waiting = self.queues.get(request.awaits)
        if not request.entered or waiting is None or request not in waiting.requests:
            return False
        waiting.requests.remove(request)
        self.leave(request, now, asked=False)
        return True

    def overdue(self, now: float) -> list[Request]:
        """Remove and return the claims whose deadline has passed."""
        over = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if self.withdraw(request, now):
                over.append(request)
        return over

    def owned(self, owner: object, now: float) -> list[Request]:
        """Remove and return the claims of one owner (`None`: all)."""
        requests = [t for w in self.queues.values() for t in w.requests]
        owned = [t for t in requests if owner is None or t.owner is owner]
        for request in owned:
            self.withdraw(request, now)
        return owned

    def next_moment(self) -> float | None:
        """Return the next time at which `due` or `overdue` returns claims."""
        first = self._first()
        moments = [] if first is None else [first[0]]
        while self._deadlines and not self._deadlines[0][2].entered:
            heapq.heappop(self._deadlines)  # it was settled
        if self._deadlines:
            moments.append(self._deadlines[0][0])
        return min(moments, default=None)


class Wakeups:
    """Passes the hints of a notifier on until it is stopped.

    Args:
        notifier: the engine's notifier; `None` if the store has none.
        hint: called with a queue, and the time (Unix milliseconds) from which it can be claimed;
            returns whether a claim waits for it.
    """

    def __init__(self, notifier: Notifier | None, hint: Callable[[str, int], bool]) -> None:
        self._notifier = notifier
        self._hint = hint
        self._thread: threading.Thread | None = None
        if notifier is not None:
            self._thread = threading.Thread(target=self._run, name="bide-notifier", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        if self._notifier is not None:
            self._notifier.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        assert self._notifier is not None
        while hints := self._notifier.listen():
            for queue, wake in hints:
                if not self._hint(queue, wake):
                    self._notifier.decline(queue, wake)
                    # The store has forgotten a claim that began to wait meanwhile: it asks again.
                    self._hint(queue, 0)
