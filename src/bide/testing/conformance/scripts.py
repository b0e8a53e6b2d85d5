# ruff: noqa: D102  (the name of each case says what it checks)
"""Random scripts: any order of commands gets the replies of the memory engine."""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, given, settings

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.message import EXPIRED_KEEP, STATES, Message
from bide.model.replies import Affected, Claimed, Counts, Explained, Page, Reply, Sizes
from bide.testing.conformance.desk import START
from bide.testing.conformance.vocabulary import (
    GROUPS,
    IDS,
    QUEUES,
    Held,
    Op,
    Script,
    limited_scripts,
    scripts,
)
from bide.testing.conformance.watch import Watch, audit, dump, reply_of

__all__ = ["Player", "ScriptCases", "clear", "searching"]

EXAMPLES = int(os.environ.get("BIDE_EXAMPLES", "200"))

searching = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="BIDE_EXAMPLES" not in os.environ,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    database=None,
    print_blob=False,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,  # `make_engine` makes a new one for each example
        HealthCheck.differing_executors,  # each engine's class runs the same functions
        HealthCheck.too_slow,
    ],
)


class Ledger:
    """Remembers the tokens that an engine gave, for scripts that use right and wrong ones."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._last: dict[str, int] = {}

    def resolve(self, op: Op) -> cmd.Command:
        """Return the command that a step of a script means for this engine."""
        if not isinstance(op, Held):
            return op
        leases = [cmd.Lease(ref.id, self._token(op.queue, ref.id, ref.which)) for ref in op.refs]
        command: cmd.Command = op.verb(op.queue, leases, **dict(op.fields))
        return command

    def _token(self, queue: str, id: str, which: str) -> int:
        mine = self._tokens[queue, id] or [1]
        match which:
            case "right":
                return mine[-1]
            case "stale":
                return mine[-2] if len(mine) > 1 else mine[-1] - 1
            case "another's":
                return self._last.get(queue, 1)
            case _:
                theirs = [tokens for (name, _), tokens in self._tokens.items() if name != queue]
                return max((tokens[-1] for tokens in theirs if tokens), default=1)

    def note(self, commands: Sequence[cmd.Command], replies: Sequence[Reply]) -> None:
        """Note the tokens of claims; they must grow."""
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Claimed) and reply.messages:
                assert reply.token > self._last.get(command.queue, 0), "a token did not grow"
                self._last[command.queue] = reply.token
                for message in reply.messages:
                    self._tokens[command.queue, message.id].append(reply.token)


class Player:
    """Plays the steps of a script on an engine.

    Args:
        engine: that executes them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ledger = Ledger()
        self._watch = Watch(engine)

    def batch(self, ops: Sequence[Op], now: int) -> list[Reply]:
        """Execute a step as one batch."""
        return self._play(ops, lambda commands: self._engine.execute(commands, now))

    def singly(self, ops: Sequence[Op], now: int) -> list[Reply]:
        """Execute a step command by command."""
        return self._play(ops, lambda commands: [self._one(each, now) for each in commands])

    def watched(self, ops: Sequence[Op], now: int) -> list[Reply]:
        """Execute a step command by command, each checked against the lifecycle."""
        return self._play(ops, lambda commands: [self._checked(each, now) for each in commands])

    def _one(self, command: cmd.Command, now: int) -> Reply:
        return self._engine.execute([command], now)[0]

    def _checked(self, command: cmd.Command, now: int) -> Reply:
        if command.only_reads:
            return self._one(command, now)
        return self._watch.execute(command, now)

    def _play(
        self, ops: Sequence[Op], execute: Callable[[list[cmd.Command]], list[Reply]]
    ) -> list[Reply]:
        commands = [self._ledger.resolve(op) for op in ops]
        replies = execute(commands)
        assert len(replies) == len(commands)
        self._ledger.note(commands, replies)
        return [plain(command, reply) for command, reply in zip(commands, replies, strict=True)]


