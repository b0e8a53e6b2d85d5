from collections.abc import Callable

import pytest

from bide.engines.memory import MemoryEngine
from bide.engines.port import Engine
from bide.testing.conformance import EngineConformance


class TestMemory(EngineConformance):
    @pytest.fixture
    def make_engine(self) -> Callable[[], Engine]:
        return MemoryEngine

    @pytest.fixture
    def reopen(self) -> Callable[[Engine], Engine]:
        return lambda engine: MemoryEngine()
