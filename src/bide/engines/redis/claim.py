"""Claim: lease the next due messages of a queue, from all its shards.

Over several shards, messages come in the order of rank, unless another worker claims in between:
then the shard hands out what follows there. A shard that does not answer is left out.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from bide.engines.redis.calls import Round, ScriptCall, Step
from bide.engines.redis.constants import SLICE
from bide.engines.redis.layout import DAMAGED, claimed_message, order_of
from bide.engines.redis.messages import in_lots
from bide.engines.redis.queues import ShardedQueue
from bide.logs import logger
from bide.model.commands import Claim
from bide.model.errors import OutcomeUnknown, StoreError
from bide.model.message import Message
from bide.model.rank import PROMOTE, ready_rank
from bide.model.replies import Claimed, Died

_log = logger("bide.redis")


class _Following(NamedTuple):
    """What a script says of what a claim may do next."""

    moment: float | None
    """In how many milliseconds to claim again: 0 if there is more now, `None` if nothing is known
    to come."""
    more: bool
    """Whether the script has stopped before it was through: a further call brings more."""


class _Leased(NamedTuple):
    """A message that the claim has leased."""

    message: Message
    record: bytes

    @property
    def place(self) -> tuple[int, bytes]:
        """Its place in the order of delivery: of equal ranks, the order of putting decides."""
        return ready_rank(self.message.due, self.message.priority), order_of(self.record)


class _Claiming:
    """What a claim has got so far."""

    def __init__(self, command: Claim) -> None:
        self.command = command
        self.room = command.max_bytes
        """Bytes that the reply may still become larger."""
        self.token = 0
        """Of the leases; 0: nothing is leased yet."""
        self._now = 0
        """The latest time of the answers, in Unix milliseconds: shards answer side by side."""
        self._answers = 0
        """How many answers had messages."""
        self._ended = 0
        """How many leases have ended meanwhile, of a claim that was repeated."""
        self._keeps_results = self._limited = self._behind = False
        """Of the queue, see `Claimed`."""
        self.died: list[Died] = []
        self._damaged: list[str] = []
        """Ids of leased messages whose records cannot be read."""
        self._leased: dict[str, _Leased] = {}
        """By id."""

    @property
    def full(self) -> bool:
        """Whether there is no room for more."""
        return bool(self._leased) and self.room <= 0

    @property
    def wanted(self) -> int:
        """How many messages are still wanted; none if there is no room for more."""
        return 0 if self.full else max(0, self.command.count - len(self._leased) - self._ended)

    def call(
        self, count: int, *, share: int | None = None, highest_token: int = 0, of: int = 0
    ) -> ScriptCall:
        """Return a call of the script, which describes its arguments.

        Args:
            count: how many messages are wanted of it; with a share, how many it looks at.
            share: how many it leases at most, beside calls of other shards; `None`: there are none.
            highest_token: the highest one that is known of all shards.
            of: how many messages the calls of several shards look at together: each gets its part
                of the room. 0: this one gets all.
        """
        command = self.command
        room = self.room * count // of if of else self.room
        lease = command.lease, command.holder, self.token or None
        arguments = count, *lease, room, share, highest_token
        return ScriptCall("claim", command.queue, arguments)

    def take(self, answer: Sequence[Any]) -> _Following:
        """Take in what the script answered."""
        head, ids, records = answer
        (now, _change, token, until, keeps_results, moment, more, died, limited, behind) = head
        self._keeps_results, self._limited, self._behind = keeps_results, limited, behind
        if ids:
            self._answers += 1
        self._now = max(self._now, now)
        self.died += [Died(*each) for each in died]
        self.token = token or self.token
        queue, holder = self.command.queue, self.command.holder
        for encoded_id, record in zip(ids, records, strict=True):
            if record is None:
                self._ended += 1
                continue
            id = encoded_id.decode()
            self.room -= len(encoded_id) + len(record)
            try:
                message = claimed_message(queue, id, record, holder, until)
            except DAMAGED:
                self._damaged.append(id)
            else:
                self._leased[id] = _Leased(message, record)
        return _Following(0 if more else moment, more)

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
            at = after = if_due = if_version = None
            actor = self.command.holder
            arguments = "repair", at, after, if_due, if_version, "", actor
            yield from in_lots("change", self.command, rows, arguments, shards)

    def reply(self, moment: float | None) -> Claimed:
        """Return the reply, of the messages whose lease has not ended meanwhile.

        Args:
            moment: of `_Following`, for a reply without messages.
        """
        held = [each for each in self._leased.values() if (each.message.until or 0) > self._now]
        if not held:
            again_at_once = self._leased or self._damaged  # others may be behind these
            return Claimed(
                messages=[],
                token=0,
                now=self._now,
                next=0 if again_at_once else moment,
                died=self.died,
                limited=self._limited,
                behind=self._behind,
            )
        # One answer is in order, and that of a limited queue, which is fair to groups, in its own.
        if self._answers > 1 and not self._limited:
            held.sort(key=attrgetter("place"))
        return Claimed(
            messages=[each.message for each in held],
            token=self.token,
            now=self._now,
            died=self.died,
            results=self._keeps_results,
            limited=self._limited,
            behind=self._behind,
        )


def claim(command: Claim) -> Step:
    """Lease messages, mostly in one call; many of them slice by slice."""
    claiming = _Claiming(command)
    # Some calls bring nothing: they only take back leases, or expire what is late.
    for _ in range(command.count // SLICE + 8):
        (answer,) = yield [claiming.call(claiming.wanted)]
        if isinstance(answer, StoreError):
            if claiming.token:  # without a reply, no worker would know of the messages
                break
            raise answer
        following = claiming.take(answer)
        if not following.more or not claiming.wanted:
            break
    yield from claiming.repair(1)
    return [claiming.reply(following.moment)]


def claim_shards(command: Claim, sharded: ShardedQueue) -> Step:
    """Lease messages of all shards: peek into each, then lease the first ones among all."""
    claiming = _Claiming(command)
    present = dict.fromkeys(range(sharded.count))  # shards that have always answered, in order
    failures: list[StoreError] = []
    examined = 0

    def ask(calls: Mapping[int, ScriptCall]) -> Round:
        """Call shards, by number; return what each answered, without those that did not."""
        answer_by_shard = {}
        answers = yield [
            replace(call, shard=shard, shards=sharded.count) for shard, call in calls.items()
        ]
        for shard, answer in zip(calls, answers, strict=True):
            error = answer if isinstance(answer, StoreError) else None
            sharded.note(shard, error)
            if error is None:
                answer_by_shard[shard] = answer
            else:
                failures.append(error)
                present.pop(shard, None)
        return answer_by_shard

    # Messages that may not be delivered are examined, too, and only end: there is a limit to that.
    while examined < max(PROMOTE, command.count):
        wanted = claiming.wanted
        # Mostly, a shard has not much more than its part of the first ones.
        most = min(wanted, SLICE, wanted // sharded.count * 5 // 4 + 8)
        peek = ScriptCall("peek", command.queue, (most,))
        peeked = yield from ask(dict.fromkeys(present, peek))
        if not peeked and failures and not claiming.token:
            raise failures[0]
        if not peeked and failures and wanted == command.count:
            raise OutcomeUnknown(
                f"{failures[0]}; messages were leased, and come again when the lease ends"
            ) from failures[0]
        views: dict[int, _View] = {}
        for shard, (_now, _change, token, ready, first, died) in peeked.items():
            claiming.died += [Died(*each) for each in died]
            sharded.token = max(sharded.token, token)
            views[shard] = _View(ready, [_Listed(*each) for each in first])
        shares = _shares(views, wanted)
        if not shares:
            break
        examined += sum(share.messages for share in shares.values())
        more = any(
            view.ready >= most or view.ready > shares.get(shard, _NO_SHARE).messages
            for shard, view in views.items()
        )
        # Also if no more are wanted: those of the shares that may not be delivered end.
        while shares and not claiming.full:
            # All leases of a claim have one token: the first shard gives it.
            chosen = list(shares) if claiming.token else list(shares)[:1]
            together = sum(shares[shard].messages for shard in chosen)
            if sharded.enrolled:  # this lane waits no longer, which each shard is to know
                sharded.enrolled = False
                chosen += [shard for shard in present if shard not in shares]
            calls = {}
            for shard in chosen:
                messages, fit = shares.pop(shard, _NO_SHARE)
                calls[shard] = claiming.call(
                    messages, share=fit, highest_token=sharded.token, of=together
                )
            for answer in (yield from ask(calls)).values():
                claiming.take(answer)
            sharded.token = max(sharded.token, claiming.token)
        if not more or not claiming.wanted:
            break
    yield from claiming.repair(sharded.count)
    reply = claiming.reply(None)
    if reply.messages or reply.next == 0:
        return [reply]
    # Nothing is there: a claim of no messages lets each shard know that this lane waits.
    answers = yield from ask(dict.fromkeys(present, _Claiming(command).call(0)))
    sharded.enrolled = True
    moments = [claiming.take(answer).moment for answer in answers.values()]
    return [claiming.reply(min([each for each in moments if each is not None], default=None))]


class _Listed(NamedTuple):
    """A ready message of a shard, as a peek lists it."""

    rank: int
    order: int
    """Of putting, among those of equal rank."""
    is_unfit: int
    """1 if it may not be delivered: it has expired, or its group is closed. A claim ends it."""


class _View(NamedTuple):
    """What a peek into a shard shows."""

    ready: int
    """How many messages are ready."""
    first: list[_Listed]
    """The first of them, in the order of delivery."""


class _Share(NamedTuple):
    """What a claim asks of a shard."""

    messages: int
    """How many of the first ready messages it looks at."""
    fit: int
    """How many of them it leases at most. The others were not fit for delivery when it was peeked
    into: if they have ended since, their places are not taken by messages that nobody wants."""


_NO_SHARE = _Share(0, 0)


def _shares(views: Mapping[int, _View], wanted: int) -> dict[int, _Share]:
    """Return what to ask of each shard, by its number; one that has nothing to give is left out.

    The shard with the very first message comes first: the others may find no room in the reply.
    """
    if sum(view.ready for view in views.values()) <= wanted:  # all of them
        in_order = sorted(views, key=lambda shard: views[shard].first)
        counts = {shard: min(views[shard].ready, SLICE) for shard in in_order}
        return {shard: _Share(count, count) for shard, count in counts.items() if count}
    places: list[tuple[int, int, int, int]] = []  # rank, order, shard, 1 if it is unfit
    # The last place before which no shard has messages that are not listed.
    horizon: tuple[int, int, int] | None = None
    for shard, view in views.items():
        places += [(each.rank, each.order, shard, each.is_unfit) for each in view.first]
        if view.first and len(view.first) < view.ready:
            last = view.first[-1]
            end = last.rank, last.order, shard
            horizon = end if horizon is None else min(horizon, end)
    shares: dict[int, _Share] = {}
    for rank, order, shard, is_unfit in sorted(places):
        if wanted <= 0 or (horizon is not None and (rank, order, shard) > horizon):
            break
        fit = 1 - is_unfit
        share = shares.get(shard, _NO_SHARE)
        shares[shard] = _Share(share.messages + 1, share.fit + fit)
        wanted -= fit
    return shares
