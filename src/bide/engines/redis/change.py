"""Commands that name messages by id or by lease, and the settings of a queue."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from bide.engines.redis.calls import Call, Step, everywhere, origin_of, share_out, spread
from bide.engines.redis.calls import Outcome as Result
from bide.engines.redis.records import Arg, refuse
from bide.model import commands as cmd
from bide.model.errors import StoreError, Unsupported
from bide.model.message import REASON_LENGTH
from bide.model.replies import PAUSES, Deleted, Outcome, Outcomes, Settings, Sizes
from bide.model.times import LIMITS


def script_of(command: Any) -> tuple[str, tuple[Arg, ...]]:
    """Return the script of a command, and the arguments before the ids; see change.lua."""
    verb, when, still, reason = type(command).__name__.lower(), "", "", ""
    match command:
        case cmd.Ack():
            return "ack", (3 if command.results else 2,)
        case cmd.Cancel() | cmd.Reschedule():
            due = "" if command.if_due is None else command.if_due
            still = f"{due}v{command.if_version}" if command.if_version is not None else f"{due}"
            if isinstance(command, cmd.Reschedule):
                when = f"+{command.delay}" if command.at is None else f"{command.at}"
        case cmd.Edit():
            return "edit", _edit(command)
        case cmd.Revive():
            when = f"+{command.delay}"
        case cmd.Extend():
            when = f"+{command.lease}"
        case cmd.Retry():
            verb = "untouched" if command.release else verb
            when, reason = f"+{command.delay}", command.reason[:REASON_LENGTH]
        case cmd.Bury() | cmd.Release():
            reason = command.reason[:REASON_LENGTH]
    return "change", (verb, when, still, reason, command.actor or "", "")


def _edit(command: cmd.Edit) -> tuple[Arg, ...]:
    """Return the arguments of an edit before the ids; see change.lua."""
    still = "" if command.if_version is None else f"v{command.if_version}"
    when = "" if command.delay is None else f"+{command.delay}"
    if command.at is not None:
        when = f"{command.at}"
    body = b"" if command.data is UNSET else (b"j" if command.json else b"b") + command.data
    options = command.options
    flags = "".join(letter for letter, name in _FLAGS.items() if options.get(name))
    expires = options.get("expires", "")
    group, headers = options.get("group", UNSET), options.get("headers", UNSET)
    return (
        still, when, flags, body, options.get("priority", ""), options.get("attempts", ""),
        "-" if expires is None else expires,
        "" if group is UNSET else f"={group or ''}",
        b"" if headers is UNSET else b"=" + (b"" if headers is None else _encode(headers)),
    )  # fmt: skip


_FLAGS = {"w": "priority", "g": "group", "e": "expires"}
"""The flags of a queue, by the option that sets them."""

_encode = msgspec.json.Encoder().encode


def _named(command: Any) -> list[tuple[Arg, ...]]:
    """Return the id, and the token if there is one, of all messages that a command names.

    Of an ack with results also the result; of a command with versions what the caller saw.
    """
    if isinstance(command, cmd.Ack) and command.results:
        both = zip(command.leases, command.results, strict=True)
        return [(lease.id, lease.token, result or "") for lease, result in both]
    leases: list[tuple[Arg, ...]] = [
        (lease.id, lease.token) for lease in getattr(command, "leases", ())
    ]
    if versions := getattr(command, "versions", None):
        due = getattr(command, "if_due", None)
        wanted = "" if due is None else f"{due}"
        return [(id, f"{wanted}v{v}") for id, v in zip(command.ids, versions, strict=True)]
    return [*leases, *((id, "") for id in getattr(command, "ids", None) or ())]


def change(run: Sequence[Any], shards: int) -> Step:
    """Change messages of consecutive commands on one queue that say the same."""
    script, head = script_of(run[0])
    queue = run[0].queue
    named = [_named(command) for command in run]
    rows = named[0] if len(run) == 1 else [row for mine in named for row in mine]
    lots = spread([str(row[0]) for row in rows], shards)
    calls = []
    for shard, lot in lots:
        args = list(head)
        if (origin := getattr(run[0], "origin", None)) is not None:
            args[-1] = origin_of(origin, lot)
        for index in lot:
            args += rows[index]
        calls.append(Call(script, queue, args, shard, shards))
    answers = yield calls

    outcomes: list[Any] = [None] * len(rows)
    nexts: dict[int, int | None] = {}
    for (_, lot), answer in zip(lots, answers, strict=True):
        if isinstance(answer, StoreError):
            if not rows:
                return [answer] * len(run)
            for index in lot:
                outcomes[index] = answer
            continue
        _now, _change, told, opens = answer
        nexts.update(zip(lot, opens, strict=False))
        for place, index in enumerate(lot):
            done, *rest = told[place] if told else (True,)
            id = str(rows[index][0])
            damaged = rest[:1] == ["unreadable"]
            outcomes[index] = refuse(queue, id) if damaged else Outcome(id, done, *rest)
    replies = share_out([len(mine) for mine in named], outcomes, shards)
    if nexts and isinstance(run[0], _ENDING):
        _tell_next(run, replies, [nexts.get(index) for index in range(len(rows))])
    return replies


_ENDING = (cmd.Ack, cmd.Retry, cmd.Bury, cmd.Release)
"""Commands that end leases."""


def _tell_next(run: Sequence[Any], replies: list[Result], nexts: Sequence[int | None]) -> None:
    """Add to replies when a limited queue allows the next message, if a lease has ended.

    Args:
        run: the commands.
        replies: to each of them.
        nexts: Unix milliseconds, after each of the changes.
    """
    first = 0
    for number, (command, reply) in enumerate(zip(run, replies, strict=True)):
        named = len(command.ids) if isinstance(command, cmd.Release) else len(command.leases)
        if isinstance(reply, Outcomes):
            wake = nexts[first + named - 1] if any(reply.outcomes[:named]) else None
            if wake is not None:
                wake = wake if reply.wake is None else min(wake, reply.wake)
                replies[number] = msgspec.structs.replace(reply, wake=wake)
        first += len(_named(command))


def configure(command: cmd.Configure, shards: int) -> Step:
    """Set what is given."""
    limits = [getattr(command, name) for name in LIMITS]
    if shards > 1 and any(limits):
        yield ()
        return [
            Unsupported(
                f"queue {command.queue!r} is made of {shards} shards, and a queue with limits has "
                "one: set the limits of a new queue before the first put, and move the messages "
                "there with `bide move`"
            )
        ]
    paused = "" if command.paused is None else int(command.paused)
    keep = "" if command.keep is None else command.keep
    rest = ["" if n is None else n for n in (command.history, command.result_ttl, *limits)]
    args = (paused, keep, command.actor or "", PAUSES, *rest)
    told = yield from everywhere("configure", command.queue, args, shards)
    return [
        Settings(
            any(part[2] for part in told),
            max(part[3] for part in told),
            min((part[0] for part in told if part[4]), default=None),
            *(max(part[field] for part in told) for field in range(5, 11)),
        )
    ]


def delete(command: cmd.Delete, shards: int) -> Step:
    """Delete a queue if it is empty: first look at all shards, then delete them."""
    existed = False
    for really in (0, 1) if shards > 1 else (1,):
        told = yield from everywhere("delete", command.queue, (really,), shards)
        sizes = Sizes(*(sum(part[field] for part in told) for field in range(3, 7)))
        kept = sum(part[7] for part in told)
        existed = existed or any(part[2] for part in told)
        if sizes != Sizes() or kept:
            return [Deleted(False, sizes, kept)]
    return [Deleted(existed)]
