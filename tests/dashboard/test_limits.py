"""The page of a limited queue, and of a message that a limit holds back."""

from tests.dashboard.conftest import Stage, Visitor
from tests.dashboard.test_pages import text_of


def test_a_queue_shows_its_limits_and_a_message_what_holds_it(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put(1, id="a")
    orders.put(2, id="b")
    assert "at a time" not in text_of(ann.get("/queue?queue=orders").text)
    orders.configure(limit=1, group_rate="100/m")
    orders.claim()
    stage.clock.advance(60)  # counts are kept for a moment
    orders.claim()
    page = text_of(ann.get("/queue?queue=orders").text)
    assert "at a time at most 1 rate of a group 100/m" in page
    page = text_of(ann.get("/message?queue=orders&id=b").text)
    assert "the limit of the queue is reached (limit: 1 at a time, being handled: 1)" in page
