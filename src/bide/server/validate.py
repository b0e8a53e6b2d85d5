"""Validate the commands of the batch endpoint as strictly as arguments.

`bide.queue.command_builder` makes the commands of a `Queue` in this process. A command that comes
over the wire may come from anywhere.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from bide.engines.cursor import position
from bide.model import commands as cmd
from bide.model import limits
from bide.model.body import check_depth, parse
from bide.model.command_parts import check_origin
from bide.model.ended import check_result
from bide.model.errors import InvalidArgument
from bide.model.identity import check_actor, check_name, check_queue
from bide.model.limits import check_range
from bide.model.message import REASON_LENGTH, Item
from bide.model.options import check_options
from bide.model.times import LATEST, SLOWEST
from bide.model.undoing import Bulk, Undo
from bide.queue.undo_steps import is_token
from bide.server.access.rights import Caller, rights_of
from bide.server.limits.request_bodies import Pause

_STEP = 256
"""Values of a list that are checked before others may go on."""


def check(command: cmd.Command | Bulk | Undo, caller: Caller) -> None:
    """Check that a command can be carried out.

    `check_each` checks the values of its lists, and `check_item` the messages of a Put.

    Raises:
        InvalidArgument: one of its values cannot be.
        AccessDenied: the caller lacks a right for it, or for its queue.
    """
    rights = rights_of(command)
    caller.need(*rights)
    if isinstance(command, cmd.Queues):
        _text(command.queue, "prefix")
    else:
        check_queue(caller.full(command.queue, heartbeat=rights == ("consume",)))
    for name in command.__struct_fields__:
        value = getattr(command, name)
        if value is not None and (rule := RULES.get(name)) is not None:
            rule(value, name)
    if versions := getattr(command, "versions", None):
        named = len(getattr(command, "ids", None) or ())
        if len(versions) != named or getattr(command, "if_version", None) is not None:
            raise InvalidArgument(
                f"versions are {len(versions):,} for {named:,} ids; give one for each, and no "
                "if_version, or none"
            )
    if (origin := getattr(command, "origin", None)) is not None:
        if getattr(command, "where", None) is not None:
            raise InvalidArgument("origin is of messages by id: leave out where")
        check_origin(origin, command.weight)
    match command:
        case cmd.Put():
            latest = any(item.latest is not None for item in command.items)
            if command.on_conflict != "replace" and (latest or command.if_version is not None):
                name = "latest" if latest else "if_version"
                raise InvalidArgument(f'{name} is for replacing: on_conflict must be "replace"')
        case Bulk():
            state = "dead" if command.verb == "revive" else command.state
            _cursor(cmd.Scan("", state, command.where, command.cursor))
        case cmd.Scan():
            check_range(command.limit, "limit", least=1, most=limits.MAX_COUNT)
            _cursor(command)
            if command.prefix is not None and (command.state or command.where):
                raise InvalidArgument("prefix is of all messages: leave out state and where")
        case cmd.Ack() if command.results and len(command.results) != len(command.leases):
            raise InvalidArgument(
                f"results are {len(command.results):,} for {len(command.leases):,} messages; give "
                "one, or null, for each"
            )
        case cmd.Purge() if command.ids is not None and command.state != "dead":
            raise InvalidArgument('ids are of dead letters: state must be "dead" with them')


async def check_each(command: cmd.Command | Bulk | Undo, pause: Pause) -> None:
    """Check each value in the lists of a command.

    Raises:
        InvalidArgument: one of them cannot be.
    """
    for name, rule in EACH.items():
        for number, value in enumerate(getattr(command, name, None) or (), 1):
            rule(value, name)
            if not number % _STEP:
                await pause()


def check_item(item: Item, max_body: int) -> None:
    """Check that a message can be put.

    Raises:
        InvalidArgument: one of its values cannot be.
    """
    check_name(item.id)
    if len(item.data) > max_body:
        raise InvalidArgument(
            f"body of {item.id!r} takes {len(item.data):,} bytes, the server takes {max_body:,}"
        )
    if item.json:
        try:
            parse(item.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidArgument(f"body of {item.id!r} is no JSON: {error}") from None
        check_depth(item.data)
    for name in ("at", "died", "created"):
        _moment(getattr(item, name), name)
    for name in ("delay", "expires", "latest"):
        if (value := getattr(item, name)) is not None:
            _span(value, name)
    check_options(item)
    check_range(item.attempt, "attempt", 0, 1 << 31)
    for name, value in (item.headers or {}).items():
        _text(name, "headers")
        _text(value, "headers")
    if len(item.failures) > limits.MAX_PUT_FAILURES:
        raise InvalidArgument(f"failures of {item.id!r} are more than {limits.MAX_PUT_FAILURES}")
    for failure in item.failures:
        check_range(failure.attempt, "failures", 0, 1 << 31)
        _moment(failure.moment, "failures")
        _moment(failure.started, "failures")
        for name, most in (("holder", limits.MAX_NAME), ("reason", REASON_LENGTH)):
            _text(text := getattr(failure, name), "failures")
            check_range(len(text), f"length of a {name} in failures", 0, most)


def check_edit(edit: cmd.Edit, max_body: int) -> None:
    """Check what is to be changed of messages.

    Raises:
        InvalidArgument: one of its values cannot be.
    """
    data = b"0" if edit.data is UNSET else edit.data
    is_json = edit.json or edit.data is UNSET
    check_item(Item("-", data, is_json, edit.at, edit.delay or 0, **edit.options), max_body)


def _few(named: Sequence[object], name: str) -> None:
    if len(named) > limits.MAX_COUNT:
        raise InvalidArgument(
            f"a command names {len(named):,} messages; {limits.MAX_COUNT:,} is the most"
        )


def _lease(lease: cmd.Lease, name: str) -> None:
    check_name(lease.id)
    check_range(lease.token, "token", -1, 1 << 53)
    _text(lease.secret or "", "secret")


def _version(value: str, name: str) -> None:
    if not re.fullmatch("[0-9a-f]{16}", value):
        raise InvalidArgument(f"{name}={value!r} is no version: 16 hexadecimal digits")


def _undo(value: str, name: str) -> None:
    if not is_token(value):
        raise InvalidArgument(f"{name}={value[:64]!r} is no token of a change; see bide undo")


def _where(where: cmd.Where, name: str) -> None:
    if where.group is not None:
        check_name(where.group, "group")
    _moment(where.after, "after")
    _moment(where.before, "before")


def _cursor(command: cmd.Scan) -> None:
    """A cursor that cannot be must not undo a batch of which the rest has been carried out."""
    cursor = command.cursor
    if cursor is None:
        return
    if cursor.startswith("id:"):
        check_name(cursor[3:], "cursor")
        return
    if cursor.count(".") == 3:  # of Redis, which checks it before it executes anything
        return
    phase, _ = position(cursor)
    by_id = command.state is None and command.where in (None, cmd.Where())
    if by_id and phase:
        raise InvalidArgument(f"cursor={cursor!r} comes from no scan of all; begin without one")


def _moment(value: int | None, name: str) -> None:
    if value is not None:
        check_range(value, name, 0, 2 * LATEST)


def _span(value: int, name: str) -> None:
    check_range(value, name, 0, LATEST)


def _text(value: str, name: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} is not valid Unicode text: {value!r}") from None


def _within(least: int, most: int) -> Callable[[Any, str], object]:
    return partial(check_range, least=least, most=most)


RULES: dict[str, Callable[[Any, str], object]] = {
    name: rule
    for names, rule in (
        ("actor", lambda value, name: check_actor(value)),
        ("at before if_due until", _moment),
        ("delay history keep result_ttl", _span),
        ("ids items leases results versions", _few),
        ("holder id", check_name),
        ("prefix reason", _text),
        ("count group_limit limit slots", _within(0, limits.MAX_COUNT)),
        ("bucket", _within(1, LATEST)),
        ("buckets", _within(0, limits.MAX_BUCKETS)),
        ("lease", _within(0, limits.MAX_LEASE)),
        ("max_bytes", _within(0, limits.MAX_BYTES)),
        ("group_rate rate", _within(0, SLOWEST)),
        ("part", _within(0, 1 << 53)),
        ("if_version", _version),
        ("undo", _undo),
        ("where", _where),
    )
    for name in names.split()
}
"""The rule of each field of a command, by name: a name means the same in every command."""

EACH: dict[str, Callable[[Any, str], object]] = {
    "ids": lambda id, name: check_name(id),
    "leases": _lease,
    "results": lambda result, name: None if result is None else check_result(result),
    "versions": _version,
}
"""The rule of each value in a list of a command, by the name of the list."""
