"""Interrupts at any place of a call: no false answer, no dead thread, and the books balance."""

from pathlib import Path

import pytest

from tests.effort import effort
from tests.faults.ledger import Ledger
from tests.faults.strikes import Late, alarms


@pytest.fixture(params=["sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/b.db"
    )


@pytest.mark.parametrize("error", [Late, KeyboardInterrupt])
def test_a_signal_handler_that_raises(url: str, error: type[BaseException]) -> None:
    with alarms(error) as strikes:
        ledger = Ledger(url, strikes)
        while strikes.hits < effort(300, 2_000):
            ledger.turn()
    assert ledger.problems() == []
