import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from bide.engines.port import Engine
from bide.engines.sqlite import SqliteEngine
from bide.testing.conformance import EngineConformance
from bide.testing.conformance.scripts import EXAMPLES
from tests.effort import effort


class TestSqlite(EngineConformance):
    examples = EXAMPLES // effort(2, 1)

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
