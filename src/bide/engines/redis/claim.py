"""Claim: lease the next due messages of a queue, from all its shards.

Over several shards, messages come in the order of rank, unless another worker claims in between:
then the shard hands out what follows there. A shard that does not answer is left out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from bide.engines.redis.calls import Round, ScriptCall, Step
from bide.engines.redis.constants import SLICE
from bide.engines.redis.layout import DAMAGED, claimed_message
from bide.engines.redis.messages import in_lots
from bide.engines.redis.queues import ShardedQueue
from bide.logs import logger
from bide.model.commands import Claim
from bide.model.errors import OutcomeUnknown, StoreError
from bide.model.message import Message
from bide.model.rank import PROMOTE, ready_rank
from bide.model.replies import Claimed, Died

_log = logger("bide.redis")


class _Claiming:
    """What a claim has got so far."""

    def __init__(self, command: Claim) -> None:
        self.command = command
        self.room = command.max_bytes
        self.token = self.now = self._answers = 0
        self._missing = 0
        """How many messages are no longer held, of a claim that was repeated."""
        self.results = self.limited = self.behind = False
        self.died: list[Died] = []
        self._damaged: list[str] = []
        self._messages: dict[str, tuple[Message, bytes]] = {}
        """By id: the message, and its record."""

    @property
    def full(self) -> bool:
        """Whether there is no room for more."""
        return bool(self._messages) and self.room <= 0

    @property
    def wanted(self) -> int:
        """How many messages are still wanted; none if there is no room for more."""
        return 0 if self.full else self.command.count - len(self._messages) - self._missing

    def call(self, count: int, shared: bool = False, floor: int = 0, of: int = 0) -> ScriptCall:
        """Return a call of the script, which describes its arguments.

        `of`: the number of messages that calls of several shards request together, in one room.
        """
        command = self.command
        room = self.room * count // of if of else self.room
        lease = command.lease, command.holder, self.token or None
        return ScriptCall("claim", command.queue, (count, *lease, room, shared, floor))

    def take(self, answer: Sequence[Any]) -> Sequence[Any]:
        """Take in what the script answered; return the rest of its head."""
        head, ids, records = answer
        now, _change, token, until, self.results, following, more, died, *limits = head
        self.limited, self.behind = limits
        self._answers += bool(ids)
        self.now = max(self.now, now)  # shards answer side by side
        self.died += [Died(*each) for each in died]
        self.token = token or self.token
        queue, holder = self.command.queue, self.command.holder
        for id_, record in zip(ids, records, strict=True):
            if record is None:
                self._missing += 1
                continue
            id = id_.decode()
            self.room -= len(id_) + len(record)
            try:
                message = claimed_message(queue, id, record, holder, until)
            except DAMAGED:
                self._damaged.append(id)
            else:
                self._messages[id] = message, record
        return (0 if more else following), more

    def repair(self, shards: int) -> Round:
        """Make dead letters of the messages whose records cannot be read."""
        for id in self._damaged:
            _log.error(
                "the record of message %r in queue %r cannot be read: it is a dead letter now, "
                "with those bytes as its body",
                id,
                self.command.queue,
            )
        if rows := [(id, str(self.token)) for id in self._damaged]:
            head = "repair", None, None, None, None, "", self.command.holder
            yield from in_lots("change", self.command, rows, head, shards)

    def reply(self, following: float | None) -> Claimed:
        """Return the reply, of the messages whose lease has not ended meanwhile."""
        held = [each for each in self._messages.values() if (each[0].until or 0) > self.now]
        if not held:
            following = 0 if self._messages or self._damaged else following
            limits = {"limited": self.limited, "behind": self.behind}
            return Claimed([], 0, self.now, following, self.died, **limits)
        if self._answers > 1 and not self.limited:  # each is in this order, as records begin
            held.sort(key=lambda each: (ready_rank(each[0].due, each[0].priority), each[1]))
        messages = [message for message, _ in held]
        return Claimed(
            messages,
            self.token,
            self.now,
            died=self.died,
            results=self.results,
            limited=self.limited,
            behind=self.behind,
        )


def claim(command: Claim) -> Step:
    """Lease messages, mostly in one call; many of them slice by slice."""
    claiming = _Claiming(command)
    for _ in range(command.count // SLICE + 8):  # some calls bring nothing
        (answer,) = yield [claiming.call(claiming.wanted)]
        if isinstance(answer, StoreError):
            if claiming.token:  # without a reply, no worker would know of the messages
                break
            raise answer
        following, more = claiming.take(answer)
        if not more or not claiming.wanted:
            break
    yield from claiming.repair(1)
    return [claiming.reply(following)]


def claim_shards(command: Claim, sharded: ShardedQueue) -> Step:
    """Lease messages of all shards: peek into each, then lease the first ones among all."""
    claiming = _Claiming(command)
    alive = dict.fromkeys(range(sharded.count))
    left_out: list[StoreError] = []
    examined = 0

    def ask(calls: Mapping[int, ScriptCall]) -> Round:
        """Call shards; return what those answered that are there, and leave out the others."""
        present = {}
        answers = yield [replace(call, shard=s, shards=sharded.count) for s, call in calls.items()]
        for shard, answer in zip(calls, answers, strict=True):
            error = answer if isinstance(answer, StoreError) else None
            sharded.note(shard, error)
            if error is None:
                present[shard] = answer
            else:
                left_out.append(error)
                alive.pop(shard, None)
        return present

    while examined < max(PROMOTE, command.count):
        wanted = claiming.wanted
        most = min(wanted, SLICE, wanted // sharded.count * 5 // 4 + 8)
        peeked = yield from ask(dict.fromkeys(alive, ScriptCall("peek", command.queue, (most,))))
        if not peeked and left_out and not claiming.token:
            raise left_out[0]
        if not peeked and left_out and wanted == command.count:
            raise OutcomeUnknown(
                f"{left_out[0]}; messages were leased, and come again when the lease ends"
            ) from left_out[0]
        views: dict[int, tuple[int, list[list[int]]]] = {}
        for s, (_now, _change, token, ready, listed, died) in peeked.items():
            claiming.died += [Died(*each) for each in died]
            sharded.token = max(sharded.token, token)
            views[s] = ready, listed
        shares = _shares(views, wanted)
        examined += sum(shares.values())
        more = any(ready >= most or ready > shares.get(s, 0) for s, (ready, _) in views.items())
        while shares and not claiming.full:  # those that are too late expire, if no more are wanted
            # One shard gives the token, the others take it over.
            chosen = list(shares) if claiming.token else list(shares)[:1]
            of = sum(shares[s] for s in chosen)
            if sharded.enrolled:
                sharded.enrolled = False
                chosen += [s for s in alive if s not in shares]
            calls = {s: claiming.call(shares.pop(s, 0), True, sharded.token, of) for s in chosen}
            for answer in (yield from ask(calls)).values():
                claiming.take(answer)
            sharded.token = max(sharded.token, claiming.token)
        if not more or not claiming.wanted:
            break
    yield from claiming.repair(sharded.count)
    reply = claiming.reply(None)
    if reply.messages or reply.next == 0:
        return [reply]
    answers = yield from ask(dict.fromkeys(alive, _Claiming(command).call(0)))
    sharded.enrolled = True  # each shard knows now that this lane waits
    nexts = [claiming.take(answer)[0] for answer in answers.values()]
    return [claiming.reply(min([each for each in nexts if each is not None], default=None))]


def _shares(views: Mapping[int, tuple[int, list[list[int]]]], wanted: int) -> dict[int, int]:
    """Return how many to lease of each shard.

    A view is the number of ready messages, and rank, order and expiry of the first ones. The shard
    with the very first message comes first: the others may find no room in the reply.
    """
    if sum(ready for ready, _ in views.values()) <= wanted:
        first = sorted(views, key=lambda s: views[s][1])
        return {s: min(views[s][0], SLICE) for s in first if views[s][0]}
    entries: list[tuple[int, int, int, int]] = []
    reach: tuple[int, int, int] | None = None  # nothing is known of the messages behind it
    for s, (ready, listed) in views.items():
        places = [(rank, order, s, late) for rank, order, late in listed]
        entries += places
        if places and len(places) < ready:
            reach = places[-1][:3] if reach is None else min(reach, places[-1][:3])
    shares: Counter[int] = Counter()
    for *place, s, late in sorted(entries):
        if wanted <= 0 or (reach is not None and (*place, s) > reach):
            break
        shares[s] += 1
        wanted -= not late
    return shares
