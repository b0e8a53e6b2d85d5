"""Metrics and tallies: what a scrape says of queues and of all processes of a worker."""

import importlib
import socket
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_strictly

import bide
from bide.engines.sqlite import SqliteEngine
from bide.lane.lane import Lane
from bide.model.errors import InvalidArgument
from bide.observing import metrics
from bide.observing.families import Metric, worker_metrics
from bide.observing.metrics import MetricsServer, registry_of
from bide.observing.store_counts import counts_of
from bide.observing.tally import BOUNDS, Histogram, Tally, total
from bide.testing import FakeClock
from tests.counting import count_calls

Labels = Mapping[str, str]


QUEUES = ("mail", "orders")


def team() -> Iterator[Metric]:
    """Return the metrics of two processes, one of which was replaced."""
    tally = Tally(claims=3, claimed=5, running=1)
    tally.ended("acked", 4)
    for seconds in (0.002, 0.2, 7_200):
        tally.lateness.observe(seconds)
    tally.duration.observe(0.02)
    return worker_metrics(2, 1, {"orders": tally}, {"bide-lane": 3})


class Shop:
    """A store with two queues, by a clock of its own."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.url = f"sqlite:///{path}"
        self.lane = Lane(lambda: SqliteEngine(path), self.clock)
        self.registry = registry_of(
            lambda: counts_of(self.lane, QUEUES), more=team, now=lambda: self.clock.now() / 1000
        )
        with bide.Queue("orders", self.url, clock=self.clock) as orders:
            orders.put_many([1, 2, 3], delay="1h")
            orders.put("due")
            orders.put("held")
            orders.put("gone", id="gone")
            orders.cancel("gone")
            (held,) = orders.claim(lease="1h")
            orders.put("bad")
            orders.bury(orders.claim(), "bad")
            held.ack()
        with bide.Queue("mail", self.url, clock=self.clock) as mail:
            mail.put("later", delay="1d")
            mail.pause()

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(tmp_path / "bide.db")
    yield found
    found.lane.close()


def test_queues_are_told_by_state(shop: Shop) -> None:
    sizes = {
        state: shop.value("bide_queue_messages", queue="orders", state=state)
        for state in ("delayed", "ready", "leased", "dead")
    }
    assert sizes == {"delayed": 3, "ready": 1, "leased": 0, "dead": 1}
    assert shop.value("bide_queue_messages", queue="mail", state="delayed") == 1
    assert shop.value("bide_queue_paused", queue="mail") == 1
    assert shop.value("bide_queue_paused", queue="orders") == 0


def test_the_oldest_that_waits_grows_older(shop: Shop) -> None:
    assert shop.value("bide_queue_oldest_overdue_seconds", queue="orders") == 0
    shop.clock.advance(90)
    assert shop.value("bide_queue_oldest_overdue_seconds", queue="orders") == 90
    assert shop.value("bide_queue_oldest_overdue_seconds", queue="mail") == 0


def test_counters_are_those_of_the_store(shop: Shop) -> None:
    found = {
        name: shop.value(f"bide_messages_{name}_total", queue="orders")
        for name in ("put", "acked", "cancelled", "died", "retried", "expired", "lapsed")
    }
    assert found == {
        "put": 7,
        "acked": 1,
        "cancelled": 1,
        "died": 1,
        "retried": 0,
        "expired": 0,
        "lapsed": 0,
    }


def test_deliveries_are_those_of_all_processes(shop: Shop) -> None:
    assert shop.value("bide_worker_processes") == 2
    assert shop.value("bide_worker_restarts_total") == 1
    assert shop.value("bide_thread_restarts_total", thread="bide-lane") == 3
    assert shop.value("bide_claims_total", queue="orders") == 3
    assert shop.value("bide_messages_claimed_total", queue="orders") == 5
    assert shop.value("bide_store_changes_lost_total", queue="orders") == 0
    late = "bide_delivery_lateness_cause_seconds_sum"
    assert shop.value(late, queue="orders", cause="no-worker") == 0
    assert shop.value("bide_deliveries_total", queue="orders", outcome="acked") == 4
    assert shop.value("bide_deliveries_total", queue="orders", outcome="dead") == 0
    assert shop.value("bide_deliveries_running", queue="orders") == 1
    lateness = "bide_delivery_lateness_seconds"
    assert shop.value(f"{lateness}_bucket", queue="orders", le="0.0025") == 1
    assert shop.value(f"{lateness}_bucket", queue="orders", le="+Inf") == 3
    assert shop.value(f"{lateness}_count", queue="orders") == 3
    assert shop.value(f"{lateness}_sum", queue="orders") == 7200.202


def test_the_text_is_sound_and_labels_are_few(shop: Shop) -> None:
    text = exposition.generate_latest(shop.registry).decode()  # type: ignore[no-untyped-call]
    families = list(parse_strictly(text))  # type: ignore[no-untyped-call]
    assert all(family.documentation for family in families)
    labels = {label for family in families for s in family.samples for label in s.labels}
    assert labels == {"queue", "state", "outcome", "cause", "le", "thread"}
    assert generate_latest(shop.registry).decode().count("# HELP") > 15


def test_a_store_that_is_away_is_told_and_nothing_is_made_up(tmp_path: Path) -> None:
    lane = Lane(lambda: SqliteEngine(tmp_path / "no" / "such" / "bide.db"))
    registry = registry_of(lambda: counts_of(lane, QUEUES), more=team)
    assert registry.get_sample_value("bide_store_up") == 0
    assert "bide_queue_messages" not in generate_latest(registry).decode()
    assert registry.get_sample_value("bide_worker_processes") == 2
    lane.close()


def test_making_a_registry_touches_no_store() -> None:
    def counts() -> Mapping[str, bide.Counts]:
        raise AssertionError("nobody has asked yet")

    registry_of(counts)


def test_it_is_served_until_it_is_closed(shop: Shop) -> None:
    server = MetricsServer(shop.registry, 0, "127.0.0.1")
    server.open()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/plain")
        assert b'bide_messages_put_total{queue="orders"} 7.0' in answer.read()
    server.close()
    server.close()
    with socket.socket() as free:
        assert free.connect_ex(("127.0.0.1", server.port)) != 0


def test_connections_that_send_nothing_are_few_and_are_closed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_CONNECTIONS", 2)
    with MetricsServer(shop.registry, 0) as server, ExitStack() as opened:
        address = "127.0.0.1", server.port
        silent = [opened.enter_context(socket.create_connection(address, 60)) for _ in range(3)]
        assert silent[2].recv(1) == b""
        monkeypatch.setattr(metrics, "LONGEST", -1.0)
        assert [connection.recv(1) for connection in silent] == [b""] * 3
        monkeypatch.undo()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=60) as answer:
            assert answer.status == 200


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = MetricsServer(CollectorRegistry(), port, "127.0.0.1")
        expected = f"metrics=127.0.0.1:{port} cannot be listened on: Address already in use"
        with pytest.raises(InvalidArgument, match=expected):
            server.open()


def test_a_missing_library_is_named_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "bide.observing.metrics")
    with pytest.raises(bide.InvalidArgument, match=r"pip install 'bide\[metrics\]'"):
        importlib.import_module("bide.observing.metrics")


def test_a_value_on_a_bound_is_within_it() -> None:
    histogram = Histogram()
    for value in (0.0, 0.001, 0.0015, 1800.0, 1801.0):
        histogram.observe(value)
    found = dict(histogram.cumulative())
    assert (found["0.001"], found["0.0025"], found["1800.0"], found["+Inf"]) == (2, 3, 4, 5)
    assert histogram.count == 5
    assert round(histogram.sum, 4) == 3601.0025


@given(st.lists(st.floats(0, 5_000) | st.sampled_from(BOUNDS)))
def test_values_may_be_counted_together(values: list[float]) -> None:
    together, alone = Histogram(), Histogram()
    together.observe(*values)
    for value in values:
        alone.observe(value)
    assert together.buckets == alone.buckets
    assert together.sum == pytest.approx(alone.sum)


def test_a_quantile_is_a_bound() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.99) is None
    for _ in range(99):
        histogram.observe(0.003)
    histogram.observe(9_999)
    assert histogram.quantile(0.5) == histogram.quantile(0.99) == 0.005
    assert histogram.quantile(1) == float("inf")


def test_two_histograms_share_nothing() -> None:
    one, other = Tally(), Tally()
    one.lateness.observe(1)
    one.ended("acked")
    assert (other.lateness.count, other.outcomes) == (0, {})


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 5_000)), max_size=60))
def test_the_tallies_of_processes_add_up_to_that_of_one(seen: list[tuple[int, float]]) -> None:
    shares, whole = [Tally() for _ in range(3)], Tally()
    for process, seconds in seen:
        for tally in (shares[process], whole):
            tally.duration.observe(seconds)
            tally.ended("acked" if seconds < 1 else "dead")
            tally.claims += 1
    together = total([{"q": tally} for tally in shares])["q"]
    assert together.duration.buckets == whole.duration.buckets
    assert abs(together.duration.sum - whole.duration.sum) < 1e-6
    assert (together.outcomes, together.claims) == (whole.outcomes, whole.claims)


def test_a_tally_travels() -> None:
    tally = Tally(claims=1, claimed=2)
    tally.ended("retried", 3)
    tally.lateness.observe(0.1)
    assert msgspec.json.decode(msgspec.json.encode({"q": tally}), type=dict[str, Tally]) == {
        "q": tally
    }


def test_what_is_under_way_ends_with_its_process() -> None:
    ceased = Tally(claims=1, running=5, waiting=2, longest=9.5).ceased()
    assert ceased == Tally(claims=1)


def test_bounds_rise() -> None:
    assert sorted(set(BOUNDS)) == list(BOUNDS)


def test_a_name_that_no_other_process_has_costs_no_addition() -> None:
    parts = [{str(number): Tally()} for number in range(1_000)]
    calls = count_calls(lambda: total(parts))
    assert calls["total"] == 1
    assert calls.total() < len(parts) + 10  # a look at each part, and no copy of the sum so far
