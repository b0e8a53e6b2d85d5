"""What visitors do, and may not do."""

import asyncio
import json
import logging
import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bide
from bide.dashboard.access import ACTIONS, Access
from bide.dashboard.view import SLICE, _unquoted
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Find
from bide.model.limits import BULK, MAX_FORM, MAX_URL
from bide.model.replies import Found
from bide.observing.heartbeat import Report, put_report
from bide.observing.workers import STOPS
from bide.server.logs import ActionLog
from tests.system.dashboard.conftest import Reply, Stage, Visitor, bury


@pytest.fixture
def orders(stage: Stage) -> bide.Queue:
    return stage.queue("orders", holder="web1:7")


def said(reply: Reply) -> str:
    """Return where an action that was done leads to, but for how it is taken back."""
    return re.sub("&undo=.*", "", leads_to(reply))


def leads_to(reply: Reply) -> str:
    assert reply.status == 303, reply.text
    return reply.headers["location"]


def confirm(visitor: Visitor, question: Reply) -> Reply:
    """Answer the page that asks whether an action is meant."""
    assert question.status == 200
    fields = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', question.text)
    kept = [(name, unescape(value)) for name, value in fields]
    form = [*kept[1:], ("confirmed", "1")]  # the first is the page of the language
    return visitor.post("/do", form)


def test_cancel_asks_first(ann: Visitor, orders: bide.Queue) -> None:
    orders.put(1, id="a", delay=60)
    question = ann.do("cancel", queue="orders", id="a", back="/queue?queue=orders")
    assert "This can be undone for ten minutes" in question.text
    assert orders.get("a") is not None
    assert said(confirm(ann, question)) == "/queue?queue=orders&said=cancel&count=1"
    assert orders.get("a") is None
    assert "Cancelled: 1." in ann.get("/queue?queue=orders&said=cancel&count=1").text
    assert "Revived: 10,000." in ann.get("/queue?queue=orders&said=revive&count=10000").text


