"""`bide workers`."""

import json
from collections.abc import Callable

import pytest
from click.testing import Result

import bide
from bide.cli.times import now_ms
from bide.observing.heartbeat import REGISTER, Busy, Report, put_report
from bide.testing.hooks import lane_of
from tests.system.cli.conftest import Terminal

Bide = Callable[..., Result]


def test_lengths_of_time_are_milliseconds(run: Bide, orders: bide.Queue) -> None:
    busy = {"orders": Busy(4, 1, "a", now_ms() - 90_000)}
    lane_of(orders).call(put_report("web1:7", Report({"web1:7": ["orders"]}, {}, busy)))
    holder, running, longest, lasting, silent, queues = run("workers").stdout.split("\t")
    assert (holder, running, longest, queues) == ("web1:7", "1", "a", "orders\n")
    assert 90_000 <= int(lasting) < 900_000
    assert silent == ""
    found = json.loads(run("workers", "list", "--json").stdout)
    assert found["busy"]["orders"]["since"] == busy["orders"].since


@pytest.mark.process
def test_a_narrow_terminal_shows_which_worker_is_silent(
    terminal: Terminal, orders: bide.Queue
) -> None:
    busy = {"orders": Busy(4, 1, "a-rather-long-id", now_ms() - 90_000)}
    lane_of(orders).call(put_report("web1:7", Report({"web1:7": ["orders"]}, {}, busy)))
    wide, narrow = (terminal("workers", COLUMNS=width)[0] for width in ("100", "40"))
    assert "1 of 4" in narrow
    assert "a-rather-long-id 1m" in wide
    assert "no room for longest" in narrow
    with bide.Queue(REGISTER, orders.url) as reports:
        reports.reschedule(next(reports.scan()).id, at=now_ms() / 1000 - 30)
    for width in ("100", "40"):
        assert "silent for" in terminal("workers", COLUMNS=width)[0]
