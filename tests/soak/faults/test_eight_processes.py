from pathlib import Path

import pytest

from tests.effort import effort
from tests.soak.faults.eight_processes import run

pytestmark = pytest.mark.process


def test_eight_processes_on_one_file_never_see_that_it_is_locked(tmp_path: Path) -> None:
    result = run(f"sqlite:///{tmp_path}/bide.db", seconds=effort(2, 10))
    assert result.errors == []
    assert result.audit, result.audit.problems
    flow = result.audit.counts.flow
    assert (flow.put, flow.acked) == (result.put, result.acked)
    assert result.put > 500
    assert result.acked > 500
