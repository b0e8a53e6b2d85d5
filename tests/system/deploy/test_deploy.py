"""deploy/: what unit, container file, proxies and alerts say exists, and works when it is run."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from bide.cli import main
from bide.observing import families
from bide.server.settings import PORT, Settings
from bide.worker.process.supervisor import LEEWAY, SILENT
from tests.docs.test_pages import ROOT
from tests.system.deploy.images import health_check, instructions

SERVER = ROOT / "deploy/bide.service"
WORKER = ROOT / "deploy/bide-worker.service"
CONTAINER = ROOT / "deploy/Containerfile"
BOUND = 60.0


def unit(path: Path) -> dict[str, list[str]]:
    """Return the values of each key of a unit, over all its sections."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def command_of(words: list[str]) -> click.Command:
    """Return the command of bide's that words call."""
    command: click.Command = main
    for word in words:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), word)
        assert found is not None, f"bide has no command {word!r}"
        command = found
    return command


def check_options(words: list[str]) -> None:
    """Look whether all options are there that words give."""
    command = command_of(words)
    known = {name for one in command.params for name in one.opts}
    given = {word for word in words if word.startswith("--")}
    assert given <= known, f"{command.name} has no {given - known}"


def calls(text: str) -> Iterator[list[str]]:
    """Yield the words of each call of bide in comments."""
    for line in text.splitlines():
        found = re.search(r"^#.*[/ ]bide ((?:token|serve)\b.*)$", line)
        if found:
            yield shlex.split(found[1])


@pytest.mark.parametrize("path", [SERVER, CONTAINER], ids=lambda path: path.name)
def test_what_the_comments_tell_to_run_exists(path: Path) -> None:
    found = list(calls(path.read_text()))
    assert ["token", "create"] in [words[:2] for words in found]
    for words in found:
        check_options(words)


def test_the_servers_unit_runs_commands_that_exist() -> None:
    told = unit(SERVER)
    for name in ("ExecStartPre", "ExecStart"):
        program, *words = shlex.split(told[name][0])
        assert program == "/opt/bide/bin/bide"
        assert words[0] == "serve"
        check_options(words)
    assert told["WorkingDirectory"] == [f"/var/lib/{told['StateDirectory'][0]}"]
    assert int(told["TimeoutStopSec"][0]) > Settings().grace + LEEWAY


def test_the_workers_unit_runs_a_command_that_exists() -> None:
    told = unit(WORKER)
    program, *words = shlex.split(told["ExecStart"][0])
    assert program == "/srv/shop/.venv/bin/bide"
    assert words[:2] == ["worker", "shop:app"]
    check_options(words)
    grace = int(words[words.index("--grace") + 1].removesuffix("s"))
    assert int(told["TimeoutStopSec"][0]) > grace + LEEWAY
    folder = f"/var/lib/{told['StateDirectory'][0]}"
    assert told["Environment"] == [f"BIDE_URL=sqlite:///{folder}/bide.db"]


def test_the_server_may_write_the_action_log_of_the_documentation() -> None:
    (folder,) = unit(SERVER)["LogsDirectory"]
    for page in ("access", "dashboard"):
        assert f"--action-log /var/log/{folder}/" in (ROOT / f"docs/howto/{page}.md").read_text()


@pytest.mark.parametrize("path", [SERVER, WORKER], ids=lambda path: path.name)
def test_a_unit_is_confined_and_reloads(path: Path) -> None:
    told = unit(path)
    assert told["UMask"] == ["0077"]
    assert told["MemoryMax"]
    assert told["ProtectSystem"] == ["strict"]
    assert "HUP" in told["ExecReload"][0]
    assert int(told["WatchdogSec"][0]) > SILENT
    assert told["RestartPreventExitStatus"] == ["2"]  # a restart does not fix wrong usage


@pytest.mark.parametrize("path", [SERVER, WORKER], ids=lambda path: path.name)
def test_systemd_understands_the_unit(tmp_path: Path, path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze is not None, "systemd-analyze is missing: make servers"
    text = re.sub(r"=/(opt|srv)/\S+/bin/bide ", "=/bin/true ", path.read_text())
    (tmp_path / path.name).write_text(text)  # the program must exist, or it complains
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(tmp_path / path.name)],
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert not [line for line in done.stderr.splitlines() if path.name in line], done.stderr


def test_the_containers_instructions_fit() -> None:
    told = dict(instructions(CONTAINER))
    assert json.loads(told["ENTRYPOINT"]) == ["bide"]
    check_options(json.loads(told["CMD"]))
    assert told["EXPOSE"] == str(PORT)
    assert told["STOPSIGNAL"] == "SIGTERM"
    known = {str(getattr(one, "envvar", "")) for one in command_of(["serve"]).params}
    assert {pair.partition("=")[0] for pair in shlex.split(told["ENV"])} <= known
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in re.findall(r"/src\[(.*?)\]", told["RUN"]):
        assert set(extra.split(",")) <= set(extras["optional-dependencies"])
    versions = [line for line in extras["classifiers"] if "Python :: 3." in line]
    assert told["FROM"].partition(":")[2].removesuffix("-slim") in versions[-1]


def test_an_image_is_made_of_what_the_package_is_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {project["project"]["readme"], *project["project"]["license-files"]} <= let_in
    assert {"src", "pyproject.toml"} <= let_in
    assert all((ROOT / name).exists() for name in let_in)


