"""The page of the action log: who sees what of it."""

import os
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from bide.dashboard.access import Access
from bide.dashboard.pages.log import MOST_ENTRIES, READ_BYTES, last_entries
from bide.server.logs import Act, ActionLog
from tests.system.dashboard.conftest import Stage, Visitor
from tests.system.dashboard.test_pages import HOSTILE, text_of


class Logged:
    """An action log, and a dashboard that shows it."""

    def __init__(self, stage: Stage, path: Path) -> None:
        self.path = path
        self.log = ActionLog(str(path))
        self._stage = stage

    def write(self, *acts: Act, who: str = "ann", namespace: str | None = None) -> None:
        self.log.write(acts, who=who, token="t1", client="192.0.2.7", namespace=namespace)

    def visitor(self, **access: Any) -> Visitor:
        return self._stage.visitor(Access(log=True, **access), action_log=self.log)

    def page(self, path: str = "/log", **access: Any) -> str:
        reply = self.visitor(**access).get(path)
        assert reply.status == 200
        return reply.text


@pytest.fixture
def logged(stage: Stage, tmp_path: Path) -> Logged:
    return Logged(stage, tmp_path / "actions.log")


def targets(page: str) -> list[str]:
    return re.findall(r">(t-\w+)<", page)


def older(page: str) -> str | None:
    found = re.search(r'href="(/log\?[^"]*before=[^"]*)"', page)
    return None if found is None else unescape(found[1])


def test_who_did_what_the_newest_first(logged: Logged) -> None:
    logged.write(Act("cancel", "orders", 2), Act("purge", "mail", 0, "forbidden", "order-42"))
    text = text_of(logged.page())
    purge, cancel = "ann purge mail order-42 0 forbidden 192.0.2.7", "ann cancel orders 2 done"
    assert 0 < text.index(purge) < text.index(cancel)
    assert older(logged.page()) is None


def test_what_the_dashboard_does_is_in_it(stage: Stage, logged: Logged) -> None:
    stage.queue("orders").put(1, id="a", delay=60)
    visitor = logged.visitor(name="bob", actions=["cancel"])
    assert "has no entry to show" in visitor.get("/log").text
    visitor.do("cancel", queue="orders", id="a", confirmed="1")
    assert "bob cancel orders a 1 done 192.0.2.7" in text_of(visitor.get("/log").text)


def test_each_view_of_a_result_is_in_it_and_a_refresh_shows_none(
    stage: Stage, logged: Logged
) -> None:
    settings = {"history": "1d", "result_ttl": "1d"}
    for name, keep in (("gone", None), ("kept", "1d")):
        queue = stage.queue(name, **settings, **({"keep": keep} if keep else {}))
        queue.put(1, id="plain")
        queue.put(1, id="card")
        for delivery in queue.claim(2):
            delivery.ack(result=4711 if delivery.id == "card" else None)
    visitor = logged.visitor()
    shown = "<summary>Result</summary>"

    def lines() -> int:
        return logged.path.read_text().count('"act":"show"')

    for page, has_line in (("gone&id=plain", 0), ("gone&id=card", 1), ("kept&id=card", 1)):
        lines_before = lines()
        page = f"/message?queue={page}"
        assert (shown in visitor.get(page).text) == page.endswith("card")
        assert lines() - lines_before == has_line
        refreshed = visitor.get(page, hx_request="true")
        assert refreshed.status == 200
        assert 'id="why"' in refreshed.text
        assert shown not in refreshed.text
        assert lines() - lines_before == has_line


def test_who_may_not_see_it_gets_neither_the_page_nor_the_link(
    stage: Stage, logged: Logged
) -> None:
    logged.write(Act("cancel", "orders", 1, target="secret"))
    visitor = stage.visitor(Access(), action_log=logged.log)
    reply = visitor.get("/log")
    assert (reply.status, "secret" in reply.text) == (403, False)
    assert "You have no access to this page" in reply.text
    assert "Action log" not in visitor.get("/").text
    assert 'href="/log"' in logged.page("/")


def test_a_tenant_sees_what_was_done_in_their_namespace(logged: Logged) -> None:
    for namespace in ("shop", "other", None):
        logged.write(Act("cancel", "orders", 1, target=f"t-{namespace}"), namespace=namespace)
    assert targets(logged.page(namespace="shop")) == ["t-shop"]
    assert targets(logged.page()) == ["t-None", "t-other", "t-shop"]


