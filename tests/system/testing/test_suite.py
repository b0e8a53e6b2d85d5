"""The conformance suite finds what is wrong: what it draws, and how engines fail on purpose."""

import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import get_args

import msgspec
import pytest
from msgspec.structs import replace

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.model import commands as cmd
from bide.model.commands import Command, Count, Put
from bide.model.errors import OutcomeUnknown, StoreBusy
from bide.model.message import Item
from bide.model.options import OPTIONS, Option
from bide.model.replies import Counts
from bide.testing.conformance.drawing import limited_scripts, struct
from bide.testing.faults import FlakyEngine


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )


@pytest.mark.process
def test_without_the_extra_the_suite_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['pytest'] = None; import bide.testing.conformance"
    done = run("-c", code, folder=tmp_path)
    assert "needs pytest; install it with: pip install 'bide[testing]'" in done.stderr


ENGINES = """
import pytest
from bide.engines.memory import MemoryEngine
from bide.testing.conformance import EngineConformance

class Early(MemoryEngine):
    def execute(self, commands, now=None):
        claims = any(type(command).__name__ == "Claim" for command in commands)
        return super().execute(commands, now + 1 if claims and now else now)

class TestEarly(EngineConformance):
    @pytest.fixture
    def make_engine(self):
        return Early

class TestUnsaid(EngineConformance):
    pass
"""


@pytest.mark.process
def test_an_engine_of_somebody_else_is_held_to_the_promises(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(ENGINES)
    done = run(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 't'}",
        "test_mine.py",
        "-k",
        "never_one_tick_early or as_durable or any_script_is",
        folder=tmp_path,
    )
    assert "TestEarly::test_never_one_tick_early" in done.stdout
    assert "claim led from delayed to leased: not in the lifecycle" in done.stdout
    assert "assert None is not None" in done.stdout, "a failing case does not tell what it compared"
    assert "TestEarly::test_any_script_is_answered_as_the_memory_engine" in done.stdout
    assert "has another reply to Claim(" in done.stdout
    (script,) = re.findall(r"The script of seed \d+, shortened: (.+)", done.stdout)
    assert script.count("'command':") <= 3, "it is not short"
    assert "TestUnsaid has no fixture `make_engine`: a function without arguments" in done.stdout
    assert "TestEarly has no fixture `reopen`: a function that takes an engine" in done.stdout


@pytest.mark.process
def test_the_lists_of_mutants_fit_the_sources() -> None:
    root = Path(__file__).parents[3]
    done = run("tools/mutants", "--list", folder=root)
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(".lua" in line or ".sql" in line for line in done.stdout.splitlines()) >= 60


ALWAYS_THE_SAME = {"cursor", "stored"}
"""`dumped` follows the cursors that an engine gives; engines may count a few bytes more."""


def test_scripts_give_every_field_of_every_command_several_values() -> None:
    seen: defaultdict[tuple[type, str], set[str]] = defaultdict(set)
    for seed in range(100):
        for _, ops in limited_scripts(Random(seed)):
            for op in ops:
                for name in op.__struct_fields__:
                    seen[type(op), name].add(repr(getattr(op, name)))
    fields = [(kind, name) for kind in get_args(cmd.Command) for name in kind.__struct_fields__]
    dull = {(kind.__name__, name) for kind, name in fields if len(seen[kind, name]) < 2}
    assert {(kind, name) for kind, name in dull if name not in ALWAYS_THE_SAME} == set()


def test_a_field_without_values_is_named() -> None:
    class New(msgspec.Struct):
        choice: bool
        surprise: str

    with pytest.raises(AssertionError, match="no values for the field surprise"):
        struct(New)


def test_an_option_of_a_message_has_the_values_of_its_declaration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class New(msgspec.Struct):
        cost: int

    monkeypatch.setitem(OPTIONS, "cost", Option("cost", 2, "A new option.", 0, 9))
    draw = struct(New)
    assert {draw(Random(seed)).cost for seed in range(30)} == {0, 2, 9}


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