def test_what_runs_is_stopped_after_a_question(ann: Visitor, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    [delivery] = orders.claim()
    delivery.report(40, of=100, text="<rows>")
    page = ann.get("/message?queue=orders&id=a").text
    assert '<progress max="100" value="40"' in page
    assert "40 of 100 &lt;rows&gt;</span>" in page
    assert re.search('name="running" value="1">\\s*<button class="danger">Stop</button>', page)
    back = "/message?queue=orders&id=a"
    question = ann.do("cancel", queue="orders", id="a", running="1", back=back)
    assert "<h1>Stop?</h1>" in question.text
    assert "This cannot be undone." in question.text
    assert "for ten minutes" not in question.text
    assert orders.explain("a").facts.stopping is None
    done = leads_to(confirm(ann, question))
    assert done == f"{back}&said=cancel&count=0&stopping=1"
    page = ann.get(done).text
    assert "Workers were asked to stop: 1. Unless they still ack" in page
    assert "ann has asked web1:7 to stop" in page
    assert ">Stop</button>" not in page
    assert "要求停止者" in ann.get(back, accept_language="zh").text
    delivery.release()
    assert orders.get("a") is None


def test_what_is_chosen_in_the_list_of_leased_ones_is_stopped(
    ann: Visitor, orders: bide.Queue
) -> None:
    orders.put_many(range(3))
    [*_, acked] = orders.claim(3)
    acked.report(7)
    page = ann.get("/queue?queue=orders&state=leased").text
    assert 'name="running" value="1"' in page
    ids = [message.id for message in orders.scan("leased")]
    acked.ack()
    question = ann.do("cancel", queue="orders", id=ids, running="1")
    refused = confirm(ann, question)
    assert refused.status == 409
    assert "Done: 2. Not done: 1" in refused.text
    assert f"{acked.id} is not in the queue" in refused.text
    assert "asked to stop" in ann.get("/queue?queue=orders&state=leased").text


def test_the_question_before_a_reschedule_is_about_what_it_moves(
    ann: Visitor, orders: bide.Queue
) -> None:
    orders.put(1, id="daily", group="g", repeat=bide.Every("1d"))
    orders.hold("daily")
    orders.put(1, id="once", group="g", delay="1h")
    rule = {"queue": "orders", "by": "rule", "group": "g", "back": "/queue?queue=orders"}
    question = ann.do("reschedule", **rule, delay="2h")
    assert "Messages of orders: 1 " in question.text
    assert ("id=once" in question.text, "id=daily" in question.text) == (True, False)
    assert "&count=1&" in leads_to(confirm(ann, question))
    assert "id=daily" in ann.do("cancel", **rule).text  # to cancel it is something else


def test_the_question_before_a_reschedule_counts_all(
    ann: Visitor, orders: bide.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.dashboard.actions.MOST_CHANGED", BULK)  # by one answer
    hourly = bide.NewMessage(1, id="hourly", group="g", repeat=bide.Every("1h"))
    many = [bide.NewMessage(1, group="g", delay="1h") for _ in range(BULK)]
    daily = bide.NewMessage(1, id="daily", group="g", repeat=bide.Every("1d"))
    for part in ([hourly], many, many, [daily]):
        orders.put_many(part)
    for id in ("hourly", "daily"):
        orders.hold(id)
    orders.reschedule("hourly", delay="2h")  # it runs once, and is held still
    rule = {"queue": "orders", "by": "rule", "group": "g", "back": "/queue?queue=orders"}
    question = ann.do("reschedule", **rule, delay="2h").text
    assert "Messages of orders: 2,000 " in question
    assert "and 1,990 more" in question
    assert "At most 1,000 are changed at a time" in question


def test_a_group_is_cancelled_with_what_runs_of_it(ann: Visitor, orders: bide.Queue) -> None:
    orders.put(1, id="a", group="g")
    orders.claim()
    orders.put(1, id="b", group="g", delay=60)
    assert 'type="checkbox" name="running"' in ann.get("/queue?queue=orders&state=all&group=g").text
    rule = {"queue": "orders", "by": "rule", "group": "g", "back": "/queue?queue=orders"}
    assert "Messages of orders: 1" in ann.do("cancel", **rule).text
    question = ann.do("cancel", **rule, running="1")
    assert "Messages of orders: 2" in question.text
    done = leads_to(confirm(ann, question))
    assert done == "/queue?queue=orders&said=cancel&count=1&stopping=1"
    assert "Cancelled: 1. Workers were asked to stop: 1." in ann.get(done).text
    assert orders.get("b") is None


def test_to_stop_work_needs_the_right_to_cancel(stage: Stage, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    orders.claim()
    bob = stage.visitor(Access(name="bob", actions=["release"]))
    assert ">Stop</button>" not in bob.get("/message?queue=orders&id=a").text
    assert bob.do("cancel", queue="orders", id="a", running="1", confirmed="1").status == 403
    assert orders.explain("a").facts.stopping is None


def test_reschedule_by_delay_and_by_time(ann: Visitor, orders: bide.Queue, stage: Stage) -> None:
    orders.put(1, id="a", delay=60)
    said(ann.do("reschedule", queue="orders", id="a", delay="1h"))
    message = orders.get("a")
    assert message is not None
    assert message.due == stage.clock.now() + 3_600_000
    said(ann.do("reschedule", queue="orders", id="a", at="2030-01-02T03:04"))
    message = orders.get("a")
    assert message is not None
    assert f"{message.due_at:%Y-%m-%d %H:%M}" == "2030-01-02 03:04"


@pytest.mark.parametrize("fields", [{}, {"delay": "soon"}, {"at": "soon"}])
def test_a_wrong_time_changes_nothing(
    ann: Visitor, orders: bide.Queue, fields: dict[str, str]
) -> None:
    due = orders.put(1, id="a", delay=60).due
    assert ann.do("reschedule", queue="orders", id="a", **fields).status == 400
    assert (message := orders.get("a")) is not None
    assert message.due == due


def test_a_question_about_a_due_time_has_a_valid_one(ann: Visitor, orders: bide.Queue) -> None:
    orders.put_many([1, 2], delay=60)
    ids = [message.id for message in orders.scan()]
    wrong = ann.do("reschedule", queue="orders", id=ids, delay="soon")
    assert (wrong.status, "not a valid duration" in wrong.text) == (400, True)
    assert (
        'due in</span> <span class="id">2d<'
        in ann.do("reschedule", queue="orders", id=ids, delay="2d").text
    )


def test_the_key_enter_does_not_cancel(ann: Visitor, orders: bide.Queue) -> None:
    orders.put(1, delay=60, group="g")
    page = ann.get("/queue?queue=orders&state=all&group=g").text
    forms = [form for form in page.split("<form") if 'name="delay"' in form]
    pressed = [re.findall(r'name="action" value="(\w+)"', form)[0] for form in forms]
    assert pressed == ["reschedule", "reschedule"]


def test_numbers_of_any_length_are_no_mistake_of_the_server(
    ann: Visitor, orders: bide.Queue
) -> None:
    orders.put(1, id="a", delay=60)
    bury(orders, ("b", "no"))
    endless = "9" * 5_000
    assert ann.do("edit", queue="orders", id="a", priority=endless).status == 400
    assert ann.do("purge", queue="orders", by="all", until=endless).status == 200


def test_a_copy_has_all_but_the_id(ann: Visitor, orders: bide.Queue, stage: Stage) -> None:
    orders.put({"order": 42}, id="a", group="g", headers={"x": "y"}, priority=9, attempts=3)
    orders.claim(1)[0].bury("no")
    said(ann.do("copy", queue="orders", id="a", new="b", delay="5m"))
    message = orders.get("b")
    assert message is not None
    assert (message.body, message.group, message.headers) == ({"order": 42}, "g", {"x": "y"})
    assert (message.priority, message.attempts, message.attempt) == (9, 3, 0)
    assert message.due == stage.clock.now() + 300_000
    assert message.failures == ()
    assert ann.do("copy", queue="orders", id="a", new="b").status == 409
    said(ann.do("copy", queue="orders", id="a"))
    assert orders.counts().sizes.ready == 1


def test_a_copy_of_what_a_retry_has_put_off_has_its_whole_expiry(
    ann: Visitor, orders: bide.Queue
) -> None:
    orders.put(1, id="a", expires=60)
    orders.claim(1)[0].retry(delay=90, reason="down")
    said(ann.do("copy", queue="orders", id="a", new="b"))
    message = orders.get("b")
    assert message is not None
    assert message.expires == 60_000


def test_release_ends_a_lease(ann: Visitor, orders: bide.Queue) -> None:
    orders.put(1, id="a")
    (delivery,) = orders.claim(1)
    said(confirm(ann, ann.do("release", queue="orders", id="a")))
    message = orders.get("a")
    assert message is not None
    assert (message.state, message.error) == ("ready", "released by ann")
    with pytest.raises(bide.LeaseLost):
        delivery.ack()


def test_what_cannot_be_done_is_said(ann: Visitor, orders: bide.Queue) -> None:
    orders.put_many([bide.NewMessage(1, id="held"), bide.NewMessage(1, id="free", delay=60)])
    orders.claim(1)
    reply = confirm(ann, ann.do("cancel", queue="orders", id=["held", "free", "gone"]))
    assert reply.status == 409
    assert "Done: 1. Not done: 2" in reply.text
    assert "held is held by web1:7" in reply.text
    assert "gone is not in the queue" in reply.text


def test_the_question_shows_what_a_rule_cancels(ann: Visitor, orders: bide.Queue) -> None:
    bury(orders, *[(f"dead-{n:02}", "KeyError") for n in range(12)])
    orders.put_many([bide.NewMessage(1, id=f"held-{n:02}") for n in range(12)])
    orders.claim(12)
    orders.put(1, id="waits", delay=60)
    rule = {"by": "rule", "after": "2001-01-01T00:00"}
    question = ann.do("cancel", queue="orders", **rule)
    assert "Messages of orders: 1" in question.text
    assert ">waits<" in question.text
    assert not re.search("dead-|held-|more", question.text)
    question = ann.do("cancel", queue="orders", running="1", **rule)
    assert "Messages of orders: 13" in question.text
    assert question.text.count(">held-") == 9
    assert "and 3 more" in question.text


def test_the_question_counts_no_message_that_is_gone_as_one_more(
    ann: Visitor, orders: bide.Queue
) -> None:
    orders.put_many([bide.NewMessage(1, id=id, delay=60) for id in "ab"])
    question = ann.do("cancel", queue="orders", id=["a", "b", "gone"])
    assert ">b<" in question.text
    assert "more" not in question.text


def test_dead_letters_of_one_error_are_revived(ann: Visitor, orders: bide.Queue) -> None:
    bury(orders, *[(f"a-{n}", f"TimeoutError: after {n} s") for n in range(30)], ("b", "KeyError"))
    kind = {"by": "error", "kind": "TimeoutError: after # s"}
    question = ann.do("revive", queue="orders", **kind)
    assert "Messages of orders: 30" in question.text
    assert said(confirm(ann, question)) == "/?said=revive&count=30"
    sizes = orders.counts().sizes
    assert (sizes.ready, sizes.dead) == (30, 1)


def test_what_died_after_the_question_stays(ann: Visitor, orders: bide.Queue, stage: Stage) -> None:
    bury(orders, ("a", "KeyError"))
    question = ann.do("purge", queue="orders", by="all")
    stage.clock.advance(1)
    bury(orders, ("b", "KeyError"))
    assert said(confirm(ann, question)) == "/?said=purge&count=1"
    assert [letter.id for letter in orders.dead()] == ["b"]


def test_chosen_dead_letters_are_purged(ann: Visitor, orders: bide.Queue) -> None:
    bury(orders, *[(f"a-{n}", "no") for n in range(4)])
    said(confirm(ann, ann.do("purge", queue="orders", id=["a-1", "a-2"])))
    assert [letter.id for letter in orders.dead()] == ["a-0", "a-3"]


def test_pause_and_resume(ann: Visitor, orders: bide.Queue) -> None:
    orders.put(1)
    said(ann.do("pause", queue="orders", on="1"))
    assert "This queue is paused" in ann.get("/queue?queue=orders").text
    assert orders.claim(1) == []
    said(ann.do("pause", queue="orders", on="0"))
    assert len(orders.claim(1)) == 1


def test_nothing_chosen_is_an_error(ann: Visitor, orders: bide.Queue) -> None:
    orders.put(1)
    reply = ann.do("cancel", queue="orders")
    assert reply.status == 400
    assert "No message is selected" in reply.text


def test_an_unknown_action_is_404(ann: Visitor) -> None:
    assert ann.do("destroy", queue="orders").status == 404
    assert ann.get("/do?action=cancel&queue=orders&id=a").status == 404


@pytest.mark.parametrize("action", ACTIONS)
def test_who_may_not_act_changes_nothing(stage: Stage, orders: bide.Queue, action: str) -> None:
    orders.put(1, id="a", delay=60)
    reader = stage.visitor(Access(name="bob", actions=[one for one in ACTIONS if one != action]))
    fields = {"queue": "orders", "id": "a", "name": "hooks", "on": "1", "delay": "1h"}
    assert reader.do(action, confirmed="1", **fields).status == 403
    assert (message := orders.get("a")) is not None
    assert message.state == "delayed"
    assert not orders.counts().paused


def test_forms_are_shown_only_for_what_is_allowed(stage: Stage, orders: bide.Queue) -> None:
    orders.put(1, id="a", delay=60)
    bury(orders, ("b", "no"))
    pages = (
        "/",
        "/queue?queue=orders",
        "/queue?queue=orders&state=dead",
        "/dead",
        "/audit",
        "/message?queue=orders&id=a",
        "/message?queue=orders&id=b",
    )
    reader = stage.visitor(Access(name="bob"))
    assert not any('name="action"' in reader.get(page).text for page in pages)
    canceller = stage.visitor(Access(name="bob", actions=["cancel"]))
    shown = "".join(canceller.get(page).text for page in pages)
    assert set(re.findall(r'name="action" value="(\w+)"', shown)) == {"cancel"}


@pytest.mark.parametrize("queue", ["bide:stops", "bide:declared", "bide:workers"])
def test_only_who_may_stop_workers_changes_orders_in_internal_queues(
    stage: Stage, queue: str
) -> None:
    orders = stage.queue(queue)
    orders.put(1, id="a", delay=60)
    changer = stage.visitor(Access(name="bob", actions=["cancel"]))
    assert changer.do("cancel", queue=queue, id="a", confirmed="1").status == 403
    assert orders.get("a") is not None
    admin = stage.visitor(Access(name="ann", actions=["cancel", "stop"]))
    assert admin.do("cancel", queue=queue, id="a", confirmed="1").status < 400
    assert orders.get("a") is None


def test_only_who_may_stop_workers_sees_the_requests(stage: Stage) -> None:
    stage.queue(STOPS, actor="eve").put(1, id="web1:7", delay=60)
    pages = (
        "queue?queue=bide:stops",
        "message?queue=bide:stops&id=web1:7",
        "dead?queue=bide:stops",
    )
    lists = ("?prefix=bide:", "search?prefix=bide:&q=web1")
    reader = stage.visitor(Access(name="bob", actions=["cancel", "audit"]))
    admin = stage.visitor(Access(name="ann", actions=["stop"]))
    for page in pages:
        assert (reader.get(f"/{page}").status, admin.get(f"/{page}").status) == (403, 200)
    for page in lists:
        for visitor, listed in ((reader, False), (admin, True)):
            links = re.findall(r">([\w:]+)</a>", visitor.get(f"/{page}").text)
            assert (STOPS in links) == listed
    assert reader.do("audit", queue=STOPS).status == 403


def test_what_was_read_for_an_admin_is_not_shown_to_others(stage: Stage) -> None:
    stage.queue(STOPS, actor="eve").put(1, id="web1:7", delay=60)
    actions = {b"ann": ["stop"], b"bob": []}
    visitor = stage.visitor(lambda scope: Access(actions=actions[dict(scope["headers"])[b"who"]]))
    for who, listed in (("ann", True), ("bob", False), ("ann", True)):
        for page in ("?prefix=bide:", "search?prefix=bide:&q=web1"):
            assert (f">{STOPS}</a>" in visitor.get(f"/{page}", who=who).text) == listed


def test_nobody_sees_undo_records(stage: Stage, orders: bide.Queue, ann: Visitor) -> None:
    orders.put("secret", id="a", delay=60)
    assert orders.cancel(after=0, undo=True) == 1
    with stage.queue("bide:undo") as records:
        assert records.counts().sizes.delayed
    for page in ("?prefix=bide:", "search?prefix=bide:&after=2020-01-01T00:00"):
        assert not re.findall(r">bide:undo</a>", ann.get(f"/{page}").text)
    assert ann.get("/queue?queue=bide:undo").status == 403


def test_a_visitor_acts_only_on_their_queues(stage: Stage) -> None:
    mail = stage.queue("mail")
    mail.put(1, id="a", delay=60)
    visitor = stage.visitor(Access(actions=ACTIONS, queues=("orders",)))
    assert visitor.do("cancel", queue="mail", id="a", confirmed="1").status == 403
    assert visitor.do("pause", queue="mail", on="1").status == 403
    assert mail.get("a") is not None
    assert not mail.counts().paused


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://bide.test:81"},
        {"sec_fetch_site": "cross-site", "origin": "http://bide.test"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_forms_of_other_sites_are_refused(
    ann: Visitor, orders: bide.Queue, headers: dict[str, str]
) -> None:
    orders.put(1)
    fields = {"action": "pause", "queue": "orders", "on": "1"}
    assert ann.post("/do", fields, **headers).status == 403
    assert not orders.counts().paused


@pytest.mark.parametrize(
    "headers", [{"origin": "http://bide.test"}, {"sec_fetch_site": "same-origin"}, {}]
)
def test_forms_of_the_dashboard_are_accepted(
    ann: Visitor, orders: bide.Queue, headers: dict[str, str]
) -> None:
    orders.put(1)
    assert (
        ann.post("/do", {"action": "pause", "queue": "orders", "on": "1"}, **headers).status == 303
    )


def test_a_queue_is_paused_for_a_while(ann: Visitor, orders: bide.Queue) -> None:
    orders.put(1)
    assert ann.do("pause", queue="orders", on="1", **{"for": "1h"}).status == 303
    assert orders.counts().paused_until is not None
    assert "The pause ends at:" in ann.get("/queue?queue=orders").text
    assert ann.get("/").status == 200
    assert ann.do("pause", queue="orders", on="1", **{"for": "soon"}).status == 400
    assert ann.do("pause", queue="orders", on="0").status == 303
    assert not orders.counts().paused


def test_too_large_forms_are_refused(ann: Visitor, orders: bide.Queue) -> None:
    assert ann.do("cancel", queue="orders", id="x" * MAX_FORM).status == 413
    assert ann.do("cancel", queue="orders", id=["x"] * 3_000).status == 400
    assert ann.get("/search?q=" + "x" * MAX_URL).status == 400
    assert ann.get("/" + "%41" * MAX_URL).status == 400


@given(
    st.binary(max_size=20),
    st.lists(st.sampled_from([b"%41", b"%C3%A9", b"+", b"%", b"%4", b"x"])),
    st.integers(-8, 8),
)
def test_a_part_of_a_form_is_decoded_in_steps(start: bytes, parts: list[bytes], at: int) -> None:
    """And no escaped character is lost where one step ends."""
    text = b"x" * (SLICE + at - len(start)) + start + b"".join(parts) + b"%41" * SLICE
    steps = 0

    async def pause() -> None:
        nonlocal steps
        steps += 1

    whole = unquote_to_bytes(text.replace(b"+", b" ")).decode(errors="replace")
    assert asyncio.run(_unquoted(text, pause)) == whole
    assert steps >= 4


def test_every_action_is_logged_with_its_author(
    stage: Stage, orders: bide.Queue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "actions.log"
    visitor = stage.visitor(Access(name="ann", actions=["cancel"]), action_log=ActionLog(str(path)))
    orders.put_many([bide.NewMessage(1, id=id, delay=60) for id in ("a", "b", "c")])
    with caplog.at_level(logging.INFO, "bide.dashboard"):
        visitor.do("cancel", queue="orders", id=["a", "b"])  # only asks
        visitor.do("cancel", queue="orders", id=["a", "b"], confirmed="1")
        visitor.do("cancel", queue="orders", id="c", confirmed="1")
        visitor.do("purge", queue="orders", id="c", confirmed="1")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["act"], one["messages"], one["result"], one.get("target")) for one in lines] == [
        ("show", 2, "done", None),  # the question names the beginning of their bodies
        ("cancel", 2, "done", None),
        ("cancel", 1, "done", "c"),
        ("purge", 0, "forbidden", "c"),
    ]
    assert {(one["who"], one["client"], one["queue"]) for one in lines} == {
        ("ann", "192.0.2.7", "orders")
    }
    assert "cancel by ann from 192.0.2.7: queue orders, messages 2, done" in caplog.text


def test_what_a_form_says_makes_one_bounded_line_of_the_log(
    stage: Stage, orders: bide.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "2026-11-28T00:00:00.000+00:00 INFO token 'root' created by admin"
    visitor = stage.visitor(Access(name=f"eve\n{forged}"))
    with caplog.at_level(logging.INFO, "bide.dashboard"):
        for queue in (f"q\n{forged}", f"q\r\u2028{forged}", "Q" * 100_000, "q\x1b[2J\u202e"):
            assert visitor.do("cancel", queue=queue, id="x").status == 403
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert all(line.isprintable() and len(line) < 2_000 for line in lines), lines


def test_an_edit_changes_what_the_form_says_otherwise(ann: Visitor, orders: bide.Queue) -> None:
    orders.put({"n": 1}, id="a", delay=60, group="g", priority=3, headers={"h": "v"})
    form = ann.get("/message?queue=orders&id=a").text
    version = orders.get("a").version  # type: ignore[union-attr]
    assert f'value="{version}"' in form
    shown = '{\r\n  "n": 1\r\n}'  # as browsers send what the form showed
    fields = {"queue": "orders", "id": "a", "version": version, "attempts": "10", "priority": "3"}
    assert said(ann.do("edit", **fields, body=shown, group="g")) == "/?said=edit&count=0"
    assert orders.get("a").version == version  # type: ignore[union-attr]
    reply = ann.do("edit", **{**fields, "priority": "9"}, body='{"n": 2}', group="")
    assert said(reply) == "/?said=edit&count=1"
    message = orders.get("a")
    assert message is not None
    assert (message.body, message.priority, message.group) == ({"n": 2}, 9, None)
    assert (message.headers, message.attempts) == ({"h": "v"}, 10)
    late = ann.do("edit", **{**fields, "priority": "1"}, body='{"n": 2}')
    assert late.status == 409
    assert orders.get("a").priority == 9  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [{"priority": "256"}, {"priority": "x"}, {"body": "{"}])
def test_a_wrong_edit_changes_nothing(
    ann: Visitor, orders: bide.Queue, wrong: dict[str, str]
) -> None:
    orders.put(1, id="a", delay=60)
    version = orders.get("a").version  # type: ignore[union-attr]
    fields = {"queue": "orders", "id": "a", "version": version, "attempts": "10", "priority": "0"}
    back = "/message?queue=orders&id=a"
    reply = ann.do("edit", **{**fields, "body": "1", "back": back, **wrong})
    assert reply.status == 400
    assert re.search(rf'<p class="error">[^<]*{next(iter(wrong))}', reply.text)
    sent = {"body": "1", **fields, **wrong}  # nothing that was written is lost
    assert f">{sent['body']}</textarea>" in reply.text
    assert f'name="priority" size="4" inputmode="numeric" value="{sent["priority"]}"' in reply.text
    assert f'name="version" value="{version}"' in reply.text
    assert f'href="{back.replace("&", "&amp;")}">Back</a>' in reply.text
    elsewhere = ann.do("edit", **{**fields, "body": "1", "back": "//evil.test", **wrong})
    assert "evil.test" not in elsewhere.text
    assert orders.get("a").version == version  # type: ignore[union-attr]


def test_a_worker_is_replaced(stage: Stage, ann: Visitor) -> None:
    lane = open_lane(stage.url, stage.clock)
    lane.call(put_report("web1:7", Report({"web1:7": ["orders"]}, supervised=True)))
    lane.call(put_report("push", Report({"push:web1": ["orders"]})))
    page = ann.get("/workers").text
    assert page.count("Replace") == 1
    assert ann.do("stop", id="web1:7", back="/workers").status == 303
    reply = lane.call(Find(STOPS, ["web1:7"]))
    assert isinstance(reply, Found)
    assert reply.messages[0] is not None
    assert b"ann" in reply.messages[0].data
    assert ann.do("stop", id="push:web1").status == 404
    reader = stage.visitor(Access(name="eve"))
    assert "Replace" not in reader.get("/workers").text
    assert reader.do("stop", id="web1:7").status == 403
    close_lane(lane)


def test_an_empty_queue_is_deleted(stage: Stage, ann: Visitor, orders: bide.Queue) -> None:
    stage.queue("odrers").pause()  # a typo made it
    orders.put(1, id="a", delay=60)
    assert "Delete the queue" in ann.get("/queue?queue=odrers").text
    assert "Delete the queue" not in ann.get("/queue?queue=orders").text
    assert ann.do("delete", queue="orders").status == 400
    assert said(ann.do("delete", queue="odrers")) == "/?said=delete&count=1"
    assert ann.get("/queue?queue=odrers").status == 404
    assert orders.counts().sizes.delayed == 1


FORM = "/message?queue=orders&id=a"


def version_in(form: str) -> str:
    found = re.search(r'name="version" value="(.*?)"', form)
    assert found is not None
    return found[1]


def test_a_body_with_hidden_parts_is_not_edited(stage: Stage, orders: bide.Queue) -> None:
    orders.put({"card": 1}, id="a", delay=60)
    visitor = stage.visitor(Access(name="bob", actions=ACTIONS), hide=["card"])
    form = visitor.get(FORM).text
    assert "<textarea" not in form
    fields = {"queue": "orders", "id": "a", "attempts": "10", "priority": "5"}
    reply = visitor.do("edit", **fields, version=version_in(form), body='{"card": 2}')
    assert reply.status == 303
    message = orders.get("a")
    assert message is not None
    assert (message.body, message.priority) == ({"card": 1}, 5)


@pytest.mark.parametrize(
    ("bodies", "hide", "in_body"),
    [(False, [], True), (True, ["card"], True), (True, ["card"], False)],
)
def test_a_form_tells_nothing_by_which_a_guess_of_what_is_not_shown_could_be_checked(
    stage: Stage, orders: bide.Queue, bodies: bool, hide: list[str], in_body: bool
) -> None:
    visitor = stage.visitor(Access(name="bob", actions=ACTIONS, bodies=bodies), hide=hide)
    versions = set()
    for pin in ("1111", "2222"):
        body, headers = ({"card": pin}, None) if in_body else ({}, {"card": pin})
        orders.put(body, id="a", at=2_000_000_000, headers=headers)
        versions.add(version := version_in(visitor.get(FORM).text))
        guessed = orders.get("a").version  # type: ignore[union-attr]
        fields = {"queue": "orders", "id": "a", "attempts": "10", "priority": "9", "body": "{}"}
        assert visitor.do("edit", **fields, version=guessed).status == 409
        orders.edit("a", group="g")
        assert visitor.do("edit", **fields, version=version).status == 409
        assert orders.cancel("a")
    assert len(versions) == 1
