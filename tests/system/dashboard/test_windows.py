"""Messages with a window: how they show, and what visitors do with them."""

import pytest

import bide
from bide.model.message import Message
from tests.system.dashboard.conftest import Stage, Visitor
from tests.system.dashboard.test_actions import said, version_in
from tests.system.dashboard.test_pages import text_of

PAGE = "/message?queue=calls&id=a"
CLOSED = bide.Window("Mon-Fri 09:00-18:00", "Europe/Berlin", holidays=["2030-12-25"])
FORM = {"body": "1", "priority": "0", "attempts": "10", "group": "", "rule": "1", "window": "1"}
IN_WORDS = "Mon-Fri 09:00-18:00 in Europe/Berlin, but not on 2030-12-25"


@pytest.fixture
def calls(stage: Stage) -> bide.Queue:
    return stage.queue("calls")


def message(queue: bide.Queue, id: str = "a") -> Message:
    found = queue.get(id)
    assert found is not None
    return found


def test_a_page_tells_the_window(ann: Visitor, calls: bide.Queue) -> None:
    calls.put(1, id="a", at=1_893_000_000, window=CLOSED)
    page = ann.get(PAGE).text
    assert f"window {IN_WORDS} " in text_of(page)
    chinese = ann.get(PAGE, accept_language="zh").text
    assert "投递时段 Mon-Fri 09:00-18:00（Europe/Berlin），2030-12-25 除外 " in text_of(chinese)  # noqa: RUF001
    calls.put(1, id="plain", delay=60)
    page = ann.get("/message?queue=calls&id=plain").text
    assert "window " not in text_of(page.partition("Edit")[0])


def test_an_edit_changes_the_hours_and_keeps_the_holidays(ann: Visitor, calls: bide.Queue) -> None:
    calls.put(1, id="a", at=1_893_000_000, window=CLOSED, repeat=bide.Every("1d"))

    def edit(**fields: str) -> None:
        form = FORM | {"every": "1d", **fields}
        version = version_in(ann.get(PAGE).text)
        reply = ann.do("edit", queue="calls", id="a", back=PAGE, version=version, **form)
        assert said(reply).startswith(f"{PAGE}&said=edit")

    edit(hours="sat-sun", hours_timezone="")
    assert message(calls).window == bide.Window("Sat-Sun", holidays=["2030-12-25"])
    assert message(calls).repeat == bide.Every("1d")
    edit(hours="Sat-Sun", hours_timezone="UTC", priority="3")
    assert (message(calls).priority, message(calls).window) == (
        3,
        bide.Window("Sat-Sun", holidays=["2030-12-25"]),
    )
    edit(hours="", hours_timezone="", priority="3")
    assert (message(calls).window, message(calls).repeat) == (None, bide.Every("1d"))
    edit(hours="", hours_timezone="", every="", priority="3")
    assert message(calls).rule is None


def test_a_window_that_is_none_is_refused(ann: Visitor, calls: bide.Queue) -> None:
    calls.put(1, id="a", delay=60)
    version = version_in(ann.get(PAGE).text)
    form = FORM | {"hours": "Mo-Fr"}
    reply = ann.do("edit", queue="calls", id="a", back=PAGE, version=version, **form)
    assert reply.status == 400
    assert "is neither days nor times" in reply.text
    assert 'name="hours" size="20" placeholder="Mon-Fri 09:00-18:00" value="Mo-Fr"' in reply.text


def test_a_copy_keeps_the_window(ann: Visitor, calls: bide.Queue, stage: Stage) -> None:
    never_soon = bide.Window(f"{stage.clock.datetime():%a} 00:00-00:01")
    calls.put(1, id="a", window=never_soon)
    said(ann.do("copy", queue="calls", id="a", new="b", delay="1m", back=PAGE))
    assert message(calls, "b").window == never_soon
    assert message(calls, "b").due == never_soon.opening(stage.clock.now() + 60_000)
