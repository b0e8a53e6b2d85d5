"""Claim: lease the next due messages of a queue; of several shards, what is first among all.

Over several shards, messages come in the order of rank, unless another worker claims in between:
then the shard hands out what follows there. A shard that does not answer is left out.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from bide.engines.redis.calls import SLICE, Call, Round, ShardMismatch, Step, spread
from bide.engines.redis.records import DAMAGED, claim_rank, read_record
from bide.engines.redis.shards import ShardedQueue
from bide.model.commands import Claim
from bide.model.errors import OutcomeUnknown, StoreError
from bide.model.message import Message
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed, Died

LAPSES = 200
"""How many messages one call takes back at most."""

_log = logging.getLogger("bide.redis")


class _Claiming:
    """What a claim has got so far."""

    def __init__(self, command: Claim) -> None:
        self.command = command
        self.reach = max(PROMOTE, command.count)
        self.room = command.max_bytes
        self.token = self.now = 0
        self.weighted = self.results = self.behind = False
        self.freed: list[int] = []
        self.died: list[Died] = []
        self._damaged: list[str] = []
        self._found: dict[str, tuple[bytes, Message]] = {}

    @property
    def wanted(self) -> int:
        """How many messages are still wanted; none if there is no room for more."""
        full = self._found and self.room <= 0
        return 0 if full else self.command.count - len(self._found)

    @property
    def slots(self) -> int | str:
        """How many more the caller can start at once; empty: it does not say."""
        slots = self.command.slots
        return "" if slots is None else slots - len(self._found)

    def call(
        self,
        count: int,
        budgets: Sequence[int] = (0, 0, 0),
        *,
        shared: bool = False,
        floor: int = 0,
    ) -> Call:
        """Return a call of the script, which describes its arguments."""
        command = self.command
        lease = (command.lease, command.holder, self.token or "")
        args = (count, *lease, *budgets, self.room, "1" if shared else "", floor, self.slots)
        return Call("claim", command.queue, args)

    def take(self, answer: Sequence[Any]) -> Sequence[Any]:
        """Take in what the script answered; return the rest of its head."""
        head, ids, records = answer
        now, _change, token, until, self.results, *rest, died, freed, behind = head
        self.now = max(self.now, now)  # shards answer side by side
        self.behind = behind
        self.died += [Died(*each) for each in died]
        self.token = token or self.token
        queue, holder = self.command.queue, self.command.holder
        for place, (id_, record) in enumerate(zip(ids, records, strict=True)):
            id = id_.decode()
            try:
                message = read_record(queue, id, record, self.now, holder=holder, until=until)
            except DAMAGED:
                self._damaged.append(id)
                continue
            self.room -= len(record) + len(id_)
            self._found[id] = record, message
            self.freed += freed[place : place + 1]
        return tuple(rest)

    def mend(self, shards: int) -> Round:
        """Make dead letters of the messages whose records cannot be read."""
        queue, args = self.command.queue, ("mend", "", "", "", self.command.holder, "")
        for id in self._damaged:
            _log.error(
                "the record of message %r in queue %r cannot be read: it is a dead letter now, "
                "with those bytes as its body", id, queue,
            )  # fmt: skip
        calls = []
        for shard, lot in spread(self._damaged, shards) if self._damaged else ():
            rows = [part for index in lot for part in (self._damaged[index], self.token)]
            calls.append(Call("change", queue, (*args, *rows), shard, shards))
        if calls:
            yield calls

    def reply(self, following: float | None) -> Claimed:
        """Return the reply, of the messages whose lease has not ended meanwhile."""
        held = found = list(self._found.values())
        freed = self.freed
        if self.command.lease > 0:
            held = [pair for pair in found if (pair[1].until or 0) > self.now]
            if freed and len(held) < len(found):
                freed = [at for at, pair in zip(freed, found, strict=True) if pair in held]
        if not held:
            following = 0 if found or self._damaged else following
            return Claimed([], 0, self.now, following, self.died, behind=self.behind)
        if self.weighted:
            held.sort(key=lambda pair: claim_rank(pair[1], pair[0]))
        messages = [message for _, message in held]
        return Claimed(
            messages, self.token, self.now, None, self.died, self.results, freed, self.behind
        )


def claim(command: Claim) -> Step:
    """Lease messages, mostly in one call; many of them slice by slice."""
    claiming = _Claiming(command)
    budgets = [claiming.reach] * 3
    following: float | None = None
    more = True
    while more:
        (answer,) = yield [claiming.call(claiming.wanted, budgets)]
        if isinstance(answer, StoreError):
            if claiming.token:  # without a reply, no worker would know of the messages
                break
            raise answer
        following, weighted, *spent, more = claiming.take(answer)
        claiming.weighted = claiming.weighted or weighted
        budgets = [left - used for left, used in zip(budgets, spent, strict=True)]
        more = more and claiming.wanted > 0
    yield from claiming.mend(1)
    return [claiming.reply(following)]


def claim_shards(command: Claim, sharded: ShardedQueue) -> Step:
    """Lease messages of all shards: peek what each has, then lease what is first among all."""
    claiming = _Claiming(command)
    claiming.weighted = True
    shards = _Shards(command.queue, sharded)
    examined = 0
    more = True
    while more:
        wanted = claiming.wanted
        most = min(wanted, SLICE, wanted // sharded.count * 5 // 4 + 8)
        views = yield from shards.peek(most, claiming.reach)
        if not views and shards.error is not None:
            if claiming.token and wanted == command.count:
                raise OutcomeUnknown(
                    f"{shards.error}; messages were leased, and come again when the lease ends"
                ) from shards.error
            if not claiming.token:
                raise shards.error
        shares = _shares(views, wanted)
        examined += sum(shares.values())
        while shares:
            # One shard gives the token, the others take it over.
            chosen = list(shares) if claiming.token else list(shares)[:1]
            floor = sharded.highest_token([claiming.token])
            calls = {s: claiming.call(shares.pop(s), shared=True, floor=floor) for s in chosen}
            if sharded.enrolled:
                sharded.enrolled = False
                idle = [s for s in shards.alive if s not in shares and s not in calls]
                calls |= {s: Call("decline", command.queue) for s in idle}
            answers = yield from shards.ask(calls)
            for s in chosen:
                if s in answers:
                    claiming.take(answers[s])
        more = any(ready >= most for ready, _ in views.values())
        more = more and claiming.wanted > 0 and examined < claiming.reach
    yield from claiming.mend(sharded.count)
    reply = claiming.reply(None)
    if reply.messages or reply.next == 0:
        sharded.highest_token([claiming.token])
        reply.died.extend(shards.died)
        return [reply]
    answers = yield from shards.ask(dict.fromkeys(shards.alive, _Claiming(command).call(0)))
    sharded.enrolled = True  # each shard knows now that this lane waits
    heads = [answer[0] for answer in answers.values()]
    now = max([claiming.now, *(head[0] for head in heads)])
    following = min([head[5] for head in heads if head[5] is not None], default=None)
    return [Claimed([], 0, now, following, [*claiming.died, *shards.died])]


_View = tuple[int, list[int]]
"""How many messages of a shard are ready, and rank, order and expiry of the first ones."""


class _Shards:
    """The shards that a claim asks."""

    def __init__(self, queue: str, sharded: ShardedQueue) -> None:
        self.queue = queue
        self.sharded = sharded
        self.alive = list(range(sharded.count))
        self.error: StoreError | None = None
        """Why one of them is left out."""
        self.died: list[Died] = []
        self._taken_back = dict.fromkeys(self.alive, 0)

    def ask(self, calls: Mapping[int, Call]) -> Round:
        """Call shards; return what those answered that are there, and leave out the others."""
        count, there = self.sharded.count, {}
        answers = yield [call._replace(shard=s, shards=count) for s, call in calls.items()]
        for shard, answer in zip(calls, answers, strict=True):
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

    def peek(self, most: int, reach: int) -> Round:
        """Look into all shards, until no more leases are to be taken back there."""
        views: dict[int, _View] = {}
        left = list(self.alive)
        while left:
            calls = {s: Call("peek", self.queue, (most, reach - self._taken_back[s])) for s in left}
            left = []
            answers = yield from self.ask(calls)
            for s, text in answers.items():
                _now, _change, token, lapsed, ready, listed, died = text
                self.died += [Died(*each) for each in died]
                views[s] = ready, listed
                self.sharded.highest_token([token])
                self._taken_back[s] += lapsed
                if lapsed == LAPSES and self._taken_back[s] < reach:
                    left.append(s)
        return {s: view for s, view in views.items() if s in self.alive}


def _shares(views: Mapping[int, _View], wanted: int) -> dict[int, int]:
    """Return how many to lease of each shard, the one with the very first message first."""
    if sum(ready for ready, _ in views.values()) <= wanted:
        return {s: min(ready, SLICE) for s, (ready, _) in views.items() if ready}
    entries: list[tuple[int, int, int, int]] = []
    reach: tuple[int, int, int] | None = None  # nothing is known of what stands behind it
    for s, (ready, listed) in views.items():
        mine = [(listed[i], listed[i + 1], s, listed[i + 2]) for i in range(0, len(listed), 3)]
        entries += mine
        if mine and len(mine) < ready:
            reach = mine[-1][:3] if reach is None else min(reach, mine[-1][:3])
    entries.sort()
    shares: dict[int, int] = {}
    for rank, number, s, late in entries:
        if wanted <= 0 or (reach is not None and (rank, number, s) > reach):
            break
        shares[s] = shares.get(s, 0) + 1
        wanted -= not late
    return shares
