import threading
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.model.commands import Command, Count, Put
from bide.model.errors import OutcomeUnknown, StoreBusy
from bide.model.message import Item
from bide.model.replies import Counts
from bide.testing.faults import FlakyEngine


def put(id: str) -> Put:
    return Put("q", [Item(id, b"1")])


def is_put_of(id: str) -> Callable[[Command], bool]:
    return lambda command: isinstance(command, Put) and command.items[0].id == id


def stored(engine: Engine) -> int:
    (counts,) = engine.execute([Count("q")], 0)
    assert isinstance(counts, Counts)
    return counts.sizes.total


def test_without_a_plan_it_is_the_engine_it_wraps() -> None:
    inner = MemoryEngine()
    engine: Engine = FlakyEngine(inner)
    engine.execute([put("a")], 0)
    assert stored(inner) == stored(engine) == 1
    assert engine.capabilities == replace(inner.capabilities, loses_replies=True, recovers=False)
    assert engine.reader() is None
    assert engine.notifier() is None


def test_a_fault_before_leaves_the_store_alone_and_strikes_once() -> None:
    engine = FlakyEngine(MemoryEngine())
    fault = engine.fail(StoreBusy("locked"))
    with pytest.raises(StoreBusy, match="locked"):
        engine.execute([put("a")], 0)
    assert stored(engine) == 0
    assert fault.struck == 1


def test_a_fault_after_loses_the_replies_only() -> None:
    engine = FlakyEngine(MemoryEngine())
    engine.fail(OutcomeUnknown, after=True)
    with pytest.raises(OutcomeUnknown):
        engine.execute([put("a")], 0)
    assert stored(engine) == 1


def test_the_nth_call_fails_and_as_often_as_planned() -> None:
    engine = FlakyEngine(MemoryEngine())
    engine.fail(lambda: StoreBusy("locked"), skip=1, times=2)
    outcomes = []
    for id in "abcd":
        try:
            engine.execute([put(id)], 0)
            outcomes.append("stored")
        except StoreBusy:
            outcomes.append("busy")
    assert outcomes == ["stored", "busy", "busy", "stored"]


def test_a_poisoned_command_fails_every_batch_it_is_in_until_healed() -> None:
    engine = FlakyEngine(MemoryEngine())
    engine.fail(ValueError("bad"), when=is_put_of("b"), times=None)
    batches: list[list[Command]] = [[put("a"), put("b")], [put("b")], [put("a")]]
    for batch in batches[:2]:
        with pytest.raises(ValueError, match="bad"):
            engine.execute(batch, 0)
    engine.execute(batches[2], 0)
    assert engine.batches == batches
    engine.heal()
    engine.execute([put("b")], 0)
    assert stored(engine) == 2


def test_while_it_is_held_nothing_is_executed() -> None:
    engine = FlakyEngine(MemoryEngine())
    with engine.held():
        thread = threading.Thread(target=engine.execute, args=([put("a")], 0))
        thread.start()
        engine.wait_until_held()
        assert engine.batches == []
    thread.join()
    assert stored(engine) == 1


def test_waiting_for_a_call_that_does_not_come_times_out() -> None:
    with pytest.raises(TimeoutError, match="execute was not called within"):
        FlakyEngine(MemoryEngine()).wait_until_held(timeout=0)


def test_close_closes_the_engine_and_is_counted() -> None:
    inner = MemoryEngine()
    inner.execute([put("a")], 0)
    engine = FlakyEngine(inner)
    engine.close()
    assert engine.closed == 1
    assert stored(inner) == 0
