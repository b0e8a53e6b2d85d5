"""Give Prometheus the metrics: a registry for programs, and a server for processes without one.

It is imported where metrics are wanted: the package of Prometheus may be missing.

Raises:
    InvalidArgument: prometheus_client is not installed.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from socketserver import ThreadingMixIn
from typing import Any, Self, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from bide.engines import losses
from bide.logs import logger
from bide.model.errors import InvalidArgument
from bide.model.replies import Counts
from bide.observing.families import Metric, store_metrics
from bide.observing.listening import unlistenable
from bide.observing.store_counts import counts_of
from bide.observing.tally import Histogram

__all__ = ["MetricsServer", "counts_of", "registry_of"]

try:
    from prometheus_client import CollectorRegistry, core, make_wsgi_app
    from prometheus_client.metrics_core import Metric as PrometheusMetric
except ModuleNotFoundError as error:
    raise InvalidArgument(
        "metrics need prometheus_client, which is not installed: pip install 'bide[metrics]'"
    ) from error


_log = logger("bide.telemetry")


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


MOST_CONNECTIONS = 32
"""The maximum number of open connections, each of which has a thread; more are closed at once."""

SILENCE = 5.0
"""Seconds after which a connection is closed whose client sends, or takes, nothing."""

LONGEST = 60.0
"""Seconds after which any connection is closed: a client may send a byte now and then."""


class _Handler(WSGIRequestHandler):
    """Answers a request, and logs nothing."""

    timeout = SILENCE

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: scrapes are many."""


class _Server(ThreadingMixIn, WSGIServer):
    """A WSGI server whose connections are few and short, whatever its clients do.

    The supervisor of a worker serves metrics: it must have threads and descriptors left.
    """

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, family: socket.AddressFamily, address: tuple[str, int]) -> None:
        self.address_family = family
        self._lock = threading.Lock()
        self._began: dict[socket.socket, float] = {}
        """When each open connection was accepted, in seconds of the monotonic clock."""
        super().__init__(address, _Handler)

    def verify_request(self, request: Any, client_address: object) -> bool:
        """Tell whether there is room for a connection; the caller closes it if there is none."""
        with self._lock:
            has_room = len(self._began) < MOST_CONNECTIONS
            if has_room:
                self._began[request] = time.monotonic()
        return has_room

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        with self._lock:
            self._began.pop(request, None)

    def service_actions(self) -> None:
        """End connections that last too long. The loop that accepts calls this."""
        now = time.monotonic()
        with self._lock:
            expired = [request for request, began in self._began.items() if now - began > LONGEST]
        for request in expired:
            with suppress(OSError):  # it has just been closed
                request.shutdown(socket.SHUT_RDWR)  # its thread reads an end, and closes it

    def handle_error(self, request: Any, client_address: object) -> None:
        """Log a connection that broke off."""
        _log.debug("a scrape from %s was broken off", client_address, exc_info=True)


def _listen(host: str, port: int) -> _Server:
    """Return a server that listens on the first address of a host."""
    passive = socket.AI_PASSIVE
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=passive)
    family, _, _, _, address = infos[0]
    return _Server(family, (str(address[0]), port))


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
        self._running: tuple[WSGIServer, threading.Thread] | None = None
        """The server, and the thread that it runs in; `None` while it is closed."""

    def open(self) -> None:
        """Start to serve.

        Raises:
            InvalidArgument: the port is in use, or the address is not of this machine.
        """
        try:
            server = _listen(self._host, self.port)
        except OSError as error:
            text = f"metrics={self._host}:{self.port} cannot be listened on"
            raise unlistenable(text, error) from error
        server.set_app(make_wsgi_app(self._registry))
        thread = threading.Thread(target=server.serve_forever, name="bide-metrics", daemon=True)
        thread.start()
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
