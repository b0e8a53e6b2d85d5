"""The stores whose calls are interrupted."""

from collections.abc import Iterator

import pytest

from tests.stores_of_each_kind import STORES, url_of


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Provide the URL of an empty store, of each kind."""
    with url_of(request.param, request) as url:
        yield url
