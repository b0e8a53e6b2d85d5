"""Reads, history, results and exports, by a queue of either face."""

import asyncio
import json
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

import pydantic
import pytest

import bide
from bide import InvalidArgument, NewMessage
from bide.exports import commands_of
from bide.lane import waiting_claims
from bide.model.commands import BuryCommand, Put
from bide.model.limits import IMPORT_LINES, MAX_BODY, MAX_RESULT
from bide.model.message import IN_TRANSIT, Item
from bide.testing.clock import FakeClock
from bide.testing.hooks import count_waiting, execute, lane_of
from tests.contract.queue.conftest import Make
from tests.start import START


def ids(found: Any) -> list[str]:
    return [one.id for one in found]


def fill(orders: Any) -> None:
    orders.put_many([NewMessage(body=n, id=f"m{n}", delay=n * 10) for n in range(6)])


def test_get_finds_a_message_or_nothing(orders: Any) -> None:
    fill(orders)
    assert orders.get("m3").body == 3
    assert orders.get("m9") is None


def test_peek_shows_what_goes_out_next_and_takes_nothing(orders: Any, clock: FakeClock) -> None:
    fill(orders)
    clock.advance(15)
    assert ids(orders.peek(3)) == ["m0", "m1", "m2"]
    assert [message.state for message in orders.peek(3)] == ["ready", "ready", "delayed"]
    assert len(orders.peek()) == 6
    assert orders.counts().sizes.leased == 0


def test_scan_by_state_in_its_order(orders: Any, clock: FakeClock) -> None:
    fill(orders)
    clock.advance(25)
    held = orders.claim(1)
    assert ids(orders.scan("ready")) == ["m1", "m2"]
    assert ids(orders.scan("delayed")) == ["m3", "m4", "m5"]
    assert ids(orders.scan("leased")) == ids(held) == ["m0"]
    assert ids(orders.scan("dead")) == []


def test_scan_by_group_and_span(orders: Any) -> None:
    fill(orders)
    orders.put(0, id="mine", group="g", delay=25)
    assert ids(orders.scan(group="g")) == ["mine"]
    after, before = START / 1000 + 20, START / 1000 + 40
    found = orders.scan("delayed", after=after, before=before)
    assert ids(found) == ["m2", "mine", "m3"]
    assert ids(orders.scan(after=datetime.fromtimestamp(before, UTC))) == ["m4", "m5"]


def test_scan_reads_lazily_page_by_page(orders: Any) -> None:
    orders.put_many([NewMessage(body=n, id=f"m{n:03}", delay=60) for n in range(95)])
    scan = iter(orders.scan(page=10))
    first = [next(scan).id for _ in range(10)]
    assert first == [f"m{n:03}" for n in range(10)]
    orders.cancel_many([f"m{n:03}" for n in range(20, 95)])  # not read yet: it is not seen
    assert ids(scan) == [f"m{n:03}" for n in range(10, 20)]


def test_scan_misses_no_message_while_they_move(orders: Any, clock: FakeClock) -> None:
    orders.put_many([NewMessage(body=n, id=f"m{n:02}", delay=n) for n in range(40)])
    seen = []
    for message in orders.scan(page=7):
        seen.append(message.id)
        clock.advance(1)
        for delivery in orders.claim(1):
            delivery.retry(delay=100)
    assert sorted(set(seen)) == [f"m{n:02}" for n in range(40)]


def test_counts_tell_what_is_where_and_what_became_of_the_rest(
    orders: Any, clock: FakeClock
) -> None:
    fill(orders)
    clock.advance(31)
    deliveries = orders.claim(3)
    deliveries[0].ack()
    deliveries[1].bury("no")
    orders.cancel("m5")
    counts = orders.counts()
    sizes, flow = counts.sizes, counts.flow
    assert (sizes.delayed, sizes.ready, sizes.leased, sizes.dead) == (1, 1, 1, 1)
    assert (flow.put, flow.acked, flow.cancelled, flow.died) == (6, 1, 1, 1)
    assert sizes.total + flow.gone == flow.put
    assert counts.oldest == START + 30_000


