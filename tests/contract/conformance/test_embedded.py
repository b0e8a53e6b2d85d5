"""The suite on the stores inside a process: memory and SQLite."""

import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.engines.sqlite import SqliteEngine
from bide.model.lifecycle import TRANSITIONS
from bide.testing.conformance import EngineConformance
from bide.testing.conformance.drawing import scripts
from bide.testing.conformance.driver import START
from bide.testing.conformance.scripts import EXAMPLES, Player
from tests.effort import effort


class TestMemory(EngineConformance):
    @pytest.fixture
    def make_engine(self) -> Callable[[], Engine]:
        return MemoryEngine

    @pytest.fixture
    def reopen(self) -> Callable[[Engine], Engine]:
        return lambda engine: MemoryEngine()


@pytest.mark.full
def test_random_scripts_reach_every_transition_of_the_lifecycle() -> None:
    left = set(TRANSITIONS)
    for seed in range(2_000):
        player, now = Player(MemoryEngine()), START
        for step, ops in scripts(Random(seed)):
            now += step
            player.singly(ops, now, watched=True)
        left -= player.watch.seen
        if not left:
            return
    raise AssertionError(f"no script reaches {left}")


class TestSqlite(EngineConformance):
    examples = EXAMPLES // effort(4, 1)

    @pytest.fixture
    def paths(self) -> dict[Engine, Path]:
        return {}

    @pytest.fixture
    def make_engine(self, paths: dict[Engine, Path], tmp_path: Path) -> Callable[[], Engine]:
        numbers = itertools.count()

        def make() -> Engine:
            path = tmp_path / f"{next(numbers)}.db"
            engine = SqliteEngine(path)
            paths[engine] = path
            return engine

        return make

    @pytest.fixture
    def reopen(self, paths: dict[Engine, Path]) -> Callable[[Engine], Engine]:
        return lambda engine: SqliteEngine(paths[engine])
