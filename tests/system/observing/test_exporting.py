"""Metrics by OpenTelemetry, as the SDK's own exporters see them."""

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from prometheus_client import CollectorRegistry

import bide
from bide.model.errors import StoreUnavailable
from bide.model.replies import Counts, Flow, Sizes
from bide.observing import exporting
from bide.observing.families import FLOWS, STORE, WORKER, Family, Metric, worker_metrics
from bide.observing.instruments import NAMES, SUMMED, MetricsExport, values_of
from bide.observing.metrics import registry_of
from bide.observing.tally import BOUNDS, Histogram, Tally
from bide.server.app import ServerApp
from bide.server.metrics import SERVER
from bide.server.settings import Settings
from bide.worker.process.processes import INSTRUMENTATION, child_environment
from bide.worker.process.runner import Runner
from tests.docs.test_pages import ROOT
from tests.servers import free_port
from tests.system.worker.processes import BOUND, wait_for
from tests.waiting import until

Points = dict[tuple[str, ...], Any]
"""Values by the name of the metric and the sorted values of its labels; of a histogram: how many,
their sum, and how many in each bucket."""

CONSTANT = {"messaging.system", "messaging.operation.name"}


def points(reader: InMemoryMetricReader) -> Points:
    """Collect once, and return what bide shows."""
    collected = reader.get_metrics_data()
    return {} if collected is None else told(json.loads(collected.to_json()))


def told(exported: Mapping[str, Any]) -> Points:
    """Return what bide shows in one export, in the form in which the SDK prints it."""
    return {
        (metric["name"], *labels_in(point["attributes"])): (
            (point["count"], point["sum"], point["bucket_counts"])
            if "bucket_counts" in point
            else point["value"]
        )
        for resource in exported["resource_metrics"]
        for scope in resource["scope_metrics"]
        if scope["scope"]["name"] == "bide"
        for metric in scope["metrics"]
        for point in metric["data"]["data_points"]
    }


def shows(reader: InMemoryMetricReader, key: tuple[str, ...]) -> bool:
    return key in points(reader)


def labels_in(attributes: Mapping[str, str]) -> list[str]:
    return sorted(value for name, value in attributes.items() if name not in CONSTANT)


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader) -> Iterator[MeterProvider]:
    provider = MeterProvider(metric_readers=[reader])
    yield provider
    provider.shutdown()


