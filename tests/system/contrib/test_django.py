"""The kit for Django, in a project of its own: one process has one set of settings."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.postgres_server import PostgresServer, until

PROJECT = Path(__file__).parent / "django_project"
BOUND = 300.0

Run = Callable[..., str]

PUT_ONE_EACH = """
from kit.handlers import expire_order, expire_order_later, later, orders
from kit.models import Order

for queue in (orders, later):
    queue.put({"order": Order.objects.create().pk})
for task in (expire_order, expire_order_later):
    task.put(Order.objects.create().pk)
Order.objects.create(state="asked")  # the source finds it
"""

TELL = """
import logging
from bide.observing.logs import configure
from django.conf import settings

settings.DEBUG = True
configure(as_json=False, level="info")
import bide.contrib.django.worker
logging.getLogger("django.dispatch").warning("told by Django")
"""

OWN_LOG = {
    "version": 1,
    "formatters": {"own": {"format": "own form: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "own"}},
    "loggers": {"django": {"handlers": ["console"], "propagate": False}},
}

OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = 'kit' AND application_name <> 'bide' AND pid <> pg_backend_pid()
"""
"""The connections that are not of the store, and so Django's."""


@contextmanager
def worker(environment: dict[str, str]) -> Iterator[None]:
    """Run `manage.py bide worker` for the length of a block."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "manage.py", "bide", "worker"],
        cwd=PROJECT,
        env={**os.environ, **environment},
    )
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(BOUND) == 0


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `manage.py` with arguments; return what it printed."""

    def manage(*arguments: str, code: int = 0, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "manage.py", *arguments],
            cwd=PROJECT,
            env={**os.environ, "KIT_FOLDER": str(tmp_path), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BOUND,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    return manage


def test_the_cases_on_sqlite(run: Run) -> None:
    assert "OK" in run("test", "--pattern", "cases_*.py", "--noinput")


@pytest.mark.full
def test_the_cases_on_postgresql(run: Run, postgres: PostgresServer) -> None:
    told = run("test", "--pattern", "cases_*.py", "--noinput", KIT_POSTGRES=str(postgres.folder))
    assert "OK" in told


@pytest.mark.full
@pytest.mark.process
def test_a_worker_lets_its_connections_go(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    """After handlers and tasks, plain and async, and a source, as `CONN_MAX_AGE` is 0."""
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE kit")
    environment = {"KIT_POSTGRES": str(postgres.folder), "KIT_DATABASE": "kit"}
    run("migrate", "-v0", **environment)
    run("shell", "-v0", "-c", PUT_ONE_EACH, **environment)
    url = postgres.url.replace("/postgres", "/kit")
    with (
        worker({**environment, "KIT_FOLDER": str(tmp_path)}),
        psycopg.connect(url, autocommit=True) as kit,
    ):
        until(kit, "SELECT count(*) FROM kit_order WHERE state IN ('asked', 'unpaid')", [(0,)])
        until(kit, OTHERS, [(0,)])
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("DROP DATABASE kit")


@pytest.mark.full
def test_the_app_of_the_project_is_listed_and_checked(run: Run) -> None:
    assert "task\texpire_order\texpire_order\t(order: int, " in run("bide", "tasks")
    assert "Usage: manage.py bide tasks [OPTIONS]\n" in run("bide", "--", "tasks", "--help")
    run("bide", "put", "gone", '{"task": "gone", "args": {}}')
    assert "the app has no task 'gone' in this queue" in run("bide", "check-deploy", code=1)
    run("bide", "check-deploy", "--skip", "gone")


def _told(folder: Path, program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "KIT_FOLDER": str(folder), "DJANGO_SETTINGS_MODULE": "project.settings"},
    ).stderr


def test_what_django_tells_is_once_in_the_log_of_a_worker(tmp_path: Path) -> None:
    assert _told(tmp_path, TELL).count("told by Django") == 1


@pytest.mark.parametrize(("by", "what"), [(None, {}), ("project.log.configure", "a file")])
def test_what_a_project_itself_has_set_for_the_log_of_django_stays(
    tmp_path: Path, by: str | None, what: Any
) -> None:
    program = (
        "import logging.config, sys\n"
        "from types import SimpleNamespace\n"
        "from django.conf import settings\n"
        f"own = lambda *_: logging.config.dictConfig({OWN_LOG})\n"
        "sys.modules['project.log'] = SimpleNamespace(configure=own)\n"
        f"settings.LOGGING_CONFIG, settings.LOGGING = {by!r}, {what!r}\n"
        "own()\n"
        "import bide.contrib.django.worker\n"
        "logging.getLogger('django.dispatch').warning('told by Django')\n"
    )
    assert _told(tmp_path, program) == "own form: told by Django\n"


def test_no_migration_is_missing(run: Run) -> None:
    assert "No changes" in run("makemigrations", "--check")


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def test_with_pytest_django(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    environment = {**os.environ, "KIT_FOLDER": str(tmp_path)}
    if database == "postgresql":
        environment["KIT_POSTGRES"] = str(request.getfixturevalue("postgres").folder)
    options = ["-c", "pytest.ini", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 't'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout
