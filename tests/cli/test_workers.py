"""`bide workers`."""

import json
from collections.abc import Callable

from click.testing import Result

import bide
from bide.cli.times import now_ms
from bide.observing.heartbeat import Busy, Report, put_report

Bide = Callable[..., Result]


def test_lengths_of_time_are_milliseconds(run: Bide, orders: bide.Queue) -> None:
    busy = {"orders": Busy(4, 1, "a", now_ms() - 90_000)}
    orders._lane.call(put_report("web1:7", Report({"web1:7": ["orders"]}, {}, busy)))
    holder, running, longest, lasting, silent, queues = run("workers").stdout.split("\t")
    assert (holder, running, longest, queues) == ("web1:7", "1", "a", "orders\n")
    assert 90_000 <= int(lasting) < 900_000
    assert silent == ""
    found = json.loads(run("workers", "list", "--json").stdout)
    assert found["busy"]["orders"]["since"] == busy["orders"].since
