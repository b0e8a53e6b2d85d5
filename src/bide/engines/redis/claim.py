"""Claim: lease the next due messages of a queue of one shard; of many, slice by slice."""

from collections.abc import Sequence
from typing import Any

from bide.engines.redis.calls import Call, Job, Outcome, Plan, Send, decode
from bide.engines.redis.records import Arg, as_message, claim_rank
from bide.model.commands import Claim
from bide.model.errors import StoreError
from bide.model.message import Message
from bide.model.rank import PROMOTE
from bide.model.replies import Claimed

__all__ = ["claim", "claim_args", "claim_many", "take_in"]


def claim_args(
    command: Claim,
    count: int,
    token: int = 0,
    *,
    budgets: Sequence[int] = (0, 0, 0),
    room: int,
    source: str = "",
    floor: int = 0,
) -> list[Arg]:
    """Return the arguments of the script `claim`, which describes them."""
    head: list[Arg] = [count, command.lease, command.holder, token or ""]
    return [*head, *budgets, room, source, floor]


def take_in(
    command: Claim, answer: Sequence[Any]
) -> tuple[list[Any], dict[str, tuple[Any, Message]]]:
    """Return the head of what the script answered, and by id the records and messages."""
    head, ids, records = answer
    told = decode(head)
    now, _, until, *_ = told
    found = {}
    for id_, record in zip(ids, records, strict=True):
        id = id_.decode()
        message = as_message(command.queue, id, record, now, holder=command.holder, until=until)
        found[id] = record, message
    return told, found


class _Claiming:
    """One claim on its way."""

    def __init__(self, command: Claim) -> None:
        reach = max(PROMOTE, command.count)
        self._command = command
        self._budgets = [reach, reach, reach]
        self._room = command.max_bytes
        self._token = 0
        self._found: dict[str, tuple[Any, Message]] = {}
        self._weighted = False
        self._now = 0
        self._next: float | None = None

    def call(self) -> Call:
        command = self._command
        wanted = command.count - len(self._found)
        args = claim_args(command, wanted, self._token, budgets=self._budgets, room=self._room)
        return Call("claim", command.queue, args)

    def takes(self, answer: Any) -> bool:
        """Take in what a call answered; return whether another one is to follow.

        Raises:
            StoreError: the first call failed.
        """
        if isinstance(answer, StoreError):
            if self._found:  # else no worker would know of the messages that are leased
                return False
            raise answer
        head, found = take_in(self._command, answer)
        self._now, token, _, self._next, weighted, *spent, more = head
        self._token = token or self._token
        self._weighted = self._weighted or weighted
        self._budgets = [left - used for left, used in zip(self._budgets, spent, strict=True)]
        self._room -= sum(len(record) + len(id) for id, record in zip(*answer[1:], strict=True))
        self._found |= found
        return bool(more) and len(self._found) < self._command.count and self._room > 0

    def reply(self) -> Claimed:
        """Return the reply."""
        found = list(self._found.values())
        held = [pair for pair in found if self._command.lease <= 0 or pair[1].until > self._now]  # type: ignore[operator]
        if not held:  # nothing came, or its slices took longer than the lease
            return Claimed([], 0, self._now, 0 if found else self._next)
        if self._weighted:
            held.sort(key=lambda pair: claim_rank(pair[1], pair[0]))
        return Claimed([message for _, message in held], self._token, self._now)


def claim(run: Sequence[Claim]) -> Plan:
    """Lease up to `SLICE` messages, mostly in one call."""
    claiming = _Claiming(run[0])

    def read(answers: list[Any], send: Send) -> list[Outcome]:
        try:
            while claiming.takes(answers[0]):
                answers = send([claiming.call()])
        except StoreError as error:
            return [error]
        return [claiming.reply()]

    return Plan([claiming.call()], read)


def claim_many(command: Claim) -> Job:
    """Lease many messages, slice by slice."""

    def run(send: Send) -> Outcome:
        plan = claim([command])
        return plan.read(send(plan.calls), send)[0]

    return run
