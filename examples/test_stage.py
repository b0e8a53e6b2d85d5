"""What all examples are played on."""

from pathlib import Path

import pytest

from examples.stage import worker


def test_a_worker_that_cannot_start_ends_the_play(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="has ended before it was at work"):
        with worker("examples.no_such_program:app", tmp_path):
            raise AssertionError("nobody is at work")
    assert "no_such_program" in capfd.readouterr().err
