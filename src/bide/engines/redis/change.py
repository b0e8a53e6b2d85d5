"""Commands that name messages by id or by lease: cancel, reschedule, revive, settle, release."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from bide.engines.redis.calls import Call, Outcome, Plan, Send, answered, decode, slices
from bide.engines.redis.records import Arg, when
from bide.engines.redis.shards import ShardedQueue, shard_of
from bide.model import commands as cmd
from bide.model import replies
from bide.model.errors import StoreError
from bide.model.message import REASON_LENGTH

__all__ = ["change"]


class _Script(NamedTuple):
    """How a command is carried out."""

    name: str
    head: tuple[Arg, ...] = ()
    tokens: bool = False
    """A token follows each id."""


def _script(command: Any) -> _Script:
    match command:
        case cmd.Cancel():
            return _Script("cancel", (_still(command),))
        case cmd.Reschedule():
            return _Script("reschedule", (when(command.at, command.delay), _still(command)))
        case cmd.Revive():
            return _Script("revive", (command.delay,))
        case cmd.Purge():
            return _Script("discard")
        case cmd.Ack():
            return _Script("ack", tokens=True)
        case cmd.Extend():
            return _Script("extend", (command.lease,), tokens=True)
        case cmd.Retry():
            reason = command.reason[:REASON_LENGTH]
            return _Script("retry", (command.delay, int(command.release), reason), tokens=True)
        case cmd.Release():
            return _Script("release", (command.reason[:REASON_LENGTH],))
        case cmd.Bury():
            return _Script("bury", (command.reason[:REASON_LENGTH],), tokens=True)
    raise TypeError(f"no script for {type(command).__name__}")


def _still(command: cmd.Cancel | cmd.Reschedule) -> str:
    """Return what the caller saw, as scripts read it."""
    due = "" if command.if_due is None else str(command.if_due)
    return due if command.if_version is None else f"{due}v{command.if_version}"


def _named(command: Any) -> list[tuple[str, Arg]]:
    """Return the id, and the token if there is one, of all messages that a command names."""
    leases = [(lease.id, lease.token) for lease in getattr(command, "leases", ())]
    return [*leases, *((id, "") for id in getattr(command, "ids", None) or ())]


def change(run: Sequence[Any], sharded: ShardedQueue | None) -> Plan:
    """Change messages of consecutive commands on one queue that say the same."""
    script = _script(run[0])
    queue, shards = run[0].queue, 1 if sharded is None else sharded.count
    named = [_named(command) for command in run]
    rows = named[0] if len(run) == 1 else [row for mine in named for row in mine]
    calls: list[Call] = []
    lots: list[Sequence[int]] = []
    for lot in slices([id for id, _ in rows]):
        by_shard: dict[int, Sequence[int]] = {0: lot}
        if shards > 1:
            found: dict[int, list[int]] = {}
            for index in lot:
                found.setdefault(shard_of(rows[index][0], shards), []).append(index)
            by_shard = dict(found) or by_shard
        for shard, mine in by_shard.items():
            args = list(script.head)
            for index in mine:
                args += rows[index] if script.tokens else rows[index][:1]
            calls.append(Call(script.name, queue, args, shard, shards))
            lots.append(mine)

    def read(answers: list[Any], _: Send) -> list[Outcome]:
        outcomes: list[Any] = [None] * len(rows)
        for lot, answer in zip(lots, answers, strict=True):
            if isinstance(answer, StoreError):
                if not rows:
                    return [answer] * len(run)
                for index in lot:
                    outcomes[index] = answer
                continue
            _now, told = decode(answer)
            for place, index in enumerate(lot):
                outcomes[index] = replies.Outcome(
                    rows[index][0], *(told[place] if told else (True,))
                )
        replied: list[Outcome] = []
        first = 0
        for each in named:
            mine = outcomes[first : first + len(each)]
            first += len(mine)
            error = answered(mine, shards)
            dues = [] if error else [
                o.due for o in mine if o.done and o.state in ("delayed", "ready")
            ]  # fmt: skip
            replied.append(error or replies.Outcomes(mine, min(dues, default=None)))
        return replied

    return Plan(calls, read)
