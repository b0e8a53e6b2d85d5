"""Inputs that once found something, and the seeds that fuzzing begins with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.fuzz.inputs import KINDS, Place, place

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("fuzz")) as found:
        yield found
        assert found.balanced


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_and_kept_inputs(where: Place, kind: str) -> None:
    kept = sorted(CORPUS.glob(f"{kind}-*"))
    for data in (*KINDS[kind].seeds, *(file.read_bytes() for file in kept)):
        KINDS[kind].take(where, data)
