"""The dashboard with five million messages pending, and what ten browsers cost a worker.

`BIDE_BENCH_STORE` names the URL of an empty store, or of one that was filled by an earlier run; by
default it is a new SQLite file. `BIDE_BENCH_PENDING` is another number of messages. A store that
holds messages is not filled.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import bide
from benchmarks.core.store import folder
from benchmarks.dashboard.beside import RATE, lateness
from benchmarks.dashboard.filling import fill
from benchmarks.dashboard.pages import pages
from benchmarks.figure import Figure

__all__ = ["run"]

PENDING = 5_000_000

MOST = 300.0
"""Milliseconds that a page may take."""


def run(only: str) -> Iterator[Figure]:
    """Yield the figures of all measurements whose name has a word."""
    with _store() as url:
        if not any(one.sizes.total for one in bide.queues(url).values()):
            fill(url, int(os.environ.get("BIDE_BENCH_PENDING", PENDING)))
        if only in "pages":
            yield from _pages(url)
        if only in "lateness":
            yield from _lateness(url)


@contextmanager
def _store() -> Iterator[str]:
    if (url := os.environ.get("BIDE_BENCH_STORE")) is not None:
        yield url
        return
    with folder() as path:
        yield f"sqlite:///{path}/bide.db"


def _pages(url: str) -> Iterator[Figure]:
    found = list(pages(url))
    for page in found:
        line = f"/{page.path}: first {page.first:.0f}, then {page.usual:.0f} ms"
        print(line, file=sys.stderr)
    first = max(found, key=lambda page: page.first)
    later = max(found, key=lambda page: page.slowest)
    yield _within(f"slowest first page of a process: /{first.path}", first.first)
    yield _within(f"slowest page after that, of {len(found)}: /{later.path}", later.slowest)


def _within(name: str, took: float) -> Figure:
    return Figure(name, took, "ms", goal=f"< {MOST:g} ms", met=took < MOST)


def _lateness(url: str) -> Iterator[Figure]:
    found = lateness(url)
    share = 100 * found.showing / found.seconds
    print(f"the browsers used {share:.0f} % of a processor, at nice 19", file=sys.stderr)
    alone, shown = found.usual
    ratio = shown / alone
    met = ratio <= 1.3 or shown - alone <= 2
    name = f"p99 lateness of a worker at {RATE}/s, ten browsers against none"
    yield Figure(name, shown, "ms", alone, ratio, "<= 1.3 times or + 2 ms", met)
    yield Figure("processor of the dashboard meanwhile", 100 * found.serving / found.seconds, "%")
