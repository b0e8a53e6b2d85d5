"""`bide prove`: a sound store is proved, a bad set-up is found out, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import bide
from bide.cli.service.prove import read_count
from bide.proving import run as proving
from bide.proving.crew import ProvingCrew
from bide.proving.plan import ProvingPlan, ProvingStopped
from bide.proving.run import prove
from bide.testing.history import check, journals_in
from tests.effort import one_in
from tests.sentinels import NAME, SentinelGroup
from tests.servers import free_port
from tests.stores_of_each_kind import STORES, url_of
from tests.system.cli.conftest import Bide, Shell, Terminal, environment
from tests.system.server.process import ServerProcess
from tests.waiting import until

BOUND = 240.0


@pytest.fixture(params=one_in(9, STORES[1:]))
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Provide the URL of an empty store that processes can share; all but the file: full."""
    with url_of(request.param, request) as url:
        yield url


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provide a folder for temporary files whose path is short: sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="bide-test-") as path:
        yield Path(path)


def run_prove(folder: Path, url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `bide prove`, whose temporary folders are in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "bide", "prove", *arguments],
        env=environment(url, TMPDIR=str(folder)),
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=BOUND,
        check=False,
    )


def facts_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.stdout, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def is_clean(folder: Path, url: str) -> bool:
    """Tell whether nothing is left: neither queues nor journals."""
    return not bide.queues(url) and not list(folder.glob("bide-prove-*"))


def sound(folder: Path, url: str) -> dict[str, Any]:
    """Prove a sound store with ten kills and a backlog; return the facts."""
    arguments = ("--kills", "10", "--kill-every", "150ms", "--pending", "2k", "--json")
    done = run_prove(folder, url, *arguments, "--html", "proof.html")
    facts = facts_of(done)
    assert done.returncode == 0, facts["violations"]
    assert facts["kills"] >= 10
    assert facts["confirmed"] > facts["pending"] == 2_000
    assert facts["acked"] > 0
    assert facts["violations"] == []
    assert "proved: nothing" in (folder / "proof.html").read_text()
    assert is_clean(folder, url)
    return facts


@pytest.mark.full
@pytest.mark.process
def test_a_sound_store_is_proved(store: str, folder: Path) -> None:
    facts = sound(folder, store)
    assert bool(facts["settings_unknown"]) is store.startswith("http")
    if store.startswith("postgres"):  # no test cuts the power: the setting says what that would do
        assert any("fsync" in finding["what"] for finding in facts["settings"])


class KilledRedis:
    """A Redis server, and a command that kills it with -9 and starts it again."""

    def __init__(self, folder: Path, **config: str) -> None:
        self.folder = folder
        self.pid_file = folder / "redis.pid"
        self.url = f"unix://{folder}/redis.sock"
        lines = {
            "port": "0",
            "unixsocket": f"{folder}/redis.sock",
            "dir": str(folder),
            "save": '""',
            "daemonize": "yes",
            "pidfile": str(self.pid_file),
            "logfile": f"{folder}/redis.log",
            **config,
        }
        conf = folder / "redis.conf"
        conf.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        manifest = folder / "appendonlydir" / "appendonly.aof.manifest"
        self._script = folder / "again.sh"
        self._script.write_text(
            f"kill -9 $(cat {self.pid_file}) && rm {self.pid_file}\n"
            # Half a change may be at the end of the file, as the documentation says.
            f"[ ! -e {manifest} ] || yes | redis-check-aof --fix {manifest}\n"
            f"redis-server {conf}\n"
            f"until [ -e {self.pid_file} ]; do sleep 0.02; done\n"
        )
        subprocess.run(["redis-server", conf], check=True)
        until(lambda: self._answers())
        self.fault = f"sh {self._script}"

    def _answers(self) -> bool:
        try:
            with redis.Redis(unix_socket_path=f"{self.folder}/redis.sock") as client:
                return bool(client.ping()) and self.pid_file.exists()
        except redis.ConnectionError:
            return False

    def stop(self) -> None:
        if self.pid_file.exists():
            os.kill(int(self.pid_file.read_text()), signal.SIGKILL)


@pytest.fixture
def killed_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., KilledRedis]]:
    """Provide a function that starts such a server."""
    servers: list[KilledRedis] = []

    def start(**config: str) -> KilledRedis:
        servers.append(KilledRedis(tmp_path_factory.mktemp("redis"), **config))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


ONE_FAULT = ("--kills", "2", "--kill-every", "500ms", "--every", "1500ms")


@pytest.mark.full
@pytest.mark.process
def test_a_store_that_keeps_everything_survives_its_kills(
    killed_redis: Callable[..., KilledRedis], folder: Path
) -> None:
    server = killed_redis(appendonly="yes", appendfsync="always")
    done = run_prove(folder, server.url, *ONE_FAULT, "--fault", server.fault, "--json")
    facts = facts_of(done)
    assert done.returncode == 0, facts["violations"]
    assert facts["faults"] >= 1
    assert is_clean(folder, server.url)


