"""A short search on each kind of store: what `make fuzz` does for minutes."""

from pathlib import Path

import pytest

from tests.effort import effort, one_in
from tests.soak.differential.searching import search, short_story
from tests.soak.differential.stores import KINDS, opened

SEED = 1


@pytest.mark.process
@pytest.mark.parametrize("kind", one_in(2, KINDS))
def test_a_store_answers_as_memory_does(kind: str, tmp_path: Path) -> None:
    most = effort(3, 30)
    with opened([kind], tmp_path) as stores:
        finding = search(stores, SEED, 40, lambda played: played >= most)
        if finding is not None:
            _, sequence, shown = finding
            pytest.fail(short_story(sequence, shown, stores), pytrace=False)
