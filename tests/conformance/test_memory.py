from collections.abc import Callable
from random import Random

import pytest

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.model.lifecycle import TRANSITIONS
from bide.testing.conformance import EngineConformance
from bide.testing.conformance.drawing import scripts
from bide.testing.conformance.driver import START
from bide.testing.conformance.scripts import Player


class TestMemory(EngineConformance):
    @pytest.fixture
    def make_engine(self) -> Callable[[], Engine]:
        return MemoryEngine

    @pytest.fixture
    def reopen(self) -> Callable[[Engine], Engine]:
        return lambda engine: MemoryEngine()


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
