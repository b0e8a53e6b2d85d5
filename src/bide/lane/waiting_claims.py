"""Claims that wait for due messages, and reads that wait for the end of one. They block no thread.

When a message is due, only the first claim that waits for its queue asks the store; if it
got messages, the next one asks (leader and followers, as in Java's `DelayQueue`). So two hundred
idle workers cost one timer.
"""

from collections import deque
from dataclasses import dataclass, field
from itertools import chain

from sortedcontainers import SortedList

from bide.lane.inbox import FOREVER, LaneRequest
from bide.model.commands import Claim, History
from bide.model.replies import Claimed

LOOK_AGAIN = 1.0
"""Seconds after which the first waiting claim asks the store in any case.

A hint about a change can be lost (another container, a full buffer), and a wall clock can be set.
"""

LOOK_AGAIN_CALM = 2.5
"""The same, where the store says that no change can be missed meanwhile (`Claimed.calm`)."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """The claims that wait for one queue, or for the end of one message.

    Times are those of the monotonic clock; `FOREVER`: none.
    """

    requests: deque[LaneRequest] = field(default_factory=deque)
    """The claims that wait; the first one asks next."""
    asking: int = 0
    """How many others ask the store now, or are about to."""
    wake: float = FOREVER
    """When the first request should ask."""
    listed: float = FOREVER
    """The time under which it is in `WaitingClaims._moments`; `FOREVER`: it is not there."""

    def moment(self) -> float:
        """Return when the first request asks; `FOREVER` while one asks, and without requests."""
        return FOREVER if self.asking or not self.requests else self.wake


class WaitingClaims:
    """All waiting claims of a lane, which only the lane's thread changes."""

    def __init__(self) -> None:
        self.queues: dict[str, _Waiting] = {}
        """By name: the queues with claims that wait, or that ask now; and awaited ends."""
        # Times by the monotonic clock; a number of its own decides between equal times.
        self._moments: SortedList[tuple[float, int, _Waiting]] = SortedList()
        """When the first claim of each queue asks."""
        self._deadlines: SortedList[tuple[float, int, LaneRequest]] = SortedList()
        """When the wait of each claim ends."""
        self.entered: set[LaneRequest] = set()
        """All of them, also those that ask now."""
        self.watchers = 0
        """How many of them wait for the end of a message."""

    def __len__(self) -> int:
        return sum(len(waiting.requests) for waiting in self.queues.values())

    def enter(self, request: LaneRequest) -> None:
        """Add a claim before it asks: from now on no hint for its queue is missed."""
        self.entered.add(request)
        request.entered = True
        waiting = self.queues.setdefault(request.awaits, _Waiting())
        waiting.asking += 1
        self._list(waiting)
        if isinstance(request.command, History):
            self.watchers += 1
        if request.deadline is not None and request.deadline != FOREVER:
            self._deadlines.add((request.deadline, id(request), request))

    def continues(self, request: LaneRequest, now: float, *, closed: bool) -> bool:
        """Note that a claim has its reply; return whether it continues to wait, without messages.

        It waits until something is due, or for a hint; not if its caller has gone or has `closed`.
        """
        has_time = now < (request.deadline or 0)
        if not request.empty or not has_time or closed or request.gone:
            self.leave(request, now, asked=True)
            return False
        waiting = self.queues[request.awaits]
        waiting.asking -= 1
        if request.last is None:
            waiting.requests.append(request)
        else:  # it was the first, and keeps its place
            waiting.requests.appendleft(request)
        reply = request.last = request.reply
        request.reply = None
        calm = isinstance(reply, Claimed) and reply.calm
        waiting.wake = min(waiting.wake, now + (LOOK_AGAIN_CALM if calm else LOOK_AGAIN))
        if isinstance(reply, Claimed) and reply.next is not None:
            waiting.wake = min(waiting.wake, now + reply.next / 1000)
        self._list(waiting)
        return True

    def leave(self, request: LaneRequest, now: float, *, asked: bool) -> None:
        """Remove a settled claim; if it asked, the next one asks whether there is more."""
        waiting = self.queues[request.awaits]
        if asked:
            waiting.asking -= 1
            waiting.wake = now
        self._list(waiting)
        if not waiting.asking and not waiting.requests:
            del self.queues[request.awaits]
        request.entered = False
        self.entered.discard(request)
        if isinstance(request.command, History):
            self.watchers -= 1
        self._deadlines.discard((request.deadline, id(request), request))

    def wanted(self, batch: list[LaneRequest], now: float) -> list[LaneRequest]:
        """Return what to execute of a batch: all but the claims whose callers have gone.

        Otherwise callers with short timeouts fill a slow store with claims that only take messages
        from others and return them. Those that may wait enter before they ask.
        """
        wanted = []
        for request in batch:
            if isinstance(request.command, (Claim, History)) and request.gone:
                if request.entered:
                    self.leave(request, now, asked=True)
                continue
            if request.deadline is not None and not request.entered:
                self.enter(request)
            wanted.append(request)
        return wanted

    def asks_by(self, queue: str, moment: float) -> bool:
        """Return whether a hint is of no use: no claim waits for the queue, or one asks by then.

        Any thread may call this, after it has executed the command that the hint is about. If what
        it reads is out of date, then because a claim has asked since, and that one has seen the
        effect of the command.
        """
        waiting = self.queues.get(queue)
        return waiting is None or waiting.wake <= moment

    def hint(self, queue: str, moment: float) -> None:
        """Let the first claim that waits for a queue ask at a time, unless it asks by then.

        Does nothing if no claim waits for the queue.
        """
        if not self.asks_by(queue, moment):
            waiting = self.queues[queue]
            waiting.wake = moment
            self._list(waiting)

    def due(self, now: float) -> list[LaneRequest]:
        """Return the claims that should ask now, the first of each queue."""
        due = []
        while self._moments and self._moments[0][0] <= now:
            waiting = self._moments[0][2]
            waiting.wake = FOREVER  # until a hint, or the reply of the one that asks now
            waiting.asking += 1
            due.append(waiting.requests.popleft())
            self._list(waiting)
        return due

    def _list(self, waiting: _Waiting) -> None:
        """Note when the first claim of a queue asks, after each change."""
        if (moment := waiting.moment()) == waiting.listed:
            return
        if waiting.listed != FOREVER:
            self._moments.remove((waiting.listed, id(waiting), waiting))
        if moment != FOREVER:
            self._moments.add((moment, id(waiting), waiting))
        waiting.listed = moment

    def withdraw(self, request: LaneRequest, now: float) -> bool:
        """Remove a waiting claim; return False if it does not wait: it asks, or is settled."""
        waiting = self.queues.get(request.awaits)
        if not request.entered or waiting is None or request not in waiting.requests:
            return False
        waiting.requests.remove(request)
        self.leave(request, now, asked=False)
        return True

    def overdue(self, now: float) -> list[LaneRequest]:
        """Remove and return the claims whose deadline has passed.

        One that asks now is left out: `continues` ends its wait.
        """
        overdue = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, request = self._deadlines.pop(0)
            if self.withdraw(request, now):
                overdue.append(request)
        return overdue

    def owned(self, owner: object, now: float) -> list[LaneRequest]:
        """Remove and return the waiting claims of one owner (`None`: all)."""
        waiting_requests = chain.from_iterable(waiting.requests for waiting in self.queues.values())
        owned = [request for request in waiting_requests if owner is None or request.owner is owner]
        for request in owned:
            self.withdraw(request, now)
        return owned

    def next_moment(self) -> float | None:
        """Return the next time at which `due` or `overdue` returns claims; `None`: never."""
        moments = [entries[0][0] for entries in (self._moments, self._deadlines) if entries]
        return min(moments, default=None)
