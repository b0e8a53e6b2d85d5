"""The Redis engine: one queue for many machines, on a Redis or Valkey server."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from bide.engines.port import Capabilities, Notifier, PartlyDone
from bide.engines.redis import look
from bide.engines.redis.calls import SLICE, Call, Job, Outcome, Plan
from bide.engines.redis.change import change
from bide.engines.redis.claim import claim, claim_many
from bide.engines.redis.claim_shards import claim_shards
from bide.engines.redis.notifier import RedisNotifier
from bide.engines.redis.put import put
from bide.engines.redis.queue_names import QueueNames
from bide.engines.redis.rules import sweep
from bide.engines.redis.scan import check_cursor, scan
from bide.engines.redis.sender import Sender
from bide.engines.redis.settings import Settings
from bide.engines.redis.shards import ShardedQueue, ShardMap, ShardMismatch
from bide.model import commands as cmd
from bide.model.errors import Closed, StoreError
from bide.model.replies import Names, Reply

__all__ = ["RedisEngine"]

_TOGETHER: dict[type, Callable[[Any], object]] = {
    cmd.Put: attrgetter("queue", "on_conflict", "if_version"),
    cmd.Cancel: lambda c: object() if c.where else (c.queue, c.if_due, c.if_version),
    cmd.Reschedule: attrgetter("queue", "at", "delay", "if_due", "if_version"),
    cmd.Revive: attrgetter("queue", "delay"),
    cmd.Ack: attrgetter("queue"),
    cmd.Extend: attrgetter("queue", "lease"),
    cmd.Retry: attrgetter("queue", "delay", "reason", "release"),
    cmd.Bury: attrgetter("queue", "reason"),
    cmd.Release: attrgetter("queue", "reason"),
}
"""Consecutive commands that agree in this are carried out as one."""


def _alike(command: cmd.Command) -> object:
    key = _TOGETHER.get(type(command))
    return object() if key is None else (type(command), key(command))


class RedisEngine:
    """Executes each batch of commands in as few pipelines of scripts as it allows.

    Args:
        settings: where the servers are; `from_url` reads them from a URL.

    Raises:
        StoreError: the store cannot be reached, or is not what bide needs.
    """

    capabilities = Capabilities(resends=True, overlaps=True)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lane = secrets.token_hex(6)
        self._named: set[str] = set()
        self._shards = ShardMap(settings.shards)
        self._notifier: RedisNotifier | None = None
        self._closed = False
        self._sender = Sender(settings, self._lane)
        self._names = QueueNames(self._sender, clustered=settings.cluster is not None)

    def execute(self, commands: Sequence[cmd.Command], now: int | None = None) -> list[Reply]:
        """Carry out the commands in order."""
        if self._closed:
            raise Closed("this engine was closed")
        for command in commands:
            if isinstance(command, cmd.Scan):
                check_cursor(command)
        outcomes: list[Outcome] = []
        for lists, group in groupby(commands, lambda command: isinstance(command, cmd.Queues)):
            run = list(group)
            outcomes += map(self._list, run) if lists else self._run(run, now)
        errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
        if not errors:
            return outcomes  # type: ignore[return-value]
        if len(errors) == len(outcomes) and len({(type(e), str(e)) for e in errors}) == 1:
            raise errors[0]
        raise PartlyDone(outcomes)

    def reader(self) -> "RedisEngine":
        """Return an engine with connections of its own, whose reads wait for no batch."""
        return RedisEngine(self._settings)

    def notifier(self) -> Notifier | None:
        """Start to listen for what other processes put."""
        if self._notifier is None:
            self._notifier = RedisNotifier(self._settings, self._lane)
            self._sender.listen(self._notifier.doubt)
        return self._notifier

    def ring(self, queue: str, wake: int) -> None:
        """Do nothing: the script that changed the queue has woken a lane."""

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._notifier is not None:
            self._notifier.close()
            self._notifier = None
        self._sender.close()

    # Carrying out.

    def _run(self, commands: Sequence[cmd.Command], now: int | None) -> list[Outcome]:
        """Carry out commands; return what came of each."""

        def send(calls: Sequence[Call]) -> list[Any]:
            return self._sender.send(calls, now)

        self._meet(commands, send)
        outcomes: list[Outcome] = []
        gathered: list[Plan] = []
        for step in self._steps(commands):
            if isinstance(step, Plan):
                gathered.append(step)
                continue
            outcomes += self._carry_out(gathered, send)
            gathered = []
            outcomes.append(step(send))
        outcomes += self._carry_out(gathered, send)
        mismatched = [i for i, o in enumerate(outcomes) if isinstance(o, ShardMismatch)]
        if (
            mismatched
        ):  # nothing was done for these, and now it is known of how many shards they are
            for i in mismatched:
                self._shards.learn(commands[i].queue, outcomes[i].shards, send)  # type: ignore[union-attr]
            told = self._run([commands[i] for i in mismatched], now)
            for i, outcome in zip(mismatched, told, strict=True):
                outcomes[i] = outcome
        return outcomes

    def _meet(self, commands: Sequence[cmd.Command], send: Callable[..., list[Any]]) -> None:
        """Find out how the queues of commands are made, and name those that are made now."""
        self._shards.meet(commands, send)
        fresh = set()
        for command in commands:
            if isinstance(command, (cmd.Put, cmd.Configure)) and command.queue not in self._named:
                fresh.add(command.queue)
            if self._notifier is not None and isinstance(command, cmd.Claim):
                self._notifier.watch(command.queue)
        if fresh:
            self._names.add(fresh)
            self._named |= fresh

    def _carry_out(self, plans: Sequence[Plan], send: Callable[..., list[Any]]) -> list[Outcome]:
        """Carry out plans in one pipeline."""
        if not plans:
            return []
        calls = [call for plan in plans for call in plan.calls]
        answers = send(calls)
        outcomes: list[Outcome] = []
        first = 0
        for plan in plans:
            mine = answers[first : first + len(plan.calls)]
            first += len(mine)
            outcomes += plan.read(mine, send)
        wiped = {
            call.queue: call
            for call, answer in zip(calls, answers, strict=True)
            if call.script in ("put", "configure")
            and type(answer) is bytes and answer.split(b",", 2)[1] == b"1"
        }  # fmt: skip
        for queue, call in wiped.items():  # they were known: the store may have been wiped
            self._names.add([queue])
            if isinstance(call.shards, int) and call.shards > 1:
                self._shards.make(queue, call.shards, send)
        return outcomes

    def _steps(self, commands: Sequence[cmd.Command]) -> Iterator[Plan | Job]:
        """Return what commands become, in their order."""
        if len(commands) == 1:
            yield self._step(commands)
            return
        for _, run in groupby(commands, _alike):
            yield self._step(list(run))

    def _step(self, run: Sequence[Any]) -> Plan | Job:
        command = run[0]
        sharded: ShardedQueue | None = self._shards.of(command.queue)
        shards = 1 if sharded is None else sharded.count
        match command:
            case cmd.Put():
                return put(run, sharded)
            case cmd.Claim():
                if sharded is not None:
                    return claim_shards(command, sharded)
                return claim(run) if command.count <= SLICE else claim_many(command)
            case cmd.Cancel(where=where) if where is not None:
                return sweep(command, shards)
            case cmd.Purge(ids=None):
                return sweep(command, shards)
            case cmd.Find():
                return look.find(run, sharded)
            case cmd.Scan():
                return scan(command, shards)
            case cmd.Count():
                return (
                    look.recount(command, shards) if command.recount else look.count(run, sharded)
                )
            case cmd.Forecast():
                return look.forecast(command, shards)
            case cmd.Configure():
                return look.configure(run, sharded)
            case _:
                return change(run, sharded)

    def _list(self, command: cmd.Command) -> Outcome:
        try:
            return Names(self._names.names(command.queue))
        except StoreError as error:
            return error
