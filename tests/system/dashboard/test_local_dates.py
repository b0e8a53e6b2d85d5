"""Local dates on the page of a message."""

import re

import bide
from tests.system.dashboard.conftest import Stage, Visitor
from tests.system.dashboard.test_pages import text_of

PAGE = "/message?queue=mail&id=a"


def test_a_page_shows_the_date(ann: Visitor, stage: Stage) -> None:
    mail: bide.Queue = stage.queue("mail")
    mail.put(1, id="a", at="2097-07-01 09:00", timezone="Europe/Paris")
    page = ann.get(PAGE).text
    assert "local date 2097-07-01 09:00 Europe/Paris" in text_of(page)
    assert "it is planned for 2097-07-01 09:00 in Europe/Paris" in page
    assert "↻" not in page
    assert "↻" not in ann.get("/queue?queue=mail&state=delayed").text
    chinese = text_of(ann.get(PAGE, accept_language="zh").text)
    assert "当地日期 2097-07-01 09:00 Europe/Paris" in chinese
    assert re.search("计划时间为 Europe/Paris 当地的 2097-07-01 09:00", chinese)
    mail.reschedule("a", delay="1h")
    page = ann.get(PAGE).text
    assert "local date" not in page
    assert "planned for" not in page
