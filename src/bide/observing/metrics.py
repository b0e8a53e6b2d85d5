"""Give Prometheus the metrics: a registry for programs, and a server for processes without one.

It is imported where metrics are wanted: the package of Prometheus may be missing.

Raises:
    InvalidArgument: prometheus_client is not installed.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from threading import Thread
from typing import Self, cast
from wsgiref.simple_server import WSGIServer

from bide.engines import losses
from bide.model.errors import InvalidArgument
from bide.model.replies import Counts
from bide.observing.families import Metric, store_metrics
from bide.observing.listening import unlistenable
from bide.observing.store_counts import counts_of
from bide.observing.tally import Histogram

__all__ = ["MetricsServer", "counts_of", "registry_of"]

try:
    from prometheus_client import CollectorRegistry, core, start_http_server
    from prometheus_client.metrics_core import Metric as PrometheusMetric
except ModuleNotFoundError as error:
    raise InvalidArgument(
        "metrics need prometheus_client, which is not installed: pip install 'bide[metrics]'"
    ) from error


def registry_of(
    counts: Callable[[], Mapping[str, Counts]],
    *,
    more: Callable[[], Iterable[Metric]] | None = None,
    now: Callable[[], float] = time.time,
    lost: Callable[[], Mapping[str, int]] = losses.counted,
) -> CollectorRegistry:
    """Return a registry whose metrics are read at each scrape.

    Args:
        counts: reads the queues; see `counts_of`.
        more: returns other metrics, such as `worker_metrics`.
        now: returns Unix seconds.
        lost: returns the number of lost changes by queue; by default those that this process has
            seen.

    Example:
        >>> from prometheus_client import generate_latest
        >>> from bide.model.replies import Flow, Sizes
        >>> registry = registry_of(lambda: {"orders": Counts(Sizes(delayed=3), Flow(put=3))})
        >>> [line for line in generate_latest(registry).decode().split("\\n") if "delayed" in line]
        ['bide_queue_messages{queue="orders",state="delayed"} 3.0']
    """
    registry = CollectorRegistry()
    registry.register(_Collector(partial(store_metrics, counts, now, lost)))
    if more is not None:
        registry.register(_Collector(more))
    return registry


class _Collector:
    """Gives a registry the metrics that a function returns."""

    def __init__(self, gather: Callable[[], Iterable[Metric]]) -> None:
        self._gather = gather

    def collect(self) -> Iterator[PrometheusMetric]:
        """Yield the metrics as they are now."""
        return map(_for_prometheus, self._gather())


def _for_prometheus(metric: Metric) -> PrometheusMetric:
    """Return a metric with a sample for each figure."""
    family = metric.family
    type_name = "gauge" if family.type == "sum" else family.type
    family_class = getattr(core, f"{type_name.title()}MetricFamily")  # such as GaugeMetricFamily
    prometheus_metric = family_class(family.name, family.text, labels=family.labels.split())
    for labels, value in metric.samples:
        is_histogram = isinstance(value, Histogram)
        values = (value.cumulative(), value.sum) if is_histogram else (value,)
        prometheus_metric.add_metric(labels, *values)
    return cast("PrometheusMetric", prometheus_metric)


class MetricsServer:
    """Serves the metrics of a registry over HTTP, in a thread of its own.

    Args:
        registry: see `registry_of`.
        port: 0 for any free port, which is in `port` after `open`.
        host: the address to listen on; by default only this machine can connect.
    """

    def __init__(self, registry: CollectorRegistry, port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self._registry = registry
        self._host = host
        self._running: tuple[WSGIServer, Thread] | None = None
        """The server, and the thread that it runs in; `None` while it is closed."""

    def open(self) -> None:
        """Start to serve.

        Raises:
            InvalidArgument: the port is in use, or the address is not of this machine.
        """
        try:
            server, thread = start_http_server(self.port, self._host, self._registry)
        except OSError as error:
            text = f"metrics={self._host}:{self.port} cannot be listened on"
            raise unlistenable(text, error) from error
        self._running = server, thread
        self.port = server.server_port

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        if self._running is not None:
            server, thread = self._running
            server.shutdown()
            server.server_close()
            thread.join()
            self._running = None
