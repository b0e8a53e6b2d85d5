"""Claim over all shards: first see what each has, then take what stands first among all.

What is taken goes out by weight and age over all shards, as from a queue of one shard, as long as
nobody else claims in between. Then somebody may have taken what stood first, and the shard hands
out what follows there. A shard that does not answer is left out.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bide.engines.redis.records import SEQ, as_claimed
from bide.engines.redis.shards.made import Made
from bide.engines.redis.shards.rounds import Round, ask, together
from bide.engines.redis.verbs.claim import brought, others, unknown
from bide.engines.redis.verbs.job import SLICE, Call, Job, decode
from bide.model.commands import Claim
from bide.model.errors import StoreError
from bide.model.message import Message
from bide.model.rank import PROMOTE, ready_rank
from bide.model.replies import Claimed

__all__ = ["claim_all"]

_LAPSES, _WEIGHED = 200, 1000
"""How many messages one call of `survey` takes back, and weighs, at most."""


class _View(NamedTuple):
    """What the script `survey` tells of a shard."""

    now: int
    paused: bool
    token: int
    weighted: bool
    lapsed: int
    weighed: int
    ready: int
    due: int
    listed: list[int]

    @property
    def there(self) -> int:
        """How many could be taken from the set that is listed."""
        return 0 if self.paused else self.ready or self.due


class _Claim:
    """One claim on its way."""

    def __init__(self, command: Claim, made: Made) -> None:
        self.command = command
        self.made = made
        self.alive = list(range(made.count))
        self.wanted = command.count
        self.reach = max(PROMOTE, command.count)
        self.lapses = dict.fromkeys(self.alive, self.reach)
        self.token = 0
        self.room = command.max_bytes
        self.floor = 0
        self.now = 0
        self.found: list[tuple[tuple[int, bytes, int], Message]] = []
        self.error: StoreError | None = None

    def heard(self, answers: Mapping[int, Any]) -> dict[int, Any]:
        """Return what came from shards that answer, and leave out the others."""
        there = {}
        for shard, answer in answers.items():
            if isinstance(answer, StoreError):
                self.error = self.error or answer
                self.made.leave_out(shard, answer)
                if shard in self.alive:
                    self.alive.remove(shard)
            else:
                self.made.take_in(shard)
                there[shard] = answer
        return there

    def survey(self, shards: Iterable[int], weigh: int) -> Round[dict[int, _View]]:
        """Look into shards, until nothing more is to be taken back or weighed there."""
        most = min(self.wanted, SLICE, self.wanted // self.made.count * 5 // 4 + 8)
        views: dict[int, _View] = {}
        left = dict.fromkeys(shards, weigh)
        while left:
            calls = {
                s: Call("survey", self.command.queue, (most, self.lapses[s], left[s])) for s in left
            }
            answers = self.heard((yield from ask(calls, self.made.count)))
            again: dict[int, int] = {}
            for s, text in answers.items():
                view = views[s] = _View(*decode(text))
                self.lapses[s] -= view.lapsed
                if view.lapsed == _LAPSES and self.lapses[s] > 0:
                    again[s] = left[s] - view.weighed
                elif view.weighed == _WEIGHED and left[s] > _WEIGHED:
                    again[s] = left[s] - _WEIGHED
            left = again
        self.floor = self.made.token_above([view.token for view in views.values()])
        self.now = max([self.now, *(view.now for view in views.values())])
        return {s: view for s, view in views.items() if s in self.alive}

    def take(self, shares: dict[int, int], source: str) -> Round[int]:
        """Lease so many of each shard; return how many came."""
        before = len(self.found)
        resigning = self.made.enrolled
        while shares:
            # One shard gives the token, the others take it over.
            chosen = list(shares) if self.token else list(shares)[:1]
            calls = {s: self._take(shares.pop(s), source) for s in chosen}
            if resigning:
                resigning = self.made.enrolled = False
                idle = [s for s in self.alive if s not in shares and s not in calls]
                calls |= {s: Call("decline", self.command.queue) for s in idle}
            answers = self.heard((yield from ask(calls, self.made.count)))
            yield from self._add({s: answers[s] for s in chosen if s in answers})
        return len(self.found) - before

    def _take(self, count: int, source: str) -> Call:
        command = self.command
        room = self.room // self.made.count
        args = count, command.lease, command.holder, source, self.token or "", self.floor, room
        return Call("take", command.queue, args)

    def _add(self, answers: dict[int, Any]) -> Round[None]:
        command = self.command
        untils: dict[int, int] = {}
        lost = {s: decode(answer) for s, answer in answers.items() if isinstance(answer, bytes)}
        if lost:  # their replies were lost on the way, and these are of the second try
            calls = {s: Call("recover", command.queue, tuple(told)) for s, told in lost.items()}
            untils = {s: until for s, (_, until) in lost.items()}
            answers = answers | self.heard((yield from ask(calls, self.made.count)))
        jobs = {}
        heads = {s: decode(a[0]) for s, a in answers.items() if not isinstance(a, bytes)}
        for s, (now, *_) in heads.items():
            until = untils.setdefault(s, now + command.lease)
            self.token = self.token or heads[s][1]
            jobs[s] = brought(command.queue, answers[s], until)
        for s, (ids, records) in self.heard((yield from together(jobs, self.made.count))).items():
            now, token, *_ = heads[s]  # nothing has tags
            self.token = self.token or token
            self.now = max(self.now, now)
            if s in lost:  # what was leased at the same moment before is told again as well
                ids, records = others(ids, records, {m.id for _, m in self.found})
            messages = as_claimed(command.queue, ids, records, now, command.holder, untils[s])
            for message, record in zip(messages, records, strict=True):
                rank = ready_rank(message.due, message.priority)
                self.found.append(((rank, record[:SEQ], s), message))
                self.room -= len(record)

    def drop_lapsed(self) -> None:
        """Forget what was leased in one shard while another took longer than the lease."""
        if self.command.lease > 0:
            self.found = [pair for pair in self.found if (pair[1].until or 0) > self.now]

    def wait(self) -> Round[float | None]:
        """Nothing is there: let the shards know who waits; return for how long."""
        args = (0, self.command.lease, self.command.holder, "", 0, 0, 0)
        calls = {s: Call("claim", self.command.queue, args) for s in self.alive}
        answers = self.heard((yield from ask(calls, self.made.count)))
        self.made.enrolled = True
        heads = [decode(head) for head, *_ in answers.values()]
        self.now = max([self.now, *(head[0] for head in heads)])
        return min([head[2] for head in heads if head[2] is not None], default=None)


def claim_all(command: Claim, made: Made) -> Job:
    """Lease up to `count` messages of all shards."""
    claim = _Claim(command, made)
    examined = 0
    while True:
        views = yield from claim.survey(claim.alive, 0)
        if not views and claim.error is not None:
            if claim.found:  # else they would be held by nobody who knows
                break
            raise unknown(claim.error) if claim.token else claim.error
        if claim.wanted <= 0:
            break
        ready = any(view.ready for view in views.values() if not view.paused)
        due = sum(view.due for view in views.values() if not view.paused)
        weighted = any(view.weighted for view in views.values())
        if ready or (weighted and due > claim.wanted):
            behind = [s for s, view in views.items() if view.due and not view.paused]
            views |= yield from claim.survey(behind, claim.reach)
            ready = True
        views = {s: view for s, view in views.items() if s in claim.alive}
        shares = _shares(views, claim.wanted)
        if not shares:
            break
        examined += sum(shares.values())
        left = sum(view.there for view in views.values()) - sum(shares.values())
        claim.wanted -= yield from claim.take(shares, "ready" if ready else "delayed")
        if claim.wanted <= 0 or left <= 0 or examined >= claim.reach:
            break
        if claim.room < claim.command.max_bytes // 2:  # a shard may have had no room for more
            break
    claim.drop_lapsed()
    if not claim.found:
        following = yield from claim.wait()
        return [Claimed([], 0, claim.now, following)]
    made.token_above([claim.token])
    claim.found.sort(key=lambda pair: pair[0])
    return [Claimed([message for _, message in claim.found], claim.token, claim.now)]


def _shares(views: Mapping[int, _View], wanted: int) -> dict[int, int]:
    """Return how many to take of each shard, the one with the very first message first."""
    total = sum(view.there for view in views.values())
    if total <= wanted:
        return {s: min(view.there, SLICE) for s, view in views.items() if view.there}
    entries: list[tuple[int, int, int, int]] = []
    reach: tuple[int, int, int] | None = None  # what stands behind it nobody has told of
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
