from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.within.libraries import sqlite_url


@pytest.fixture
def url_of(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Provide the URL of an empty store of a kind."""

    def url_of(kind: str) -> str:
        if kind == "sqlite":
            return sqlite_url(tmp_path)
        fresh: Callable[[], str] = request.getfixturevalue("postgres_url")
        return fresh()

    return url_of
