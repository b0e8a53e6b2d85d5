from pathlib import Path

import pytest

from tests.system.targets.http.environment import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "bide.db")
