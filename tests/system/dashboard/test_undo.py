"""Actions that can be taken back: their preview, the notice, and the undo."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import bide
from bide.dashboard.access import Access
from bide.dashboard.actions import PREVIEW_COUNT
from bide.model.undoing import UNDO_FOR
from bide.server.logs import ActionLog
from tests.system.dashboard.conftest import Reply, Stage, Visitor, bury
from tests.system.dashboard.test_actions import confirm, leads_to


@pytest.fixture
def orders(stage: Stage) -> bide.Queue:
    queue = stage.queue("orders", holder="web1:7")
    for number in range(15):
        queue.put({"n": number}, id=f"m{number:02}", group="g", delay=60 + number)
    queue.put(1, id="other", delay=60)
    return queue


def press_undo(visitor: Visitor, notice: Reply) -> Reply:
    """Press the button of a notice."""
    begin = r'<form[^>]*>\s*<input type="hidden" name="action" value="undo">'
    (form,) = re.findall(f"{begin}.*?</form>", notice.text, re.DOTALL)
    fields = re.findall(r'name="([^"]+)" value="([^"]*)"', form)
    return visitor.post("/do", [(name, value.replace("&amp;", "&")) for name, value in fields])


def changed(visitor: Visitor, action: str, **fields: Any) -> Reply:
    """Do something with several messages, and return the page that says so."""
    question = visitor.do(action, queue="orders", **{"back": "/queue?queue=orders", **fields})
    return visitor.get(leads_to(confirm(visitor, question)))


def test_all_that_match_a_filter_are_cancelled_and_taken_back(
    ann: Visitor, orders: bide.Queue
) -> None:
    for given in ("group=g", "state=all&group=g", "state=delayed&after=2099-01-01"):
        page = ann.get(f"/queue?queue=orders&{given}").text
        assert ("All waiting messages that match the filter:" in page) == ("group" in given)
    assert "With all" not in ann.get("/queue?queue=orders&state=delayed&group=g").text
    assert "With all" not in ann.get("/queue?queue=orders&group=g&error=x").text
    assert "With all" not in ann.get("/queue?queue=orders").text
    question = ann.do("cancel", queue="orders", by="rule", group="g", back="/queue?queue=orders")
    assert "Messages of orders: 15" in question.text
    assert f"m{PREVIEW_COUNT - 1:02}" in question.text
    assert f"m{PREVIEW_COUNT:02}" not in question.text
    assert "and 5 more" in question.text
    assert orders.counts().sizes.delayed == 16
    notice = ann.get(leads_to(confirm(ann, question)))
    assert "Cancelled: 15." in notice.text
    assert "(10m left)" in notice.text
    assert [one.id for one in orders.scan()] == ["other"]
    back = ann.get(leads_to(press_undo(ann, notice)))
    assert "Taken back: 15." in back.text
    assert "Cancelled" not in re.sub("<[^>]+>", "", back.text).split("Queue")[0]
    assert orders.counts().sizes.delayed == 16
    assert "Taken back before: 15." in ann.get(leads_to(press_undo(ann, notice))).text


@pytest.mark.parametrize("rule", [{"by": "rule", "group": "g"}, {"id": ["m01", "m02", "m03"]}])
def test_a_reschedule_shows_a_preview_and_is_taken_back(
    ann: Visitor, orders: bide.Queue, rule: dict[str, Any]
) -> None:
    before = {one.id: one.due for one in orders.scan()}
    notice = changed(ann, "reschedule", delay="2d", **rule)
    assert "Rescheduled: " in notice.text
    assert {one.id: one.due for one in orders.scan()} != before
    press_undo(ann, notice)
    assert {one.id: one.due for one in orders.scan()} == before


@pytest.mark.parametrize("action", ["revive", "purge"])
def test_dead_letters_come_back_with_their_errors(
    ann: Visitor, orders: bide.Queue, stage: Stage, action: str
) -> None:
    letters = stage.queue("letters")
    bury(letters, *[(f"a-{n}", f"TimeoutError: after {n} s") for n in range(3)])
    before = list(letters.dead())
    question = ann.do(action, queue="letters", by="all", back="/dead")
    assert "TimeoutError: after 1 s" in question.text
    notice = ann.get(leads_to(confirm(ann, question)))
    assert not list(letters.dead())
    assert "Taken back: 3." in ann.get(leads_to(press_undo(ann, notice))).text
    assert sorted(letters.dead(), key=lambda one: one.id) == before


def test_a_notice_ends_with_its_time_and_tells_what_has_happened(
    ann: Visitor, orders: bide.Queue, stage: Stage
) -> None:
    notice = changed(ann, "cancel", by="rule", group="g")
    orders.put("new", id="m03")
    assert "Put again or changed since: 1." in ann.get(leads_to(press_undo(ann, notice))).text
    url = leads_to(confirm(ann, ann.do("cancel", queue="orders", id="m03")))
    notice = ann.get(url)
    stage.clock.advance(UNDO_FOR / 1_000)
    assert 'value="undo"' not in ann.get(url).text
    late = press_undo(ann, notice)
    assert late.status == 400
    assert "more than 10 minutes have passed" in late.text


def test_who_may_not_do_it_may_not_take_it_back(
    ann: Visitor, orders: bide.Queue, stage: Stage, tmp_path: Path
) -> None:
    notice = changed(ann, "cancel", by="rule", group="g")
    path = tmp_path / "actions.log"
    log = ActionLog(str(path))
    bob = stage.visitor(
        Access(name="bob", actions=["purge", "revive", "reschedule"]), action_log=log
    )
    eve = stage.visitor(Access(name="eve", actions=["cancel"]), action_log=log)
    assert press_undo(bob, notice).status == 403
    assert orders.counts().sizes.delayed == 1
    assert "Taken back: 15." in eve.get(leads_to(press_undo(eve, notice))).text
    log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = [one for one in lines if one["act"] != "show"]
    assert [(one["act"], one["who"], one["result"], one["messages"]) for one in found] == [
        ("undo", "bob", "forbidden", 0),
        ("undo", "eve", "done", 15),
    ]


def test_in_chinese(ann: Visitor, orders: bide.Queue) -> None:
    notice = ann.get(
        leads_to(confirm(ann, ann.do("cancel", queue="orders", id="m01"))), accept_language="zh"
    )
    assert "撤销" in notice.text
    assert "剩余 10m" in notice.text


def test_a_form_without_a_rule_changes_nothing(ann: Visitor, orders: bide.Queue) -> None:
    for action in ("cancel", "reschedule"):
        assert ann.do(action, queue="orders", by="rule", delay="1m").status == 400
    assert orders.counts().sizes.delayed == 16