def plain(command: cmd.Command, reply: Reply) -> Reply:
    """Return a reply without what may differ: tokens, cursors, the order of a scan of all."""
    if isinstance(reply, Claimed):
        died = sorted(reply.died, key=lambda one: one.id)  # shard by shard on Redis
        return msgspec.structs.replace(reply, token=0, died=died)
    if isinstance(reply, Explained):  # a server adds who claims through it
        return msgspec.structs.replace(reply, workers=None, subscriptions=None)
    if isinstance(reply, Page) and isinstance(command, cmd.Scan):
        messages = reply.messages
        if command.state is None:
            messages = sorted(messages, key=lambda message: message.id)
        return Page(messages, None)
    return reply


def dumped(engine: Engine, queue: str, now: int) -> dict[str, Any]:
    """Return all that commands can read of a queue."""
    seen: dict[str, Any] = {"all": dump(engine, queue, now)}
    states: list[Any] = [*STATES, "next"]
    for state in states:
        seen[state] = _walk(engine, cmd.Scan(queue, state, limit=2), now)
    for group in GROUPS:
        members = _walk(engine, cmd.Scan(queue, where=cmd.Where(group=group), limit=2), now)
        seen[f"group {group}"] = sorted(members, key=lambda message: message.id)
    by_page = _walk(engine, cmd.Scan(queue, limit=2), now)
    assert {message.id: message for message in by_page} == seen["all"]
    assert len(by_page) == len(seen["all"])
    seen["forecast"] = engine.execute([cmd.Forecast(queue, 3, 4)], now)
    for id in IDS:
        seen[f"ends {id}"] = engine.execute([cmd.History(queue, id)], now)
    seen["queues"] = engine.execute([cmd.Queues("")], now)
    return seen


def _walk(engine: Engine, scan: cmd.Scan, now: int) -> list[Message]:
    messages: list[Message] = []
    cursor = None
    while True:
        page = reply_of(engine, msgspec.structs.replace(scan, cursor=cursor), Page, now)
        messages += page.messages
        if page.cursor is None:
            return messages
        assert page.cursor != cursor, "a scan returns the same cursor again"
        cursor = page.cursor


def clear(engine: Engine, queue: str, now: int) -> None:
    """Remove everything from a queue; nothing may be left."""
    moment = now + 2 * EXPIRED_KEEP  # no lease of a script is that long
    commands: list[cmd.Command] = [
        cmd.Configure(queue, False, 0, 0, 0, limit=0, rate=0, group_limit=0, group_rate=0),
        cmd.Claim(queue, 0, 1, "w"),
        cmd.Cancel(queue, where=cmd.Where(after=0)),
        cmd.Purge(queue, "dead"),
        cmd.Purge(queue, "expired"),
    ]
    for reply in engine.execute(commands, moment):
        assert not isinstance(reply, Affected) or not reply.more
    counts: Counts = audit(engine, queue, moment)
    assert (counts.sizes, counts.kept, counts.oldest) == (Sizes(), 0, None)
    assert dump(engine, queue, moment) == {}


def compare(engine: Engine, script: Script) -> None:
    """Play a script on a new engine and on the memory engine; the replies must be the same."""
    oracle = MemoryEngine()
    subject, example = Player(engine), Player(oracle)
    now = START
    for number, (step, ops) in enumerate(script):
        now += step
        # A batch is its commands one after the other, so every other step goes singly.
        play = subject.singly if number % 2 else subject.batch
        assert play(ops, now) == example.watched(ops, now)
        for queue in QUEUES:
            assert audit(engine, queue, now) == audit(oracle, queue, now)
    for queue in QUEUES:
        assert dumped(engine, queue, now) == dumped(oracle, queue, now)
    for queue in QUEUES:
        clear(engine, queue, now)
    engine.close()


class ScriptCases:
    """What holds for any script."""

    @searching
    @given(script=scripts())
    def test_any_script_is_answered_as_the_memory_engine_answers(
        self, make_engine: Callable[[], Engine], script: Script
    ) -> None:
        compare(make_engine(), script)

    @settings(searching, max_examples=EXAMPLES // 2)
    @given(script=limited_scripts())
    def test_any_script_of_limited_queues_is_answered_as_the_memory_engine_answers(
        self, make_engine: Callable[[], Engine], script: Script
    ) -> None:
        compare(make_engine(), script)
