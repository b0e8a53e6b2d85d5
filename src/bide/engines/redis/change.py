"""Commands that name messages by id or by lease, and the settings of a queue."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from bide.engines.redis.calls import SLICE, Call, Step, everywhere, in_lots, raised, share_out
from bide.engines.redis.layout import Arg, as_outcome, blank
from bide.model import commands as cmd
from bide.model.commands import BULK, Cancel, Purge, Where
from bide.model.errors import Unsupported
from bide.model.message import REASON_LENGTH
from bide.model.replies import PAUSES, Affected, Deleted, Settings, Sizes
from bide.model.times import LIMITS


def script_of(command: Any) -> tuple[str, tuple[Arg, ...]]:
    """Return the script of a command, and the arguments before the ids; see change.lua."""
    if isinstance(command, cmd.Ack):
        return "ack", (3 if command.results else 2,)
    if isinstance(command, cmd.Edit):
        return "edit", _edit(command)
    verb = "untouched" if getattr(command, "release", False) else type(command).__name__.lower()
    still = f"{blank(getattr(command, 'if_due', None))}"
    if (version := getattr(command, "if_version", None)) is not None:
        still += f"v{version}"
    reason = getattr(command, "reason", "")[:REASON_LENGTH]
    return "change", (verb, _when(command), still, reason, command.actor or "")


def _when(command: Any) -> str:
    """Return the moment that a command names, as scripts take it; empty if it names none."""
    at = getattr(command, "at", None)
    after = getattr(command, "delay", getattr(command, "lease", None))
    return f"{at}" if at is not None else "" if after is None else f"+{after}"


def _edit(command: cmd.Edit) -> tuple[Arg, ...]:
    """Return the arguments of an edit before the ids; see change.lua."""
    still = "" if command.if_version is None else f"v{command.if_version}"
    body = b"" if command.data is UNSET else (b"j" if command.json else b"b") + command.data
    options = command.options
    expires = options.get("expires", "")
    group, headers = options.get("group", UNSET), options.get("headers", UNSET)
    return (
        still, _when(command), body, options.get("priority", ""), options.get("attempts", ""),
        "-" if expires is None else expires,
        "" if group is UNSET else f"={group or ''}",
        b"" if headers is UNSET else b"=" + (b"" if headers is None else _encode(headers)),
    )  # fmt: skip


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
        due = blank(getattr(command, "if_due", None))
        return [(id, f"{due}v{v}") for id, v in zip(command.ids, versions, strict=True)]
    return [*leases, *((id, "") for id in getattr(command, "ids", None) or ())]


def change(run: Sequence[Any], shards: int) -> Step:
    """Change messages of consecutive commands on one queue that say the same."""
    script, head = script_of(run[0])
    named = [_named(command) for command in run]
    rows = named[0] if len(run) == 1 else [row for mine in named for row in mine]
    outcomes, answered, failed = yield from in_lots(
        script, run[0], rows, lambda _lot: list(head), shards
    )
    nexts: list[int | None] = [None] * len(rows)
    for lot, (_now, _change, told, opens) in answered:
        for place, index in enumerate(lot):
            outcome = told[place] if told else (True,)
            outcomes[index] = as_outcome(run[0].queue, str(rows[index][0]), *outcome)
            nexts[index] = opens[place] if opens else None
    return share_out([len(mine) for mine in named], outcomes, failed, nexts)


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
    rest = (blank(n) for n in (command.history, command.result_ttl, *limits))
    args = (paused, blank(command.keep), command.actor or "", PAUSES, *rest)
    told = yield from everywhere("configure", command.queue, args, shards)
    nows, _changes, is_paused, keep, claimable, *numbers = zip(*told, strict=True)
    wake = min((now for now, some in zip(nows, claimable, strict=True) if some), default=None)
    return [Settings(any(is_paused), max(keep), wake, *map(max, numbers))]


def delete(command: cmd.Delete, shards: int) -> Step:
    """Delete a queue if it is empty: first look at all shards, then delete them."""
    existed = False
    for really in (0, 1) if shards > 1 else (1,):
        told = yield from everywhere("delete", command.queue, (really,), shards)
        _nows, _changes, there, *parts, kept = zip(*told, strict=True)
        sizes = Sizes(*map(sum, parts))
        existed = existed or any(there)
        if sizes != Sizes() or sum(kept):
            return [Deleted(False, sizes, sum(kept))]
    return [Deleted(existed)]


def sweep(command: Cancel | Purge, shards: int) -> Step:
    """Delete, or count, the messages that a rule names."""
    if isinstance(command, Purge):
        # A worker holds those that are leased.
        states = {"ready": "ready due", "delayed": "waiting", "leased": ""}
        which = states.get(command.state, command.state)
        where, deletes = Where(before=command.before), True
        counted = "" if which in ("acked", "expired") else "purged"
    else:
        where, deletes, counted = command.where or Where(), not command.dry_run, "cancelled"
        which = "ready delayed" if where.group is None else "group"
    head = which, blank(where.after), blank(where.before), where.group or ""
    total = 0
    cursors: dict[int, str] = dict.fromkeys(range(shards), "")
    while cursors:
        room = BULK - total if deletes else SLICE
        chosen = list(cursors)[: max(room, 1)]
        now_deletes = deletes and room > 0  # else: is anything left?
        share = min(SLICE, max(1, room // len(chosen)))
        tail = counted if now_deletes else "", int(now_deletes), command.actor or ""
        answers = yield [
            Call(
                "sweep", command.queue, (*head, share, cursors[shard], *tail), shard, shards,
                reads=not now_deletes,
            )
            for shard in chosen
        ]  # fmt: skip
        for shard, answer in zip(chosen, raised(answers), strict=True):
            _now, _change, found, cursor = answer
            if deletes and not now_deletes and found > 0:
                return [Affected(total, more=True)]
            total += found
            if cursor is not None or (now_deletes and which != "group" and found == share):
                cursors[shard] = cursor or ""
            else:
                del cursors[shard]
    return [Affected(total)]
