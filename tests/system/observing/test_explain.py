"""Why a message is where it is; each millisecond of lateness has one cause."""

import asyncio
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bide
from bide.consuming.late_causes import Waited, blocks_of, causes_of
from bide.lane.shared import close_lane, open_lane
from bide.model.commands import Ack, Lease, Put
from bide.model.message import Item, Progress
from bide.model.replies import AHEAD, Explained, Limited, Pause, Serving, Subscribed
from bide.model.times import LATEST, to_datetime
from bide.observing.explanation import Explanation
from bide.observing.heartbeat import Busy, Report, put_report
from bide.observing.sentences import clauses
from bide.observing.workers import Span
from bide.targets.http.peers import CIRCUITS
from bide.targets.http.receiver import Circuit
from bide.targets.http.records import SUBSCRIPTIONS
from bide.targets.http.subscription import Subscription
from bide.testing import FakeClock

DUE = 1_700_000_000_000


class Store:
    """A file, a clock, and queues on it."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.url = f"sqlite:///{path}/bide.db"
        self.lane = open_lane(self.url, self.clock)
        self.queues: list[bide.Queue] = []

    def queue(self, name: str = "orders", **more: Any) -> bide.Queue:
        queue = bide.Queue(name, self.url, clock=self.clock, **more)
        self.queues.append(queue)
        return queue

    def report(self, holder: str, busy: Busy | None, queue: str = "orders", home: str = "") -> None:
        report = Report({holder: [queue]}, {}, {} if busy is None else {queue: busy})
        put = put_report(holder, report)
        self.lane.call(msgspec.structs.replace(put, queue=home + put.queue))

    def close(self) -> None:
        for queue in self.queues:
            queue.close()
        close_lane(self.lane)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()


def test_a_delayed_message_waits_for_its_time_or_its_retry(store: Store) -> None:
    orders = store.queue(holder="web1:7")
    orders.put(1, id="later", delay="1h")
    told = orders.explain("later")
    assert (told.reasons, told.state) == (("delayed",), "delayed")
    assert "in 1h" in told.sentence
    orders.put(1, id="a")
    orders.claim()[0].retry("5m", "ValueError: no\nTraceback")
    told = orders.explain("a")
    assert told.reasons == ("retry",)
    assert told.sentence.endswith("in 5m, because attempt 1 of 10 failed: ValueError: no")


def test_a_ready_message_tells_who_paused_its_queue(store: Store) -> None:
    orders = store.queue(actor="ann")
    orders.put(1, id="a")
    orders.pause()
    store.clock.advance(90)
    store.report("web1:7", None)
    told = orders.explain("a")
    assert told.reasons == ("paused",)
    assert "has been paused by ann since" in told.sentence
    assert "被 ann 暂停" in told.in_language("zh")
    orders.pause(lasting="30s")
    told = orders.explain("a")
    assert told.reasons == ("paused",)
    assert "is paused by ann until " in told.sentence
    assert told.sentence.endswith("for 30s more")
    assert "队列被 ann 暂停至" in told.in_language("zh")
    orders.resume()
    assert orders.explain("a").reasons == ("next",)
    orders.pause(lasting="30s")
    store.clock.advance(30)
    assert "paused" not in orders.explain("a").reasons


def test_a_ready_message_tells_who_could_take_it(store: Store) -> None:
    orders = store.queue()
    orders.put(1, id="a")
    assert orders.explain("a").reasons == ("no-worker",)
    store.report("mail1:3", None, queue="mail")
    assert orders.explain("a").reasons == ("no-worker",)
    since = store.clock.now()
    store.clock.advance(5)
    store.report("web1:7", Busy(4, 4, "order-42", since))
    told = orders.explain("a")
    assert told.reasons == ("busy", "next")
    assert "order-42, which web1:7 has handled for 5s" in told.sentence
    assert told.facts.workers == [Serving("web1:7", 4, 4, "order-42", since)]
    store.report("web2:9", Busy(4, 3, "order-43", since))
    assert orders.explain("a").reasons == ("next",)
    store.clock.advance(30)  # both are silent
    assert orders.explain("a").reasons == ("no-worker",)


def test_nobody_is_missed_where_more_workers_report_than_are_read(store: Store) -> None:
    orders = store.queue("shop/orders")
    orders.put(1, id="a")
    for number in range(30):
        store.report(f"mail1:{number}", Busy(4, 4, "x" * 10_000), queue="mail", home="shop/")
    store.report("web1:7", None, home="shop/")
    told = orders.explain("a")
    assert (told.reasons, told.facts.workers) == ((), None)


def test_a_ready_message_tells_what_is_ahead_and_what_failed(store: Store) -> None:
    orders = store.queue()
    store.report("web1:7", None)
    orders.put_many([{"n": n} for n in range(AHEAD)])
    orders.put(1, id="a")
    told = orders.explain("a")
    assert told.reasons == ("ahead",)
    assert told.sentence.endswith("messages delivered before it: 1,000")
    orders.put(1, id="b")
    assert orders.explain("b").sentence.endswith("more than 1,000")
    [first] = orders.claim(1)
    first.retry(0, "no")
    assert orders.explain(first.id).reasons == ("failed", "next")


def test_a_ready_message_tells_which_limit_holds_it(store: Store) -> None:
    orders = store.queue(limit=1, group_limit=1, rate="30/m", group_rate="1/m")
    store.report("web1:7", None)
    orders.put_many([1, 2, 3], group="a")
    orders.put(1, id="a", group="a")
    held = orders.claim(1)
    told = orders.explain("a")
    assert told.reasons == ("limit", "ahead")
    assert "limit of the queue is reached (limit: 1 at a time, being handled: 1)" in told.sentence
    assert told.sentence.endswith("messages of its group delivered before it: 2")
    assert "现有 1 条正在处理" in told.in_language("zh")
    orders.configure(limit=0)
    assert "the limit of its group is reached (limit: 1" in orders.explain("a").sentence
    held[0].ack()
    told = orders.explain("a")
    assert told.facts.limited == Limited("group_rate", 60_000_000, 0, store.clock.now() + 59_990)
    assert "each group has a rate of 1/m, and the next message of its group is" in told.sentence
    orders.put(1, id="b", group="b")
    assert "the queue has a rate of 30/m, and delivers its next" in orders.explain("b").sentence
    assert orders.explain("b").reasons == ("limit",)
    store.clock.advance(2)
    assert orders.explain("b").reasons == ("next",)


def test_a_tenant_hears_of_its_own_workers_and_those_of_the_whole_store(store: Store) -> None:
    orders = store.queue("shop/orders")
    orders.put(1, id="a")
    store.report("theirs:1", None, home="mail/")
    assert orders.explain("a").facts.workers == []
    store.report("ours:1", None, home="shop/")
    store.report("house:1", None, queue="shop/orders")
    told = orders.explain("a")
    assert [one.holder for one in told.facts.workers or ()] == ["house:1", "ours:1"]


def test_a_subscription_that_sends_nothing_is_named(store: Store) -> None:
    orders = store.queue()
    orders.put(1, id="a")
    store.report("push:web1:7", None)
    hooks = [
        Subscription(name="hook", queue="orders", url="https://shop.example/"),
        Subscription(name="other", queue="mail", url="https://shop.example/"),
        Subscription(
            name="idle", queue="orders", url="https://shop.example/", paused=True, reason="by ann"
        ),
    ]
    items = [Item(one.name, msgspec.json.encode(one), at=LATEST) for one in hooks]
    store.lane.call(Put(SUBSCRIPTIONS, items))
    now = store.clock.now()
    circuit = Circuit(since=now, until=now + 30_000, error="503")
    records = [Item(one.name, msgspec.json.encode(circuit), at=LATEST) for one in hooks[:2]]
    store.lane.call(Put(CIRCUITS, records))
    told = orders.explain("a")
    assert told.reasons == ("subscription", "subscription")
    assert told.facts.subscriptions == [
        Subscribed("hook", False, "503", now, now + 30_000),
        Subscribed("idle", True, "by ann"),
    ]
    assert "hook has failed since" in told.sentence
    assert "idle is paused (by ann)" in told.sentence


def test_a_lease_tells_since_when_and_until_when(store: Store) -> None:
    orders = store.queue(holder="web1:7")
    orders.put(1, id="a")
    [delivery] = orders.claim(lease="1m")
    store.clock.advance(20)
    told = orders.explain("a")
    assert told.reasons == ("leased",)
    assert told.sentence.startswith("web1:7 has held a since ")
    assert told.sentence.endswith("(40s left)")
    delivery.extend("1m")
    assert orders.explain("a").sentence.endswith("lease extensions so far: 1")
    store.clock.advance(61)
    told = orders.explain("a")
    assert told.reasons == ("lapsed",)
    assert told.sentence.endswith("; the next claim returns the message to the queue")


def test_a_lease_that_is_over_tells_that_the_attempt_was_the_last_one(store: Store) -> None:
    orders = store.queue()
    orders.put(1, id="a", attempts=2)
    for _ in range(2):
        orders.claim(lease="1m")
        store.clock.advance(61)
    told = orders.explain("a")
    assert told.reasons == ("lapsed",)
    assert told.sentence.endswith("in attempt 2 of 2; the next claim makes it a dead letter")
    assert told.in_language("zh").endswith("下一次领取会把它变为死信")
    orders.claim()
    assert orders.explain("a").reasons == ("dead",)


def test_a_lease_tells_of_progress_and_of_who_has_asked_to_stop(store: Store) -> None:
    orders = store.queue(holder="w-1", actor="ann")
    orders.put(1, id="a")
    [delivery] = orders.claim(lease="1m")
    delivery.report(40, of=100, text="rows")
    store.clock.advance(3)
    told = orders.explain("a")
    assert told.reasons == ("leased",)
    assert told.sentence.endswith("(57s left); 40 of 100 rows (40 %), 3s ago")
    orders.cancel("a", running=True)
    told = orders.explain("a")
    assert told.reasons == ("leased", "stopping")
    asked = "; ann has asked w-1 to stop; 40 of 100 rows (40 %), 3s ago"
    assert told.sentence.endswith(asked)
    asked_in_chinese = "；ann 已要求 w-1 停止；进度：40 of 100 rows (40 %)，3s 之前"  # noqa: RUF001
    assert told.in_language("zh").endswith(asked_in_chinese)
    store.clock.advance(60)
    told = orders.explain("a")
    assert told.reasons == ("lapsed",)
    assert told.sentence.endswith("the next claim counts the message as cancelled")
    orders.claim()
    assert orders.explain("a").sentence.startswith("a was cancelled by ann at ")


def test_a_lease_tells_that_a_later_put_takes_its_place(store: Store) -> None:
    index = store.queue("index", holder="web1:7")

    def put() -> bide.Outcome:
        return index.put(1, id="d", on_conflict="replace", delay="1m", latest="5m")

    put()
    store.clock.advance(60)
    index.claim(lease="30s")
    assert index.explain("d").sentence.endswith("(30s left)")
    due = put().successor
    assert due is not None
    at = f"{to_datetime(due):%Y-%m-%d %H:%M:%S} UTC"
    told = index.explain("d")
    assert told.reasons == ("leased",)
    later = f"(30s left); a later put takes its place when the lease ends, due {at}"
    assert told.sentence.endswith(later)
    chinese = told.in_language("zh")
    assert chinese.endswith(f"；租约结束时，后来放入的消息将取代它，到期时间为 {at}")  # noqa: RUF001
    store.clock.advance(31)
    told = index.explain("d")
    assert told.reasons == ("lapsed",)
    assert told.sentence.endswith(f"at the next claim a later put takes its place, due {at}")
    assert told.sentence.count(at) == 1
    index.claim()
    assert index.explain("d").sentence.startswith(f"d is due at {at}, in 29s")


HOURLY = bide.Every("1h")


def test_a_message_that_repeats_tells_its_rule_and_its_runs(store: Store) -> None:
    orders = store.queue()
    store.clock.set_wall(DUE // 3_600_000 * 3_600_000)
    orders.put(1, id="a", repeat=bide.Every("1h", times=3))
    told = orders.explain("a")
    assert told.reasons == ("delayed",)
    assert told.sentence.endswith(
        "in 1h; it repeats: every 1h, 3 times; this run is that of 2023-11-14 23:00:00 UTC, the "
        "next one that of 2023-11-15 00:00:00 UTC; runs left, with this one: 3"
    )
    chinese = "；重复规则：每 1h，共 3 次；本次运行的时间为 2023-11-14 23:00:00 UTC"  # noqa: RUF001
    assert chinese in told.in_language("zh")
    orders.edit("a", repeat=bide.Every("1h", times=1))
    last = (
        "; it repeats: every 1h, 1 time; this run is that of 2023-11-14 23:00:00 UTC, and is the "
    )
    assert orders.explain("a").sentence.endswith(f"{last}last one")
    orders.put(1, id="plain", delay=5)
    assert "repeats" not in orders.explain("plain").sentence


def test_one_that_is_held_waits_until_it_is_resumed(store: Store) -> None:
    orders = store.queue()
    orders.put(1, id="a", repeat=HOURLY)
    orders.hold("a")
    told = orders.explain("a")
    assert told.reasons == ("held",)
    assert told.sentence == "a is held until it is resumed; it repeats: every 1h"
    assert told.in_language("zh") == "a 已搁置，直到被恢复；重复规则：每 1h"  # noqa: RUF001
    orders.run_now("a")
    told = orders.explain("a")
    assert told.reasons == ("no-worker",)
    assert told.sentence.endswith(" UTC, and after it the message is held until it is resumed")
    orders.claim()[0].ack()
    assert orders.explain("a").reasons == ("held",)
    orders.resume("a")
    assert orders.explain("a").reasons == ("delayed",)


def test_a_run_that_is_over_waits_to_be_planned(store: Store) -> None:
    orders = store.queue()
    store.report("web1:7", None)

    def ack_without_a_plan(**bounds: Any) -> Explanation:
        orders.put(1, id="a", repeat=bide.Every("1h", **bounds), delay=0, on_conflict="replace")
        [delivery] = orders.claim()
        store.lane.call(Ack("orders", [Lease("a", delivery.token)]))
        return orders.explain("a")

    told = ack_without_a_plan()
    assert told.reasons == ("run-ended",)
    assert re.search(
        r" \(0s\): its run of \S+ \S+ UTC is over, and the next claim plans the run that follows; "
        r"it repeats: every 1h; the next run is that of \S+ \S+ UTC$",
        told.sentence,
    )
    told = ack_without_a_plan(times=1)
    assert told.sentence.endswith(
        "is over and was the last one, and the next claim ends the message; it repeats: every 1h, "
        "1 time"
    )
    orders.reschedule("a", delay="5m")
    assert orders.explain("a").reasons == ("delayed", "run-ended")


def test_a_run_without_attempts_waits_to_be_planned(store: Store) -> None:
    orders = store.queue()
    store.report("web1:7", None)
    orders.put(1, id="a", repeat=HOURLY, delay=0, attempts=2)
    orders.claim()[0].retry(0, "ValueError: no\nTraceback")
    assert orders.explain("a").reasons == ("failed", "next")
    orders.claim()[0].retry(0, "ValueError: no\nTraceback")
    told = orders.explain("a")
    assert told.reasons == ("used-up",)
    assert (
        "its attempts are used up, after attempt 2 of 2 (ValueError: no): the next claim keeps "
        "this run as a dead letter of its own, and plans the run that follows; it repeats: every 1h"
    ) in told.sentence
    orders.edit("a", repeat=bide.Every("1h", times=1), delay=0)
    assert orders.explain("a").reasons == ("next",)  # the first run of another rule
    for _ in range(2):
        orders.claim()[0].retry(0, "ValueError: no\nTraceback")
    assert (
        "(ValueError: no): the next claim makes it a dead letter;" in orders.explain("a").sentence
    )


def test_a_run_that_was_missed_is_left_out(store: Store) -> None:
    orders = store.queue()
    store.report("web1:7", None)
    orders.put(1, id="a", repeat=bide.Every("1h", missed="skip"))
    store.clock.advance(2 * 3_600)
    told = orders.explain("a")
    assert told.reasons == ("no-worker", "run-missed")
    assert "no worker began its run of 20" in told.sentence
    assert "in time, and the next claim plans the run that follows; it repeats: " in told.sentence
    (delivery,) = orders.claim()
    now = store.clock.datetime()
    assert delivery.message.run_at == now.replace(minute=0, second=0, microsecond=0)


def test_a_run_that_a_worker_has_tells_what_follows(store: Store) -> None:
    orders = store.queue(holder="web1:7")
    orders.put(1, id="a", repeat=HOURLY, delay=0)
    orders.claim(lease="1m")
    told = orders.explain("a")
    assert told.reasons == ("leased",)
    assert re.search(
        r"\(1m left\); it repeats: every 1h; this run is that of .*, the next one", told.sentence
    )
    orders.cancel("a")
    assert "repeats" not in orders.explain("a").sentence


def test_what_has_ended_repeats_no_longer(store: Store) -> None:
    orders = store.queue(keep="1d")
    orders.put(1, id="a", repeat=bide.Every("1h", times=1), delay=0)
    orders.claim()[0].ack()
    told = orders.explain("a")
    assert (told.reasons, "repeats" in told.sentence) == (("acked",), False)


def test_a_dead_letter_may_repeat_again(store: Store) -> None:
    rule = HOURLY.text
    item = Item("a", b"1", at=DUE, died=DUE, rule=rule, run="2023-11-14T22:00:00.000Z")
    store.lane.call(Put("orders", [item]))
    told = store.queue().explain("a")
    assert (told.reasons, told.sentence.endswith("; it repeats: every 1h")) == (("dead",), True)


def test_what_has_ended_tells_when_and_why(store: Store) -> None:
    orders = store.queue(keep="1d")
    orders.put(1, id="a", attempts=1)
    orders.claim()[0].retry(0, "ValueError: no")
    store.clock.advance(60)
    told = orders.explain("a")
    assert told.reasons == ("dead",)
    assert told.sentence.endswith("(1m), after attempt 1: ValueError: no")
    orders.put(1, id="b")
    orders.claim()[0].ack()
    assert orders.explain("b").reasons == ("acked",)
    assert orders.explain("x").reasons == ("missing",)


def test_a_message_that_is_gone_tells_by_whom_while_that_is_remembered(store: Store) -> None:
    orders = store.queue(history="1d", holder="w1", actor="ann")
    orders.put_many([bide.NewMessage(n, id=id) for n, id in enumerate("abcd")])
    orders.ack(orders.claim())
    orders.cancel("b")
    orders.purge(state="ready")
    store.clock.advance(60)
    told = orders.explain("a")
    assert (told.reasons, told.state) == (("acked",), None)
    assert "a was acked by w1 " in told.sentence
    assert told.sentence.endswith(", 1m ago")
    assert "由 w1 确认" in told.in_language("zh")
    assert "b was cancelled by ann " in orders.explain("b").sentence
    assert "c was purged by ann " in orders.explain("c").sentence
    orders.put(1, id="e", expires="1s")
    store.clock.advance(2)
    orders.claim()
    store.clock.advance(86_400)
    assert orders.explain("a").reasons == ("missing",)


def test_tasks_ask_the_same(store: Store) -> None:
    store.queue().put(1, id="a")

    async def ask() -> Explanation:
        async with bide.AsyncQueue("orders", store.url, clock=store.clock) as orders:
            return await orders.explain("a")

    assert asyncio.run(ask()).sentence == store.queue().explain("a").sentence


def test_every_clause_has_the_same_values_in_both_languages() -> None:
    for name, texts in clauses().items():
        assert set(texts) == {"en", "zh"}
        if name != "separator":
            fields = [
                {field for _, field, *_ in string.Formatter().parse(texts[language]) if field}
                for language in ("en", "zh")
            ]
            assert fields[0] == fields[1], name


@pytest.mark.parametrize("language", ["en", "zh"])
def test_whatever_is_unknown_leaves_a_sentence(language: str) -> None:
    facts = [
        Explained(now=DUE),
        Explained(now=DUE, state="delayed", due=DUE + 5, planned=DUE),
        Explained(now=DUE, pauses=[Pause(None)], state="ready", due=DUE),
        Explained(now=DUE, state="ready", due=DUE, workers=[Serving("w", 1, 1)]),
        Explained(now=DUE, state="leased", holder="w", until=DUE + 5),
        Explained(now=DUE, state="leased", until=DUE + 5, successor=DUE),
        Explained(now=DUE, state="leased", until=DUE, successor=DUE),
        Explained(now=DUE, state="leased", holder="w", until=DUE + 5, stopping=""),
        Explained(now=DUE, state="leased", until=DUE + 5, progress=Progress(1, moment=DUE)),
        Explained(now=DUE, state="dead", ended=DUE),
        Explained(now=DUE, state="expired", ended=DUE),
    ]
    for one in facts:
        told = Explanation("a", "q", one)
        assert told.reasons or one.state == "ready"
        assert "{" not in told.in_language(language)


times = st.integers(0, 60)
spans = st.lists(st.tuples(times, times).map(lambda pair: (min(pair), max(pair))), max_size=4)


def one_by_one(waited: Waited, pauses: list[Span], unserved: list[Span]) -> dict[str, float]:
    """Return the same of one delivery, millisecond by millisecond."""
    due, retried, asked, let_go, claimed, began = waited
    found: dict[str, float] = {}

    def within(moment: int, among: list[Span]) -> bool:
        return any(start <= moment < end for start, end in among)

    for moment in range(int(due), int(began)):
        if within(moment, pauses):
            cause = "paused"
        elif within(moment, unserved):
            cause = "no-worker"
        elif moment < retried:
            cause = "retry"
        elif moment < asked or moment >= claimed:
            cause = "backlog"
        else:
            cause = "limit" if let_go else "timer"
        found[cause] = found.get(cause, 0) + 1
    return found


@st.composite
def waits(draw: st.DrawFn) -> Waited:
    due, retried, claimed, began = sorted(draw(st.lists(times, min_size=4, max_size=4)))
    let_go = claimed if draw(st.booleans()) else 0
    return due, retried, min(draw(times), claimed), let_go, claimed, began


@given(st.lists(waits(), min_size=1), spans, spans)
def test_the_causes_add_up_to_the_lateness(
    late: list[Waited], pauses: list[Span], unserved: list[Span]
) -> None:
    found = causes_of(late, blocks_of(pauses, unserved))
    for place, waited in enumerate(late):
        mine = {cause: parts[place] for cause, parts in found.items() if parts[place]}
        assert mine == one_by_one(waited, pauses, unserved)
        assert sum(mine.values()) == waited[-1] - waited[0]


def test_who_is_early_or_on_time_has_no_cause() -> None:
    assert causes_of([(50, 50, 10, 0, 50, 50)]) == {}
    assert causes_of([(50, 50, 10, 0, 40, 40)], [("paused", 0, 100)]) == {}
