"""What the pages show and do not: limits, many queues, times, searches, unusual texts."""

import asyncio
import json
import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

import bide
from bide.dashboard import Access, asgi, wsgi
from bide.dashboard.pages.messages import error_kind
from bide.dashboard.reading import QUEUES
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Put
from bide.model.errors import InvalidArgument
from bide.model.limits import MAX_DEPTH
from bide.model.message import Item
from bide.observing.heartbeat import Busy, Report, put_report
from bide.observing.recorder import PastRecorder
from bide.observing.tally import Histogram, Tally
from bide.server.access.tokens import Tokens
from bide.testing import FakeClock
from bide.worker.periodic.ticks import SCHEDULE_ID, ScheduleBody
from tests.system.dashboard.conftest import Stage, Visitor, bury


def tells_4711(page: str) -> bool:
    """Tell whether a page has this number; versions are hexadecimal, and may have its digits."""
    return re.search("(?<![0-9a-f])4711(?![0-9a-f])", page) is not None


PAGES = (
    "",
    "queue?queue=orders",
    "message?queue=orders&id=order-42",
    "dead",
    "workers",
    "periodic",
    "subscriptions",
    "audit",
    "search?q=order-42",
)


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_the_overview_counts_the_messages_of_each_queue(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put_many([bide.NewMessage(n, delay="90m", id=f"order-{n}") for n in range(1_234)])
    stage.queue("mail").put("hello")
    stage.clock.advance(5)
    page = ann.get("/")
    assert page.status == 200
    assert "1,234" in text_of(page.text)
    assert "mail 0 1 0 0 5s" in text_of(page.text)


def test_rates_come_from_two_samples(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put("first")
    ann.get("/")
    orders.put_many(range(20))
    stage.clock.advance(4)
    assert "put per second 5 " in text_of(ann.get("/").text)


def test_a_sample_serves_all_browsers(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put(1)
    assert "delayed 0 ready 1 " in text_of(ann.get("/").text)
    orders.put(2)
    assert "delayed 0 ready 1 " in text_of(ann.get("/").text)
    stage.clock.advance(2)
    assert "delayed 0 ready 2 " in text_of(ann.get("/").text)


def test_a_bar_of_the_forecast_leads_to_its_messages(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    for minutes in (30, 95, 100):
        orders.put(minutes, delay=timedelta(minutes=minutes), id=f"in-{minutes}")
    for page, found in (("/?span=6h", "/search?"), ("/queue?queue=orders&span=6h", "/queue?")):
        bars = re.findall(r'<a href="([^"]+)" aria-label="\d+ due', ann.get(page).text)
        assert len(bars) >= 2
        assert all(bar.startswith(found) for bar in bars)
        behind = "".join(ann.get(bar.replace("&amp;", "&")).text for bar in bars)
        assert sorted(re.findall(r">(in-\d+)</a>", behind)) == ["in-100", "in-30", "in-95"]


def test_the_tab_of_acked_messages_says_why_it_is_empty(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put(1, id="one")
    orders.claim()[0].ack()
    page = "/queue?queue=orders&state=acked"
    empty = ann.get(page).text
    assert "This queue keeps no acked messages." in empty
    assert "bide set orders --keep 1d" in empty
    assert "bide set orders --history 7d" in empty
    orders.configure(keep="1d", history="1d")
    stage.clock.advance(2)
    assert "keeps no acked messages" not in ann.get(page).text
    orders.put(1, id="two")
    orders.claim()[0].ack()
    kept = ann.get(page).text
    assert ">two</a>" in kept
    assert '<th scope="col">Ended</th>' in kept
    assert "Expired messages are kept for a day." in ann.get(page.replace("acked", "expired")).text


def test_a_queue_with_a_history_lists_what_has_ended(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders", actor="bob")
    page = "/queue?queue=orders&state=ended"
    orders.put(1, id="before")
    assert "state=ended" not in ann.get("/queue?queue=orders").text
    assert ">before</a>" in ann.get(page).text  # there is no such tab: it shows the first one
    orders.configure(history="1d")
    stage.clock.advance(2)
    assert "No message has ended so in this time" in ann.get(page).text
    orders.put_many([bide.NewMessage(n, id=f"o-{n:02}") for n in range(60)])
    orders.cancel_many([f"o-{n:02}" for n in range(60)])
    stage.clock.advance(1)
    orders.claim()[0].bury("ValueError: no\nTraceback")
    first = ann.get(page)
    assert re.findall(r">(o-\d+)</a>", first.text) == [f"o-{n:02}" for n in range(50)]
    assert text_of(first.text).count("bob") == 50
    assert "/message?queue=orders&amp;id=o-00" in first.text
    following = re.search(r'href="([^"]*cursor=[^"#]*)', first.text)
    assert following is not None
    second = ann.get(following[1].replace("&amp;", "&")).text
    assert re.findall(r'class="id" href="[^"]*">([^<]+)</a>', second) == [
        *(f"o-{n:02}" for n in range(50, 60)),
        "before",
    ]
    assert "ValueError: no" in second
    assert "Traceback" not in second
    dead = ann.get(f"{page}&how=dead")
    assert re.findall(r'class="id" href="[^"]*">([^<]+)</a>', dead.text) == ["before"]
    assert ">o-00<" not in ann.get(f"{page}&after=2100-01-01T00:00").text
    assert (ann.get(f"{page}&how=lost").status, ann.get(f"{page}&cursor=x").status) == (400, 400)
    acked = ann.get("/queue?queue=orders&state=acked").text
    assert "state=ended&amp;how=acked#list" in acked


def test_a_page_has_the_past_and_the_times_of_the_visitor(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put(1, delay="2h")
    assert "No worker or server recorded anything" in ann.get("/").text
    stage.clock.advance(60 - stage.clock.now() % 60_000 / 1_000)
    lane = open_lane(stage.url, stage.clock)
    late = Histogram()
    late.observe(0.2)
    tallies = {"orders": Tally(lateness=late)}
    for _ in range(3):
        asyncio.run(PastRecorder(lane.acall, stage.clock, lambda: tallies).record())
        orders.put_many(range(4))
        stage.clock.advance(60)
    close_lane(lane)
    for path in ("/?span=1h", "/queue?queue=orders&span=1h"):
        utc = ann.get(path).text
        assert "put: 4, done: 0, failed: 0" in utc
        assert "99 of 100 late by 250ms at most" in utc
        assert 'class="local"' not in utc
        chinese = ann.get(path, accept_language="zh")
        assert (chinese.status, "250ms" in chinese.text) == (200, True)
        local = ann.get(path, cookie="bide_zone=Asia/Tokyo").text
        assert local.count('class="local"') == utc.count("<g><text") > 3
        assert "below them those of Asia/Tokyo" in local
        for wrong in ("bide_zone=../../etc/passwd", "bide_zone=Nowhere/City", "bide_zone=UTC"):
            assert 'class="local"' not in ann.get(path, cookie=wrong).text


def test_a_queue_lists_its_messages_page_by_page(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put_many([bide.NewMessage(n, delay=60 + n, id=f"o-{n:03}") for n in range(120)])
    seen: list[str] = []
    path: str | None = "/queue?queue=orders&state=delayed"
    while path is not None:
        page = ann.get(path).text
        seen += re.findall(r'class="id" href="[^"]*">(o-\d+)<', page)
        following = re.search(r'href="([^"]*cursor=[^"]*)"', page)
        path = following[1].replace("&amp;", "&").partition("#")[0] if following else None
    assert seen == [f"o-{n:03}" for n in range(120)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=all&group=even", ["m-0", "m-2", "m-4"]),
        ("state=delayed&group=odd", ["m-1", "m-3"]),
        ("state=dead&group=odd", []),
        ("prefix=m-3", ["m-3"]),
        ("state=delayed&after={2}", ["m-2", "m-3", "m-4"]),
        ("state=next&before={2}", ["m-0", "m-1"]),
        ("state=dead&error=ValueError", ["sick"]),
        ("state=dead&error=TypeError", []),
    ],
)
def test_filters_are_in_the_url(stage: Stage, ann: Visitor, query: str, found: list[str]) -> None:
    orders = stage.queue("orders")
    bury(orders, ("sick", "ValueError: no"))
    moments = []
    for n in range(5):
        orders.put(n, delay=60 * (n + 1), id=f"m-{n}", group=("even", "odd")[n % 2])
        message = orders.get(f"m-{n}")
        assert message is not None
        moments.append(message.due_at.strftime("%Y-%m-%dT%H:%M:%S.%f"))
    page = ann.get(f"/queue?queue=orders&{query.format(*moments)}")
    assert page.status == 200
    assert sorted(re.findall(r'class="id" href="[^"]*">([^<]+)<', page.text)) == found


def test_a_filter_without_an_order_reads_a_part_and_goes_on(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    ids = [*(f"a-{n:04}" for n in range(2_500)), "needle"]
    orders.put_many([bide.NewMessage(1, delay=n + 60, id=id) for n, id in enumerate(ids)])
    page = ann.get("/queue?queue=orders&state=delayed&prefix=needl").text
    assert "Searched 2,000 messages." in page
    assert ">needle<" not in page
    following = re.search(r'href="([^"]*cursor=[^"]*)#list"', page)
    assert following is not None
    assert ">needle<" in ann.get(following[1].replace("&amp;", "&")).text


def test_a_message_is_shown_whole(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders", holder="web1:7")
    orders.put({"order": 42}, id="order-42", group="customer:7", priority=3, headers={"trace": "t"})
    orders.claim(1)[0].retry(delay="10m", reason="ConnectionError: refused\nTraceback\n  line 3")
    page = ann.get("/message?queue=orders&id=order-42")
    shown = text_of(page.text)
    for part in (
        "customer:7",
        "attempts 1 / 10",
        "priority 3",
        "trace t",
        "by web1:7",
        "ConnectionError: refused",
        "line 3",
        "&#34;order&#34;: 42",
        "in 10m",
    ):
        assert part in shown, part


def test_bytes_and_large_bodies_are_shown_in_part(stage: Stage, ann: Visitor) -> None:
    files = stage.queue("files")
    files.put(b"\xff\x00" * 1_000, id="picture")
    files.put("x" * 100_000, id="large")
    assert "ff 00 ff 00" in ann.get("/message?queue=files&id=picture").text
    large = ann.get("/message?queue=files&id=large").text
    assert "34,466 more are not shown." in large
    assert ann.get("/queue?queue=files&state=all").status == 200


def test_what_is_hidden_is_nowhere(stage: Stage) -> None:
    orders = stage.queue("orders")
    body = {"order": 42, "payment": [{"Card": "4711-0815"}]}
    orders.put(body, id="order-42", headers={"Authorization": "s3cr3t", "trace": "visible"})
    visitor = stage.visitor(hide=["card", "authorization"])
    for page in (
        "/queue?queue=orders&state=all",
        "/message?queue=orders&id=order-42",
        "/search?q=order-42",
    ):
        shown = visitor.get(page).text
        assert "order-42" in shown
        assert not tells_4711(shown)
        assert "s3cr3t" not in shown
    assert "visible" in visitor.get("/message?queue=orders&id=order-42").text


def test_who_may_not_see_bodies_sees_none(stage: Stage) -> None:
    orders = stage.queue("orders")
    orders.put({"secret": "xyzzy"}, id="order-42", headers={"trace": "xyzzy"})
    visitor = stage.visitor(Access(name="bob", bodies=False))
    for page in ("/queue?queue=orders&state=all", "/message?queue=orders&id=order-42"):
        assert "xyzzy" not in visitor.get(page).text


def test_dead_letters_are_grouped_by_error(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    bury(orders, *[(f"a-{n}", f"TimeoutError: after {n} s") for n in range(3)], ("b", "KeyError"))
    shown = text_of(ann.get("/dead").text)
    assert "TimeoutError: after # s 3 " in shown
    assert "KeyError 1 " in shown


def test_workers_and_what_they_hold(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders", holder="web1:7")
    orders.put(1, id="order-42")
    orders.claim(1)
    orders.put(1, id="order-43")
    stage.queue("orders", holder="web2:8").claim(1)
    busy = Busy(4, 1, "order-43", stage.clock.now() - 90_000)
    report = put_report("web2", Report({"web2:8": ["orders"]}, {}, {"orders": busy}))
    open_lane(stage.url, stage.clock).call(report)
    shown = text_of(ann.get("/workers").text)
    assert "order-43 1m30s" in shown
    assert "web1:7 1 orders" in shown
    assert "web2:8 1 orders" in shown
    assert "order-42 orders web1:7" in shown


def test_an_audit_balances_and_can_count_everything(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put_many(range(5))
    orders.claim(1)[0].ack()
    assert "orders 5 1 0 0 0 0 0 4 0 0 balances" in text_of(ann.get("/audit").text)
    recounted = ann.do("audit", queue="orders")
    assert recounted.status == 200
    assert "counted one by one" in recounted.text


def test_empty_pages_say_so(ann: Visitor) -> None:
    for page, says in (
        ("", "There are no queues yet"),
        ("dead", "no dead letters"),
        ("workers", "No worker is active"),
        ("periodic", "No worker with a schedule"),
        ("subscriptions", "There are no subscriptions"),
        ("audit", "There are no queues"),
        ("?prefix=nope", "No queue begins with nope"),
    ):
        reply = ann.get(f"/{page}")
        assert reply.status == 200
        assert says in reply.text


def test_what_is_not_there_is_404(stage: Stage, ann: Visitor) -> None:
    stage.queue("orders").put(1)
    for path in ("/nothing", "/queue?queue=nope", "/queue", "/message?queue=orders&id=nope"):
        assert ann.get(path).status == 404
    assert ann.get("/static/../app.py").status == 404


def test_wrong_parameters_are_explained(stage: Stage, ann: Visitor) -> None:
    stage.queue("orders").put(1)
    for path in ("/search?after=soon", "/queue?queue=no%20queue", "/queue?queue=orders&cursor=x"):
        page = ann.get(path)
        assert page.status == 400
        assert "This cannot be done" in page.text


HOSTILE = "<script>hacked=1</script>\"'><img src=x onerror=hacked=1>{{12345*6789}}"


def test_nothing_that_users_wrote_becomes_html(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders", holder=HOSTILE)
    orders.put({HOSTILE: HOSTILE}, id=HOSTILE, group=HOSTILE, headers={"x": HOSTILE}, delay=60)
    bury(orders, (f"dead-{HOSTILE}", HOSTILE))
    orders.put(HOSTILE.encode(), id="held")
    orders.claim(1)
    named = (
        "message?queue=orders&id=" + "%3Cscript%3Ehacked=1%3C/script%3E%22%27%3E%3Cimg%20src=x%20"
    )
    pages = (
        *PAGES,
        "queue?queue=orders&state=all",
        "queue?queue=orders&state=dead",
        "queue?queue=orders&state=leased",
        named,
        "search?q=%3Cscript%3Ehacked=1%3C/script%3E",
        "?prefix=%22%3E%3Cscript%3E",
        "queue?queue=%3Cscript%3E",
        "?said=cancel&count=%3Cscript%3E",
        "?span=%3Cscript%3E",
    )
    for page in pages:
        shown = ann.get(f"/{page}").text
        assert "<script>" not in shown, page
        assert "<img" not in shown, page
        assert "83810205" not in text_of(shown), page


def test_pages_let_nothing_in_from_elsewhere(stage: Stage, ann: Visitor) -> None:
    stage.queue("orders").put(1, id="order-42")
    for page in PAGES:
        reply = ann.get(f"/{page}")
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert reply.headers["cache-control"] == "no-store"
        assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?! src)", reply.text)
        assert not re.search(r'(?:src|href|action)="(?:https?:)?//', reply.text)


def test_a_new_version_of_bide_has_its_own_style(ann: Visitor) -> None:
    kept = re.findall(r'(?:href|src)="(/static/[^"]+)"', ann.get("/").text)
    assert len(kept) == 4
    for path in kept:
        assert re.search(r"\?v=[0-9a-f]{8}$", path)
        assert ann.get(path).status == 200


def test_the_language_is_that_of_the_browser_or_chosen(stage: Stage, ann: Visitor) -> None:
    assert "Dead letters" in ann.get("/", accept_language="fr, en;q=0.5").text
    assert "死信" in ann.get("/", accept_language="zh-TW, en;q=0.5").text
    chosen = ann.post("/language", {"language": "zh", "back": "/dead?x=1"})
    assert (chosen.status, chosen.headers["location"]) == (303, "/dead?x=1")
    assert chosen.headers["set-cookie"].startswith("bide_language=zh;")
    assert "死信" in ann.get("/", cookie="a=b; bide_language=zh").text
    assert ann.post("/language", {"language": "xx"}).status == 404


def test_nobody_is_sent_elsewhere(ann: Visitor) -> None:
    for back in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:1", ""):
        assert ann.post("/language", {"language": "zh", "back": back}).headers["location"] == "/"


def test_a_visitor_sees_only_the_queues_of_their_patterns(stage: Stage) -> None:
    for name in ("orders.new", "mail", "shop/orders", "other/orders"):
        stage.queue(name).put(1, id="one", delay=9)
    visitor = stage.visitor(Access(queues=("orders.*",)))
    assert "orders.new" in (page := visitor.get("/").text)
    assert "mail" not in page
    assert visitor.get("/queue?queue=mail").status == 403
    assert visitor.get("/message?queue=mail&id=one").status == 403
    assert len(re.findall(r">one</a>", visitor.get("/search?q=one").text)) == 1
    tenant = stage.visitor(Access(namespace="shop"))
    page = tenant.get("/").text
    assert 'href="/queue?queue=orders"' in page
    assert "other" not in page
    assert "mail" not in page
    assert stage.url in visitor.get("/").text
    assert stage.url not in page
    assert '<span class="store" title="shop">shop</span>' in page
    assert tenant.get("/queue?queue=other/orders").status == 400


def test_patterns_may_be_any_collection(stage: Stage) -> None:
    for name in ("orders.new", "mail"):
        stage.queue(name).put(1, id="one", delay=9)
    collections: list[Collection[str]] = [["orders.*"], {"orders.*"}, {"orders.*": 1}.keys()]
    for queues in collections:
        visitor = stage.visitor(Access(queues=queues, log=True))
        for page in ("", "dead", "workers", "log", "queue?queue=orders.new"):
            assert visitor.get(f"/{page}").status == 200
        assert visitor.get("/queue?queue=mail").status == 403
    assert stage.visitor(Access(queues=())).get("/queue?queue=mail").status == 403


def test_one_text_is_no_collection_of_patterns_or_names() -> None:
    with pytest.raises(InvalidArgument, match=r"write queues=\['orders\.\*'\]"):
        Access(queues="orders.*")
    with pytest.raises(InvalidArgument, match="not a pattern of queues"):
        Access(queues=["orders *"])
    with pytest.raises(InvalidArgument, match=r"write hide=\['card'\]"):
        asgi("memory://", access=lambda scope: None, hide="card")
    with pytest.raises(InvalidArgument, match=r"write hide=\['card'\]"):
        wsgi("memory://", access=lambda environ: None, hide="card")


def test_what_the_server_keeps_is_not_shown(stage: Stage, ann: Visitor) -> None:
    stage.queue("orders").put(1)
    Tokens(open_lane(stage.url, stage.clock), stage.clock).create(None, ["admin"], name="root")
    assert "bide.server" not in ann.get("/").text
    assert ann.get("/queue?queue=bide.server/tokens").status == 400


def test_no_access_shows_nothing(stage: Stage) -> None:
    stage.queue("orders").put(1)
    visitor = stage.visitor(lambda scope: None)
    for page in PAGES:
        reply = visitor.get(f"/{page}")
        assert reply.status == 403
        assert ">orders<" not in reply.text
        assert stage.url not in reply.text


def test_an_access_function_may_be_async(stage: Stage) -> None:
    async def access(scope: object) -> Access:
        return Access(name="ann")

    assert stage.visitor(access).get("/").status == 200


def test_an_action_must_exist() -> None:
    with pytest.raises(InvalidArgument, match="destroy"):
        Access(actions=["destroy"])


def test_a_message_says_why_it_is_where_it_is(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders", actor="bob")
    orders.put(1, id="order-42")
    orders.pause()
    page = "/message?queue=orders&id=order-42"
    assert "the queue has been paused" in text_of(ann.get(page).text)
    assert "被 bob 暂停" in ann.get(page, accept_language="zh").text


def test_a_message_that_is_gone_tells_how_it_ended(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders", history="1d", result_ttl="1d", holder="w1")
    orders.put({"n": 1}, id="a")
    [delivery] = orders.claim()
    delivery.retry(reason="no luck")
    [delivery] = orders.claim()
    delivery.ack(result={"card": 4711, "total": 3})
    page = stage.visitor(hide=["card"]).get("/message?queue=orders&id=a")
    assert page.status == 200
    text = text_of(page.text)
    assert "a was acked by w1" in text
    assert "How it ended" in text
    assert "no luck" in text
    assert "of work" in text
    assert "&#34;total&#34;: 3" in page.text
    refreshed = page.text.partition('<div id="live"')[2].partition("\n</div>\n")[0]
    assert "a was acked" in refreshed
    assert "<details" not in refreshed  # it would be closed again after two seconds
    assert not tells_4711(page.text)
    without_bodies = stage.visitor(Access(bodies=False)).get("/message?queue=orders&id=a")
    assert not tells_4711(without_bodies.text)
    orders.put({"n": 2}, id="a")
    again = ann.get("/message?queue=orders&id=a")
    assert "How it ended" in text_of(again.text)
    assert ann.get("/message?queue=orders&id=b").status == 404


def test_a_list_with_a_filter_reads_a_bounded_number_of_bytes(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    large = "x" * 500_000
    orders.put_many(bide.NewMessage(large, id=f"m{n:02}", delay=60 + n) for n in range(24))
    orders.put(1, id="last", delay=600)
    page = ann.get("/queue?queue=orders&prefix=las").text
    assert "Searched 20 messages" in page
    assert ">last</a>" not in page
    following = re.search(r'href="([^"]*cursor=[^"#]*)', page)
    assert following is not None
    assert ">last</a>" in ann.get(following[1].replace("&amp;", "&")).text


def test_characters_that_turn_the_direction_are_shown(stage: Stage, ann: Visitor) -> None:
    stage.queue("notes").put({"file": "invoice\u202ecod.exe"}, id="turned")
    for path in ("message?queue=notes&id=turned", "queue?queue=notes"):
        page = ann.get(f"/{path}").text
        assert "invoice\\u202ecod.exe" in page
        assert "\u202e" not in page


def test_a_queue_shows_its_limits_and_a_message_what_holds_it(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put(1, id="a")
    orders.put(2, id="b")
    assert "at a time" not in text_of(ann.get("/queue?queue=orders").text)
    orders.configure(limit=1, group_rate="100/m")
    orders.claim()
    stage.clock.advance(60)  # counts are kept for a moment
    orders.claim()
    page = text_of(ann.get("/queue?queue=orders").text)
    assert "limit at a time 1 rate of a group 100/m" in page
    page = text_of(ann.get("/message?queue=orders&id=b").text)
    assert "the limit of the queue is reached (limit: 1 at a time, being handled: 1)" in page


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
    said = "cover the queues below"
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


def test_a_message_shows_its_creation_and_its_successor(stage: Stage, ann: Visitor) -> None:
    orders = stage.queue("orders")
    orders.put(1, id="a")
    (held,) = orders.claim()
    page = text_of(ann.get("/message?queue=orders&id=a").text)
    assert "created" in page
    assert "successor due" not in page
    orders.put(2, id="a", on_conflict="replace", delay="5m", latest="1h")
    page = text_of(ann.get("/message?queue=orders&id=a").text)
    assert "successor due" in page
    held.retry()
    page = text_of(ann.get("/message?queue=orders&id=a").text)
    assert "successor due" not in page


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
        assert not tells_4711(shown), page
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
    for part in (">05 Dec 08:09</time>", ">05 Dec 2028</time>", ">02 Jun</text>"):
        assert part in english
    for part in (">12月5日 08:09</time>", ">2028年12月5日</time>", ">6月2日</text>"):
        assert part in chinese


def test_a_schedule_that_is_held_says_so(stage: Stage, ann: Visitor) -> None:
    report, now = stage.queue("daily-report"), stage.clock.now()
    rule = bide.Cron("0 9 * * 1-5", "Europe/Paris")
    body = ScheduleBody(rule.text, rule.timezone, 3, now)
    report.put(msgspec.to_builtins(body), id=SCHEDULE_ID, repeat=rule)
    assert "held" not in text_of(ann.get("/periodic").text)
    report.hold(SCHEDULE_ID)
    stage.clock.advance(60)  # what the page has read is kept for a moment
    assert "Europe/Paris held" in text_of(ann.get("/periodic").text)
