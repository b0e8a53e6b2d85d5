"""Pages leave no bodies of messages in memory, and what visitors share holds none."""

import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from tests.dashboard.conftest import Stage, Visitor

BODY = "ab" * 100_000

COUNT = 10


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Let reference cycles stay, as between two runs of the collector of a server."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def full(stage: Stage) -> None:
    """Put large messages in every state, with large errors."""
    queue = stage.queue("orders")
    for number in range(COUNT):
        queue.put(BODY, id=f"later{number}", delay=60)
        queue.put(BODY, id=f"dead{number}", headers={"trace": "x" * 10_000})
        queue.claim(1)[0].bury("no\n" + "y" * 8_000)
        queue.put(BODY, id=f"held{number}")
        queue.claim(1, lease=3_600)


PAGES = (
    "/queue?queue=orders",
    "/queue?queue=orders&state=dead",
    "/search?q=later",
    "/message?queue=orders&id=later1",
    "/message?queue=orders&id=dead1",
    "/dead",
    "/workers",
)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("full", "no_collector")
def test_a_page_leaves_little_behind(ann: Visitor, page: str) -> None:
    assert ann.get(page).status == 200  # what is loaded once
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            assert ann.get(page).status == 200
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10 * len(BODY)  # ten messages in each of ten pages


@pytest.mark.usefixtures("full", "no_collector")
def test_a_question_leaves_little_behind(ann: Visitor) -> None:
    def ask() -> None:
        ids = [f"later{number}" for number in range(COUNT)]
        assert "later9" in ann.do("cancel", queue="orders", id=ids).text

    ask()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            ask()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10 * len(BODY)
