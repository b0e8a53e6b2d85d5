"""What holds for all tests."""

import gc
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

from tests.cluster import RedisCluster
from tests.effort import FULL, effort
from tests.postgres_server import PostgresServer, empty_stores, new_folder
from tests.proxy import Proxy
from tests.servers import RedisServer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that runs the tests in the background ignores Ctrl-C for all that they start, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # So does nohup with closed terminals; the tests themselves still outlive theirs.
    signal.signal(signal.SIGHUP, lambda *_: None)

# The suite starts many processes: what they import is compiled once, and a pytest that a test
# starts leaves out the plugins that take seconds to import.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
_LEFT_OUT = "-p no:schemathesis -p no:valkey -p no:anyio"
os.environ["PYTEST_ADDOPTS"] = f"{os.environ.get('PYTEST_ADDOPTS', '')} {_LEFT_OUT}".strip()

MEMORY = Path("/dev/shm")
NEEDED = 2 << 30
"""Bytes: the suite writes about 300 MB."""

if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= NEEDED:
    # No test cuts the power, so fsync of a disk proves nothing here and takes half of the time.
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the tests marked `full` as well")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return how many processes run tests: more than cores, since many of them wait."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return (os.cpu_count() or 2) * 2


SHARING = (
    "tests/system/rabbitmq/",
    "tests/contract/conformance/test_http.py",
    "tests/system/dashboard/test_browser.py",
    "tests/system/faults/test_http_faults.py",
    "tests/soak/fuzz/test_corpus.py",
    "tests/system/server/test_oidc.py",
    "tests/system/server/test_openapi.py",
    "tests/system/server/test_quota_counts.py",
    "tests/system/server/test_try_it.py",
    "tests/system/testing/test_crash_points.py",
    "tests/test_architecture.py",
)
"""One process runs the tests of each of these: what they share takes seconds to make. These groups
come first, the largest ahead: forks of test_crash_points.py would take four times as long in the
process that the suite has made large. (The mark `xdist_group` of pytest-xdist 3.8 has no effect
with pytest 9.2.)"""


GROUPS = 4_000
"""The other tests are handed out in so many groups, about three at a time: one by one, the process
that does it looks through all that were done each time."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            group = str(crc32(nodeid.encode()) % GROUPS)
            return next((path for path in SHARING if nodeid.startswith(path)), group)

    return Scheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("full"):
        os.environ[FULL] = "1"
    # Without a deadline: a busy machine is slow, and that is no failure.
    settings.register_profile("bide", deadline=None, max_examples=effort(20, 100))
    settings.load_profile("bide")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, and leave what they are out of its runs.

    All of it stays until the end. Looking through it took half of the time of collecting tests, in
    each process that runs some.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, obj: object
) -> list[pytest.Item] | None:
    """Leave the classes marked `full` to `make test-full`: they have a thousand tests."""
    marks = getattr(obj, "pytestmark", []) if isinstance(obj, type) else []
    full = any(mark.name == "full" for mark in marks)
    return [] if full and not collector.config.getoption("full") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests marked `full` to `make test-full`, and mix the others for many processes."""
    if not config.getoption("full"):
        left = [item for item in items if item.get_closest_marker("full") is not None]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.get_closest_marker("full") is None]
    if hasattr(config, "workerinput"):  # this process is one of several
        items[:] = _mixed(items)


def _mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Take tests from each quarter of the suite in turn.

    Those of a folder are much alike: of some the processor is the limit, others wait. In the order
    of folders all processes would be busy with the same kind at the same time.
    """
    length = (len(items) + 3) // 4
    quarters = [items[start : start + length] for start in range(0, len(items), length)]
    return [item for turn in zip_longest(*quarters) for item in turn if item is not None]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the tests marked `own_process` each in a process of its own.

    Errors that strike anywhere strike the libraries of others and Python's own, too. What these
    leave half done, such as a lock that nobody holds, would let a later test hang or fail.
    """
    if pyfuncitem.get_closest_marker("own_process") is None or OWN_PROCESS in os.environ:
        return None
    _run_in_own_process(pyfuncitem)
    return True


OWN_PROCESS = "BIDE_TESTS_OWN_PROCESS"
"""The variable of the environment that is set in the process of one test."""


def _run_in_own_process(item: pytest.Item) -> None:
    """Run one test in a new process; fail with what it printed if it fails."""
    left_out = [name for name in os.environ if name.startswith(("PYTEST_XDIST", "PYTEST_CURRENT"))]
    environment = {name: os.environ[name] for name in os.environ.keys() - left_out}
    full = ["--full"] * item.config.getoption("full")
    # It has less time than this process, so that what is printed names where it hung.
    limit = float(item.config.getini("faulthandler_timeout")) * 0.75
    # Processes that share the usual folder trip over each other as they tidy it up at their end.
    with tempfile.TemporaryDirectory() as folder:
        options = [
            "--quiet",
            f"--basetemp={folder}/t",
            "-o",
            f"faulthandler_timeout={limit}",
            *full,
        ]
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *options, item.nodeid],
            cwd=item.config.rootpath,
            env=environment | {OWN_PROCESS: "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if ended.returncode != 0:
        pytest.fail(f"it failed in its own process:\n{ended.stdout}", pytrace=False)


@pytest.fixture(autouse=True)
def root_log() -> Iterator[None]:
    """Put the root logger back after a test, which may have run a program that configures it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Put signal handlers back after a test: a worker of another library leaves its own."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def proxy_before() -> Iterator[Callable[[str | int], Proxy]]:
    """Puts proxies that misbehave before servers: before a Unix socket, or a port of this machine.

    See `tests.proxy`: `faults` strike at random, `strike` has the next request meet one.
    """
    proxies: list[Proxy] = []

    def proxy_before(target: str | int) -> Proxy:
        proxies.append(Proxy(target))
        return proxies[-1]

    yield proxy_before
    for proxy in proxies:
        proxy.close()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Provide the one server that the tests of a process share."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Provide the one cluster that tests share which leave it as it is: three masters."""
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


_databases = itertools.count()


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> Iterator[Callable[[], str]]:
    """Provide URLs of databases that are empty when they are handed out."""
    clients = [redis_server.client(db=number) for number in range(64)]

    def fresh() -> str:
        number = next(_databases) % 64
        clients[number].flushdb()
        return f"{redis_server.url}?db={number}"

    yield fresh
    for client in clients:
        client.close()


@pytest.fixture(scope="session")
def http_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """Provide URLs of a server, each with a token of a namespace of its own, which is empty."""
    from tests.system.server.process import urls_of_namespaces

    with urls_of_namespaces(tmp_path_factory.mktemp("server")) as empty:
        yield empty


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Provide a PostgreSQL server."""
    with new_folder() as folder:
        server = PostgresServer(folder)
        yield server
        server.stop()


@pytest.fixture(scope="session")
def postgres_15() -> Iterator[PostgresServer]:
    """Provide the PostgreSQL server of Debian."""
    programs = Path("/usr/lib/postgresql/15/bin")
    assert programs.exists(), "no PostgreSQL 15: run `make test-full`, or tools/servers full"
    with new_folder() as folder:
        server = PostgresServer(folder, bin=programs)
        yield server
        server.stop()


@pytest.fixture(scope="session")
def postgres_15_url(postgres_15: PostgresServer) -> Iterator[Callable[[], str]]:
    """Provide URLs of stores on it that are empty when they are handed out."""
    with empty_stores(postgres_15) as empty:
        yield empty


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresServer) -> Iterator[Callable[[], str]]:
    """Provide URLs of stores that are empty when they are handed out."""
    with empty_stores(postgres) as empty:
        yield empty
