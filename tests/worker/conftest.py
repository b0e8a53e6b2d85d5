from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.diary import Diary
from tests.worker.scene import Scene
from tests.worker.shop import Shop


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
