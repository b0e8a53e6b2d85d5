"""Edits by visitors who do not see all of a message."""

import re

import pytest

import bide
from bide.dashboard.access import ACTIONS, Access
from tests.system.dashboard.conftest import Stage

FORM = "/message?queue=orders&id=a"


@pytest.fixture
def orders(stage: Stage) -> bide.Queue:
    return stage.queue("orders")


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