def test_counts_of_a_queue_that_does_not_exist_are_zero(orders: Any) -> None:
    assert orders.counts().sizes.total == 0
    assert orders.claim() == []
    assert list(orders.scan()) == []
    assert orders.audit()


def test_the_audit_adds_up_on_a_live_store(orders: Any, clock: FakeClock) -> None:
    fill(orders)
    clock.advance(31)
    orders.claim(2)
    audit = orders.audit()
    assert audit
    assert audit.problems == []
    assert audit.queue == "orders"
    assert audit.counts.recount == audit.counts.sizes


def test_forecast_counts_what_falls_due_when(orders: Any, clock: FakeClock) -> None:
    fill(orders)
    clock.advance(5)
    orders.put(1, delay="3h")
    forecast = orders.forecast(bucket="20s", horizon="1m")
    assert forecast.start == datetime.fromtimestamp(START / 1000 + 5, UTC)
    assert (forecast.overdue, forecast.counts, forecast.later) == (1, [2, 2, 1], 1)
    assert forecast.total == 7
    assert forecast.bucket == 20.0
    pairs = list(forecast)
    assert [count for _, count in pairs] == [2, 2, 1]
    assert pairs[1][0] == datetime.fromtimestamp(START / 1000 + 25, UTC)


def test_queues_of_one_store_are_apart(make: Any) -> None:
    first, second, third = make("orders"), make("mails"), make("tenant/orders")
    first.put(1, id="a")
    second.put(2, id="a")
    third.put(3, id="a")
    assert [queue.claim()[0].body for queue in (first, second, third)] == [1, 2, 3]
    assert first.claim() == []


def test_two_queues_of_one_name_are_the_same(make: Any) -> None:
    first, second = make("orders"), make("orders")
    first.put(1, id="a")
    assert second.get("a").body == 1
    first.close()
    assert second.claim()[0].id == "a"


BOUND = 60


class Total(TypedDict):
    total: int


class Sum(pydantic.BaseModel):
    total: int


def test_history_tells_how_a_message_ended(make: Make, clock: FakeClock) -> None:
    orders = make(history="1d", holder="w1", actor="ann")
    orders.put(1, id="a")
    assert orders.history("a") == []
    orders.cancel("a")
    orders.put(2, id="a", attempts=2)
    clock.advance(1)
    held = orders.claim()
    clock.advance(1)
    orders.retry(held, reason="no luck")
    clock.advance(1)
    [delivery] = orders.claim()
    clock.advance(1)
    delivery.ack()
    acked, cancelled = orders.history("a")
    assert (cancelled.how, cancelled.by, cancelled.attempts) == ("cancelled", "ann", [])
    assert (acked.how, acked.by, acked.attempt) == ("acked", "w1", 2)
    now = clock.now()
    assert [(a.number, a.start, a.end, a.outcome, a.error) for a in acked.attempts] == [
        (1, now - 3_000, now - 2_000, "failed", "no luck"),
        (2, now - 1_000, now, "acked", None),
    ]


def test_a_result_is_returned_and_typed(make: Make) -> None:
    orders = make(result_ttl="1h")
    orders.put_many([bide.NewMessage(n, id=f"m{n}") for n in range(3)])
    first, *others = orders.claim(3)
    first.ack(result={"total": 3})
    orders.ack(others, [None, "é"])
    assert [orders.result(f"m{n}") for n in range(3)] == [{"total": 3}, None, "é"]
    assert orders.result("m0", type=Total) == {"total": 3}
    assert orders.result("m0", type=Sum) == Sum(total=3)
    for id, kind, why in (("m0", list[Sum], "list"), ("m2", Sum, "Sum"), ("m2", "Sum", "Sum")):
        with pytest.raises(bide.InvalidArgument, match=f"of '{id}' is no {why}.*; leave type= out"):
            orders.result(id, type=kind)
    with pytest.raises(bide.InvalidArgument, match="results must be a list of 0"):
        orders.ack([], [1])


