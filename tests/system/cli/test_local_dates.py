"""Local dates on the command line, and what an update of time zones moves."""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
import zoneinfo
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import bide
from bide.model.message import Message
from tests.system.cli.conftest import BOUND, Shell, Terminal, environment
from tests.system.cli.test_terminal import plain
from tests.zone_data import BEFORE, LATER, NO_SUMMER, TOWN, compiled, machine_with, write_zones

Bide = Callable[..., Result]

PARIS = ("--timezone", "Europe/Paris")
DATE = ("--at", "2097-07-01 09:00", *PARIS)
HOUR = timedelta(hours=1)

SOURCE = """
# tzdb data
Zone Europe/Paris 1:00 - CET
Zone Etc/UTC 0 - UTC
Link Etc/UTC UTC
"""


def message(queue: bide.Queue, id: str = "a") -> Message:
    found = queue.get(id)
    assert found is not None
    return found


def facts(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def put(orders: bide.Queue, id: str = "a") -> Message:
    """Put a message for nine o'clock in Paris, in summer; return it."""
    orders.put(1, id=id, at="2097-07-01 09:00", timezone="Europe/Paris")
    return message(orders, id)


def test_a_date_is_put_shown_and_changed(run: Bide, orders: bide.Queue, terminal: Terminal) -> None:
    assert run("put", "orders", "1", "--id", "a", *DATE).exit_code == 0
    assert str(message(orders).local_date) == "2097-07-01 09:00 Europe/Paris"
    (shown,) = facts(run("get", "orders", "a", "--json"))
    assert (shown["date"], shown["timezone"]) == ("2097-07-01 09:00", "Europe/Paris")
    screen, _code = terminal("get", "orders", "a")
    assert re.search(r"date +2097-07-01 09:00 Europe/Paris", plain(screen))
    assert (
        "it is planned for 2097-07-01 09:00 in Europe/Paris" in run("explain", "orders", "a").output
    )
    for verb in ("reschedule", "edit"):
        at = f"2097-07-02 09:0{len(verb)}"[:16]
        assert run(verb, "orders", "a", "--at", at, *PARIS).exit_code == 0
        assert str(message(orders).local_date) == f"{at} Europe/Paris"
    orders.edit("a", group="g")
    assert run("reschedule", "orders", "--group", "g", *DATE).exit_code == 0
    assert str(message(orders).local_date) == "2097-07-01 09:00 Europe/Paris"
    assert run("put", "orders", "--lines", *DATE, stdin="1\n2\n").exit_code == 0
    assert sum(message.local_date is not None for message in orders.scan()) == 3
    assert run("reschedule", "orders", "a", "--delay", "1d").exit_code == 0
    assert "date" not in facts(run("get", "orders", "a", "--json"))[0]


def test_a_task_is_called_on_a_date(run: Bide, tmp_path: Path, url: str, shell: Shell) -> None:
    source = f"import bide\napp = bide.App({url!r})\n@app.task\ndef greet(name: str) -> None: ...\n"
    (tmp_path / "shop.py").write_text(source)
    called = shell(f"bide call shop:greet Ann --id a --at '2097-07-01 09:00' {' '.join(PARIS)}")
    assert called.returncode == 0, called.stderr
    (shown,) = facts(run("get", "greet", "a", "--json"))
    assert shown["date"] == "2097-07-01 09:00"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--at", "2097-07-01 09:00"], "has no time zone"),
        (["--at", "2097-07-01T09:00Z", *PARIS], "--timezone goes with a local date"),
        (["--at", "4000000000", *PARIS], "--timezone goes with a local date"),
        (
            ["--timezone", "Europe/Pariss", "--at", "2097-07-01 09:00"],
            "did you mean 'Europe/Paris'",
        ),
        ([*DATE, "--delay", "5"], "--delay and --timezone cannot be used together"),
        (["--at", "2107-07-01 09:00", *PARIS], "not between 1970 and 2100"),
    ],
)
@pytest.mark.parametrize("verb", ["put", "edit", "reschedule"])
def test_what_is_refused(
    run: Bide, orders: bide.Queue, verb: str, options: list[str], error: str
) -> None:
    orders.put(1, id="a", delay="1h")
    arguments = ["orders", "1"] if verb == "put" else ["orders", "a"]
    result = run(verb, *arguments, *options)
    assert result.exit_code == 2
    assert error in result.output


