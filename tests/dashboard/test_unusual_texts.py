"""Names, errors, bodies and dates that are seldom as they look."""

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

import bide
from bide.dashboard.pages.messages import error_kind
from bide.lane.shared import open_lane
from bide.model.commands import Put
from bide.model.limits import MAX_DEPTH
from bide.model.message import Item
from bide.testing import FakeClock
from tests.dashboard.conftest import Stage, Visitor, bury


@pytest.fixture
def orders(stage: Stage) -> bide.Queue:
    return stage.queue("orders", holder="web1:7")


@pytest.mark.parametrize("name", [" a", "a ", "a\u3000", " "])
def test_spaces_belong_to_ids_and_groups(ann: Visitor, orders: bide.Queue, name: str) -> None:
    orders.put(1, id=name, group=name, delay=60)
    assert ann.get(f"/message?queue=orders&id={quote(name)}").status == 200
    page = ann.get(f"/queue?queue=orders&state=all&group={quote(name)}")
    assert f'name="id" value="{name}"' in page.text
    version = orders.get(name).version  # type: ignore[union-attr]
    form = {
        "queue": "orders",
        "id": name,
        "version": version,
        "attempts": "10",
        "priority": "0",
        "body": "1",
    }
    assert "count=0" in ann.do("edit", **form, group=name).headers["location"]
    assert "count=1" in ann.do("edit", **form, group="typed ").headers["location"]
    assert orders.get(name).group == "typed"  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [f"{'x' * 159} and more", "lines\rof\ra Mac", "a \t b  "])
def test_a_kind_of_error_is_found_again_by_its_form(
    ann: Visitor, orders: bide.Queue, error: str
) -> None:
    bury(orders, ("a", error))
    sent = error_kind(error).replace("\r", "\r\n")  # as browsers send line ends
    question = ann.do("purge", queue="orders", by="error", kind=sent)
    assert "Messages of orders: 1" in question.text


DEEP = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH


@pytest.mark.parametrize("data", [b'{"card":1e400}', b"1" + b"0" * 5_000, DEEP])
def test_a_body_in_which_nothing_can_be_hidden_is_hidden_whole(stage: Stage, data: bytes) -> None:
    open_lane(stage.url, stage.clock).call(Put("orders", [Item("a", data, True)]))
    visitor = stage.visitor(hide=["card"])
    for page in ("queue?queue=orders", "message?queue=orders&id=a", "search?q=a"):
        reply = visitor.get(f"/{page}")
        assert (reply.status, "1e400" in reply.text) == (200, False), page


@pytest.mark.parametrize("data", [b"{bad", b"[1,\xff\xfe]", b'{"a":' + b'"x"' * 50 + b"}"])
@pytest.mark.parametrize("hide", [(), ("card",)])
def test_a_body_that_is_no_json_is_shown_and_repaired(
    stage: Stage, orders: bide.Queue, data: bytes, hide: tuple[str, ...]
) -> None:
    open_lane(stage.url, stage.clock).call(Put("orders", [Item("a", data, True)]))
    visitor = stage.visitor(hide=hide)
    for page in ("queue?queue=orders", "message?queue=orders&id=a", "search?q=a"):
        assert visitor.get(f"/{page}").status == 200, page
    if not hide:
        version = orders.get("a").version  # type: ignore[union-attr]
        form = {"version": version, "attempts": "10", "priority": "0", "body": '{"n": 1}'}
        assert visitor.do("edit", queue="orders", id="a", **form).status == 303
        assert orders.get("a").body == {"n": 1}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "body",
    [
        {"text": '[[], {"card": "4711"}, {}]', "headers": {"kwargsrepr": "{'card': 4711}"}},
        json.dumps({"text": json.dumps([{"text": json.dumps({"Card": "4711"})}])}),
        b'{"card": "4711"}',
        b'\xff{"card": "4711"}',
    ],
    ids=["celery", "nested", "bytes", "no text"],
)
def test_json_in_texts_and_bytes_is_hidden(stage: Stage, orders: bide.Queue, body: Any) -> None:
    orders.put(body, id="a", headers={"note": '{"card": "4711"}'})
    visitor = stage.visitor(hide=["card"])
    for page in ("queue?queue=orders", "message?queue=orders&id=a", "search?q=a"):
        shown = visitor.get(f"/{page}").text
        assert "•••" in shown, page
        assert "4711" not in shown, page
        assert "34 37 31 31" not in shown, page  # its bytes
    assert "No message matches" in visitor.get("/search?body=4711").text
    orders.put(1, id="b", headers={"note": '""'})
    assert "•••" not in stage.visitor().get("/message?queue=orders&id=b").text


def test_dates_are_in_the_language_of_the_page(stage: Stage) -> None:
    stage.clock = FakeClock(datetime(2026, 6, 1, tzinfo=UTC))
    orders = stage.queue("orders")
    for year in (2026, 2028):
        orders.put(1, at=datetime(year, 12, 5, 8, 9, tzinfo=UTC))
    orders.put(1, delay="3d")
    visitor = stage.visitor()
    english = visitor.get("/queue?queue=orders&span=7d").text
    chinese = visitor.get("/queue?queue=orders&span=7d", accept_language="zh").text
    for part in (">05 Dec 08:09</time>", ">05 Dec 2028</time>", "<span>02 Jun</span>"):
        assert part in english
    for part in (">12月5日 08:09</time>", ">2028年12月5日</time>", "<span>6月2日</span>"):
        assert part in chinese