def test_without_a_result_the_error_says_what_follows_after_a_lease_that_is_over(
    make: Make, clock: FakeClock
) -> None:
    orders = make(holder="w1")
    orders.put(1, id="again", attempts=2)
    orders.put(1, id="last", attempts=1)
    orders.claim(2, lease=30)
    clock.advance(31)
    with pytest.raises(bide.NotEnded) as again:
        orders.result("again")
    begin, end = str(again.value).split(" ended at ")
    assert begin == "again has no result yet: the lease of w1 on again"
    assert end.endswith(" UTC; the next claim returns the message to the queue")
    with pytest.raises(bide.NotEnded, match="in attempt 1 of 1; the next claim makes it a dead le"):
        orders.result("last")
    assert [delivery.id for delivery in orders.claim(2)] == ["again"]
    assert orders.get("last").state == "dead"


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (b"raw", "result is bytes"),
        (float("nan"), "result is nan"),
        (object(), r"result is of type object.*; convert it \(keys to str\)$"),
        ("x" * MAX_RESULT, r"result takes 65,538 bytes, the limit is 65,536"),
        ("x" * MAX_BODY, r"result takes 1,048,578 bytes, the limit is 65,536; .* reference$"),
    ],
)
def test_what_cannot_be_a_result(make: Make, result: Any, why: str) -> None:
    orders = make(result_ttl="1h")
    orders.put(1, id="a")
    [delivery] = orders.claim()
    with pytest.raises(bide.InvalidArgument, match=why):
        delivery.ack(result=result)
    delivery.ack(result="x" * (MAX_RESULT - 2))
    assert len(orders.result("a")) == MAX_RESULT - 2


def test_the_errors_say_why_there_is_no_result(make: Make, clock: FakeClock) -> None:
    orders = make(result_ttl="1h", history="1h", holder="w1", actor="ann")

    def refusal(id: str) -> bide.BideError:
        with pytest.raises(bide.BideError) as caught:
            orders.result(id)
        return caught.value

    assert "nothing is remembered of 'a': there was no such" in str(refusal("a"))
    orders.put(1, id="a")
    assert str(refusal("a")) == "a is ready; it has no result yet"
    assert isinstance(refusal("a"), bide.NotEnded)
    (delivery,) = orders.claim()
    assert str(refusal("a")) == "a is leased; it has no result yet"
    delivery.report(40, of=100, text="rows")
    assert str(refusal("a")) == "a is leased, so far 40 of 100 rows (40 %); it has no result yet"
    orders.bury([delivery], "bad card\nTraceback")
    died = refusal("a")
    assert isinstance(died, bide.NotAcked)
    assert str(died) == "a died at w1: bad card; it has no result"
    assert died.end == orders.history("a")[0]
    orders.put(1, id="silent")
    orders.bury(orders.claim())
    assert str(refusal("silent")) == "silent died at w1; it has no result"
    orders.put(1, id="b")
    orders.cancel("b")
    assert str(refusal("b")) == "b was cancelled by ann; it has no result"
    orders.put(1, id="c", expires="1s")
    clock.advance(2)
    orders.claim()
    assert str(refusal("c")) == "c expired before a worker took it; it has no result"
    orders.configure(history=0, result_ttl=0)
    assert isinstance(refusal("a"), bide.NotAcked)  # it is still there, dead
    clock.advance(60)
    assert str(refusal("a")) == "a is dead: bad card; it has no result"
    assert isinstance(refusal("b"), bide.NotRemembered)
    orders.configure(result_ttl="1h")
    orders.put(1, id="d")
    orders.bury(orders.claim(), "no such account")
    assert orders.history("d")[0].failures == ()
    died = refusal("d")
    assert str(died) == "d died at w1: no such account; it has no result"
    assert isinstance(died, bide.NotAcked)
    assert died.end is not None
    assert [failure.reason for failure in died.end.failures] == ["no such account"]


def test_settings_of_the_constructor_are_stored_with_the_first_change(make: Make) -> None:
    orders = make(keep="1m", history="2m", result_ttl="3m")
    assert orders.counts().history == 0
    orders.put(1)
    counts = orders.counts()
    assert (counts.keep, counts.history, counts.result_ttl) == (60_000, 120_000, 180_000)
    settings = orders.configure(history="1d")
    assert (settings.keep, settings.history, settings.result_ttl) == (60_000, 86_400_000, 180_000)


# Waiting: threads and tasks, by the system's clock.


