"""Commands about closed groups: see `bide.engines.rules.closing`.

Each shard has all closed groups of its queue, because each checks its own puts and claims. The
first shard is closed and opened last, and asked for the list: a group that is listed is closed in
all shards, unless a command that opens it has failed half-way.
"""

from bide.engines.redis.calls import Round, ScriptCall, Step, without_errors
from bide.model.commands import ClosedGroups, CloseGroup, ReopenGroup
from bide.model.replies import ClosedGroup, GroupsClosed


def close_group(command: CloseGroup, shards: int) -> Step:
    """Close a group in all shards."""
    until = yield from _first_last(command, (command.group, command.keep), shards)
    return [GroupsClosed([ClosedGroup(until, command.group)])]


def reopen_group(command: ReopenGroup, shards: int) -> Step:
    """Open a group in all shards."""
    until = yield from _first_last(command, (command.group,), shards)
    return [GroupsClosed([] if until is None else [ClosedGroup(until, command.group)])]


def _first_last(
    command: CloseGroup | ReopenGroup, args: tuple[str | int, ...], shards: int
) -> Round:
    """Change all shards, the first one last; return what that one answered.

    Raises:
        StoreError: one of them did not answer. To repeat the command is safe.
    """
    verb = command.__struct_config__.tag
    assert isinstance(verb, str)
    calls = [ScriptCall(verb, command.queue, args, shard, shards) for shard in range(shards)]
    if shards > 1:
        without_errors((yield calls[1:]))
    ((_now, _change, until),) = without_errors((yield calls[:1]))
    return until


def closed_groups(command: ClosedGroups, shards: int) -> Step:
    """List closed groups, by the first shard."""
    after = command.after or ClosedGroup(0, "")
    args = (after.until, after.group, command.limit + 1)
    answers = yield [ScriptCall("closed_groups", command.queue, args, 0, shards)]
    ((_now, _change, listed),) = without_errors(answers)
    pairs = zip(listed[::2], listed[1::2], strict=True)
    groups = [ClosedGroup(int(until), group) for group, until in pairs]
    return [GroupsClosed(groups[: command.limit], more=len(groups) > command.limit)]
