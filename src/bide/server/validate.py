"""Validate the commands of the batch endpoint as strictly as arguments.

`bide.queue.command_builder` builds valid commands for a `Queue` of this process. A command of a
request may contain anything.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec import UNSET

from bide.engines.cursor import position
from bide.engines.ended_pages import end_position
from bide.model import commands as cmd
from bide.model.body import check_json
from bide.model.command_parts import check_origin
from bide.model.ended import check_result
from bide.model.errors import InvalidArgument
from bide.model.identity import check_actor, check_name, check_queue
from bide.model.internal_queues import InternalQueue, internal_queue
from bide.model.message import Item
from bide.model.options import check_options
from bide.model.past import PastCommand
from bide.model.replies import ClosedGroup
from bide.model.runs import Run, check_repeated_id, check_rule_and_run
from bide.model.times import LATEST
from bide.model.undoing import Bulk, Undo
from bide.queue.arguments import checked_version, overdue_of, progress_of
from bide.server.access.declarations import is_about_own_queues
from bide.server.access.heartbeats import check_heartbeat
from bide.server.access.rights import Caller, Right, rights_of
from bide.server.limits.request_bodies import Pause
from bide.server.problem import naming_server
from bide.undoing.steps import is_token

LONGEST_FORECAST = 2 * LATEST
"""How many milliseconds a forecast spans at most. With the longest durations that arguments may
have, the last of its buckets ends before that."""

_VALUES_PER_PAUSE = 256
"""Values of a list that are checked before other requests get a turn."""


async def check(
    command: cmd.Command | Bulk | Undo | PastCommand, caller: Caller, max_body: int, pause: Pause
) -> str:
    """Check that a command can be carried out; return the name of its queue in the store.

    Args:
        command: the command, with the caller's name of its queue.
        caller: who sends it.
        max_body: how many bytes a body may take.
        pause: lets other requests go on.

    Raises:
        InvalidArgument: one of its values is not valid.
        AccessDenied: the caller lacks a right for it, or for its queue.
    """
    internal = internal_queue(command.queue)
    rights = rights_of(command, internal)
    caller.need(*rights)
    if isinstance(command, cmd.Queues) or (isinstance(command, PastCommand) and command.together):
        queue = caller.prefix(command.queue)  # the beginning of the names of several
    else:
        queue = _queue_for(command, caller, internal, rights)
    if isinstance(command, cmd.CloseGroup):
        check_has_groups(command.queue)
    await check_values(command, pause)
    _check_versions(command, caller)
    _check_combinations(command)
    if isinstance(command, cmd.Put):
        for item in command.items:
            await pause(len(item.data))
            _check_item(item, max_body)
    elif isinstance(command, cmd.Edit):
        await pause(len(command.data or b""))
        _check_edit(command, max_body)
    return queue


def _queue_for(
    command: cmd.Command | Bulk | Undo | PastCommand,
    caller: Caller,
    internal: InternalQueue | None,
    rights: tuple[Right, ...],
) -> str:
    """Return the name in the store of a command's queue, if the caller may use it.

    Raises:
        AccessDenied: the caller may not.
    """
    # What is declared for its own queues, a caller may read and write whatever else it may do.
    is_declared = internal is InternalQueue.DECLARED
    if not (is_declared and is_about_own_queues(command, caller)):
        is_heartbeat = rights == ("consume",)  # what each worker may do
        caller.need_queue(command.queue, internal, heartbeat=is_heartbeat)
    queue = check_queue(caller.prefix(command.queue))
    if internal is InternalQueue.WORKERS:
        check_heartbeat(command, caller)
    return queue


def check_has_groups(queue: str) -> None:
    """Check that groups of a queue can be closed.

    Raises:
        InvalidArgument: it is an internal queue; quotas do not count what is in some of these.
    """
    if internal_queue(queue) is not None:
        raise InvalidArgument(
            f"queue={queue!r} is one of bide's own: its messages are in no groups"
        )


def _check_versions(command: cmd.Command | Bulk | Undo | PastCommand, caller: Caller) -> None:
    """Check the versions that messages must have, if the command names any.

    Raises:
        InvalidArgument: they do not fit the ids.
        AccessDenied: the caller may not read bodies: a version would confirm a guessed body.
    """
    versions = getattr(command, "versions", None)
    if_version = getattr(command, "if_version", None)
    if versions or if_version is not None:
        caller.need("bodies")
    if versions:
        id_count = len(getattr(command, "ids", None) or ())
        if len(versions) != id_count or if_version is not None:
            raise InvalidArgument(
                f"there are {len(versions):,} versions for {id_count:,} ids; give one for each id "
                "and no if_version, or no versions"
            )


def _check_combinations(command: cmd.Command | Bulk | Undo | PastCommand) -> None:
    """Check values of a command that exclude or need each other.

    Raises:
        InvalidArgument: some do not go together.
    """
    if (origin := getattr(command, "origin", None)) is not None:
        if getattr(command, "where", None) is not None:
            raise InvalidArgument("origin is for messages by id; leave out where")
        check_origin(origin, command.weight)
    match command:
        case cmd.Put() if command.on_conflict != "replace":
            replaces = command.if_version is not None
            for item in command.items:
                replaces = replaces or item.latest is not None
            if replaces:
                raise InvalidArgument(
                    'latest and if_version are for replacing: on_conflict must be "replace"'
                )
        case cmd.Postpone():
            _check_times(command)
        case Bulk():
            if command.verb == "postpone" or command.if_dues or command.dues:
                _check_times(command)
            state = "dead" if command.verb == "revive" else command.state
            _check_cursor(cmd.Scan("", state, command.where, command.cursor))
        case cmd.Scan():
            _check_cursor(command)
            if command.prefix is not None and (command.state or command.where):
                raise InvalidArgument("prefix is for all messages; leave out state and where")
        case cmd.ListEnded():
            end_position(command.cursor)
        case cmd.Renew() if len(command.next) != len(command.leases):
            raise InvalidArgument(
                f"there are {len(command.next):,} next runs for {len(command.leases):,} messages; "
                "give one, or null, for each"
            )
        case cmd.Ack() | cmd.Renew() if 0 < len(command.results) != len(command.leases):
            raise InvalidArgument(
                f"there are {len(command.results):,} results for {len(command.leases):,} messages; "
                "give one, or null, for each"
            )
        case cmd.Extend() if command.progress and len(command.progress) != len(command.leases):
            raise InvalidArgument(
                f"there are {len(command.progress):,} reports for {len(command.leases):,} "
                "messages; give one, or null, for each"
            )
        case cmd.Extend() if command.lease is None and not command.progress:
            raise InvalidArgument("extend takes a lease, or progress, or both")
        case cmd.ForecastCommand() if command.bucket * command.buckets > LONGEST_FORECAST:
            raise InvalidArgument(
                f"{command.buckets:,} buckets of {command.bucket:,} ms are too long a time; "
                f"together they have at most {LONGEST_FORECAST:,} ms"
            )
        case cmd.CloseGroup(group=group) | cmd.ReopenGroup(group=group):
            check_name(group, "group")
        case cmd.ClosedGroups(after=ClosedGroup(group=group)) if group:
            check_name(group, "group")
        case cmd.Purge() if command.ids is not None and command.state != "dead":
            raise InvalidArgument('ids are for dead letters; with them, state must be "dead"')
        case cmd.Purge() if command.moved and command.ids is None:
            raise InvalidArgument("moved is said of messages that are named by ids")


def _check_times(command: cmd.Postpone | Bulk) -> None:
    """Check that a command has a new due time for each of its ids, and perhaps the one before.

    Raises:
        InvalidArgument: it has another number of times than of ids, or an id twice.
    """
    needs_dues = isinstance(command, cmd.Postpone) or command.verb == "postpone"
    ids = command.ids or []
    for name, times in (("dues", command.dues), ("if_dues", command.if_dues)):
        is_needed = name == "dues" and needs_dues
        if (times or is_needed) and len(times) != len(ids):
            raise InvalidArgument(
                f"{name} has {len(times):,} times for {len(ids):,} ids; give one for each id"
            )
    if len(set(ids)) < len(ids) and isinstance(command, Bulk):
        raise InvalidArgument("ids has an id twice; name each message once")
    if needs_dues and command.ids is None:
        raise InvalidArgument("a postponement names messages by id; give ids")


async def check_values(command: cmd.Command | Bulk | Undo | PastCommand, pause: Pause) -> None:
    """Check each field of a command that has a rule, and each value in its lists.

    Raises:
        InvalidArgument: one of them is not valid.
    """
    for name, rule in _rules_of(type(command)):
        value = getattr(command, name)
        for number, element in enumerate(value if isinstance(value, list) else [value], 1):
            if element is not None:
                rule(element, name)
                if name == "results" or not number % _VALUES_PER_PAUSE:  # a result takes up to 2 ms
                    await pause()


def _check_item(item: Item, max_body: int) -> None:
    """Check that a message can be put.

    Raises:
        InvalidArgument: one of its values is not valid.
    """
    check_name(item.id)
    if len(item.data) > max_body:
        raise InvalidArgument(
            f"body of {item.id!r} takes {len(item.data):,} bytes; the server accepts {max_body:,}"
        )
    if item.json:
        check_json(item.data, f"body of {item.id!r}")
    check_options(item)
    if item.rule is not None or item.run is not None:
        with naming_server():
            check_rule_and_run(item.id, item.rule, item.run)


def _check_edit(edit: cmd.Edit, max_body: int) -> None:
    """Check the new values of an edit.

    Raises:
        InvalidArgument: one of them is not valid.
    """
    # An item with these values; a body and an id stand in for those that stay.
    data = b"0" if edit.data is UNSET else edit.data
    is_json = edit.json or edit.data is UNSET
    _check_item(Item("-", data, is_json, edit.at, edit.delay or 0, **edit.options), max_body)
    if edit.times:
        _check_new_times(edit)
    if (edit.rule is UNSET) is not (edit.run is UNSET):
        raise InvalidArgument("rule and run go together: give both, or neither")
    if isinstance(edit.run, str):
        for id in edit.ids:
            check_repeated_id(id)


def _check_new_times(edit: cmd.Edit) -> None:
    """Check the times that an edit has for each of its messages.

    Raises:
        InvalidArgument: one of them is not valid, or there are more or fewer than messages.
    """
    if len(edit.times) != len(edit.ids):
        raise InvalidArgument(
            f"there are {len(edit.times):,} times for {len(edit.ids):,} ids; give one for each id"
        )
    if edit.at is not None or edit.delay is not None or edit.rule is not UNSET:
        raise InvalidArgument("times replace at, delay, rule and run: give only one of these")
    for id, time in zip(edit.ids, edit.times, strict=True):
        with naming_server():
            # A run goes with the rule that the message has.
            check_rule_and_run(id, time.rule, None if time.rule is None else time.run)
            if time.run is not None:
                Run.of(time.run)
                check_repeated_id(id)


def _check_undo(value: str, name: str) -> None:
    if not is_token(value):
        raise InvalidArgument(f"{name}={value[:64]!r} is not the token of a change; see bide undo")


def _check_cursor(command: cmd.Scan) -> None:
    """Check a cursor: a wrong one must not fail a batch after other commands were executed."""
    cursor = command.cursor
    if cursor is None:
        return
    if cursor.startswith("id:"):  # a scan by prefix: the cursor has the last id
        check_name(cursor.removeprefix("id:"), "cursor")
        return
    if cursor.partition("~")[0].count(".") == 3:
        return  # it is of Redis, which checks it before it executes anything
    place = position(cursor)
    by_id = command.state is None and command.where in (None, cmd.Where())
    if by_id and (place.phase or place.since is not None):
        raise InvalidArgument(
            f"cursor={cursor!r} is not from a scan of all messages; begin without a cursor"
        )


Rule = Callable[[Any, str], object]

RULES: dict[str, Rule] = {
    "actor": lambda actor, name: check_actor(actor),
    "holder": check_name,
    "id": check_name,
    "if_version": lambda version, name: checked_version(version),
    "undo": _check_undo,
    "where": lambda where, name: where.group is None or check_name(where.group, "group"),
    "ids": lambda id, name: check_name(id),
    "overdue": lambda plan, name: overdue_of(plan),
    "leases": lambda lease, name: check_name(lease.id),
    "next": lambda following, name: Run.of(following.run),
    "progress": lambda report, name: progress_of(report.done, report.of, report.text),
    "results": lambda result, name: check_result(result),
    "versions": lambda version, name: checked_version(version),
}
"""The rule of each field of a command, and of each value in its lists, by name: a name means the
same in every command. Fields that are bounded where they are declared (`bide.model.commands`) have
none."""


@cache
def _rules_of(kind: type) -> list[tuple[str, Rule]]:
    """Return the rules of the fields that a command has."""
    return [(name, rule) for name, rule in RULES.items() if hasattr(kind, name)]
