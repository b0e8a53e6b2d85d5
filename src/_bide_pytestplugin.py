"""The fixtures that bide offers to every pytest run. Nothing of bide is imported until one is used.

It is beside the package, not in it: pytest imports its plugins at every start, and importing a
module of a package imports the package.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bide import App
    from bide.contrib.django.testing import DjangoWorker
    from bide.testing import (
        AsyncWorkerFactory,
        CrashReport,
        CrashTester,
        FakeClock,
        ManualWorker,
        ScratchStore,
        WorkerFactory,
    )

__all__ = [
    "bide_async_worker",
    "bide_clock",
    "bide_crash",
    "bide_django_worker",
    "bide_store",
    "bide_url",
    "bide_worker",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the options of pytest's configuration file."""
    parser.addini("bide_always", "give every test bide_store, also where none asks for it", "bool")


def pytest_configure(config: pytest.Config) -> None:
    """Have every test in a store of its own, if the project wants that."""
    if config.getini("bide_always"):
        config.pluginmanager.register(Always())


class Always:
    """What is there with `bide_always = true`."""

    @pytest.fixture(autouse=True)
    def bide_always(self, bide_store: "ScratchStore") -> None:
        """Each test has a store of its own, whether or not it asks for bide_store."""


@pytest.fixture
def bide_clock() -> "FakeClock":
    """A clock that does not move until the test moves it."""
    from bide.testing import FakeClock

    return FakeClock()


@pytest.fixture
def bide_url() -> str:
    """The URL of the test's store: memory, unless a project overrides this fixture."""
    return "memory://"


@pytest.fixture
def bide_store(bide_url: str, bide_clock: "FakeClock") -> Iterator["ScratchStore"]:
    """A store of the test's own, in which all queues of the program live; it remembers puts."""
    from bide.testing import ScratchStore

    with ScratchStore(bide_url, bide_clock) as store:
        yield store


@pytest.fixture
def bide_worker(bide_store: "ScratchStore") -> Iterator["WorkerFactory"]:
    """Call it with an app: a worker that runs what is due, and moves the clock."""
    from bide.testing import ManualWorker

    with ExitStack() as stack:

        def start(app: "App", **options: Any) -> "ManualWorker":
            return stack.enter_context(ManualWorker(app, bide_store, **options))

        yield start


@pytest.fixture
def bide_async_worker(bide_store: "ScratchStore") -> "AsyncWorkerFactory":
    """Call it with an app, for `async with`: a worker on the event loop of an async test."""
    from bide.testing import AsyncManualWorker

    def make(app: "App", **options: Any) -> AsyncManualWorker:
        return AsyncManualWorker(app, bide_store, **options)

    return make


@pytest.fixture
def bide_crash(bide_clock: "FakeClock", request: pytest.FixtureRequest) -> "CrashTester":
    """Call it with an app and a message: kill the handler wherever its process may die."""
    from bide.testing import crash_points

    def run(app: "App", message: Any, **options: Any) -> "CrashReport":
        report = crash_points(app, message, clock=bide_clock, **options)
        if not report:  # pytest shortens what it says of the report itself
            request.node.add_report_section("call", "crash points", str(report))
        return report

    return run


@pytest.fixture
def bide_django_worker(bide_store: "ScratchStore") -> "DjangoWorker":
    """A worker of a Django project, whose handlers run in the test's thread and transaction."""
    from bide.contrib.django.testing import DjangoWorker

    return DjangoWorker(None, bide_store)
