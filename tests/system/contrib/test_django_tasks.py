"""The backend of `django.tasks`: the tests of Django itself, with this backend in place of its own.

They need Django 6, so Python 3.12: `make test-full` runs them there.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import django
import pytest

from tests.system.contrib.test_django import BOUND, Run, run, worker

__all__ = ["run"]  # a fixture

HERE = Path(__file__).parent / "django_tasks"

SWAPPED = (
    (
        "from django.tasks.backends.dummy import DummyBackend",
        "from swapped import KeepingBackend as DummyBackend",
    ),
    (
        "from django.tasks.backends.immediate import ImmediateBackend",
        "from swapped import AtOnceBackend as ImmediateBackend",
    ),
    ("django.tasks.backends.dummy.DummyBackend", "swapped.KeepingBackend"),
    ("django.tasks.backends.immediate.ImmediateBackend", "swapped.AtOnceBackend"),
)

NOT_APPLICABLE = {
    # They change what the list of the dummy backend refers to; here it is read from a store.
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result",
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result_async",
    # It has QUEUES = [], for which this backend has a warning.
    "test_dummy_backend.DummyBackendTestCase.test_check",
    # The immediate backend cannot do this, and this backend can.
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after",
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result",
}

FEWEST = 80
"""Django 6.1 has 85 tests of its backends."""


def test_the_tests_of_django_pass(tmp_path: Path) -> None:
    tests = download_tests(tmp_path)
    for path in tests.glob("test_*.py"):
        text = path.read_text()
        for theirs, ours in SWAPPED:
            text = text.replace(theirs, ours)
        path.write_text(text)
    for path in HERE.glob("*.py"):
        shutil.copy(path, tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", "test", "tasks", "--settings", "settings"],
        cwd=tmp_path,
        env={**os.environ, "KIT_STORE": f"sqlite:///{tmp_path}/tasks.db"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BOUND,
        check=False,
    )
    failed = re.findall(r"^(?:ERROR|FAIL): \w+ \(tasks\.([\w.]+)\)", done.stdout, re.M)
    assert {*failed} == NOT_APPLICABLE, done.stdout
    ran = re.search(r"^Ran (\d+) tests", done.stdout, re.M)
    assert ran is not None, done.stdout
    assert int(ran[1]) >= FEWEST


@pytest.mark.process
@pytest.mark.parametrize(
    ("task", "errors"),
    [("die", "['WorkerLost']"), ("stumble", "['WorkerLost', 'ValueError']")],
)
def test_a_crash_is_no_failure_of_a_task(task: str, errors: str, run: Run, tmp_path: Path) -> None:
    environment = {"KIT_FOLDER": str(tmp_path), "KIT_LEASE": "1s"}
    run("migrate", "-v0")
    begin = f"from kit.tasks import {task} as task; "
    enqueue = f"{begin} print(task.enqueue({str(tmp_path)!r}).id)"
    id = run("shell", "-v0", "-c", enqueue).split()[-1]
    read = (
        f"{begin} one = task.get_result({id!r}); "
        "print(one.status, [error.exception_class.__name__ for error in one.errors])"
    )
    deadline = time.monotonic() + BOUND
    with worker(environment):
        while not (told := run("shell", "-v0", "-c", read)).startswith("SUCCESSFUL"):
            assert time.monotonic() < deadline, told
    assert f"SUCCESSFUL {errors}" in told
    assert len(list(tmp_path.glob("attempt-*"))) == 2  # those at which `die` ran


def download_tests(folder: Path) -> Path:
    """Download the source distribution of the Django that is installed; return its tests."""
    wanted = f"django=={django.__version__}"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--disable-pip-version-check",
            "--dest",
            str(folder),
            wanted,
        ],
        check=True,
        timeout=BOUND,
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        root = source.getnames()[0].partition("/")[0]
        inside = [one for one in source if one.name.startswith(f"{root}/tests/tasks/")]
        source.extractall(folder, inside, filter="data")
    (folder / root / "tests" / "tasks").rename(folder / "tasks")
    return folder / "tasks"
