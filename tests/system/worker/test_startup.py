"""How a worker begins: what is wrong from the start, on which store and event loop it works."""

import asyncio
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import bide
from bide.worker.process import child
from tests.effort import one_in
from tests.system.worker.processes import APP, children, log, said, wait_for, worker

FAILING = """
import os, sys, bide
from contextlib import asynccontextmanager

@asynccontextmanager
async def lifespan(app):
    WHAT
    yield

app = bide.App(lifespan=lifespan)
app.handler("q")(lambda body: None)
"""


MEMORY = """
import bide
app = bide.App("memory://")
app.handler("q")(lambda body: None)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("source", "options", "code", "hint"),
    one_in(
        3,
        [
            (
                "import nosuchmodule",
                (),
                2,
                "jobs imports 'nosuchmodule', which is not installed (jobs.py, line 1); install "
                "the package that brings it, for ",
            ),
            (
                "import bide\nimport cronsim.nosuch",
                (),
                2,
                "jobs imports 'cronsim.nosuch', which is not installed (jobs.py, line 2); "
                "pip install 'bide[schedules]', for ",
            ),
            ("1 / 0", (), 2, "jobs cannot be imported: ZeroDivisionError"),
            (
                "import bide; bide.Queue('a b', 'memory://')",
                (),
                2,
                "jobs cannot be imported (jobs.py, line 1): queue='a b' is not a valid name of a "
                "queue",
            ),
            ("", (), 2, "jobs has no 'app'; make one there with: app = bide.App()"),
            ("app = 3", (), 2, "'app' of jobs is not a bide.App"),
            ("import bide; work = bide.App()", (), 2, "jobs has no 'app'; it has: jobs:work"),
            ("import bide; app = bide.App()", (), 2, "the app has no handlers"),
            (APP, ("--queues", "r"), 2, "queue 'r' has no handler in the app; it has: q"),
            (
                "import bide\napp = bide.App('sqlite:////no/such/x.db')\n"
                "app.handler('q')(lambda body: None)",
                (),
                3,
                "there is no directory /no/such",
            ),
            (
                FAILING.replace("WHAT", "raise RuntimeError('no database')"),
                (),
                3,
                "jobs:app could not begin its work: RuntimeError: no database",
            ),
            (FAILING.replace("WHAT", "os._exit(7)"), (), 7, ""),
            (FAILING.replace("WHAT", "sys.exit()"), (), 3, ""),
            (
                MEMORY,
                ("--processes", "2"),
                2,
                "memory:// lives in one process, and 2 are to share it",
            ),
            (APP, ("--url", "nonsense"), 2, "'nonsense' names no store"),
        ],
    ),
)
def test_what_is_wrong_from_the_start_ends_it_with_a_reason(
    tmp_path: Path, source: str, options: tuple[str, ...], code: int, hint: str
) -> None:
    with worker(tmp_path, source, *options) as process:
        assert process.wait(60) == code
    expected = f"error: {hint}" if hint else "before it was ready"
    assert expected in log(tmp_path)
    assert "has died" not in log(tmp_path)


@pytest.mark.process
def test_what_is_wrong_from_the_start_is_told_by_one_of_many_processes(tmp_path: Path) -> None:
    with worker(tmp_path, "1 / 0", "--processes", "4") as process:
        assert process.wait(60) == 2
    assert log(tmp_path).count("error: jobs cannot be imported: ZeroDivisionError") == 1


@pytest.mark.process
def test_what_is_refused_when_it_is_registered_is_told_in_a_line(tmp_path: Path) -> None:
    source = "import bide\napp = bide.App()\napp.schedule('q', cron='61 * * * *')(print)\n"
    with worker(tmp_path, source) as process:
        assert process.wait(60) == 2
    told = log(tmp_path)
    where = "error: jobs cannot be imported (jobs.py, line 3): cron='61 * * * *' is not valid"
    assert where in told
    assert "Traceback" not in told
    assert told.count("\n") == 1


@pytest.mark.process
def test_an_app_that_is_written_as_a_module_is_found(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import bide\nwork = bide.App('memory://')\n")
    for target in ("shop.work", "shop.app"):
        done = subprocess.run(
            [sys.executable, "-m", "bide", "worker", target],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 2
        assert f"there is no module '{target}' in " in done.stderr
        assert "; write shop:work\n" in done.stderr


@pytest.mark.process
def test_a_mistake_at_import_shows_the_frames_of_the_program_alone(tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text("def read():\n    return {}['pen']\n")
    source = (
        "import prices\n"
        "try:\n    prices.read()\n"
        "except KeyError as error:\n    raise ValueError('no price') from error\n"
    )
    with worker(tmp_path, source) as process:
        assert process.wait(60) == 2
    told = log(tmp_path)
    assert "importlib" not in told
    assert "loading.py" not in told
    assert re.search(r'(?s)jobs.py", line 3, .*prices.py", line 2', told)
    assert "KeyError: 'pen'" in told
    assert "direct cause" in told
    assert "error: jobs cannot be imported: ValueError: no price" in told


@pytest.mark.process
@pytest.mark.parametrize(
    ("option", "text"),
    [
        (
            "--health-port",
            "error: --health-port 127.0.0.1:{} cannot be listened on: Address already in use",
        ),
        (
            "--metrics",
            "error: --metrics 127.0.0.1:{} cannot be listened on: Address already in use",
        ),
    ],
)
def test_a_port_that_is_taken_is_named_with_its_option(
    tmp_path: Path, option: str, text: str
) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with worker(tmp_path, APP, option, str(port)) as process:
            assert process.wait(60) == 2
    told = log(tmp_path)
    assert "; take a free port of 1024 or more" in told
    assert text.format(port) in told
    assert "Traceback" not in told


@pytest.mark.process
def test_a_url_goes_before_those_of_the_app_and_of_the_environment(tmp_path: Path) -> None:
    given = f"sqlite:///{tmp_path / 'given.db'}"
    source = APP.replace("bide.App()", "bide.App('sqlite:///nowhere/named.db')")
    assert source != APP
    with bide.Queue("q", given) as queue:
        queue.put({})
        with worker(tmp_path, source, "--url", given) as process:
            wait_for(lambda: queue.counts().flow.acked == 1, tmp_path)
            shown = Path(f"/proc/{children(process)[0]}/cmdline").read_text()
    assert "given.db" not in shown  # a URL may have a password in it
    assert not (tmp_path / "bide.db").exists()


@pytest.mark.process
def test_a_store_in_memory_is_warned_of(tmp_path: Path) -> None:
    with worker(tmp_path, MEMORY):
        wait_for(said(tmp_path, "memory:// lives in this process: no other process"), tmp_path)


@pytest.mark.process
def test_a_module_may_put_messages_at_its_import(tmp_path: Path) -> None:
    with worker(tmp_path, APP + "bide.Queue('q').put({}, id='first')\n"):
        wait_for(said(tmp_path, "began"), tmp_path)


def test_uvloop_is_used_where_it_is_installed() -> None:
    with asyncio.Runner(loop_factory=child.loop_factory()) as runner:
        assert type(runner.get_loop()).__module__.partition(".")[0] == "uvloop"


def test_without_uvloop_it_is_the_loop_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "find_spec", lambda name: None)
    with asyncio.Runner(loop_factory=child.loop_factory()) as runner:
        assert type(runner.get_loop()).__module__.partition(".")[0] == "asyncio"


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    code = (
        "import resource; from bide.worker.process.supervisor import raise_descriptor_limit; "
        "raise_descriptor_limit(); print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    command = ["prlimit", "--nofile=100:300", sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True).strip() == "(300, 300)"
