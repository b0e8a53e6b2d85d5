"""Claim over several shards: peek what each has, then lease what stands first among all.

Messages come in the order of rank over all shards, unless another worker claims in between: then
the shard hands out what follows there. A shard that does not answer is left out.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bide.engines.redis.calls import SLICE, Call, Job, Outcome, Send, decode
from bide.engines.redis.claim import claim_args, take_in
from bide.engines.redis.records import claim_rank
from bide.engines.redis.shards import ShardedQueue, ShardMismatch
from bide.model.commands import Claim
from bide.model.errors import OutcomeUnknown, StoreError
from bide.model.message import Message
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed

__all__ = ["claim_shards"]

_LAPSES, _PROMOTED = 200, 1000
"""How many messages one call of `peek` takes back, and promotes, at most."""


class _View(NamedTuple):
    """What the script `peek` tells of a shard."""

    now: int
    paused: bool
    token: int
    weighted: bool
    lapsed: int
    promoted: int
    ready: int
    due: int
    listed: list[int]

    @property
    def there(self) -> int:
        """How many could be leased from the set that is listed."""
        return 0 if self.paused else self.ready or self.due


class _Claiming:
    """One claim on its way."""

    def __init__(self, command: Claim, sharded: ShardedQueue, send: Send) -> None:
        self.command = command
        self.sharded = sharded
        self.alive = list(range(sharded.count))
        self.reach = max(PROMOTE, command.count)
        self.lapses = dict.fromkeys(self.alive, self.reach)
        self.token = self.floor = self.now = 0
        self.room = command.max_bytes
        self.found: dict[str, tuple[Any, Message]] = {}
        self.error: StoreError | None = None
        self._send = send

    @property
    def wanted(self) -> int:
        return self.command.count - len(self.found)

    def ask(self, calls: Mapping[int, Call]) -> dict[int, Any]:
        """Call shards; return what those answered that are there, and leave out the others."""
        placed = [
            call._replace(shard=shard, shards=self.sharded.count) for shard, call in calls.items()
        ]
        there = {}
        for shard, answer in zip(calls, self._send(placed), strict=True):
            if isinstance(answer, ShardMismatch):
                raise answer
            if isinstance(answer, StoreError):
                self.error = self.error or answer
                self.sharded.leave_out(shard, answer)
                if shard in self.alive:
                    self.alive.remove(shard)
            else:
                self.sharded.take_in(shard)
                there[shard] = answer
        return there

    def peek(self, shards: Iterable[int], promote: int) -> dict[int, _View]:
        """Look into shards, until nothing more is to be taken back or promoted there."""
        most = min(self.wanted, SLICE, self.wanted // self.sharded.count * 5 // 4 + 8)
        views: dict[int, _View] = {}
        left = dict.fromkeys(shards, promote)
        while left:
            calls = {
                s: Call("peek", self.command.queue, (most, self.lapses[s], left[s])) for s in left
            }
            again: dict[int, int] = {}
            for s, text in self.ask(calls).items():
                view = views[s] = _View(*decode(text))
                self.lapses[s] -= view.lapsed
                if view.lapsed == _LAPSES and self.lapses[s] > 0:
                    again[s] = left[s] - view.promoted
                elif view.promoted == _PROMOTED and left[s] > _PROMOTED:
                    again[s] = left[s] - _PROMOTED
            left = again
        self.floor = self.sharded.highest_token(view.token for view in views.values())
        self.now = max([self.now, *(view.now for view in views.values())])
        return {s: view for s, view in views.items() if s in self.alive}

    def lease(self, shares: dict[int, int], source: str) -> int:
        """Lease so many of each shard; return how many came."""
        before = len(self.found)
        resigning = self.sharded.enrolled
        while shares:
            # One shard gives the token, the others take it over.
            chosen = list(shares) if self.token else list(shares)[:1]
            calls = {s: self._call(shares.pop(s), source) for s in chosen}
            if resigning:
                resigning = self.sharded.enrolled = False
                idle = [s for s in self.alive if s not in shares and s not in calls]
                calls |= {s: Call("decline", self.command.queue) for s in idle}
            answers = self.ask(calls)
            for s in chosen:
                if s in answers:
                    (now, token, *_), found = take_in(self.command, answers[s])
                    self.token = self.token or token
                    self.now = max(self.now, now)
                    self.found |= found
                    self.room -= sum(map(len, answers[s][2]))
        return len(self.found) - before

    def _call(self, count: int, source: str) -> Call:
        args = claim_args(
            self.command, count, self.token, room=self.room, source=source, floor=self.floor
        )
        return Call("claim", self.command.queue, args)

    def wait(self) -> float | None:
        """Nothing is there: let the shards know that this lane waits; return for how long."""
        calls = {
            s: Call("claim", self.command.queue, claim_args(self.command, 0, room=0))
            for s in self.alive
        }
        heads = [decode(answer[0]) for answer in self.ask(calls).values()]
        self.sharded.enrolled = True
        self.now = max([self.now, *(head[0] for head in heads)])
        return min([head[3] for head in heads if head[3] is not None], default=None)


def claim_shards(command: Claim, sharded: ShardedQueue) -> Job:
    """Lease up to `count` messages of all shards."""

    def run(send: Send) -> Outcome:
        claiming = _Claiming(command, sharded, send)
        try:
            _lease_first(claiming)
            now = claiming.now
            found = [
                pair for pair in claiming.found.values()
                if command.lease <= 0 or (pair[1].until or 0) > now
            ]  # fmt: skip
            if not found:
                following = claiming.wait()
                return Claimed([], 0, claiming.now, following)
        except StoreError as error:
            return error
        sharded.highest_token([claiming.token])
        found.sort(key=lambda pair: claim_rank(pair[1], pair[0]))
        return Claimed([message for _, message in found], claiming.token, claiming.now)

    return run


def _lease_first(claiming: _Claiming) -> None:
    """Lease what stands first among all shards."""
    examined = 0
    while True:
        views = claiming.peek(claiming.alive, 0)
        if not views and claiming.error is not None and not claiming.found:
            if not claiming.token:
                raise claiming.error
            raise OutcomeUnknown(
                f"{claiming.error}; messages were leased, and come again when the lease lapses"
            ) from claiming.error
        ready = any(view.ready for view in views.values() if not view.paused)
        due = sum(view.due for view in views.values() if not view.paused)
        weighted = any(view.weighted for view in views.values())
        if claiming.wanted <= 0:
            return
        if ready or (weighted and due):
            behind = [s for s, view in views.items() if view.due and not view.paused]
            views |= claiming.peek(behind, claiming.reach)
            ready = True
        views = {s: view for s, view in views.items() if s in claiming.alive}
        shares = _shares(views, claiming.wanted)
        if not shares:
            return
        examined += sum(shares.values())
        left = sum(view.there for view in views.values()) - sum(shares.values())
        claiming.lease(shares, "ready" if ready else "delayed")
        if claiming.wanted <= 0 or left <= 0 or examined >= claiming.reach or claiming.room <= 0:
            return


def _shares(views: Mapping[int, _View], wanted: int) -> dict[int, int]:
    """Return how many to lease of each shard, the one with the very first message first."""
    if sum(view.there for view in views.values()) <= wanted:
        return {s: min(view.there, SLICE) for s, view in views.items() if view.there}
    entries: list[tuple[int, int, int, int]] = []
    reach: tuple[int, int, int] | None = None  # nothing is known of what stands behind it
    for s, view in views.items():
        listed = view.listed if view.there else []
        mine = [(listed[i], listed[i + 1], s, listed[i + 2]) for i in range(0, len(listed), 3)]
        entries += mine
        if mine and len(mine) < view.there:
            reach = mine[-1][:3] if reach is None else min(reach, mine[-1][:3])
    entries.sort()
    shares: dict[int, int] = {}
    for rank, number, s, late in entries:
        if wanted <= 0 or (reach is not None and (rank, number, s) > reach):
            break
        shares[s] = shares.get(s, 0) + 1
        wanted -= not late
    return shares
