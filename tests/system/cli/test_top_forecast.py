"""The forecast of `bide top`: what it shows, and how often it is read."""

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeVar

import pytest
from click.testing import Result
from rich.console import Console

import bide
from bide.cli.queues.top import FORECAST_EVERY, MOST_FORECASTS, PAUSE_FACTOR, Forecaster
from bide.cli.queues.top_screen import picture
from bide.cli.queues.top_view import BUCKET, BUCKETS, Ahead, TopView
from bide.cli.store import CommandStore
from bide.model.commands import Command
from bide.model.replies import Flow, Forecasted, Reply, Sizes
from bide.observing.sample import Sample
from bide.testing import FakeClock

Bide = Callable[..., Result]
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