@pytest.mark.process
def test_a_store_that_forgets_is_found_out(
    killed_redis: Callable[..., KilledRedis], folder: Path
) -> None:
    """Without an append-only file, a server that is killed loses what it has confirmed."""
    server = killed_redis()
    pending = ("--pending", "500")  # lost for certain, whatever the processes are at
    done = run_prove(folder, server.url, *ONE_FAULT, *pending, "--fault", server.fault, "--json")
    facts = facts_of(done)
    assert done.returncode == 1
    assert not facts["proved"]
    assert facts["lost"] >= 400
    violations = facts["violations"]
    told = next(violation for violation in violations if violation["kind"] == "lost")
    assert told["id"] in told["what"]
    assert any("tries to put it" in line for line in told["story"])
    assert any("the fault was run" in line for line in told["story"])
    assert any("appendonly no" in finding["what"] for finding in facts["settings"])
    kept = Path(done.stderr.split("the journals are in ")[1].strip())
    assert kept.parent == folder
    assert not check(journals_in(kept)), "the journals that were kept tell the same"
    assert bide.queues(server.url) == {}


@pytest.mark.process
@pytest.mark.full
def test_a_store_that_evicts_is_found_out(
    killed_redis: Callable[..., KilledRedis], folder: Path
) -> None:
    server = killed_redis(**{"maxmemory": "6mb", "maxmemory-policy": "allkeys-random"})
    arguments = ("--kills", "3", "--pending", "30k", "--json")
    done = run_prove(folder, server.url, *arguments)
    if done.returncode == 1:
        assert facts_of(done)["lost"] > 0
    else:  # what is evicted may also be what the engine cannot do without
        assert done.returncode == 3, done.stderr


@pytest.mark.process
@pytest.mark.full
def test_a_replica_that_lags_and_is_promoted_is_found_out(
    killed_redis: Callable[..., KilledRedis], folder: Path
) -> None:
    master, replica = killed_redis(appendonly="yes"), killed_redis(appendonly="yes")
    here = folder / "redis.sock"
    here.symlink_to(f"{master.folder}/redis.sock")
    to_replica = f"redis-cli -s {replica.folder}/redis.sock"
    script = folder / "promote.sh"
    script.write_text(
        "set -e\n"
        f"if [ -e {folder}/promoted ]; then exit 0; fi\n"
        # It copies nothing more, and what is confirmed for a second is lost.
        f"{to_replica} replicaof 127.0.0.1 1\n"
        "sleep 1\n"
        f"kill -9 $(cat {master.pid_file}) && rm {master.pid_file}\n"
        f"{to_replica} replicaof no one\n"
        f"ln -sf {replica.folder}/redis.sock {here}\n"
        f"touch {folder}/promoted\n"
    )
    port = free_port()
    with redis.Redis(unix_socket_path=f"{master.folder}/redis.sock") as client:
        client.config_set("port", port)
    with redis.Redis(unix_socket_path=f"{replica.folder}/redis.sock") as client:
        client.replicaof("127.0.0.1", port)
        until(lambda: client.info("replication")["master_link_status"] == "up")
    done = run_prove(folder, f"unix://{here}", *ONE_FAULT, "--fault", f"sh {script}", "--json")
    facts = facts_of(done)
    assert done.returncode == 1
    assert facts["lost"] > 0
    assert any("wait_replicas" in finding["fix"] for finding in facts["settings"])


@pytest.mark.process
@pytest.mark.full
def test_a_short_failover_timeout_is_named_beside_the_result(folder: Path) -> None:
    """It takes two failovers in quick succession to lose something by it."""
    (folder / "group").mkdir()
    group = SentinelGroup(
        folder / "group", sentinel_config=f"sentinel failover-timeout {NAME} 3000"
    )
    try:
        url = f"{group.url}?wait_replicas=1"
        done = run_prove(folder, url, "--kills", "2", "--kill-every", "200ms", "--json")
    finally:
        group.stop()
    facts = facts_of(done)
    assert done.returncode == 0, facts["violations"]
    assert any("failover-timeout" in finding["what"] for finding in facts["settings"])


CLOCK = """
import time
from pathlib import Path

AHEAD = Path({path!r})
real = time.time_ns


def ahead():
    return int(AHEAD.read_text())


time.time_ns = lambda: real() + ahead() * 1_000_000_000
time.time = lambda: real() / 1e9 + ahead()
"""
"""A module that each Python process of a server imports when it starts: its clock can be set."""


@pytest.mark.process
@pytest.mark.full
def test_a_clock_that_is_set_back_is_found_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = folder / "ahead"
    ahead.write_text("0")
    (folder / "sitecustomize.py").write_text(CLOCK.format(path=str(ahead)))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with ServerProcess(folder, "--store", f"sqlite:///{folder}/bide.db") as server:
        monkeypatch.delenv("PYTHONPATH")
        back = f"echo -5 > {folder}/next && mv {folder}/next {ahead}"
        done = run_prove(folder, server.url, *ONE_FAULT, "--fault", back, "--json")
    facts = facts_of(done)
    assert done.returncode == 1
    assert facts["clock_set"] > 0, facts["violations"]
    assert facts["lost"] == 0
    assert any("was set back by" in violation["what"] for violation in facts["violations"])


