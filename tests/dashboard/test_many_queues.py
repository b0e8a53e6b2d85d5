"""Pages that show a part of the queues."""

import re

import pytest

from bide.dashboard.reading import QUEUES
from tests.dashboard.conftest import Stage, Visitor, bury
from tests.dashboard.test_pages import text_of


@pytest.mark.parametrize("page", ["dead", "workers", "periodic"])
def test_a_part_of_the_queues_does_not_speak_for_all(stage: Stage, ann: Visitor, page: str) -> None:
    for number in range(QUEUES):
        stage.queue(f"a{number:03}").put(1, delay=60)
    assert "none in these queues" not in ann.get(f"/{page}").text
    bury(stage.queue("last"), ("x", "KeyError"))
    stage.clock.advance(60)  # names are kept for a moment
    assert "There are none in these queues." in ann.get(f"/{page}").text
    assert ("There are none in these queues." in ann.get(f"/{page}?after=a099").text) == (
        page != "dead"
    )


def test_the_overview_says_whose_counts_it_shows(stage: Stage, ann: Visitor) -> None:
    said = "are those of the queues below"
    for number in range(QUEUES + 1):
        stage.queue(f"a{number:03}").put(1, delay=60)
    assert said in ann.get("/").text
    assert said not in ann.get("/?prefix=a0").text


def test_a_bar_of_some_queues_leads_to_their_messages_alone(stage: Stage, ann: Visitor) -> None:
    for name in ("orders", "mail"):
        stage.queue(name).put(1, id=f"of-{name}", delay="2h")
    page = ann.get("/?prefix=ord").text
    (bar,) = re.findall(r'<a href="([^"]+)" aria-label="1 due', page)
    found = text_of(ann.get(bar.replace("&amp;", "&")).text)
    assert "of-orders" in found
    assert "of-mail" not in found
