from collections.abc import Iterator

import pytest

import bide
from bide.testing import ScratchStore


@pytest.fixture
def store() -> Iterator[ScratchStore]:
    with ScratchStore() as store:
        yield store


@pytest.fixture
def app() -> bide.App:
    return bide.App()