class Worker:
    """The figures of a worker, in the hands of a test."""

    def __init__(self) -> None:
        self.counts = {"orders": Counts(Sizes(delayed=3), Flow(put=5_000_000, acked=4_000_000))}
        self.tallies = {"orders": Tally()}
        self.is_away = False
        self.reads = 0

    def read(self) -> Mapping[str, Counts]:
        self.reads += 1
        if self.is_away:
            raise StoreUnavailable("it is away")
        return self.counts

    def flowed(self, **flow: int) -> None:
        self.counts = {"orders": Counts(Sizes(delayed=3), Flow(**flow))}

    def handled(self, *seconds: float) -> None:
        tally = self.tallies["orders"]
        tally.ended("acked", len(seconds))
        tally.duration.observe(*seconds)
        tally.causes["timer"] = tally.causes.get("timer", Histogram())
        tally.causes["timer"].observe(*seconds)

    def metrics(self) -> Iterable[Metric]:
        return worker_metrics(2, 1, self.tallies, {"bide-lane": 3})

    def export(self, provider: MeterProvider) -> MetricsExport:
        return MetricsExport(
            self.read, families=WORKER, more=self.metrics, now=lambda: 7.0, provider=provider
        )

    def registry(self) -> CollectorRegistry:
        return registry_of(self.read, more=self.metrics, now=lambda: 7.0)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_both_faces_show_the_same(
    worker: Worker, provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    worker.handled(0.002, 0.2, 7_200)
    names = {family.name: NAMES.get(family.dotted, family.dotted) for family in (*STORE, *WORKER)}
    flows = {family.name for family in FLOWS}
    with worker.export(provider):
        exported = points(reader)
    shown = 0
    for metric in worker.registry().collect():
        for sample in metric.samples:
            labels = [value for name, value in sample.labels.items() if name != "le"]
            value = exported.get((names[metric.name], *sorted(labels)))
            shown += 1
            if names[metric.name] in SUMMED:
                if sample.name.endswith("_sum"):
                    assert value == pytest.approx(sample.value)
            elif sample.name.endswith("_bucket"):
                if value is not None:  # a histogram without values is not exported
                    upper = [*map(str, BOUNDS), "+Inf"].index(sample.labels["le"])
                    assert sum(value[2][: upper + 1]) == sample.value, sample
            elif metric.type == "histogram":
                count, total, _ = value or (0, 0.0, [])
                wanted = count if sample.name.endswith("_count") else total
                assert sample.value == pytest.approx(wanted), sample
            else:
                assert value == (0 if metric.name in flows else sample.value), sample
    assert shown > len(names)


def test_names_and_attributes_are_those_of_the_conventions(
    worker: Worker, provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    worker.handled(0.1)
    with worker.export(provider):
        collected = reader.get_metrics_data()
    assert collected is not None
    (of_bide,) = collected.resource_metrics[0].scope_metrics
    by_name = {metric.name: metric for metric in of_bide.metrics}
    handled = by_name["messaging.process.duration"]
    assert (handled.unit, handled.description) == ("s", "How long handlers ran.")
    (point,) = handled.data.data_points
    assert dict(point.attributes or {}) == {
        "messaging.system": "bide",
        "messaging.operation.name": "handle",
        "messaging.destination.name": "orders",
    }
    (claimed,) = by_name["messaging.client.consumed.messages"].data.data_points
    assert (claimed.attributes or {})["messaging.operation.name"] == "claim"
    (restarts,) = by_name["bide.thread.restarts"].data.data_points
    assert dict(restarts.attributes or {}) == {"thread.name": "bide-lane"}
    assert of_bide.scope.version


@pytest.mark.parametrize("families", [(*STORE, *WORKER), (*STORE, *SERVER)])
def test_every_family_can_be_an_instrument(families: tuple[Family, ...]) -> None:
    names = [NAMES.get(family.dotted, family.dotted) for family in families]
    assert len(set(names)) == len(names)
    for family, name in zip(families, names, strict=True):
        assert re.fullmatch(r"[a-z][a-z_.]{0,254}", name)
        assert re.fullmatch(r"s|By|1|\{[a-z]+\}", family.unit), family


@given(st.lists(st.floats(0, 10_000), max_size=60))
def test_a_histogram_is_told_by_values_with_its_buckets_and_its_sum(seconds: list[float]) -> None:
    histogram = Histogram()
    histogram.observe(*seconds)
    values = list(values_of(histogram))
    same = Histogram()
    same.observe(*values)
    assert same.buckets == histogram.buckets
    # What is as low as a value of its bucket can be is told a little higher.
    assert sum(values) == pytest.approx(histogram.sum, abs=1e-3 * (1 + len(values)), rel=1e-4)


def test_counters_of_a_store_begin_at_zero(
    worker: Worker, provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    with worker.export(provider):
        assert points(reader)["bide.messages.put", "orders"] == 0
        worker.flowed(put=5_000_007, acked=4_000_000)
        assert points(reader)["bide.messages.put", "orders"] == 7
        worker.flowed(put=3)  # the store was replaced
        assert points(reader)["bide.messages.put", "orders"] == 3
        worker.flowed(put=5)
        assert points(reader)["bide.messages.put", "orders"] == 5
    worker.flowed(put=9)
    with worker.export(provider):  # as of a worker inside a program that has begun again
        assert points(reader)["bide.messages.put", "orders"] == 9


def test_a_backend_of_differences_gets_no_past(worker: Worker) -> None:
    reader = InMemoryMetricReader({ObservableCounter: AggregationTemporality.DELTA})
    provider = MeterProvider(metric_readers=[reader])
    with worker.export(provider):
        assert points(reader)["bide.messages.put", "orders"] == 0
        worker.flowed(put=5_000_007)
        assert points(reader)["bide.messages.put", "orders"] == 7
        assert points(reader)["bide.messages.put", "orders"] == 0
    provider.shutdown()


def test_a_collection_reads_the_store_once(
    worker: Worker, provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    with worker.export(provider):
        for collections in (1, 2, 3):
            points(reader)
            assert worker.reads == collections


def test_two_readers_get_each_value_once(worker: Worker) -> None:
    readers = InMemoryMetricReader(), InMemoryMetricReader()
    provider = MeterProvider(metric_readers=readers)
    with worker.export(provider):
        for count in (1, 2):
            worker.handled(0.1)
            for reader in readers:
                exported = points(reader)
                assert exported["messaging.process.duration", "orders"][0] == count
                assert exported["bide.deliveries", "acked", "orders"] == count
    provider.shutdown()


def test_a_store_that_is_away_is_told_and_the_rest_as_well(
    worker: Worker, provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    with worker.export(provider):
        points(reader)
        worker.flowed(put=5_000_002)
        assert points(reader)["bide.messages.put", "orders"] == 2
        worker.is_away = True
        worker.handled(0.1)
        exported = points(reader)
        assert exported["bide.store.up",] == 0
        assert ("bide.queue.messages", "delayed", "orders") not in exported
        assert exported["bide.deliveries", "acked", "orders"] == 1
        assert exported["bide.messages.put", "orders"] == 2


def test_what_was_counted_stays_when_an_export_ends(
    worker: Worker, provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    with worker.export(provider):
        points(reader)
        worker.handled(0.1, 0.2)  # since then nothing was collected
    exported = points(reader)
    assert exported["bide.deliveries", "acked", "orders"] == 2
    assert exported["messaging.process.duration", "orders"][0] == 2
    assert ("bide.worker.processes",) not in exported
    assert ("bide.store.up",) not in exported
    assert worker.reads == 1
    another = Worker()
    another.handled(0.3)
    with another.export(provider):
        exported = points(reader)
    assert exported["bide.deliveries", "acked", "orders"] == 3
    count, total, _ = exported["messaging.process.duration", "orders"]
    assert (count, total) == (3, pytest.approx(0.6))


def test_what_two_workers_of_a_process_do_is_added_up(
    worker: Worker, provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    another = Worker()
    worker.handled(0.1)
    another.handled(0.1)
    worker.tallies["orders"].longest, another.tallies["orders"].longest = 3.0, 5.0
    with worker.export(provider), another.export(provider):
        exported = points(reader)
    assert exported["bide.deliveries", "acked", "orders"] == 2
    assert exported["bide.worker.processes",] == 4
    assert exported["bide.deliveries.longest", "orders"] == 5
    assert exported["bide.queue.messages", "delayed", "orders"] == 3  # of one store


def test_an_error_is_logged_once_and_the_next_collection_is_whole(
    worker: Worker,
    provider: MeterProvider,
    reader: InMemoryMetricReader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with worker.export(provider):
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
            patch.setattr(worker, "tallies", {"orders": None})
            points(reader)
        assert len(caplog.records) == 1
        assert worker.reads == 1
        assert points(reader)["bide.store.up",] == 1


def test_nothing_is_imported_where_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not exporting.is_metered()  # the library is there, and no provider is set
    monkeypatch.delitem(sys.modules, exporting.API)
    assert not exporting.is_metered()
    assert exporting.API not in sys.modules


@pytest.fixture
def program(provider: MeterProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be a program that has set a provider: the API lets it do so only once."""
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", provider)


def test_a_worker_inside_a_program_exports(
    program: None, reader: InMemoryMetricReader, tmp_path: Path
) -> None:
    app = bide.App(f"sqlite:///{tmp_path}/bide.db")
    handled = asyncio.Event()

    @app.handler("orders")
    async def handle(body: int) -> None:
        handled.set()

    async def story() -> Points:
        async with app.running() as running, bide.AsyncQueue("orders", app.url) as orders:
            await running.ready()
            await asyncio.to_thread(points, reader)
            await orders.put(1)
            await asyncio.wait_for(handled.wait(), BOUND)
            is_handled = partial(shows, reader, ("messaging.process.duration", "orders"))
            await asyncio.to_thread(until, is_handled)
            return await asyncio.to_thread(points, reader)

    exported = asyncio.run(story())
    assert exported["bide.messages.put", "orders"] == 1
    assert exported["bide.worker.processes",] == 1
    assert exported["messaging.process.duration", "orders"][0] == 1
    assert points(reader)["bide.deliveries", "acked", "orders"] == 1


def test_a_loop_that_is_blocked_or_reads_itself_shows_the_last_metrics(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exporting, "PATIENCE", BOUND)
    blocked, read_while_blocked = threading.Event(), list[Metric]()

    async def gather() -> list[Metric]:
        return list(worker.metrics())

    async def story() -> None:
        read = exporting.for_threads(gather)
        first = await asyncio.to_thread(read)
        assert [metric.family for metric in first] == [*WORKER]
        assert read() is first
        monkeypatch.setattr(exporting, "PATIENCE", 0.01)

        def read_then_free() -> None:
            read_while_blocked.extend(read())
            blocked.set()

        reader = threading.Thread(target=read_then_free)
        reader.start()
        assert blocked.wait(BOUND)  # the loop does nothing else meanwhile
        reader.join()
        assert read_while_blocked == first

    asyncio.run(story())
    assert "the event loop is blocked" in caplog.text


def test_a_process_exports_nothing_that_its_supervisor_exports(
    program: None, reader: InMemoryMetricReader, tmp_path: Path
) -> None:
    app = bide.App(f"sqlite:///{tmp_path}/bide.db")

    @app.handler("orders")
    async def handle(body: int) -> None: ...

    async def story() -> Points:
        ready = asyncio.Event()
        runner = Runner(app, ready=ready.set, exports=False)
        running = asyncio.create_task(runner.run())
        await asyncio.wait_for(ready.wait(), BOUND)
        exported = await asyncio.to_thread(points, reader)
        runner.stop()
        await running
        return exported

    assert asyncio.run(story()) == {}


def test_a_server_inside_a_program_exports(
    program: None, reader: InMemoryMetricReader, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/bide.db"
    app = ServerApp(Settings(store=url, push=False))

    async def story() -> Points:
        async with app.running():
            with bide.Queue("orders", url) as orders:
                await asyncio.to_thread(orders.put, 1)
            await asyncio.to_thread(
                bide.subscribe, "orders", "https://example.com/", name="hook", url=url
            )
            return await asyncio.to_thread(points, reader)

    exported = asyncio.run(story())
    assert exported["bide.queue.messages", "orders", "ready"] == 1
    assert exported["bide.http.processes",] == 1
    assert exported["bide.push.circuit", "closed", "hook"] == 1
    assert not any("bide:" in word for key in exported for word in key)


class Program:
    """A command of bide under `opentelemetry-instrument`, which prints what it exports."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        options = {
            "traces_exporter": "console",
            "metrics_exporter": "console",
            "logs_exporter": "none",
            "metric_export_interval": "300",
            "bsp_schedule_delay": "100",
        }
        programs = Path(sys.executable).parent
        command = [
            f"{programs}/opentelemetry-instrument",
            *(word for name, value in options.items() for word in (f"--{name}", value)),
            f"{programs}/bide",
            *words,
        ]
        environment = {**os.environ, "BIDE_URL": f"sqlite:///{folder / 'bide.db'}"}
        with (folder / "exported").open("w") as exported, (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=exported, stderr=log
            )

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(BOUND)

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yield what was printed so far; two processes may have written into each other's lines."""
        text, place = (self.folder / "exported").read_text(), 0
        while (place := text.find("{", place)) >= 0:
            try:
                document, place = json.JSONDecoder().raw_decode(text, place)
            except json.JSONDecodeError:
                place += 1
            else:
                yield document

    def spans(self) -> list[dict[str, Any]]:
        return [
            document for document in self.documents() if "trace_id" in document.get("context", ())
        ]

    def exports(self) -> list[Points]:
        return [
            exported
            for document in self.documents()
            if "resource_metrics" in document and (exported := told(document))
        ]


@contextmanager
def instrumented(folder: Path, *words: str) -> Iterator[Program]:
    program = Program(folder, *words)
    try:
        yield program
    finally:
        program.stop()


JOBS = """
import os, bide
app = bide.App()

@app.handler("orders", concurrency=1)
def handle(body: int) -> None:
    with open(f"handled-{os.getpid()}", "a") as file:
        file.write("x")
"""


@pytest.mark.full
@pytest.mark.process
def test_a_worker_that_is_instrumented_exports_spans_and_metrics_of_its_processes(
    tmp_path: Path,
) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    with (
        bide.Queue("orders", f"sqlite:///{tmp_path / 'bide.db'}") as orders,
        instrumented(tmp_path, "worker", "jobs:app", "--processes", "2") as program,
    ):
        wait_for(
            lambda: any(shown.get(("bide.worker.processes",)) == 2 for shown in program.exports()),
            tmp_path,
        )
        ids = [f"order-{number}" for number in range(40)]
        orders.put_many([bide.NewMessage(1, id=id) for id in ids])
        wait_for(lambda: orders.counts().flow.acked == len(ids), tmp_path)
    handled = [span for span in program.spans() if span["name"] == "handle orders"]
    assert sorted(span["attributes"]["messaging.message.id"] for span in handled) == sorted(ids)
    # One process exports the figures of all: what each exports adds up over their resources.
    (of_worker,) = [shown for shown in program.exports()[-1:] if ("bide.worker.restarts",) in shown]
    assert of_worker["bide.deliveries", "acked", "orders"] == len(ids)
    assert of_worker["messaging.process.duration", "orders"][0] == len(ids)
    assert of_worker["messaging.client.consumed.messages", "orders"] == len(ids)
    most = max(shown.get(("bide.worker.processes",), 0) for shown in program.exports())
    assert most == 2


@pytest.mark.full
@pytest.mark.process
def test_a_server_that_is_instrumented_exports_the_sums_of_its_processes(tmp_path: Path) -> None:
    port = free_port()
    path = f"http://127.0.0.1:{port}/v1/queues/orders/messages"

    def is_there() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    with instrumented(tmp_path, "serve", "--port", str(port), "--workers", "2") as program:
        wait_for(is_there, tmp_path)
        wait_for(
            lambda: any(shown.get(("bide.http.processes",)) == 2 for shown in program.exports()),
            tmp_path,
        )
        for number in range(10):
            request = urllib.request.Request(
                path, json.dumps({"body": number}).encode(), {"content-type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=60).close()
        wait_for(
            lambda: program.exports()[-1].get(("bide.http.requests", "201", "put")) == 10, tmp_path
        )
        exported = program.exports()[-1]
        assert exported["bide.queue.messages", "orders", "ready"] == 10
        assert exported["bide.http.request.time", "put"] > 0
    assert program.exports()[-1]["bide.http.requests", "201", "put"] == 10


@pytest.mark.process
def test_a_pusher_that_is_instrumented_exports(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bide.db'}"
    bide.subscribe("orders", "https://example.com/", name="hook", url=url)
    with instrumented(tmp_path, "push", "--url", url) as program:
        wait_for(
            lambda: any(
                ("bide.push.circuit", "closed", "hook") in shown for shown in program.exports()
            ),
            tmp_path,
        )
    assert program.exports()[-1]["bide.push.requests", "2xx", "hook"] == 0


def test_a_version_that_hides_from_children_does_not_hide_from_those_of_bide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package, begun_by = ModuleType(INSTRUMENTATION), ModuleType("sitecustomize")
    package.__file__, begun_by.__file__ = "/otel/auto/__init__.py", "/otel/auto/sitecustomize.py"
    monkeypatch.setitem(sys.modules, INSTRUMENTATION, package)
    monkeypatch.setitem(sys.modules, "sitecustomize", begun_by)
    for before, after in (
        ("", "/otel/auto"),
        ("/shop", "/otel/auto:/shop"),
        ("/otel/auto:/shop", "/otel/auto:/shop"),
    ):
        monkeypatch.setenv("PYTHONPATH", before)
        assert child_environment()["PYTHONPATH"] == after
    begun_by.__file__ = "/shop/sitecustomize.py"  # the program has instrumented itself
    monkeypatch.delenv("PYTHONPATH")
    assert "PYTHONPATH" not in child_environment()
    monkeypatch.delitem(sys.modules, INSTRUMENTATION)
    assert child_environment() == dict(os.environ)


def test_every_metric_stands_in_the_documentation() -> None:
    page = (ROOT / "docs/howto/metrics.md").read_text()
    for family in {*STORE, *WORKER, *SERVER} - {*FLOWS}:
        assert f"`{NAMES.get(family.dotted, family.dotted)}" in page, family.dotted
