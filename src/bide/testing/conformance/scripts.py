# ruff: noqa: D102  (the name of each case says what it checks)
"""Random scripts: any order of commands gets the replies of the memory engine."""

import os
from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, Phase, given, settings

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.model.commands import Command
from bide.model.replies import Reply
from bide.testing.conformance.desk import START
from bide.testing.conformance.play import Ledger, clear, dumped, plain
from bide.testing.conformance.vocabulary import QUEUES, Op, Script, scripts
from bide.testing.conformance.watch import Watch, audit

__all__ = ["Player", "ScriptCases", "searching"]

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

    def _one(self, command: Command, now: int) -> Reply:
        return self._engine.execute([command], now)[0]

    def _checked(self, command: Command, now: int) -> Reply:
        if command.only_reads:
            return self._one(command, now)
        return self._watch.execute(command, now)

    def _play(
        self, ops: Sequence[Op], execute: Callable[[list[Command]], list[Reply]]
    ) -> list[Reply]:
        commands = [self._ledger.resolve(op) for op in ops]
        replies = execute(commands)
        assert len(replies) == len(commands)
        self._ledger.note(commands, replies)
        return [plain(command, reply) for command, reply in zip(commands, replies, strict=True)]


class ScriptCases:
    """What holds for any script."""

    @searching
    @given(script=scripts())
    def test_any_script_is_answered_as_the_memory_engine_answers(
        self, make_engine: Callable[[], Engine], script: Script
    ) -> None:
        engine, oracle = make_engine(), MemoryEngine()
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
