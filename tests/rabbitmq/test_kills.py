"""A short form of `python -m tests.rabbitmq.kills`."""

from pathlib import Path

import pytest

from tests.rabbitmq.broker import Broker
from tests.rabbitmq.kills import run


@pytest.mark.full  # `make soak` runs the long form
@pytest.mark.process
def test_kills_lose_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "rabbitmq")
    try:
        result = run(broker, tmp_path, 4, 1.5)
    finally:
        broker.close()
    assert result.wrong == [], (tmp_path / "log").read_text()
    assert result.confirmed > 10
    assert result.kills >= 2
