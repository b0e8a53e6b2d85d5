# ruff: noqa: D102  (what is promised stands in the name of each case)
"""Random scripts: in whatever order things are asked, the memory engine knows the answer."""

import os
from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, Phase, given, settings

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.model.replies import Reply
from bide.testing.conformance.desk import START
from bide.testing.conformance.play import Ledger, clear, dumped, plain
from bide.testing.conformance.vocabulary import QUEUES, Op, Script, scripts
from bide.testing.conformance.watch import Watch, audit

__all__ = ["ScriptCases", "in_batches", "one_by_one", "searching"]

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

Run = Callable[[Sequence[Op], int], list[Reply]]


def in_batches(engine: Engine) -> Run:
    """Return a function that carries out a step of a script as one batch."""
    ledger = Ledger()

    def run(ops: Sequence[Op], now: int) -> list[Reply]:
        commands = [ledger.resolve(op) for op in ops]
        replies = engine.execute(commands, now)
        assert len(replies) == len(commands)
        ledger.note(commands, replies)
        return [plain(command, reply) for command, reply in zip(commands, replies, strict=True)]

    return run


def one_by_one(engine: Engine, *, watched: bool) -> Run:
    """Return a function that carries out a step of a script command by command."""
    ledger = Ledger()
    watch = Watch(engine)

    def run(ops: Sequence[Op], now: int) -> list[Reply]:
        commands = [ledger.resolve(op) for op in ops]
        replies: list[Reply] = []
        for command in commands:
            if watched and not command.only_reads:
                replies.append(watch.execute(command, now))
            else:
                replies += engine.execute([command], now)
        ledger.note(commands, replies)
        return [plain(command, reply) for command, reply in zip(commands, replies, strict=True)]

    return run


class ScriptCases:
    """What holds for any script."""

    @searching
    @given(script=scripts())
    def test_any_script_is_answered_as_the_memory_engine_answers(
        self, make_engine: Callable[[], Engine], script: Script
    ) -> None:
        engine, oracle = make_engine(), MemoryEngine()
        subject, example = in_batches(engine), one_by_one(oracle, watched=True)
        now = START
        for step, ops in script:
            now += step
            assert subject(ops, now) == example(ops, now)
            for queue in QUEUES:
                assert audit(engine, queue, now) == audit(oracle, queue, now)
        for queue in QUEUES:
            assert dumped(engine, queue, now) == dumped(oracle, queue, now)
        for queue in QUEUES:
            clear(engine, queue, now)
        engine.close()

    @searching
    @given(script=scripts())
    def test_a_batch_is_its_commands_one_after_the_other(
        self, make_engine: Callable[[], Engine], script: Script
    ) -> None:
        twins = make_engine(), make_engine()
        together, singly = in_batches(twins[0]), one_by_one(twins[1], watched=False)
        now = START
        for step, ops in script:
            now += step
            assert together(ops, now) == singly(ops, now)
        for queue in QUEUES:
            assert dumped(twins[0], queue, now) == dumped(twins[1], queue, now)
        for engine in twins:
            engine.close()
