from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.worker.schedule_log import Diary
from tests.system.worker.source_app import Shop
from tests.system.worker.worker_app import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "bide.db")
    yield scene
    scene.close()


@pytest.fixture
def shop(scene: Scene) -> Shop:
    return Shop(scene)


@pytest.fixture
def diary(scene: Scene) -> Diary:
    return Diary(scene)
