"""What each kind of command does: jobs, which are rounds of calls of scripts."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from bide.engines.redis.verbs import change, claim, look, put, settle
from bide.engines.redis.verbs.job import Call, Job
from bide.model import commands as cmd

__all__ = ["Call", "Job", "Work", "check", "plan"]


class Work(NamedTuple):
    """Consecutive commands that are carried out together, and how."""

    commands: Sequence[Any]
    job: Job
    rounds: bool
    """It may take several rounds, so that nothing may be on its way beside it."""
    shards: int = 1
    """Of how many shards the queue is made."""
    shard: int | None = None
    """Which one it is about; `None` of several: the job says it with each call."""
    tolerant: bool = False
    """The job is sent errors too, and goes on with what else there is."""

    def placed(self, calls: list[Call]) -> list[Call]:
        """Return the calls with where they go to."""
        if self.shards == 1 or self.shard is None:
            return calls
        return [call._replace(shard=self.shard, shards=self.shards) for call in calls]


_cancel = attrgetter("__class__", "queue", "if_due", "if_version")
_bury = attrgetter("__class__", "queue", "reason")

_TOGETHER: dict[type, tuple[Callable[[Any], Job], Callable[[Any], object]]] = {
    cmd.Put: (put.put, attrgetter("__class__", "queue", "on_conflict", "if_version")),
    put.NumberedPut: (put.put, attrgetter("__class__", "queue", "on_conflict", "if_version")),
    cmd.Cancel: (change.cancel, lambda c: _cancel(c) if c.where is None else object()),
    cmd.Reschedule: (
        change.reschedule,
        attrgetter("__class__", "queue", "at", "delay", "if_due", "if_version"),
    ),
    cmd.Release: (change.release, attrgetter("__class__", "queue", "reason")),
    cmd.Revive: (change.revive, attrgetter("__class__", "queue", "delay")),
    cmd.Ack: (settle.ack, attrgetter("__class__", "queue")),
    cmd.Extend: (settle.extend, attrgetter("__class__", "queue", "lease")),
    cmd.Retry: (settle.retry, attrgetter("__class__", "queue", "delay", "reason", "release")),
    cmd.Bury: (settle.bury, lambda c: object() if c.ids else _bury(c)),
}
"""Of commands that agree in these fields a run is carried out as one."""

_ALONE: dict[type, tuple[Callable[[Any], Job], bool]] = {
    cmd.Purge: (change.purge, True),
    cmd.Configure: (change.configure, False),
    cmd.Find: (look.find, False),
    cmd.Scan: (look.scan, True),
    cmd.Count: (look.count, False),
    cmd.Forecast: (look.forecast, True),
}


def _runs(commands: Sequence[cmd.Command]) -> list[Sequence[cmd.Command]]:
    """Split commands into runs, each of which is carried out as one."""
    if len(commands) == 1:
        return [commands]
    kinds = set(map(type, commands))
    known = _TOGETHER.get(kinds.pop()) if len(kinds) == 1 else None
    return [list(run) for _, run in groupby(commands, _alike if known is None else known[1])]


def _alike(command: cmd.Command) -> object:
    """Return what consecutive commands must have in common to be carried out as one."""
    known = _TOGETHER.get(type(command))
    return object() if known is None else known[1](command)


def plan(commands: Sequence[cmd.Command]) -> Iterator[Work]:
    """Return the work that commands mean, in their order."""
    for run in _runs(commands):
        first = run[0]
        if isinstance(first, cmd.Cancel) and first.where is not None:
            yield Work(run, change.cancel_where(first), True)
        elif isinstance(first, cmd.Bury) and first.ids:
            yield Work(run, settle.bury_by_id(first), True)
        elif isinstance(first, cmd.Claim):
            yield Work(run, claim.claim(first), claim.is_large(first), tolerant=True)
        elif type(first) in _TOGETHER:
            yield Work(run, _TOGETHER[type(first)][0](run), False)
        else:
            job, rounds = _ALONE[type(first)]
            rounds = rounds or (isinstance(first, cmd.Count) and first.recount)
            yield Work(run, job(first), rounds)


def check(commands: Sequence[cmd.Command]) -> None:
    """Refuse what cannot be, before anything is done.

    Raises:
        InvalidArgument: a cursor that no scan made.
    """
    if cmd.Scan not in set(map(type, commands)):
        return
    for command in commands:
        if isinstance(command, cmd.Scan):
            look.check_cursor(command)
