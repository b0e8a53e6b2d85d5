"""The memory engine: a call that is interrupted has changed nothing, and nothing stays behind."""

import sys
from collections.abc import Sequence
from random import Random
from types import FrameType
from typing import Any

import pytest

from bide.engines.memory import MemoryEngine, queue_state
from bide.engines.port import Identities
from bide.engines.rules.record import Record, matches
from bide.model import commands as cmd
from bide.model.commands import Command
from bide.model.message import Item
from bide.model.replies import Affected, Page, Reply
from bide.testing.conformance.drawing import QUEUES, scripts
from bide.testing.conformance.driver import START
from bide.testing.conformance.scripts import Player, clear
from bide.testing.conformance.watch import audit, dump
from tests.effort import effort


class Struck(Exception):
    """Strikes between two lines."""


class StruckEngine(MemoryEngine):
    """Is interrupted at a random line of most calls, and of some repetitions; then repeats them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(seed)
        self._lines = 100
        self.hits = 0

    def execute(
        self, commands: Sequence[Command], now: int | None = None, identities: Identities = None
    ) -> list[Reply]:
        for _ in range(self._random.randrange(3)):
            before = sys.gettrace()
            self._left = 1 + self._random.randrange(self._lines)
            sys.settrace(self._trace)
            try:
                replies = super().execute(commands, now, identities)
            except Struck:
                self.hits += 1
                self._lines += 5
            else:
                self._lines = max(20, self._lines - 5)
                return replies
            finally:
                sys.settrace(before)
        return super().execute(commands, now, identities)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        module = frame.f_globals["__name__"]
        if not module.startswith(("bide.engines", "sortedcontainers")):
            return None
        # Behind its last change a call only returns: no signal handler runs between the two lines.
        if event == "line" and self._before is not None:
            self._left -= 1
            if self._left == 0:
                raise Struck
        return self._trace


@pytest.mark.parametrize("seed", range(effort(30, 1_000)))
def test_the_store_is_that_of_calls_that_were_never_interrupted(seed: int) -> None:
    struck, whole = StruckEngine(seed), MemoryEngine()
    players = Player(struck), Player(whole)
    now = START
    for step, commands in scripts(Random(seed)):
        now += step
        replies, expected = (player.batch(commands, now) for player in players)
        assert replies == expected
        assert [dump(struck, queue, now) for queue in QUEUES] == [
            dump(whole, queue, now) for queue in QUEUES
        ]
        for queue in QUEUES:
            audit(struck, queue, now)
    assert struck.hits > 0


@pytest.mark.parametrize("seed", range(effort(10, 30)))
def test_after_any_script_an_emptied_queue_holds_no_memory(seed: int) -> None:
    engine = MemoryEngine()
    run = Player(engine).batch
    now = START
    for step, ops in scripts(Random(seed)):
        now += step
        run(ops, now)
    for queue in QUEUES:
        clear(engine, queue, now)
    for state in engine._queues.values():
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
