"""Workers killed with -9, again and again, under load: nothing confirmed is lost."""

from pathlib import Path

import pytest

from tests.effort import effort
from tests.worker.kills import run

SECONDS = effort(6, 20)


@pytest.mark.process
def test_nothing_confirmed_is_lost_and_overlaps_are_explained(tmp_path: Path) -> None:
    result = run(tmp_path, SECONDS)
    assert result.problems == []
    assert result.letter is not None
    assert "the lease lapsed" in (result.letter.error or "")
    assert len(result.confirmed) > 300
    assert result.loops.counts.flow.lapsed >= 3
    assert result.kills >= 5
