"""How long pages take: the first one of a process, and later ones."""

import http.client
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.system.dashboard.chromium import dashboard

__all__ = ["PAGES", "Page", "pages"]

PAGES = (
    "",
    "?span=30d",
    "queue?queue=parcels",
    "queue?queue=parcels&state=delayed&span=30d",
    "queue?queue=parcels&group=customer:7",
    "queue?queue=parcels&after=2030-01-01T00:00",
    "queue?queue=parcels&prefix=parcel-49",
    "queue?queue=backlog&state=ready",
    "queue?queue=letters&state=dead",
    "queue?queue=letters&state=dead&error=nothing",
    "queue?queue=remembered&state=acked",
    "message?queue=parcels&id=parcel-4711",
    "message?queue=backlog&id=parcel-7",
    "message?queue=remembered&id=parcel-7",
    "dead",
    "dead?queue=letters",
    "workers",
    "periodic",
    "subscriptions",
    "audit",
    "log",
    "search?q=parcel-4711",
    "search?group=customer:7",
    "search?error=away",
    "search?body=nowhere",
)

ROUNDS = 7

APART = 2.5
"""Seconds between two rounds: what pages share between browsers is read anew by then."""


class Page(NamedTuple):
    """The milliseconds that a page took."""

    path: str
    first: float
    """As the first page of a process."""
    later: list[float]

    @property
    def usual(self) -> float:
        """The median of the later ones."""
        return statistics.median(self.later)

    @property
    def slowest(self) -> float:
        """The slowest of the later ones."""
        return max(self.later)


def pages(store: str) -> Iterator[Page]:
    """Measure each page."""
    first = {}
    for path in PAGES:
        with dashboard(store) as base:
            first[path] = _fetch(base, path)
    later: dict[str, list[float]] = {path: [] for path in PAGES}
    with dashboard(store) as base:
        for _ in range(ROUNDS):
            since = time.monotonic()
            for path in PAGES:
                later[path].append(_fetch(base, path))
            time.sleep(max(0.0, since + APART - time.monotonic()))
    for path in PAGES:
        yield Page(path, first[path], later[path])


def _fetch(base: str, path: str) -> float:
    where = urlsplit(base)
    began = time.perf_counter()
    connection = http.client.HTTPConnection(where.netloc, timeout=60)
    connection.request("GET", where.path + path)
    reply = connection.getresponse()
    content = reply.read()
    took = (time.perf_counter() - began) * 1000
    connection.close()
    if reply.status != 200 or b"<h1" not in content:
        raise RuntimeError(f"{path}: {reply.status}")
    return took
