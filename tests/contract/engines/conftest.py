from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.engines.torn_store import TornStore


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TornStore]:
    """Provide an empty store of a kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/bide.db"
    else:
        url = request.getfixturevalue(f"{request.param}_url")()
    store = TornStore(request.param, url)
    yield store
    store.engine.close()
