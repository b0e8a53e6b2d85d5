from hypothesis import given, settings

from bide.engines.memory import MemoryEngine
from bide.testing.conformance.driver import START
from bide.testing.conformance.scripts import QUEUES, Player, Script, clear, scripts, searching


@settings(searching, max_examples=50)
@given(script=scripts())
def test_after_any_script_an_emptied_queue_holds_no_memory(script: Script) -> None:
    engine = MemoryEngine()
    run = Player(engine).batch
    now = START
    for step, ops in script:
        now += step
        run(ops, now)
    for queue in QUEUES:
        clear(engine, queue, now)
    for state in engine._states.values():
        kept = (state.records, state.all, *state.sets.values())
        assert [len(part) for part in kept] == [0] * len(kept)
