"""What a search over all queues finds."""

import re

from bide.dashboard.access import Access
from tests.dashboard.conftest import Stage, Visitor, bury


def test_search_finds_an_id_in_every_queue(stage: Stage, ann: Visitor) -> None:
    for name in ("orders", "mail"):
        stage.queue(name).put(1, id="both", delay=9)
    stage.queue("orders").put(1, id="one", group="customer:7")
    assert len(re.findall(r">both</a>", ann.get("/search?q=both").text)) == 2
    assert ">one</a>" in ann.get("/search?group=customer:7").text
    assert "No message matches" in ann.get("/search?q=nothing").text


def test_a_search_looks_into_bodies_headers_and_errors(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put({"n": 1}, id="one", delay=60, headers={"trace": "af12"})
    orders.put({"n": 2}, id="two", delay=60)
    bury(orders, ("three", "Timeout: no answer"))
    for query, id in (
        ("body=%22n%22%3A1", "one"),
        ("header=trace%3Daf", "one"),
        ("error=Timeout", "three"),
        ("q=tw", "two"),
    ):
        page = ann.get(f"/search?{query}").text
        assert re.findall(r'class="id" href="[^"]*">(\w+)</a>', page) == [id], query
    orders.put_many([{"n": n} for n in range(3_000)], delay=60)
    page = ann.get("/search?body=nothing").text
    assert "of 3,003 messages" in page
    following = re.search(r'href="([^"]*cursor=[^"]*)"', page)
    assert following is not None
    last = ann.get(following[1].replace("&amp;", "&")).text
    assert "Searched 3,003 of 3,003 messages." in last
    assert "No message matches" in last


def test_a_search_does_not_find_what_is_hidden(stage: Stage) -> None:
    queue = stage.queue("orders")
    queue.put({"card": "4711", "n": 1}, id="one", delay=60, headers={"Key": "secret"})
    visitor = stage.visitor(hide=["card", "key"])
    for query in ("body=4711", "header=Key%3Dsecret"):
        assert "No message matches" in visitor.get(f"/search?{query}").text
    assert ">one</a>" in visitor.get("/search?body=%22n%22").text
    blind = stage.visitor(Access(name="bob", bodies=False))
    assert blind.get("/search?body=4711").status == 403
    assert 'name="body"' not in blind.get("/search").text
