from random import Random

import pytest

from bide.engines.memory import MemoryEngine
from bide.testing.conformance.drawing import QUEUES, scripts
from bide.testing.conformance.driver import START
from bide.testing.conformance.scripts import Player, clear


@pytest.mark.parametrize("seed", range(30))
def test_after_any_script_an_emptied_queue_holds_no_memory(seed: int) -> None:
    engine = MemoryEngine()
    run = Player(engine).batch
    now = START
    for step, ops in scripts(Random(seed)):
        now += step
        run(ops, now)
    for queue in QUEUES:
        clear(engine, queue, now)
    for state in engine._states.values():
        kept = (state.records, state.all, *state.sets.values())
        assert [len(part) for part in kept] == [0] * len(kept)
