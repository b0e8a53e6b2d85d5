"""The page of a message: when it was created, and when its successor is due."""

from tests.dashboard.conftest import Stage, Visitor
from tests.dashboard.test_pages import text_of


def test_a_message_shows_its_creation_and_its_successor(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put(1, id="a")
    (held,) = orders.claim()
    page = text_of(ann.get("/message?queue=orders&id=a").text)
    assert "created" in page
    assert "successor due" not in page
    orders.put(2, id="a", on_conflict="replace", delay="5m", latest="1h")
    page = text_of(ann.get("/message?queue=orders&id=a").text)
    assert "successor due" in page
    held.retry()
    page = text_of(ann.get("/message?queue=orders&id=a").text)
    assert "successor due" not in page