class Systemd:
    """What systemd is to a service of type notify."""

    def __init__(self, folder: Path, words: list[str], environment: dict[str, str]) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "notify"))
        self._socket.settimeout(BOUND)
        told = {
            "NOTIFY_SOCKET": str(folder / "notify"),
            "WATCHDOG_USEC": "1000000",
            **environment,
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith("BIDE_")}
        self.process = subprocess.Popen(words, cwd=folder, env=kept | told, process_group=0)

    def hears(self, text: str) -> None:
        deadline = time.monotonic() + BOUND
        while text not in self._socket.recv(4_096).decode():
            assert time.monotonic() < deadline, text

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._socket.close()


@contextmanager
def started(folder: Path, words: list[str], **environment: str) -> Iterator[Systemd]:
    systemd = Systemd(folder, words, environment)
    try:
        yield systemd
    finally:
        systemd.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=BOUND) as answer:
        return json.loads(answer.read())


@pytest.mark.process
def test_the_servers_command_starts_reloads_and_stops_as_systemd_wants(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "serve.toml").write_text(f"port = {port}\n")
    words = shlex.split(unit(SERVER)["ExecStart"][0])
    words[words.index("/etc/bide/serve.toml")] = str(tmp_path / "serve.toml")
    assert words[0] == "/opt/bide/bin/bide"
    with started(tmp_path, [sys.executable, "-m", "bide", *words[1:]]) as systemd:
        systemd.hears("READY=1")
        assert get(f"http://127.0.0.1:{port}/readyz") == {"status": "ready"}
        systemd.hears("WATCHDOG=1")
        systemd.process.send_signal(signal.SIGHUP)
        systemd.hears("RELOADING=1")
        systemd.hears("READY=1")
        systemd.process.terminate()
        systemd.hears("STOPPING=1")
        assert systemd.process.wait(BOUND) == 0


@pytest.mark.process
def test_the_workers_command_starts_reloads_and_stops_as_systemd_wants(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import bide\napp = bide.App()\n@app.handler('orders')\ndef expire(order: dict): ...\n"
    )
    told = unit(WORKER)
    _, *words = shlex.split(told["ExecStart"][0])
    environment = {"BIDE_URL": f"sqlite:///{tmp_path}/bide.db"}
    with started(tmp_path, [sys.executable, "-m", "bide", *words], **environment) as systemd:
        systemd.hears("READY=1")
        systemd.hears("WATCHDOG=1")
        systemd.process.send_signal(signal.SIGHUP)
        systemd.hears("RELOADING=1")
        systemd.hears("READY=1")
        systemd.process.terminate()
        systemd.hears("STOPPING=1")
        assert systemd.process.wait(BOUND) == 0


@pytest.mark.process
def test_the_containers_command_answers_its_health_check(tmp_path: Path) -> None:
    told = dict(instructions(CONTAINER))
    port = free_port()
    environment = dict(pair.split("=", 1) for pair in shlex.split(told["ENV"]))
    environment |= {"BIDE_URL": f"sqlite:///{tmp_path}/bide.db", "BIDE_SERVE_PORT": str(port)}
    words = [sys.executable, "-m", *json.loads(told["ENTRYPOINT"])]
    create = next(c for c in calls(CONTAINER.read_text()) if c[:2] == ["token", "create"])
    create[create.index("--url") + 1] = environment["BIDE_URL"]
    made = subprocess.run(
        [*words, *create], cwd=tmp_path, capture_output=True, text=True, timeout=BOUND
    )
    assert made.stdout.startswith("bide_")
    check = health_check(CONTAINER)
    assert check[:2] == ["python", "-c"]
    assert str(PORT) in check[2]
    healthy = [sys.executable, "-c", check[2].replace(str(PORT), str(port))]
    assert subprocess.run(healthy, capture_output=True, timeout=BOUND).returncode != 0
    with started(tmp_path, [*words, *json.loads(told["CMD"])], **environment) as systemd:
        systemd.hears("READY=1")
        assert subprocess.run(healthy, capture_output=True, timeout=BOUND).returncode == 0
        systemd.process.terminate()
        assert systemd.process.wait(BOUND) == 0


def test_both_ask_for_tokens_also_when_the_store_is_new() -> None:
    assert "BIDE_SERVE_AUTH=required" in unit(ROOT / "deploy/bide.service")["Environment"]
    assert any(
        "BIDE_SERVE_AUTH=required" in words
        for name, words in instructions(CONTAINER)
        if name == "ENV"
    )


ALERTS = ROOT / "deploy/prometheus-alerts.yml"
PLAY = Path(__file__).with_name("alerts_test.yml")


def promtool(*arguments: str) -> str:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_alert_is_raised_and_no_other(tmp_path: Path) -> None:
    for path in (ALERTS, PLAY):
        shutil.copy(path, tmp_path)
    assert "rules found" in promtool("check", "rules", str(tmp_path / ALERTS.name))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / PLAY.name))


def test_each_alert_is_played() -> None:
    names = re.findall(r"alert: (\w+)", ALERTS.read_text())
    played = re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", PLAY.read_text())
    assert set(names) == set(played)


def test_the_metrics_exist() -> None:
    declared = [one for one in vars(families).values() if isinstance(one, families.Family)]
    for group in (families.QUEUES, families.FLOWS, families.DELIVERIES, families.CLAIMS):
        declared += group
    ends = {
        "counter": ("_total",),
        "sum": ("",),
        "gauge": ("",),
        "histogram": ("_sum", "_count", "_bucket"),
    }
    known = {one.name + end for one in declared for end in ends[one.type]}
    used = set(re.findall(r"\bbide_\w+", ALERTS.read_text()))
    assert used - known == set()