@pytest.fixture
def plain(url: str) -> Iterator[bide.Queue]:
    with bide.Queue("orders", url, result_ttl="1h") as queue:
        yield queue


def test_a_waiting_result_comes_with_the_end(plain: bide.Queue) -> None:
    plain.put_many([bide.NewMessage(n, id=f"m{n}") for n in range(3)])
    deliveries = {delivery.id: delivery for delivery in plain.claim(3)}
    found: dict[str, Any] = {}

    def ask(id: str) -> None:
        try:
            found[id] = plain.result(id, wait=BOUND)
        except bide.NotAcked as error:
            found[id] = error.end.how  # type: ignore[union-attr]

    threads = [threading.Thread(target=ask, args=(id,)) for id in deliveries for _ in range(2)]
    for thread in threads:
        thread.start()
    deliveries["m0"].ack(result=[1])
    deliveries["m1"].bury("bad")
    plain.ack([deliveries["m2"]])
    for thread in threads:
        thread.join()
    assert found == {"m0": [1], "m1": "dead", "m2": None}


def test_tasks_wait_for_results(url: str) -> None:
    async def story() -> list[Any]:
        async with bide.AsyncQueue("orders", url, result_ttl="1h") as orders:
            await orders.put_many([bide.NewMessage(n, id=f"m{n}") for n in range(20)])
            waits = [asyncio.create_task(orders.result(f"m{n}", wait=BOUND)) for n in range(20)]
            while deliveries := await orders.claim(7):
                await orders.ack(deliveries, [delivery.body for delivery in deliveries])
            return await asyncio.gather(*waits)

    assert asyncio.run(story()) == list(range(20))


def test_a_wait_for_a_result_is_over(plain: bide.Queue) -> None:
    plain.put(1, id="a", delay="1h")
    with pytest.raises(bide.NotEnded, match="a is delayed"):
        plain.result("a", wait=0.05)


def test_closing_ends_the_wait_for_a_result(plain: bide.Queue) -> None:
    plain.put(1, id="a", delay="1h")
    ended: list[str] = []

    def ask() -> None:
        with pytest.raises(bide.Closed):
            plain.result("a", wait=BOUND)
        ended.append("closed")

    thread = threading.Thread(target=ask)
    thread.start()
    _until_waiting(plain)
    plain.close()
    thread.join()
    assert ended == ["closed"]


def ack_all(url: str) -> None:
    with bide.Queue("orders", url) as orders:
        for delivery in orders.claim(10, wait=BOUND):
            delivery.ack(result=delivery.id)


@pytest.mark.process
@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_an_end_in_another_process_wakes_who_waits(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_claims, "LOOK_AGAIN", 1e6)  # so that hints alone wake
    url = f"sqlite:///{tmp_path}/bide.db"
    if kind != "sqlite":
        fresh: Callable[[], str] = request.getfixturevalue(f"{kind}_url")
        url = fresh()
    with bide.Queue("orders", url, result_ttl="1h") as orders:
        orders.put(1, id="order 42")
        found: list[Any] = []
        waits = threading.Thread(target=lambda: found.append(orders.result("order 42", wait=BOUND)))
        waits.start()
        _until_waiting(orders)
        other = multiprocessing.get_context("spawn").Process(target=ack_all, args=(url,))
        other.start()
        waits.join()
        other.join()
    assert found == ["order 42"]


def _until_waiting(orders: bide.Queue) -> None:
    """Wait until the lane has parked a request."""
    ready = threading.Event()
    while count_waiting(lane_of(orders)) == 0:
        ready.wait(0.01)


@pytest.fixture
def full(orders: Any, clock: FakeClock) -> Any:
    """A queue with messages of every kind."""
    orders.put({"a": [1, "Grüße"]}, id="json", delay=60, priority=7, group="g")
    orders.put(b"\x00\xff", id="bytes", expires="1h", headers={"h": "v"}, attempts=1)
    orders.put("dead", id="dead", attempts=5)
    orders.put("tried", id="tried", attempts=5)
    orders.put("held", id="held", attempts=5, at=1_000_000_002)
    (held,) = orders.claim(1, lease="1h")
    assert held.id == "held"
    by_id = {delivery.id: delivery for delivery in orders.claim(3)}
    by_id["dead"].bury("broken")
    by_id["tried"].retry("10s", "no luck")
    by_id["bytes"].release()
    return orders


