"""From a command back to the call of a queue's method that a user would write for it."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from bide.model import body as bodies
from bide.model import commands as cmd
from bide.model.message import ATTEMPTS, Item, Message, NewMessage
from bide.model.moments import LATEST, to_datetime
from bide.queue.arguments import LONGEST_LEASE, MOST

__all__ = ["Call", "call_for"]


class Call(NamedTuple):
    """A method, of a queue or of a delivery, and what it is called with."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012  (nobody changes it)
    lease: cmd.Lease | None = None
    """Whose delivery's method it is; `None`: the queue's."""
    leases: tuple[cmd.Lease, ...] = ()
    """Whose deliveries are its first argument."""


def call_for(command: cmd.Command) -> Call | None:
    """Return the call that asks for exactly this; `None` where users cannot ask for it.

    What they cannot say is what only bide itself says (the next page of a scan, an import with its
    attempts), and what `Arguments` refuses (a lease of a year, a claim of nothing).
    """
    making = _CALLS.get(type(command))
    if making is None or not all(0 <= moment <= LATEST for moment in _moments(command)):
        return None
    return making(command)


def _moments(command: cmd.Command) -> Iterator[int]:
    """Yield the moments that a command names."""
    holders = [command, getattr(command, "where", None), *getattr(command, "items", ())]
    for holder in holders:
        for name in ("at", "after", "before", "if_due"):
            moment = getattr(holder, name, None)
            if moment is not None:
                yield moment


def _ms(ms: int) -> timedelta:
    return timedelta(milliseconds=ms)


def _moment(ms: int | None) -> Any:
    return None if ms is None else to_datetime(ms)


def _put(command: cmd.Put) -> Call | None:
    if command.on_conflict == "revive" or command.if_version is not None:
        return None
    if not command.items or not all(map(_sayable, command.items)):
        return None
    messages = [_new(item) for item in command.items]
    if len(messages) == 1:
        options = {name: getattr(messages[0], name) for name in NewMessage.__struct_fields__}
        return Call("put", (options.pop("body"),), {**options, "on_conflict": command.on_conflict})
    return Call("put_many", (messages,), {"on_conflict": command.on_conflict})


def _sayable(item: Item) -> bool:
    if item.died is not None or item.attempt or item.failures or item.expires == 0:
        return False
    if item.at is not None and item.delay:
        return False
    # JSON that bide would write otherwise was not written by it.
    return bodies.encode(bodies.decode(item.data, item.json)) == (item.data, item.json)


def _new(item: Item) -> NewMessage:
    return NewMessage(
        bodies.decode(item.data, item.json),
        delay=_ms(item.delay) if item.at is None else None, at=_moment(item.at), id=item.id,
        priority=item.priority, expires=None if item.expires is None else _ms(item.expires),
        attempts=item.attempts, group=item.group, headers=item.headers,
    )  # fmt: skip


def _cancel(command: cmd.Cancel) -> Call | None:
    where = command.where
    if where is not None:
        rule = {
            "group": where.group,
            "after": _moment(where.after),
            "before": _moment(where.before),
        }
        if command.ids or command.if_due is not None or where == cmd.Where():
            return None
        return Call("cancel", (), {**rule, "dry_run": command.dry_run})
    if command.dry_run or command.if_version is not None:
        return None
    if len(command.ids) == 1:
        return Call("cancel", (command.ids[0],), {"if_due": _moment(command.if_due)})
    return Call("cancel_many", (command.ids,)) if command.if_due is None else None


def _rule(where: cmd.Where) -> dict[str, Any]:
    moments = {"after": _moment(where.after), "before": _moment(where.before)}
    return {"group": where.group, **moments}


def _reschedule(command: cmd.Reschedule) -> Call | None:
    if len(command.ids) != 1 or (command.at is not None and command.delay):
        return None
    if command.if_version is not None:
        return None
    when = {"delay": _ms(command.delay)} if command.at is None else {"at": _moment(command.at)}
    return Call("reschedule", (command.ids[0],), {**when, "if_due": _moment(command.if_due)})


def _claim(command: cmd.Claim) -> Call | None:
    if not 1 <= command.count <= MOST or not 1 <= command.lease <= LONGEST_LEASE:
        return None
    return Call("claim", (command.count,), {"lease": _ms(command.lease)})


def _settling(method: str, leases: list[cmd.Lease], *args: Any) -> Call:
    if len(leases) == 1:
        return Call(method, args, lease=leases[0])
    return Call(method, args, leases=tuple(leases))


def _retry(command: cmd.Retry) -> Call | None:
    if not command.release:
        return _settling("retry", command.leases, _ms(command.delay), command.reason)
    if command.delay or command.reason:
        return None
    return _settling("release", command.leases)


def _extend(command: cmd.Extend) -> Call | None:
    if not 1 <= command.lease <= LONGEST_LEASE:
        return None
    return _settling("extend", command.leases, _ms(command.lease))


def _scan(command: cmd.Scan) -> Call | None:
    if command.cursor is not None or not 1 <= command.limit <= 10_000:
        return None
    where = command.where or cmd.Where()
    if command.state == "next":
        return Call("peek", (command.limit,)) if command.where is None else None
    if command.where == cmd.Where():
        return None
    return Call("scan", (command.state,), {**_rule(where), "page": command.limit})


def _forecast(command: cmd.Forecast) -> Call | None:
    if command.bucket < 1 or not 1 <= command.buckets <= MOST // 10:
        return None
    return Call("forecast", (_ms(command.bucket), _ms(command.bucket * command.buckets)))


def _configure(command: cmd.Configure) -> Call | None:
    if command.paused is None or command.keep is not None:
        return None  # how long to keep is said when a queue is made
    return Call("pause" if command.paused else "resume")


def _purge(command: cmd.Purge) -> Call | None:
    if command.state == "leased" or command.ids is not None:
        return None
    return Call("purge", (), {"state": command.state, "before": _moment(command.before)})


_CALLS: dict[type, Callable[[Any], Call | None]] = {
    cmd.Put: _put,
    cmd.Cancel: _cancel,
    cmd.Reschedule: _reschedule,
    cmd.Claim: _claim,
    cmd.Ack: lambda command: _settling("ack", command.leases),
    cmd.Retry: _retry,
    cmd.Bury: lambda c: _settling("bury", c.leases, c.reason) if not c.ids else None,
    cmd.Extend: _extend,
    cmd.Revive: lambda c: Call("revive", (c.ids,), {"delay": _ms(c.delay)}) if c.ids else None,
    cmd.Find: lambda command: Call("get", (command.ids[0],)) if len(command.ids) == 1 else None,
    cmd.Scan: _scan,
    cmd.Count: lambda command: Call("audit" if command.recount else "counts"),
    cmd.Forecast: _forecast,
    cmd.Configure: _configure,
    cmd.Purge: _purge,
}


def message_of(lease: cmd.Lease, queue: str) -> Message:
    """Return a message that stands for one that somebody holds: only its id matters."""
    return Message(lease.id, queue, b"null", True, 0, 0, 1, ATTEMPTS, "leased")