def test_undo_is_refused(run: Bide, orders: bide.Queue) -> None:
    orders.put(1, id="a", delay="1h", group="g")
    result = run("reschedule", "orders", "--group", "g", *DATE, "--undo")
    assert (result.exit_code, "cannot be used together" in result.output) == (2, True)


def wheel_in(folder: Path, version: str) -> Path:
    path = folder / "tzdata-2099.1-py2.py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(
            "tzdata/__init__.py", f'__version__ = "2099.1"\nIANA_VERSION = "{version}"\n'
        )
        for name, posix in {"UTC": "UTC0", "Europe/Paris": NO_SUMMER}.items():
            wheel.writestr(f"tzdata/zoneinfo/{name}", compiled(posix))
    return path


def source_in(folder: Path, version: str) -> Path:
    folder.mkdir()
    (folder / "europe").write_text(SOURCE)
    (folder / "version").write_text(f"{version}\n")
    return folder


def archive_in(folder: Path, version: str) -> Path:
    path = folder / "tzdata2099a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file in source_in(folder / "source", version).iterdir():
            archive.add(file, file.name)
    return path


FORMS: dict[str, Callable[[Path, str], Path]] = {
    "a folder of zones": lambda folder, version: write_zones(
        folder / "zones", version, {"Europe/Paris": NO_SUMMER}
    ),
    "a wheel": wheel_in,
    "source": lambda folder, version: source_in(folder / "source", version),
    "an archive of source": archive_in,
}


@pytest.mark.parametrize("form", FORMS)
def test_what_an_update_would_move(
    run: Bide, orders: bide.Queue, tmp_path: Path, form: str
) -> None:
    seen = put(orders)
    orders.put(2, id="winter", at="2097-01-10 09:00", timezone="Europe/Paris")
    orders.put(3, id="elsewhere", at="2097-07-01 09:00", timezone="Asia/Tokyo")
    file = FORMS[form](tmp_path, "2099a")
    result = run("zones", "--what-if", str(file))
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "orders\ta\t2097-07-01 09:00 Europe/Paris\t"
        "2097-07-01T07:00:00.000Z\t2097-07-01T08:00:00.000Z\n"
    )
    (moved,) = facts(run("zones", "--what-if", str(file), "--json"))
    assert (moved["id"], moved["then"]) == ("a", "2097-07-01T08:00:00.000Z")
    assert message(orders) == seen


def test_what_an_update_would_move_to_another_opening(
    run: Bide, orders: bide.Queue, tmp_path: Path
) -> None:
    paris = bide.Window("09:00-18:00", "Europe/Paris")
    orders.put(1, id="date", at="2097-07-01 07:00", timezone="Europe/Paris", window=paris)
    cron = bide.Cron("0 7 1 7 *", "Europe/Paris", start=datetime(2097, 1, 1, tzinfo=UTC))
    orders.put(1, id="cron", repeat=cron, window=paris)
    moves = facts(run("zones", "--what-if", str(wheel_in(tmp_path, "2099a")), "--json"))
    assert [(move["id"], move["due"][11:16], move["then"][11:16]) for move in moves] == [
        ("date", "07:00", "08:00"),
        ("cron", "07:00", "08:00"),
    ]


def test_data_that_are_not_newer_or_do_not_say(
    run: Bide, orders: bide.Queue, tmp_path: Path
) -> None:
    put(orders)
    old = run("zones", "--what-if", str(wheel_in(tmp_path, "2001a")))
    assert (old.exit_code, old.stdout) == (0, "")
    assert "these time zones, 2001a, are not newer than those of this machine" in old.stderr
    unknown = write_zones(tmp_path / "unknown", "", {"Europe/Paris": NO_SUMMER})
    result = run("zones", "--what-if", str(unknown))
    assert "have no version" in result.stderr
    assert result.stdout.startswith("orders\ta\t")


def test_what_has_no_zones(run: Bide, orders: bide.Queue, tmp_path: Path, url: str) -> None:
    put(orders)
    empty = tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as other:
        other.writestr("other/__init__.py", "")
    for file in (empty, tmp_path / "other.whl", tmp_path / "test.db"):
        result = run("zones", "--what-if", str(file))
        assert result.exit_code == 2
        assert "has no time zones that can be read" in result.output
    broken = source_in(tmp_path / "broken", "2099a")
    (broken / "europe").write_text("Zone nonsense\n")
    assert "zic: " in run("zones", "--what-if", str(broken)).output
    assert run("zones", "--what-if", str(empty), "--apply").exit_code == 2