def test_a_queue_comes_back_as_it_was(full: Any, make: Any) -> None:
    lines = list(full.export())
    copy = make("copy")
    imported = copy.load(lines)
    assert (imported.stored, imported.kept) == (5, 0)
    assert sorted(copy.export()) == sorted(line.replace("orders", "copy") for line in lines)
    for before in full.scan():
        after = copy.get(before.id)
        for name in ("data", "json", "due", "priority", "attempts", "expires", "group", "headers"):
            assert getattr(after, name) == getattr(before, name), name
        assert after.failures == before.failures
    assert copy.get("dead").state == "dead"
    assert copy.get("dead").ended == full.get("dead").ended
    assert copy.get("json").state == "delayed"
    assert copy.audit()


def test_a_commit_of_an_import_is_bounded_in_bytes() -> None:
    line = json.dumps({"id": "a", "due": 1, "body": "x" * 900_000})
    commands = list(commands_of([line] * 25, "orders", MAX_BODY))
    assert [len(command.items) for command in commands] == [9, 9, 7]


def test_what_somebody_holds_is_ready_again_after_an_import(full: Any, make: Any) -> None:
    copy = make("copy")
    copy.load(full.export())
    held = copy.get("held")
    assert (held.state, held.attempt, held.holder) == ("ready", 0, None)


def test_the_attempts_that_failed_are_not_forgotten(full: Any, make: Any, clock: FakeClock) -> None:
    copy = make("copy")
    copy.load(full.export())
    clock.advance(10)
    copy.cancel_many(["held", "bytes"])
    (tried,) = copy.claim()
    assert (tried.id, tried.attempt, tried.message.error) == ("tried", 2, "no luck")


def test_a_second_import_changes_nothing(full: Any, make: Any) -> None:
    lines = list(full.export())
    copy = make("copy")
    copy.load(lines)
    copy.cancel("json")
    again = copy.load(lines)
    assert (again.stored, again.kept) == (1, 4)
    assert full.load(lines).stored == 0


def test_an_export_has_nothing_of_the_lease(make: Any) -> None:
    orders = make()
    orders.put(1, id="a")
    (delivery,) = orders.claim()
    delivery.report(1, of=2, text="half")
    orders.cancel("a", running=True)
    (line,) = map(json.loads, orders.export())
    assert set(line) == {"id", "due", "queue", "body", "attempts", "created"}
    copy = make("copy")
    copy.load([json.dumps({**line, "queue": "copy"})])
    message = copy.get("a")
    assert (message.state, message.stopping, message.progress) == ("ready", None, None)


def test_what_is_gone_and_only_remembered_is_not_exported(make: Any) -> None:
    orders = make(keep="1d")
    orders.put(1, id="a")
    orders.claim()[0].ack()
    assert list(orders.export()) == []


def test_lines_are_json_that_people_can_read(full: Any) -> None:
    lines = {line["id"]: line for line in map(json.loads, full.export())}
    assert lines["json"] == {
        "id": "json",
        "due": START + 60_000,
        "queue": "orders",
        "body": {"a": [1, "Grüße"]},
        "priority": 7,
        "attempts": 10,
        "group": "g",
        "created": START,
    }
    assert lines["bytes"]["bytes"] == "AP8="
    assert "body" not in lines["bytes"]
    assert lines["tried"]["failures"][0][3] == "no luck"


def test_what_a_move_has_under_way_is_exported_as_it_was(
    plain: bide.Queue, make: Any, clock: FakeClock
) -> None:
    orders, copy = make(plain.name), make("copy")
    orders.put(1, id="a", delay=60)
    orders.put(2, id="tried", expires="1h")
    orders.claim()[0].retry("5m", "no luck")
    before = list(orders.export())
    execute(plain, BuryCommand(plain.name, reason=f"{IN_TRANSIT}move x", ids=["a", "tried"]))
    assert sorted(orders.export()) == sorted(before)
    copy.load(orders.export())
    assert {message.state for message in copy.scan()} == {"delayed"}


