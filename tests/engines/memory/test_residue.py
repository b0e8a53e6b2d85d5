from random import Random

import pytest

from bide.engines.memory import MemoryEngine, queue_state
from bide.engines.rules.record import Record, matches
from bide.model import commands as cmd
from bide.model.message import Item
from bide.model.replies import Affected, Page
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


def test_a_rule_of_due_times_examines_no_delayed_message_outside_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, examined = MemoryEngine(), []

    def counted(record: Record, where: cmd.Where | None) -> bool:
        examined.append(record.id)
        return matches(record, where)

    monkeypatch.setattr(queue_state, "matches", counted)
    engine.execute([cmd.Put("q", [Item(f"m{n}", b"1", at=START + n) for n in range(100)])], START)
    where = cmd.Where(after=START + 50, before=START + 53)
    expected = ["m50", "m51", "m52"]
    for state in (None, "delayed", "next"):
        (page,) = engine.execute([cmd.Scan("q", state, where)], START)
        assert isinstance(page, Page)
        assert [message.id for message in page.messages] == expected
    assert engine.execute([cmd.Cancel("q", where=where)], START) == [Affected(3)]
    assert set(examined) <= {"m0", *expected}  # the first is due