def test_zones_of_a_store(
    run: Bide, orders: bide.Queue, tmp_path: Path, terminal: Terminal
) -> None:
    assert run("zones").stdout == ""
    put(orders)
    orders.put(2, id="weekly", repeat=bide.Cron("0 9 * * MON", "Europe/Paris"))
    orders.put(3, id="plain", delay="1d")
    new = write_zones(tmp_path / "zones", "2099a", {"Europe/Paris": NO_SUMMER})
    assert run("zones").stdout == "orders\t\t1\t1\t0\n"
    with machine_with(new):
        (row,) = facts(run("zones", "--json"))
        assert (row["dates"], row["runs"], row["zones"], row["here"]) == (1, 1, "", "2099a")
        assert row["moving"] >= 1
        assert run("zones", "--apply").stdout == f"orders\t{row['moving']}\n"
        assert run("zones", "--apply").stdout == ""
        assert run("zones").stdout == "orders\t2099a\t1\t1\t0\n"
    assert run("zones").stdout == "orders\t2099a\t1\t1\t0\n"
    assert message(orders).due_at == datetime(2097, 7, 1, 8, tzinfo=UTC)
    screen, code = terminal("zones")
    assert "this machine has time zones " in plain(screen)
    assert ("2099a" in plain(screen), code) == (True, 0)
    with machine_with(write_zones(tmp_path / "unknown", "", {})):
        result = run("zones", "--apply")
        assert "is not known, so they move nothing" in result.output
        assert result.exit_code == 2


def with_zones(url: str, folder: Path) -> dict[str, str]:
    """Return the environment of a process that has the zones of a folder."""
    path = os.pathsep.join([str(folder), *zoneinfo.TZPATH])
    return environment(url, PYTHONTZPATH=path)


def test_a_kill_in_the_middle_is_completed(
    run: Bide, orders: bide.Queue, url: str, tmp_path: Path
) -> None:
    old = write_zones(tmp_path / "old", "2099a", {TOWN: BEFORE})
    new = write_zones(tmp_path / "new", "2099b", {TOWN: LATER})
    start, count = datetime(2097, 1, 1, tzinfo=UTC), 4_000
    with machine_with(old):
        orders.put_many(
            bide.NewMessage(n, at=f"{start + n * HOUR:%Y-%m-%d %H:%M}", timezone=TOWN)
            for n in range(count)
        )
    version = orders.counts().sizes.delayed
    assert version == count
    for _attempt in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "bide", "zones", "--apply"], env=with_zones(url, new)
        )
        deadline = time.monotonic() + BOUND
        first = next(iter(orders.scan("delayed"))).due_at
        while time.monotonic() < deadline and process.poll() is None:
            if next(iter(orders.scan("delayed"))).due_at != first:
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
    with machine_with(new):
        run("zones", "--apply")
    moved = sorted(message.due_at for message in orders.scan("delayed"))
    assert moved == [start + (n - 1) * HOUR for n in range(count)]
    assert orders.audit()


WORKER = """
import bide
app = bide.App()

@app.handler("orders")
async def handle(body: int) -> None:
    print("handled", body, flush=True)
"""


@pytest.mark.full
def test_a_rolling_deploy_moves_once(orders: bide.Queue, url: str, tmp_path: Path) -> None:
    """Workers of two versions run at the same time; the newer one moves, the older one does not."""
    old = write_zones(tmp_path / "old", "2099a", {TOWN: BEFORE})
    new = write_zones(tmp_path / "new", "2099b", {TOWN: LATER})
    (tmp_path / "jobs.py").write_text(WORKER)
    due = datetime.now(UTC).replace(microsecond=0) + 3 * HOUR
    with machine_with(old):
        orders.put(1, id="a", at=f"{due + 2 * HOUR:%Y-%m-%d %H:%M:%S}", timezone=TOWN)
    assert message(orders).due_at == due

    def until_moved(expected: datetime) -> None:
        deadline = time.monotonic() + BOUND
        while message(orders).due_at != expected and time.monotonic() < deadline:
            time.sleep(0.05)
        assert message(orders).due_at == expected

    workers: list[subprocess.Popen[bytes]] = []
    try:
        for folder in (old, new, old):
            workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "bide", "worker", "jobs:app"],
                    cwd=tmp_path,
                    env=with_zones(url, folder),
                    stdout=subprocess.DEVNULL,
                )
            )
            if folder == new:
                until_moved(due + HOUR)
        time.sleep(2)
        assert message(orders).due_at == due + HOUR
    finally:
        for process in workers:
            process.terminate()
        for process in workers:
            process.wait(BOUND)
    assert orders.audit()
