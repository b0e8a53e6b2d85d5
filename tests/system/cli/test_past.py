"""`bide past`: what has happened, as lines, as JSON, and as a chart."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result

import bide
from bide.lane.lane import Lane
from bide.lane.shared import close_lane, open_lane
from bide.observing.heartbeat import Report, put_report
from bide.observing.recorder import PastRecorder
from bide.observing.tally import Histogram
from bide.testing.clock import FakeClock
from tests.system.cli.conftest import Bide, Terminal
from tests.system.cli.test_terminal import plain

MINUTE, HOUR = 60_000, 3_600_000


class Story:
    """A store in which time has passed, up to now by the system's clock."""

    def __init__(self, url: str, minutes: int) -> None:
        from bide.cli.times import now_ms

        now = now_ms()
        self.clock = FakeClock(now - now % MINUTE - minutes * MINUTE)
        self.lane: Lane = open_lane(url, self.clock)
        self.orders = bide.Queue("orders", url, clock=self.clock)
        self.mail = bide.Queue("mail", url, clock=self.clock)

    def record(self) -> None:
        asyncio.run(PastRecorder(self.lane.acall, self.clock).record())

    def pass_minute(self) -> None:
        self.clock.advance(60)

    def report_lateness(self, *seconds: float) -> None:
        late = Histogram()
        late.observe(*seconds)
        self.lane.call(put_report("w", Report({"w": ["orders"]}, {"orders": late})))

    def close(self) -> None:
        self.orders.close()
        self.mail.close()
        close_lane(self.lane)


@pytest.fixture
def tell(url: str) -> Iterator[Callable[[int], Story]]:
    stories: list[Story] = []

    def begin(minutes: int) -> Story:
        stories.append(Story(url, minutes))
        return stories[-1]

    yield begin
    for story in stories:
        story.close()


def three_minutes(story: Story) -> None:
    """One minute with three messages, a gap of one, and one in which two are done."""
    story.orders.put(0)
    story.mail.put(0)
    story.record()
    story.orders.put_many(range(3))
    story.mail.put(1)
    story.pass_minute()
    story.record()
    story.pass_minute()
    story.pass_minute()
    story.record()
    story.orders.ack(story.orders.claim(2))
    story.pass_minute()
    story.report_lateness(0.004, 0.2)
    story.record()


def facts(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_lines_and_json(run: Bide, tell: Callable[[int], Story]) -> None:
    three_minutes(tell(4))
    first, last = facts(run("past", "orders", "--for", "1h", "--json"))
    assert (first["put"], first["done"], first["p50"]) == (3, 0, None)
    assert (last["put"], last["done"], last["delivered"]) == (0, 2, 2)
    assert (last["p50"], last["p99"]) == (5.0, 250.0)
    assert last["start"] - first["start"] == 3 * MINUTE
    lines = [line.split("\t") for line in run("past", "orders", "--for", "1h").stdout.splitlines()]
    assert [line[1:] for line in lines] == [
        ["3", "0", "0", "0", "0", "0", "0", "", ""],
        ["0", "2", "0", "0", "0", "0", "2", "5", "250"],
    ]
    assert all(line[0].endswith("Z") for line in lines)


def test_all_queues_together(run: Bide, tell: Callable[[int], Story]) -> None:
    three_minutes(tell(4))
    first, last = facts(run("past", "--for", "1h", "--json"))
    assert (first["put"], last["done"]) == (4, 2)


def test_hours_and_minutes(run: Bide, tell: Callable[[int], Story]) -> None:
    three_minutes(tell(4))
    (*_, hour) = facts(run("past", "orders", "--json"))
    assert hour["start"] % HOUR == 0
    assert len(facts(run("past", "orders", "--by", "minute", "--json"))) == 2


def test_nothing_says_why(run: Bide, orders: bide.Queue) -> None:
    orders.put(1)
    for arguments in (["past", "orders"], ["past"], ["past", "--json"]):
        result = run(*arguments)
        assert (result.stdout, result.exit_code) == ("", 0)
        assert result.stderr == "nothing to show: no worker or server has recorded yet\n"


def test_a_span_that_is_too_long(run: Bide, orders: bide.Queue) -> None:
    orders.put(1)
    for arguments, text in (
        (["--for", "31d"], "--for 31d is longer than the 30d for which hours are kept"),
        (["--for", "25h", "--by", "minute"], "longer than the 1d for which minutes are kept"),
        (["--for", "soon"], "'soon'"),
    ):
        result = run("past", "orders", *arguments)
        assert result.exit_code == 2
        assert text in result.stderr


@pytest.mark.process
def test_a_chart(terminal: Terminal, tell: Callable[[int], Story]) -> None:
    three_minutes(tell(4))
    screen = plain(terminal("past", "orders", "--for", "1h", COLUMNS="80")[0])
    lines = [line.rstrip() for line in screen.splitlines()]
    assert lines[0] == "orders  2 messages done, 0 attempts failed"
    assert lines[1].split() == ["put", "done", "failed", "late", "p50", "p99"]
    assert re.fullmatch(r"\d\d \w{3} \d\d:\d\d +3 +0 +0", lines[2])
    assert lines[3].endswith("nothing recorded")
    assert re.fullmatch(r"\d\d \w{3} \d\d:\d\d +0 +2 +0 +5ms +250ms █+", lines[4])
    assert len(lines) == 5
    assert all(len(line) <= 80 for line in lines)
    assert plain(terminal("past", "--for", "1h")[0]).startswith("all queues  2 messages done")