@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing_behind(
    url: str, folder: Path, number: int, code: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "prove", "--for", "10m", "--fault", "sleep 600"],
        env={**os.environ, "TMPDIR": str(folder), "BIDE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until(lambda: len(list(folder.glob("bide-prove-*/w*.journal"))) >= 4)
    process.send_signal(number)
    output, errors = process.communicate(timeout=BOUND)
    assert (process.returncode, output, errors) == (code, b"", b"")
    assert is_clean(folder, url)


@pytest.mark.process
def test_processes_end_when_their_parent_is_killed(url: str, folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "prove", "--for", "10m"],
        env={**os.environ, "TMPDIR": str(folder), "BIDE_URL": url},
    )
    until(lambda: len(list(folder.glob("bide-prove-*/w*.journal"))) >= 4)
    process.kill()
    process.wait(BOUND)
    (kept,) = folder.glob("bide-prove-*")

    def has_ended() -> bool:
        journals = [journal for journal in journals_in(kept) if journal.name != "prove"]
        return all(list(journal)[-1].get("did") == "end" for journal in journals)

    until(has_ended)


def plan_of(url: str, **more: Any) -> ProvingPlan:
    plan = ProvingPlan(
        url=url,
        queue="prove-test",
        processes=2,
        seconds=None,
        kills=1,
        kill_every=0.1,
        pending=0,
        fault=None,
        every=0.1,
        seed=1,
    )
    return plan._replace(**more)


def no_warning(text: str) -> None:
    raise AssertionError(text)


def carry_out(plan: ProvingPlan, folder: Path) -> None:
    from bide.cli.output import Bar

    prove(plan, folder, Bar, no_warning)


def fail_at_once(*arguments: Any) -> None:
    """Be a process that fails."""
    raise ValueError("it went wrong")


@pytest.mark.process
def test_a_process_that_fails_ends_the_run(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.proving.crew.work", fail_at_once)
    with pytest.raises(ProvingStopped, match=r"w\d ended with exit code 1"):
        carry_out(plan_of(url), tmp_path)
    assert bide.queues(url) == {}


@pytest.mark.process
def test_a_fault_that_fails_ends_the_run(url: str, tmp_path: Path) -> None:
    with pytest.raises(ProvingStopped, match="the fault failed with exit code 3: no such server"):
        carry_out(plan_of(url, fault="echo no such server; exit 3", kills=1_000), tmp_path)
    assert bide.queues(url) == {}


def test_a_queue_of_that_name_is_left_alone(url: str, tmp_path: Path) -> None:
    with bide.Queue("prove-test", url) as queue:
        queue.put(1)
        with pytest.raises(ProvingStopped, match="there is a queue 'prove-test' already"):
            carry_out(plan_of(url), tmp_path)
        assert queue.counts().sizes.total == 1


def test_a_run_in_which_nothing_happens_proves_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProvingCrew, "start", lambda crew: None)
    monkeypatch.setattr(proving, "_attack", lambda *arguments: 1.0)
    with pytest.raises(ProvingStopped, match="no message was acked, so nothing is proved"):
        carry_out(plan_of(url, pending=1_500), tmp_path)
    assert bide.queues(url) == {}


def test_what_cannot_be_deleted_is_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(queue: bide.Queue) -> None:
        raise bide.StoreUnavailable("it is away")

    monkeypatch.setattr(proving, "remove", fail)
    monkeypatch.setattr(proving, "_attack", fail_at_once)
    warnings: list[str] = []
    from bide.cli.output import Bar

    with pytest.raises(ValueError, match="it went wrong"):
        prove(plan_of(url), tmp_path, Bar, warnings.append)
    (text,) = warnings
    assert text.startswith("the queue prove-test could not be deleted: it is away; purge")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("memory://",), 2, "no other process sees its messages"),
        (("--for", "10s", "--fault", "true", "--every", "10s"), 2, "must be shorter than --for"),
        (("--pending", "1G"), 2, "'1G' is not a number of messages"),
        (("nosuch://x",), 2, "names no store"),
    ],
)
def test_what_makes_no_sense_is_refused(
    run: Bide, arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = run("prove", *arguments)
    assert result.exit_code == code
    assert words in result.output


def test_numbers_of_messages() -> None:
    assert [read_count(text) for text in ("0", "12", "3k", "2M")] == [0, 12, 3_000, 2_000_000]


@pytest.mark.process
def test_a_pipe_gets_lines_and_a_terminal_a_table(
    shell: Shell, terminal: Terminal, folder: Path
) -> None:
    done = shell("bide prove --kills 1 --kill-every 100ms --processes 2", TMPDIR=str(folder))
    assert done.returncode == 0, done.stderr
    facts = dict(line.split("\t")[:2] for line in done.stdout.splitlines())
    assert facts["proved"] == "yes"
    assert int(facts["kills"]) >= 1
    seen, code = terminal(
        "prove",
        "--kills",
        "1",
        "--kill-every",
        "100ms",
        "--processes",
        "2",
        COLUMNS="80",
        TMPDIR=str(folder),
    )
    assert code == 0, seen
    assert "twice, unexplained" in seen
    assert "proved: nothing" in seen