def test_who_may_see_some_queues_sees_what_was_done_to_these(logged: Logged) -> None:
    logged.write(
        Act("cancel", "orders.eu", 1, target="t-eu"),
        Act("cancel", "mail", 1, target="t-mail"),
        Act("create token", target="t-token"),
    )
    logged.write(Act("cancel", "orders.eu", 1, target="t-shop"), namespace="shop")
    assert targets(logged.page(queues=("orders.*",))) == ["t-eu"]
    assert targets(logged.page(queues=("shop/*",))) == ["t-shop"]
    assert targets(logged.page(queues=("orders.*",), namespace="shop")) == ["t-shop"]
    assert len(targets(logged.page())) == 4


def test_the_filters_are_in_the_url(logged: Logged) -> None:
    logged.write(Act("cancel", "orders", 1, target="t-a"), Act("purge", "orders", target="t-b"))
    logged.write(Act("cancel", "mail", 1, target="t-c"), who="bob")
    assert targets(logged.page("/log?act=cancel")) == ["t-c", "t-a"]
    assert targets(logged.page("/log?act=cancel&queue=orders")) == ["t-a"]
    assert targets(logged.page("/log?who=bob")) == ["t-c"]
    assert "has no entry to show" in logged.page("/log?who=nobody")


def test_older_entries_are_on_further_pages(logged: Logged) -> None:
    logged.write(*[Act("put", "q", 1, target=f"t-{n}") for n in range(MOST_ENTRIES * 2)])
    first = logged.page("/log?act=put")
    assert targets(first) == [f"t-{n}" for n in range(MOST_ENTRIES * 2 - 1, MOST_ENTRIES - 1, -1)]
    link = older(first)
    assert link is not None
    logged.write(Act("put", "q", 1, target="t-new"))
    second = logged.page(link)
    assert targets(second) == [f"t-{n}" for n in range(MOST_ENTRIES - 1, -1, -1)]
    assert older(second) is None
    assert "hx-get" in first
    assert "hx-get" not in second


def test_a_page_reads_a_bounded_part_of_the_log(logged: Logged) -> None:
    logged.write(Act("cancel", "orders", 1, target="t-old"), who="bob")
    while logged.path.stat().st_size < 2.5 * READ_BYTES:
        logged.write(*[Act("put", "orders", 1)] * 1_000)
    pages = [logged.page("/log?who=bob")]
    assert "Nothing was found in the last part of the log" in pages[0]
    while (link := older(pages[-1])) is not None:
        pages.append(logged.page(link))
    assert len(pages) == 3
    assert targets(pages[-1]) == ["t-old"]


def test_every_line_is_read_once_wherever_parts_begin(tmp_path: Path) -> None:
    path = tmp_path / "actions.log"
    lines = [
        b'{"time":"%d","act":"put","result":"done","who":"%s"}' % (n, b"x" * (n * 7_919 % 9_000))
        for n in range(700)
    ]
    path.write_bytes(b"torn" * READ_BYTES + b"\n" + b"\n".join(lines) + b"\n{\xff\n[1]\n\n{")
    before: int | None = None
    seen: list[int] = []
    while True:
        page = last_entries(str(path), lambda entry: True, before)
        seen += [int(entry.time) for entry in page.entries]
        if page.older is None:
            break
        assert before is None or page.older < before
        before = page.older
    assert seen == list(range(699, -1, -1))


def test_a_dashboard_without_an_action_log_says_how_to_keep_one(stage: Stage) -> None:
    page = stage.visitor(Access(log=True)).get("/log")
    assert page.status == 200
    assert "No action log is kept" in page.text


def test_a_log_that_cannot_be_read_is_told(logged: Logged, tmp_path: Path) -> None:
    logged.path.unlink()
    assert "cannot be read: No such file or directory" in logged.page()
    os.mkfifo(logged.path)
    assert "cannot be read: not a regular file" in logged.page()


def test_wrong_places_in_the_log_are_harmless(logged: Logged) -> None:
    logged.write(Act("cancel", "orders", 1, target="t-a"))
    assert targets(logged.page(f"/log?before={10**17}")) == ["t-a"]
    for wrong in ("-1", "9" * 5_000):
        assert targets(logged.page(f"/log?before={wrong}")) == ["t-a"]
    assert targets(logged.page("/log?before=0")) == []


def test_nothing_in_it_becomes_html(logged: Logged) -> None:
    logged.write(Act(HOSTILE, HOSTILE, 1, HOSTILE, HOSTILE), who=HOSTILE)
    page = logged.page()
    assert "<script>hacked" not in page
    assert "<img src=x" not in page
    assert "hacked=1" in page


def test_it_speaks_chinese(logged: Logged) -> None:
    page = logged.visitor().get("/log", accept_language="zh-CN").text
    assert "操作日志" in page
    assert "没有可显示的条目" in page
