"""Messages that repeat: how they show, and what visitors do with them."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import bide
from bide.dashboard.access import ACTIONS, Access
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Put
from bide.model.message import Item, Message
from bide.server.logs import ActionLog
from tests.system.dashboard.conftest import Stage, Visitor
from tests.system.dashboard.test_actions import confirm, said, version_in
from tests.system.dashboard.test_pages import text_of

PAGE = "/message?queue=mail&id=a"
MONDAYS = bide.Cron("0 9 * * MON", "Europe/Berlin")
IN_WORDS = "0 9 * * MON in Europe/Berlin"


@pytest.fixture
def mail(stage: Stage) -> bide.Queue:
    return stage.queue("mail", holder="web1:7")


def message(queue: bide.Queue, id: str = "a") -> Message:
    found = queue.get(id)
    assert found is not None
    return found


def buttons(page: str) -> list[str]:
    return re.findall(r'<button class="\w*">([^<]+)</button>\s*</form>', page)


def test_a_page_tells_the_rule_and_the_runs(ann: Visitor, mail: bide.Queue) -> None:
    mail.put(1, id="a", repeat=bide.Cron("0 9 * * MON", "Europe/Berlin", times=2))
    page = ann.get(PAGE).text
    assert f"repeats {IN_WORDS}, 2 times this run is that of " in text_of(page)
    assert re.search(r" next run \d\d \w+ 0[78]:00.* runs left 2 ", text_of(page))
    assert "; it repeats: 0 9 * * MON in Europe/Berlin, 2 times; this run is that of" in page
    chinese = ann.get(PAGE, accept_language="zh").text
    assert "重复 0 9 * * MON（Europe/Berlin），共 2 次 本次运行时间 " in text_of(chinese)  # noqa: RUF001
    mail.edit("a", repeat=bide.Cron("0 9 * * MON", times=1))
    assert "next run none: this is the last one runs left 1 " in text_of(ann.get(PAGE).text)
    mail.put(1, id="plain", delay=60)
    assert "repeats " not in text_of(
        ann.get("/message?queue=mail&id=plain").text.partition("Edit")[0]
    )


def test_hold_and_resume(ann: Visitor, mail: bide.Queue) -> None:
    mail.put(1, id="a", repeat=MONDAYS)
    due = message(mail).due
    assert {"Run now", "Hold", "Cancel"} <= set(buttons(ann.get(PAGE).text))
    assert said(ann.do("hold", queue="mail", id="a", back=PAGE)) == f"{PAGE}&said=hold&count=1"
    assert message(mail).held
    page = ann.get(f"{PAGE}&said=hold&count=1").text
    assert "Held: no run is due until it is resumed." in page
    assert "a is held until it is resumed; it repeats: " in page
    assert "state delayed held created" in text_of(page)
    assert "2100" not in text_of(page)
    assert "Resume" in buttons(page)
    assert "Hold" not in buttons(page)
    assert said(ann.do("resume", queue="mail", id="a", back=PAGE)) == f"{PAGE}&said=resume&count=1"
    assert (message(mail).held, message(mail).due) == (False, due)
    assert "It repeats again." in ann.get(f"{PAGE}&said=resume&count=1").text


def test_run_now(ann: Visitor, mail: bide.Queue, stage: Stage) -> None:
    mail.put(1, id="a", repeat=MONDAYS)
    due = message(mail).due
    assert (
        said(ann.do("run_now", queue="mail", id="a", back=PAGE)) == f"{PAGE}&said=run_now&count=1"
    )
    assert "It is due now." in ann.get(f"{PAGE}&said=run_now&count=1").text
    assert message(mail).due == stage.clock.now()
    mail.claim()[0].ack()
    assert message(mail).due == due


def test_one_that_is_held_may_run_once(ann: Visitor, mail: bide.Queue) -> None:
    mail.put(1, id="a", repeat=MONDAYS)
    mail.hold("a")
    said(ann.do("run_now", queue="mail", id="a"))
    page = ann.get(PAGE).text
    assert "and after it the message is held until it is resumed" in page
    assert "state ready held created" in text_of(page)


@pytest.mark.parametrize("action", ["hold", "resume", "run_now"])
def test_what_cannot_be_done_is_said(ann: Visitor, mail: bide.Queue, action: str) -> None:
    mail.put(1, id="a", repeat=MONDAYS, delay=0)
    mail.claim()
    reply = ann.do(action, queue="mail", id=["a"])
    assert reply.status == 409
    assert "worker web1:7 holds it until" in reply.text
    assert ann.do(action, queue="mail", id="gone").status == 409
    mail.put(1, id="plain", delay=60)
    reply = ann.do(action, queue="mail", id="plain")
    assert (reply.status, "does not repeat" in reply.text) == (400, True)


def test_several_are_held_after_a_question(ann: Visitor, mail: bide.Queue) -> None:
    for id in ("a", "b"):
        mail.put(1, id=id, repeat=MONDAYS)
    question = ann.do("hold", queue="mail", id=["a", "b"], back="/queue?queue=mail")
    assert "<h1>Hold?</h1>" in question.text
    assert not message(mail).held
    assert said(confirm(ann, question)) == "/queue?queue=mail&said=hold&count=2"
    assert [message(mail, id).held for id in ("a", "b")] == [True, True]


def test_buttons_are_shown_where_they_are_allowed_and_fit(stage: Stage, mail: bide.Queue) -> None:
    mail.put(1, id="a", repeat=MONDAYS)
    mail.put(1, id="plain", delay=60)
    reader = stage.visitor(Access(name="bob"))
    assert buttons(reader.get(PAGE).text) == []
    operator = stage.visitor(Access(name="bob", actions=["hold", "resume", "run_now"]))
    assert buttons(operator.get(PAGE).text) == ["Run now", "Hold"]
    assert buttons(operator.get("/message?queue=mail&id=plain").text) == []
    mail.hold("a")
    assert buttons(operator.get(PAGE).text) == ["Run now", "Resume"]
    mail.resume("a")
    mail.reschedule("a", delay=0)
    mail.claim()
    assert buttons(operator.get(PAGE).text) == []


def test_actions_are_in_the_log(stage: Stage, mail: bide.Queue, tmp_path: Path) -> None:
    path = tmp_path / "actions.log"
    visitor = stage.visitor(
        Access(name="ann", actions=["hold", "resume"]), action_log=ActionLog(str(path))
    )
    mail.put(1, id="a", repeat=MONDAYS)
    for action in ("hold", "resume", "run_now"):
        visitor.do(action, queue="mail", id="a")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["act"], line["messages"], line["result"], line["target"]) for line in lines] == [
        ("hold", 1, "done", "a"),
        ("resume", 1, "done", "a"),
        ("run_now", 0, "forbidden", "a"),
    ]
    assert {line["who"] for line in lines} == {"ann"}


# The form.


def form_of(page: str) -> dict[str, str]:
    names = ("cron", "timezone", "every")
    fields = {name: re.search(rf'name="{name}"[^>]* value="([^"]*)"', page) for name in names}
    return {name: match[1] for name, match in fields.items() if match is not None}


def edit(visitor: Visitor, **fields: str) -> int:
    version = version_in(visitor.get(PAGE).text)
    usual = {"queue": "mail", "id": "a", "version": version, "attempts": "10", "priority": "0"}
    return visitor.do("edit", **usual, body="1", rule="1", **fields).status


def test_a_form_has_the_rule(ann: Visitor, mail: bide.Queue) -> None:
    mail.put(1, id="a", repeat=MONDAYS)
    form = form_of(ann.get(PAGE).text)
    assert form == {"cron": "0 9 * * MON", "timezone": "Europe/Berlin", "every": ""}
    mail.edit("a", repeat=bide.Every("15m"))
    assert form_of(ann.get(PAGE).text) == {"cron": "", "timezone": "", "every": "15m"}
    mail.edit("a", repeat=None)
    assert form_of(ann.get(PAGE).text) == {"cron": "", "timezone": "", "every": ""}


def test_an_edit_changes_the_rule_and_keeps_its_bounds(ann: Visitor, mail: bide.Queue) -> None:
    until = datetime(2099, 1, 1, tzinfo=UTC)
    rule = bide.Cron("0 9 * * MON", "Europe/Berlin", until=until, times=5, missed="skip")
    mail.put(1, id="a", repeat=rule)
    version = message(mail).version
    assert edit(ann, cron="0  9 * * MON", timezone="Europe/Berlin") == 303  # the same
    assert message(mail).version == version
    assert edit(ann, cron="0 10 * * TUE", timezone="Europe/Paris") == 303
    expected = bide.Cron("0 10 * * TUE", "Europe/Paris", until=until, times=5, missed="skip")
    assert message(mail).repeat == expected
    assert f"{message(mail).due_at:%a}" == "Tue"
    assert edit(ann, every="1d", timezone="Europe/Paris") == 303
    assert message(mail).repeat == bide.Every("1d", until=until, times=5, missed="skip")
    assert edit(ann) == 303
    assert message(mail).repeat is None
    assert edit(ann, cron="@daily") == 303
    assert message(mail).repeat == bide.Cron("@daily")


def test_a_form_without_a_rule_leaves_it(ann: Visitor, mail: bide.Queue) -> None:
    mail.put(1, id="a", repeat=MONDAYS)
    fields = {"queue": "mail", "id": "a", "version": message(mail).version, "attempts": "10"}
    assert ann.do("edit", **fields, priority="7", body="1").status == 303
    assert (message(mail).repeat, message(mail).priority) == (MONDAYS, 7)


def test_one_that_is_held_stays_held_with_another_rule(ann: Visitor, mail: bide.Queue) -> None:
    mail.put(1, id="a", repeat=MONDAYS)
    mail.hold("a")
    due = message(mail).due
    assert edit(ann, every="1d") == 303
    assert (message(mail).repeat, message(mail).held) == (bide.Every("1d"), True)
    assert message(mail).due == due
    assert edit(ann) == 303
    assert message(mail).repeat is None


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cron": "0 9 * *"}, "it has 4 fields, not 5"),
        ({"cron": "0 9 * * *", "timezone": "Mars/Base"}, "is not known here"),
        ({"every": "soon"}, "is not a valid duration"),
        ({"cron": "0 9 * * *", "every": "1d"}, "not by both"),
    ],
)
def test_a_wrong_rule_changes_nothing(
    ann: Visitor, mail: bide.Queue, fields: dict[str, str], error: str
) -> None:
    mail.put(1, id="a", repeat=MONDAYS)
    version = message(mail).version
    usual = {"queue": "mail", "id": "a", "version": version, "attempts": "10", "priority": "3"}
    reply = ann.do("edit", **usual, body="1", rule="1", **fields)
    assert (reply.status, error in reply.text) == (400, True)
    # Nothing that was written is lost.
    assert form_of(reply.text) == {"cron": "", "timezone": "", "every": "", **fields}
    assert message(mail).version == version


def test_a_dead_letter_has_no_rule_to_edit(ann: Visitor, mail: bide.Queue) -> None:
    mail.put(1, id="a")
    mail.claim()[0].bury("no")
    page = ann.get(PAGE).text
    assert 'name="priority"' in page
    assert form_of(page) == {}


def test_a_copy_does_not_repeat(ann: Visitor, mail: bide.Queue) -> None:
    mail.put({"to": "ann"}, id="a", repeat=MONDAYS)
    mail.hold("a")
    said(ann.do("copy", queue="mail", id="a", new="b", delay="5m"))
    copy = message(mail, "b")
    assert (copy.body, copy.rule, copy.run, copy.state) == ({"to": "ann"}, None, None, "delayed")
    assert copy.due < message(mail).due


# Lists.


def marks(page: str) -> list[str]:
    return re.findall(r'class="repeats" title="([^"]*)"', page)


def test_lists_mark_what_repeats_and_what_is_held(ann: Visitor, mail: bide.Queue) -> None:
    mail.put(1, id="a", repeat=MONDAYS)
    mail.put(1, id="b", repeat=bide.Every("1d"))
    mail.hold("b")
    mail.put(1, id="plain", delay=60)
    page = ann.get("/queue?queue=mail&state=delayed").text
    assert sorted(marks(page)) == [IN_WORDS, "every 1d"]
    assert "b ↻ repeats delayed held 0 0 /10" in text_of(page)
    assert sorted(marks(ann.get("/queue?queue=mail&state=delayed", accept_language="zh").text)) == [
        "0 9 * * MON（Europe/Berlin）",  # noqa: RUF001
        "每 1d",
    ]
    page = ann.get("/search?repeats=1").text
    assert len(marks(page)) == 2
    assert 'value="1" checked>' in page
    assert ">plain</a>" not in page
    assert ">plain</a>" in ann.get("/search?q=plain").text
    mail.reschedule("a", delay=0)
    mail.claim()
    assert marks(ann.get("/queue?queue=mail&state=leased").text) == [IN_WORDS]


def test_a_cancel_tells_that_all_runs_are_cancelled(ann: Visitor, mail: bide.Queue) -> None:
    mail.put(1, id="a", repeat=MONDAYS)
    mail.put(1, id="plain", delay=60)
    warning = "Those that repeat (↻) stop repeating."
    assert warning in ann.do("cancel", queue="mail", id="a").text
    assert warning not in ann.do("cancel", queue="mail", id="plain").text


def test_a_rule_that_cannot_be_read_here_is_shown_as_it_is(
    stage: Stage, ann: Visitor, mail: bide.Queue
) -> None:
    later = '{"moon":"full"}'
    lane = open_lane(stage.url, stage.clock)
    lane.call(Put("mail", [Item("a", b"1", at=stage.clock.now() + 60_000, rule=later, run="2")]))
    close_lane(lane)
    page = ann.get(PAGE)
    assert page.status == 200
    assert "it repeats by a rule that cannot be read here: " in page.text
    assert 'repeats {"moon":"full"} attempts' in text_of(page.text).replace("&#34;", '"')
    assert form_of(page.text) == {}
    assert not {"Hold", "Resume", "Run now"} & set(buttons(page.text))
    assert marks(ann.get("/queue?queue=mail&state=delayed").text) == [
        "{&#34;moon&#34;:&#34;full&#34;}"
    ]


def test_what_is_named_as_an_action_may_be_allowed() -> None:
    assert {"hold", "resume", "run_now"} <= set(ACTIONS)