@pytest.mark.parametrize(
    ("body", "in_line"),
    [
        (b'{"rate": 1.10, "total": 12345678901.123456789}',) * 2,
        (b'{\n "text":\r\n"a\\nb"\n}', b'{  "text":  "a\\nb" }'),
    ],
)
def test_json_goes_through_an_export_as_it_is_on_one_line(
    plain: bide.Queue, make: Any, body: bytes, in_line: bytes
) -> None:
    execute(plain, Put(plain.name, [Item("a", body, json=True)]))
    (line,) = make(plain.name).export()
    copy = make("copy")
    assert in_line.decode() in line
    copy.load([line])
    assert copy.get("a").data == in_line


def test_lines_by_hand_need_little(orders: Any) -> None:
    imported = orders.load(
        ['{"id": "a", "due": 0, "body": null}', "", b' {"id":"b","due":9,"body":1}\n']
    )
    assert imported.stored == 2
    assert [delivery.body for delivery in orders.claim(2)] == [None, 1]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("no json", "JSON is malformed"),
        ('{"id": "a"}', "missing required field `due`"),
        ('{"id": "a", "due": 1}', "needs a `body`"),
        ('{"id": "a", "due": 1, "body": 1, "bytes": ""}', "needs a `body`"),
        ('{"id": "a", "due": 1, "bytes": "?"}', "base64"),
        ('{"id": "", "due": 1, "body": 1}', "id is 0 bytes long"),
        ('{"id": "a", "due": -1, "body": 1}', "`int` >= 0 - at `$.due`"),
        ('{"id": "a", "due": 4102444800001, "body": 1}', "`int` <= 4102444800000 - at `$.due`"),
        ('{"id": "a", "due": 1, "body": 1, "priority": 256}', "`int` <= 255 - at `$.priority`"),
        ('{"id": "a", "due": 1, "body": 1, "colour": 2}', "unknown field `colour`"),
        ('{"id": "a", "due": 1, "body": "' + "x" * 200 + '"}', "body takes 202 bytes"),
        (b'{"id": "\xff", "due": 1, "body": 1}', "line 3"),
    ],
)
def test_a_bad_line_is_named_by_its_number(make: Any, line: str | bytes, cause: str) -> None:
    orders = make(max_body=100)
    lines = ['{"id": "ok", "due": 1, "body": 1}', "", line, '{"id": "ok2", "due": 1, "body": 1}']
    with pytest.raises(InvalidArgument, match="line 3 is not a message of an export") as raised:
        orders.load(lines)
    assert cause in str(raised.value)
    assert "fix the line and import again" in str(raised.value)


def test_lines_before_a_bad_one_are_in_the_queue_up_to_the_last_commit(orders: Any) -> None:
    good = [f'{{"id": "m{n}", "due": 1, "body": {n}}}' for n in range(IMPORT_LINES + 5)]
    with pytest.raises(InvalidArgument, match=f"line {IMPORT_LINES + 6} "):
        orders.load([*good, "bad"])
    assert orders.counts().sizes.ready == IMPORT_LINES


def test_an_import_reads_no_more_than_it_commits() -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for number in range(3 * IMPORT_LINES):
            read += 1
            yield f'{{"id": "m{number}", "due": 1, "body": 1}}'

    commands = commands_of(lines(), "orders", 100)
    for part in (1, 2, 3):
        assert len(next(commands).items) == IMPORT_LINES
        assert read == part * IMPORT_LINES
    assert list(commands) == []


def test_an_export_reads_no_more_than_it_is_asked_for(orders: Any) -> None:
    orders.put_many([NewMessage(body=n, id=f"m{n:04}", delay=9) for n in range(1_200)])
    export = iter(orders.export())
    next(export)
    orders.cancel_many([f"m{n:04}" for n in range(600, 1_200)])
    # Redis reads in no order: some of those that are gone were read with the first.
    assert 599 <= sum(1 for _ in export) < 1_199


def test_one_queue_pours_into_another(make: Any) -> None:
    source, target = make("source"), make("target")
    source.put_many([NewMessage(body=n, id=f"m{n}") for n in range(2_500)])
    lines = source.export()
    assert target.load(getattr(lines, "target", lines)).stored == 2_500
