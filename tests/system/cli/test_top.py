"""`bide top`: what it knows, what it shows, and how it ends."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import Result
from rich.console import Console

import bide
from bide.cli.queues.top import FORECAST_EVERY, MOST_FORECASTS, PAUSE_FACTOR, Forecaster
from bide.cli.queues.top_screen import picture
from bide.cli.queues.top_view import BUCKET, BUCKETS, Ahead, TopView, as_facts
from bide.cli.store import CommandStore
from bide.model.commands import Command
from bide.model.replies import Flow, Forecasted, Reply, Sizes
from bide.observing.heartbeat import REMEMBER_SECONDS, Busy
from bide.observing.sample import Lateness, Rates, RecentWorkers, Sample, Worker, rates
from bide.testing import FakeClock
from tests.system.cli.conftest import BOUND, Terminal, environment

Bide = Callable[..., Result]


def sample(moment: float, **flow: int) -> Sample:
    return Sample(moment, {"orders": bide.Counts(Sizes(), Flow(**flow))}, {})


def test_rates_are_what_has_happened_a_second() -> None:
    before, after = sample(1.0, put=10, acked=5), sample(3.0, put=30, acked=6, retried=3, died=1)
    assert rates(before, after, "orders") == Rates(10.0, 0.5, 2.0)


def test_the_longest_delivery_of_a_worker_is_shown() -> None:
    busy = {"orders": Busy(4, 2, "a", 40_000), "mail": Busy(4, 1, "b", 10_000), "idle": Busy(4)}
    worker = Worker("web1:7", {"orders": 2, "mail": 1}, busy=busy)
    assert worker.longest == ("mail", busy["mail"])
    view = TopView(Sample(9.0, {}, {"web1:7": worker}), None, [worker], 100_000)
    console = Console(width=100, file=io.StringIO())
    console.print(picture(view, "here", 100))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "longest" in shown
    assert "1m30s" in shown


def test_rates_that_nobody_can_know_are_not_told() -> None:
    assert rates(None, sample(1.0), "orders") is None
    assert rates(sample(1.0), sample(2.0), "mail") is None
    assert rates(sample(1.0), sample(1.0), "orders") is None
    assert rates(sample(1.0, put=9), sample(2.0, put=1), "orders") is None


def test_a_worker_is_remembered_for_a_minute_after_it_held_something() -> None:
    workers = RecentWorkers()
    held = {"web1:7": Worker("web1:7", {"orders": 2}, until=5, seen=1.0)}
    assert [one.holds for one in workers.see(Sample(1.0, {}, held))] == [2]
    (idle,) = workers.see(Sample(2.0, {}, {}))
    assert (idle.holds, idle.until) == (0, None)
    assert workers.see(Sample(1.0 + REMEMBER_SECONDS, {}, {})) == [idle]
    assert workers.see(Sample(1.1 + REMEMBER_SECONDS, {}, {})) == []


def test_those_that_hold_most_come_first() -> None:
    held = {
        "a": Worker("a", {"q": 1}),
        "b": Worker("b", {"q": 2, "r": 3}),
        "c": Worker("c", {"q": 2}),
    }
    assert [one.holder for one in RecentWorkers().see(Sample(0.0, {}, held))] == ["b", "c", "a"]


def drawn(found: Sample, before: Sample | None = None, lines: int = 1_000, width: int = 100) -> str:
    view = TopView(found, before, RecentWorkers().see(found), 100_000)
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(picture(view, "sqlite:///shop.db", width, lines))
    return console.export_text()


def test_limits_stand_beside_their_queue() -> None:
    counts = bide.Counts(Sizes(leased=3), Flow(), limit=3, group_rate=600_000)
    assert "limit 3, group rate 100/m" in drawn(Sample(1.0, {"calls": counts}), width=160)
    narrow = drawn(Sample(1.0, {"calls": counts, "mail": bide.Counts(Sizes(), Flow())}), width=60)
    assert max(map(len, narrow.splitlines())) <= 60


def test_nothing_to_show() -> None:
    def shown(prefix: str) -> str:
        console = Console(file=io.StringIO(), width=100, record=True)
        view = TopView(Sample(0.0, {}), None, [], 0)
        console.print(picture(view, "sqlite:///shop.db", 100, prefix=prefix))
        return console.export_text()

    assert shown("") == "no queues in sqlite:///shop.db yet\n"
    assert shown("shpo-") == "no queue begins with 'shpo-' in sqlite:///shop.db yet\n"


def test_the_picture() -> None:
    busy = bide.Counts(
        Sizes(1_200, 3, 2, 1), Flow(put=2_000, acked=794, died=1), oldest=10_000, paused=True
    )
    held = {
        "web1:7": Worker("web1:7", {"orders": 1}, until=130_000, seen=9.0),
        "web2:8": Worker("web2:8", {"orders": 1}, until=99_000, seen=9.0),
    }
    before = Sample(7.0, {"orders": bide.Counts(Sizes(), Flow(put=1_000, acked=793))}, {})
    screen = drawn(
        Sample(9.0, {"orders": busy, "mail": bide.Counts(Sizes(), Flow())}, held), before
    )
    assert "1,200 delayed   3 ready   2 leased   1 dead   at sqlite:///shop.db" in screen
    assert re.search(r"orders +1,200 +3 +2 +1 +1m30s +500 +0\.5 +0\.5 +paused", screen)
    assert re.search(r"mail +0 +0 +0 +0 +- *\n", screen)
    assert re.search(r"web1:7 +1 +in 30s +orders 1", screen)
    assert re.search(r"web2:8 +1 +over +orders 1", screen)


def test_the_picture_of_lateness_and_of_workers_without_work() -> None:
    at_work = {
        "idle:1": Worker("idle:1", {"mail": 0, "orders": 0}, seen=9.0),
        "dead:2": Worker("dead:2", {"orders": 0}, silent=42_000, seen=-33.0),
    }
    queues = {"orders": bide.Counts(Sizes(), Flow()), "mail": bide.Counts(Sizes(), Flow())}
    late = {"orders": Lateness(2.5, None, 50), "mail": Lateness(500, 300_000, 2)}
    screen = drawn(Sample(9.0, queues, at_work, late))
    assert re.search(r"orders +0 +0 +0 +0 +- +2\.5ms +over 30m", screen)
    assert re.search(r"mail +0 +0 +0 +0 +- +500ms +5m", screen)
    assert re.search(r"idle:1 +0 +mail 0, orders 0", screen)
    assert re.search(r"dead:2 +0 +silent +for 42s: dead, or hangs", screen)
    assert "at most" in screen
    assert "no worker is active" in drawn(Sample(9.0, queues))
    nothing = drawn(Sample(9.0, {}, at_work))
    assert "idle:1" in nothing
    assert "no queues" in drawn(Sample(9.0, {}))


def test_json_has_lengths_of_time_in_milliseconds() -> None:
    at_work = {
        "idle:1": Worker("idle:1", {"orders": 0}, seen=8.75),
        "dead:2": Worker("dead:2", {"orders": 0}, silent=42_000, seen=-33.0),
    }
    queues = {"orders": bide.Counts(Sizes(ready=1), Flow(), oldest=10_000)}
    late = {"orders": Lateness(2.5, None, 50)}
    sample = Sample(9.0, queues, at_work, late, causes={"orders": {"backlog": 1_500.0}})
    found = as_facts(TopView(sample, None, list(at_work.values()), 11_500))
    queue, (idle, dead) = found["queues"][0], found["workers"]
    assert (queue["late"], queue["causes"]) == (1_500, {"backlog": 1_500.0})
    assert (queue["lateness"].p50, queue["lateness"].p99) == (2.5, None)
    assert (idle["seen"], idle["silent"]) == (250, None)
    assert (dead["seen"], dead["silent"]) == (42_000, 42_000)


def test_a_narrow_screen_has_names_and_sizes_whole() -> None:
    queues = {"orders-of-the-shop": bide.Counts(Sizes(ready=1), Flow(put=9), paused=True)}
    before = Sample(7.0, {"orders-of-the-shop": bide.Counts(Sizes(), Flow())}, {})
    held = {"web1:7": Worker("web1:7", {"orders-of-the-shop": 1}, until=130_000, seen=9.0)}
    late = {"orders-of-the-shop": Lateness(500, 300_000, 2)}
    found = Sample(9.0, queues, held, late)
    narrow = drawn(found, before, width=60)
    assert all(len(line) <= 60 for line in narrow.splitlines())
    assert re.search(r"orders-of-the-shop +0 +1 +0 +0 +paused", narrow)
    assert re.search(r"web1:7 +1 +in 30s +orders-of-the-shop", narrow)
    assert "no room for late by, p50, p99" in narrow
    assert "done/s" in drawn(found, before, width=80)
    wide = drawn(found, before, width=140)
    assert re.search(r"orders-of-the-shop .* 500ms +5m +4\.5 +0 +0 +paused", wide)
    assert "p50, p99: how late" in wide


def test_a_very_narrow_screen_cuts_no_count_and_says_which_columns_it_leaves_out() -> None:
    many = bide.Counts(Sizes(123_456, 7_890, 512, 34), Flow(put=9), oldest=10_000)
    held = {"web1.example.com:4711": Worker("web1.example.com:4711", {"orders": 1}, seen=9.0)}
    screen = drawn(Sample(9.0, {"orders-of-the-shop": many}, held), lines=24, width=40)
    assert all(len(line) <= 40 for line in screen.splitlines())
    assert re.search(r"orders-of-the-shop +123,456 +7,890 *\n", screen)
    assert "no room for leased, dead, late by;" in " ".join(screen.split())
    assert len(screen.splitlines()) <= 24


@pytest.mark.parametrize("width", [40, 50, 60])
def test_a_narrow_screen_has_room_for_the_names_of_columns_without_room(width: int) -> None:
    queues = {f"orders-of-the-shop-{n:02}": bide.Counts(Sizes(ready=n), Flow()) for n in range(40)}
    held = {
        f"web{n}.example.com:4711": Worker(f"web{n}.example.com:4711", {"a": 1}, until=1)
        for n in range(9)
    }
    found = Sample(9.0, queues, held, dict.fromkeys(queues, Lateness(500, 300_000, 2)))
    screen = drawn(found, Sample(8.0, queues), lines=30, width=width)
    assert "no room for" in screen
    assert len(screen.splitlines()) <= 30


def test_a_screen_that_is_too_small_shows_what_is_late() -> None:
    queues = {f"q{n:02}": bide.Counts(Sizes(), Flow()) for n in range(40)}
    queues["q33"] = bide.Counts(Sizes(ready=1), Flow(put=1), oldest=1)
    held = {f"w{n}": Worker(f"w{n}", {"q01": 1}, until=1, seen=1.0) for n in range(30)}
    screen = drawn(Sample(1.0, queues, held), lines=24)
    assert "q33" in screen
    assert "and 38 more" in screen
    assert "and 24 more" in screen
    assert len(screen.splitlines()) <= 24


def test_control_characters_in_a_name_do_nothing() -> None:
    held = {"\x1b[2Jx": Worker("\x1b[2Jx", {"orders": 1}, until=1, seen=1.0)}
    found = Sample(1.0, {"orders": bide.Counts(Sizes(leased=1), Flow(put=1))}, held)
    assert "\\x1b[2Jx" in drawn(found)


def test_in_a_pipe_it_looks_once(run: Bide, orders: bide.Queue) -> None:
    orders.put_many(range(3), delay=60)
    orders.put("due")
    (held,) = orders.claim()
    lines = [line.split("\t") for line in run("top").output.splitlines()]
    assert lines[0][:6] == ["queue", "orders", "3", "0", "1", "0"]
    assert lines[1][0] == "worker"
    assert lines[1][2:] == ["1", "orders:1"]
    assert lines[2][0] == "forecast"
    held.ack()
    kinds = [line.split("\t")[0] for line in run("top").output.splitlines()]
    assert kinds == ["queue", "forecast"]


def test_once_as_json(run: Bide, orders: bide.Queue) -> None:
    orders.put("due")
    orders.claim()
    orders.put("later", at=0)
    found = json.loads(run("top", "--once", "--json").output)
    (queue,), (worker,) = found["queues"], found["workers"]
    assert (queue["queue"], queue["ready"], queue["leased"], queue["put"]) == ("orders", 1, 1, 2)
    assert queue["late"] > 1_000_000_000_000  # milliseconds since 1970
    assert "rates" not in queue
    assert (worker["holds"], worker["queues"]) == (1, {"orders": 1})
    assert worker["until"] > found["now"]


def test_only_queues_of_a_prefix(run: Bide, orders: bide.Queue, url: str) -> None:
    orders.put(1)
    with bide.Queue("mail", url) as mail:
        mail.put(1)
    assert [line.split("\t")[1] for line in run("top", "ma").output.splitlines()] == ["mail"]


def test_where_there_is_nothing(run: Bide, orders: bide.Queue, tmp_path: Path) -> None:
    result = run("top")
    assert result.exit_code == 3
    assert "there is no store at" in result.stderr
    orders.counts()
    result = run("top")
    assert (result.exit_code, result.output) == (0, "")


def test_it_does_not_look_all_the_time(run: Bide, orders: bide.Queue) -> None:
    orders.put(1)
    result = run("top", "--interval", "10ms")
    assert result.exit_code == 2
    assert "must be 100ms or longer" in result.stderr


def test_one_sample_has_no_columns_of_rates(terminal: Terminal, orders: bide.Queue) -> None:
    orders.put(1, delay=60)
    screen, _ = terminal("top", "--once")
    assert ("late by" in screen, "put/s" in screen, "p50" in screen) == (True, False, False)


def test_a_terminal_that_cannot_be_drawn_on_gets_it_once(
    terminal: Terminal, orders: bide.Queue
) -> None:
    orders.put(1, delay=60)
    screen, code = terminal("top", TERM="dumb")
    assert (code, "1 delayed" in screen) == (0, True)


class Live:
    """`bide top` on a terminal of its own."""

    def __init__(self, url: str, *options: str) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bide", "top", *options],
            env=environment(url, COLUMNS="100", LINES="30"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def until(self, text: str) -> None:
        deadline = time.monotonic() + BOUND
        while not re.search(text, self.seen):
            assert time.monotonic() < deadline, self.seen
            self.read()

    def read(self) -> None:
        if select.select([self.ours], [], [], 0.05)[0]:
            self.seen += os.read(self.ours, 65536).decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_lives_until_it_is_interrupted(url: str, orders: bide.Queue, number: int) -> None:
    orders.put_many(range(3), delay=60)
    live = Live(url, "--interval", "100ms")
    try:
        live.until("3 delayed")
        orders.put_many(range(4), delay=60)
        live.until("7 delayed")
        live.until("due in 24h")
        live.process.send_signal(number)
        assert live.process.wait(BOUND) == 0
        # The screen that was there before is back, and the cursor.
        live.until(re.escape("\x1b[?25h") + r"[^l]*" + re.escape("\x1b[?1049l"))
        assert "Traceback" not in live.seen
    finally:
        live.close()


@pytest.mark.process
def test_a_store_that_goes_away_is_told_and_waited_for(
    url: str, orders: bide.Queue, tmp_path: Path
) -> None:
    orders.put_many(range(3), delay=60)
    live = Live(url, "--interval", "100ms")
    try:
        live.until("3 delayed")
        path = tmp_path / "test.db"
        orders.close()
        path.rename(tmp_path / "aside.db")
        live.until("the store is away: there is no store at")
        (tmp_path / "aside.db").rename(path)
        deadline = time.monotonic() + BOUND
        while "the store is away" in live.seen:  # older pictures may still be on their way
            assert time.monotonic() < deadline, live.seen
            live.seen = ""
            live.until("3 delayed")
    finally:
        live.close()


@pytest.mark.process
def test_objects_follow_one_another_until_it_is_interrupted(url: str, orders: bide.Queue) -> None:
    orders.put_many(range(3), delay=60)
    with subprocess.Popen(
        [sys.executable, "-m", "bide", "top", "--json", "--interval", "100ms"],
        env=environment(url),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND) == 0
    assert "rates" not in first["queues"][0]
    assert second["queues"][0]["rates"] == {"put": 0.0, "done": 0.0, "failed": 0.0}


R = TypeVar("R", bound=Reply)


class Asked(CommandStore):
    """A store that notes for which queues it was asked for a forecast."""

    def __init__(self, url: str, takes: float = 0.0) -> None:
        super().__init__(url)
        self.queues: list[str] = []
        self.clock = FakeClock()
        self.forecaster = Forecaster(self, self.clock)
        self._takes = takes

    def ask(self, kind: type[R], command: Command) -> R:
        self.queues.append(command.queue)
        self.clock.advance(self._takes)
        return super().ask(kind, command)

    def total(self, queue: bide.Queue) -> int:
        ahead = self.forecaster.forecast({"orders": queue.counts()})
        assert ahead is not None
        return sum(ahead.forecast.buckets)


Asks = Callable[..., Asked]


@pytest.fixture
def asks(url: str) -> Iterator[Asks]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Asked(url, **options))


def test_it_is_read_at_most_every_five_seconds(asks: Asks, orders: bide.Queue) -> None:
    asked = asks()
    orders.put_many(range(3), delay=60)
    assert asked.total(orders) == 3
    orders.put_many(range(4), delay=60)
    asked.clock.advance(FORECAST_EVERY - 0.1)
    assert (asked.total(orders), asked.queues) == (3, ["orders"])
    asked.clock.advance(0.1)
    assert (asked.total(orders), asked.queues) == (7, ["orders"] * 2)


def test_one_that_takes_long_is_read_less_often(asks: Asks, orders: bide.Queue) -> None:
    asked = asks(takes=2.0)
    orders.put(1, delay=60)
    asked.total(orders)
    asked.clock.advance(PAUSE_FACTOR * 2.0 - 0.1)
    asked.total(orders)
    assert len(asked.queues) == 1
    asked.clock.advance(0.1)
    asked.total(orders)
    assert len(asked.queues) == 2


def test_nothing_is_read_while_nothing_is_delayed(asks: Asks, orders: bide.Queue) -> None:
    asked = asks()
    orders.put("due")
    assert asked.forecaster.forecast({"orders": orders.counts()}) is None
    assert asked.queues == []
    orders.put("later", delay=60)
    assert asked.total(orders) == 1


def test_of_many_queues_those_with_most_messages_are_asked(asks: Asks, orders: bide.Queue) -> None:
    orders.counts()
    asked = asks()
    queues = {f"q{n:03}": bide.Counts(Sizes(delayed=n), Flow()) for n in range(MOST_FORECASTS + 3)}
    ahead = asked.forecaster.forecast(queues)
    assert asked.queues == [f"q{n:03}" for n in range(MOST_FORECASTS + 2, 2, -1)]
    assert ahead is not None
    assert ahead.left_out == 2
    assert "; without 2 queues" in line(ahead, width=120)


def view(ahead: Ahead) -> TopView:
    counts = bide.Counts(Sizes(delayed=9), Flow(put=9))
    return TopView(Sample(9.0, {"orders": counts}), None, [], 100_000, ahead)


def line(ahead: Ahead, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(picture(view(ahead), "sqlite:///shop.db", width))
    (found,) = [one for one in console.export_text().splitlines() if one.startswith("due in")]
    return found


def hours(*counts: int, later: int = 0) -> Ahead:
    return Ahead(Forecasted(0, 0, [*counts, *[0] * (BUCKETS - len(counts))], later))


def test_the_line_of_a_terminal() -> None:
    assert re.fullmatch(
        r"due in 24h  ·▂▁█·{20}  1,110, most \d\d:\d\d-\d\d:\d\d: 900; later 7",
        line(hours(0, 200, 10, 900, later=7)),
    )
    assert re.fullmatch(r"due in 24h  █·{23}  5, all \d\d:\d\d-\d\d:\d\d", line(hours(5)))
    assert line(hours(later=9)) == f"due in 24h  {'·' * 24}  0; later 9"


def test_the_line_fits_into_a_narrow_terminal() -> None:
    many = hours(*[5_000_000] * BUCKETS, later=120_000_000)
    assert re.fullmatch(
        r"due in 24h  █{24}  120,000,000, most \d\d:\d\d-\d\d:\d\d: 5,000,000.*…", line(many)
    )
    assert all(len(line(many, width)) <= width for width in (40, 60, 80))


def test_in_a_pipe_and_as_json(run: Bide, orders: bide.Queue, url: str) -> None:
    orders.put_many(range(3), delay=60)
    with bide.Queue("mail", url) as mail:
        mail.put_many(range(2), delay="3h")
        mail.put("next week", delay="7d")
        mail.put("due")
    found = json.loads(run("top", "--once", "--json").output)["forecast"]
    assert (found["bucket"], found["start"] % BUCKET, found["left_out"]) == (BUCKET, 0, 0)
    assert (found["overdue"], found["later"]) == (1, 1)
    assert len(found["counts"]) == BUCKETS
    assert (sum(found["counts"][:2]), sum(found["counts"][2:5])) == (3, 2)
    name, start, overdue, counts, later = run("top").output.splitlines()[-1].split("\t")
    assert (name, overdue, later) == ("forecast", "1", "1")
    assert start.endswith(":00:00.000Z")
    assert sum(map(int, counts.split(","))) == 5
    only = json.loads(run("top", "or", "--once", "--json").output)["forecast"]
    assert (only["overdue"], sum(only["counts"]), only["later"]) == (0, 3, 0)
    assert "forecast" not in json.loads(run("top", "x", "--once", "--json").output)
