"""The environment of all examples."""

from pathlib import Path

import pytest

from examples.stage import worker


def test_a_worker_that_cannot_start_ends_the_example(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="ended before it was ready"):
        with worker("examples.no_such_program:app", tmp_path):
            raise AssertionError("there is no worker")
    assert "no_such_program" in capfd.readouterr().err
